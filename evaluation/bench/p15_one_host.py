# SPDX-License-Identifier: Apache-2.0
"""P15: the rate of reading an image from one peer, four and sixteen.

Links are unshaped (loopback), and the reader is as in P8: a cold agent, sequential reads of 1 MiB
with O_DIRECT; every chunk is fetched, checked and stored.  Peers cache only the chunks of which
they are the home.  Comparisons, in turns: the same bytes by plain Python
(:mod:`evaluation.bench.plain_sockets`), this machine's limit, and the other modes of
``peer_security``.  The fastest of ROUNDS turns counts, with the processor time of that turn, both
ends together: other load can only slow a turn down.

A busy peer responds more slowly than the source, a file of this machine, and a guest's read then
tries the source first (``source_first``): each turn reports the share from peers.

ACSTOR_BENCH_P15_MIB sets the length of the image, for a trial.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from matplotlib import figure

from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.ring import hash_ring
from evaluation.bench import harness
from evaluation.bench import loopback
from tests.lab import agents
from tests.lab import local

IMAGE_BYTES = int(os.environ.get("ACSTOR_BENCH_P15_MIB", "1024")) * geometry.MIB
CACHE_BYTES = 2 * IMAGE_BYTES + 256 * geometry.MIB
PEERS = (1, 4, 16)
ROUNDS = 3
MODES = ("secure", "insecure")


@harness.measures("P15")
def run(say: harness.Say) -> harness.Result:
    """Read one image from one peer, four and sixteen, by agents and by plain Python."""
    best: dict[str, dict[str, loopback.Figures]] = {}
    with tempfile.TemporaryDirectory(prefix="acstor-p15-") as name:
        folder = pathlib.Path(name)
        images = local.ImageFolder(folder / "images")
        say(f"making an image of {IMAGE_BYTES >> 20} MiB")
        image_id = images.add(local.random_bytes(IMAGE_BYTES))
        for security in MODES:
            for peers in PEERS:
                play = Play(folder / f"{security}-{peers}", images, image_id, peers, security)
                for way, figures in play.turns(ROUNDS):
                    say(f"{words(peers)}, {way}: {describe(figures)}")
                    ways = best.setdefault(words(peers), {})
                    ways[way] = max(figures, ways.get(way, figures), key=_rate)
    rates = tuple(_rate(best[words(peers)][mode]) for mode in MODES for peers in PEERS)
    details: dict[str, Any] = {
        "ways": best,
        "of_floor": {
            peers: _rate(ways[MODES[0]]) / _rate(ways[loopback.PLAINLY])
            for peers, ways in best.items()
        },
    }
    return harness.Result({"P15": rates}, details, lambda picture: draw(picture, best))


def words(peers: int) -> str:
    """Return the number of peers in words.

    >>> words(1), words(4)
    ('1 peer', '4 peers')
    """
    return f"{peers} peer" if peers == 1 else f"{peers} peers"


def describe(figures: loopback.Figures) -> str:
    """Return a turn's measurements in words, with origins for an agent's turn.

    >>> describe({"gb_per_s": 0.18, "cpu_s_per_gb": 9.3, "peers_share": 0.742, "source_first": 21})
    '0.18 GB/s, 9.30 CPU s/GB, 74 % from peers, 21 reads went to the source first: it was faster'
    """
    words = f"{figures['gb_per_s']:.2f} GB/s, {figures['cpu_s_per_gb']:.2f} CPU s/GB"
    if "peers_share" in figures:
        words += f", {figures['peers_share']:.0%} from peers".replace("%", " %")
    if reads := figures.get("source_first"):
        words += f", {reads} reads went to the source first: it was faster"
    return words


class Play:
    """Turns of one mode with a number of peers, whose caches are warm."""

    def __init__(
        self,
        folder: pathlib.Path,
        images: local.ImageFolder,
        image_id: ids.ImageId,
        peers: int,
        security: str,
    ) -> None:
        self._folder, self._images, self._image_id = folder, images, image_id
        self._security, self._peers = security, peers
        self._senders = [f"giver{number}" for number in range(1, peers + 1)]

    def turns(self, rounds: int) -> list[tuple[str, loopback.Figures]]:
        """Return the measurements of each turn, by agents and by plain Python.

        :raises harness.CannotRun: bytes did not arrive
        """
        image_map = self._images.map_of(self._image_id)
        vnodes = {**dict.fromkeys(self._senders, loopback.HOME_VNODES), "reader": 1}
        cloud = loopback.Cloud(self._folder, self._images, vnodes, self._security, CACHE_BYTES)
        found = []
        with contextlib.ExitStack() as stack:
            senders = [stack.enter_context(cloud.running(name)) for name in self._senders]
            for agent in senders:
                loopback.attach(agent, self._image_id)
            homes = shares(image_map, cloud.ring, self._senders)
            wanted = [spans(numbers, image_map.geometry) for numbers in homes]
            warm(senders, self._image_id, wanted)
            for turn in range(rounds):
                with cloud.running("reader", life=f"-{turn}") as reader:
                    loopback.attach(reader, self._image_id)
                    found.append((self._security, self._by_agents(reader, senders)))
                plain = loopback.plainly(self._folder, self._images, self._image_id, self._peers)
                found.append((loopback.PLAINLY, plain))
        return found

    def _by_agents(self, reader: agents.Agent, senders: Sequence[agents.Agent]) -> loopback.Figures:
        length = self._images.path(self._image_id).stat().st_size
        figures = loopback.cost(reader, self._image_id, length, [reader, *senders])
        return {
            **figures,
            "peers_share": loopback.peers_share(reader, length),
            "source_first": reader.status()["exchange"]["source_preferred_reads"],
        }


def shares(
    image_map: chunk_map.ChunkMap, table: hash_ring.Ring, hosts: Sequence[str]
) -> list[list[int]]:
    """Return the chunk numbers that have each of these hosts as home."""
    found: dict[str | None, list[int]] = {name: [] for name in hosts}
    cids = image_map.cids_between(0, len(image_map))
    names = segments.names(cids, [*map(ids.oid_of, cids)], table.segment_chunks)
    for number, name in enumerate(names):
        home = table.home_at(name)
        if home in found:
            found[home].append(number)
    return [found[name] for name in hosts]


def spans(numbers: Sequence[int], cut: geometry.Geometry) -> list[tuple[int, int]]:
    """Return the reads for chunks; consecutive chunks share a read."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        start, length = cut.chunk_offset(number), cut.chunk_length(number)
        last_start, last_length = found[-1] if found else (0, 0)
        together = last_length + length
        if last_start + last_length == start and found and together <= loopback.READ_BYTES:
            found[-1] = last_start, together
        else:
            found.append((start, length))
    return found


def warm(
    senders: Sequence[agents.Agent], image_id: ids.ImageId, wanted: Sequence[list[tuple[int, int]]]
) -> None:
    """Let all peers read and store their shares in parallel.

    :raises harness.CannotRun: one could not
    """
    with (
        loopback.bounded(senders),
        concurrent.futures.ThreadPoolExecutor(len(senders)) as readers,
    ):
        paths = [sender.image_path(image_id) for sender in senders]
        for _ in readers.map(loopback.read, paths, wanted):
            pass
    for sender in senders:
        loopback.settle(sender)


def _rate(figures: loopback.Figures) -> float:
    rate: float = figures["gb_per_s"]
    return rate


def draw(picture: figure.Figure, best: dict[str, dict[str, loopback.Figures]]) -> None:
    """Draw rates and CPU time of each way, with one peer and with more."""
    panels = {"gb_per_s": "GB/s", "cpu_s_per_gb": "CPU seconds per GB, both ends"}
    for axes, (key, label) in zip(picture.subplots(1, 2), panels.items(), strict=True):
        for number, (peers, ways) in enumerate(best.items()):
            at = [place + 0.4 * number for place in range(len(ways))]
            bars = axes.bar(at, [ways[way][key] for way in ways], 0.4, label=peers)
            axes.bar_label(bars, fmt="%.2f")
            axes.set_xticks([place - 0.2 for place in at], list(ways), rotation=20)
        axes.set(ylabel=label)
        axes.legend()
    picture.axes[0].axhline(harness.bounds("P15")[0], color="tab:red", linestyle="--")
    picture.suptitle(f"One host reads {IMAGE_BYTES >> 20} MiB")
