# SPDX-License-Identifier: Apache-2.0
"""P8: the CPU cost of a gigabyte from a peer, the cache and a file source.

Links are unshaped (loopback) and the reader goes through the image once in 1 MiB reads.  The
processor time is that of whole agents, including supervisors: of the reading one for the cache, of
both ends for the peer, where every chunk is fetched, checked and stored, in each mode of
``peer_security``.  Comparisons are the same image read from a file source, and plain Python that
moves, checks and stores the same bytes (:mod:`evaluation.bench.plain_sockets`), this machine's
minimum.  The modes take turns, and the least of ROUNDS turns counts: other load can only add.
"""

import contextlib
import itertools
import pathlib
import tempfile
from typing import Any

from matplotlib import figure

from acstor_common.model import geometry
from acstor_common.model import ids
from evaluation.bench import harness
from evaluation.bench import loopback
from tests.lab import agents
from tests.lab import local

IMAGE_BYTES = 256 * geometry.MIB
CACHE_BYTES = 2 * IMAGE_BYTES
CACHE_REPEATS = 4
ROUNDS = 6
MODES = ("insecure", "secure")


@harness.measures("P8")
def run(say: harness.Say) -> harness.Result:
    """Read one image from a source, a cache and a peer."""
    with tempfile.TemporaryDirectory(prefix="acstor-p8-") as name:
        folder = pathlib.Path(name)
        images = local.ImageFolder(folder / "images")
        say(f"making an image of {IMAGE_BYTES >> 20} MiB")
        image_id = images.add(local.random_bytes(IMAGE_BYTES))
        costs: dict[str, dict[str, Any]] = {}
        for turn, security in itertools.product(range(ROUNDS), MODES):
            played = play(folder / f"{security}-{turn}", images, image_id, security)
            if security == MODES[0]:
                played[loopback.PLAINLY] = loopback.plainly(folder, images, image_id)
            for way, figures in played.items():
                say(
                    f"{way}: {figures['cpu_s_per_gb']:.2f} CPU s/GB, {figures['gb_per_s']:.2f} GB/s"
                )
                costs[way] = min(figures, costs.get(way, figures), key=_price)
    ways = [*(f"peer, {security}" for security in reversed(MODES)), "cache", "source (file)"]
    values = tuple(costs[way]["cpu_s_per_gb"] for way in ways)
    return harness.Result({"P8": values}, costs, lambda picture: draw(picture, costs))


def play(
    folder: pathlib.Path, images: local.ImageFolder, image_id: ids.ImageId, security: str
) -> dict[str, dict[str, Any]]:
    """Let two new agents exchange the image in one mode; return each way's cost."""
    hosts = {"h1": loopback.HOME_VNODES, "h2": 1}
    cloud = loopback.Cloud(folder, images, hosts, security, CACHE_BYTES)
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(cloud.running(host)) for host in hosts)
        for agent in (first, second):
            loopback.attach(agent, image_id)

        def cost(
            reader: agents.Agent, payers: list[agents.Agent], repeats: int = 1
        ) -> loopback.Figures:
            return loopback.cost(reader, image_id, IMAGE_BYTES, payers, repeats)

        costs = {
            "source (file)": cost(first, [first]),
            "cache": cost(first, [first], CACHE_REPEATS),
            f"peer, {security}": cost(second, [first, second]),
        }
        loopback.peers_share(second, IMAGE_BYTES, least=0.99)
    return costs


def _price(figures: dict[str, Any]) -> float:
    price: float = figures["cpu_s_per_gb"]
    return price


def draw(picture: figure.Figure, costs: dict[str, dict[str, Any]]) -> None:
    """Draw the costs."""
    axes = picture.subplots()
    bars = axes.bar(list(costs), [figures["cpu_s_per_gb"] for figures in costs.values()])
    axes.bar_label(bars, fmt="%.2f")
    axes.set(title="Processor time of whole agents", ylabel="CPU seconds per GB")
