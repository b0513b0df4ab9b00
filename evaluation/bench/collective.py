# SPDX-License-Identifier: Apache-2.0
"""A cloud of the lab whose hosts read at once: what P1 to P4, P11 and P13 share.

The rule: every byte that a host reads is compared with the image, so a figure
can never come from wrong answers; and what the source has sent is what the image
server logged, not what agents say.
"""

import contextlib
import dataclasses
import functools
import mmap
import os
import pathlib
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from acstor_common import errors
from acstor_common.model import ids
from acstor_decision.core import segment_length
from evaluation.bench import harness
from tests.lab import agents
from tests.lab import image_server
from tests.lab import local
from tests.lab import network
from tests.lab import runs

READ_BYTES = 1 << 20
SETTLE_DEADLINE_S = 30.0
LISTEN_DEADLINE_S = 20.0
REMOTE_ORIGINS = ("source", "home", "peer")


@dataclasses.dataclass(frozen=True)
class Reading:
    """What one host reads: ranges of one image, in their order, from some time on.

    :param spans: (offset, length) in bytes; no byte twice
    :param image_no: which of the cloud's images
    :param delay_s: how long after the common start
    """

    spans: tuple[tuple[int, int], ...]
    image_no: int = 0
    delay_s: float = 0.0

    @property
    def length(self) -> int:
        """Bytes that are read."""
        return sum(length for _, length in self.spans)


@dataclasses.dataclass(frozen=True)
class Seen:
    """How one host's reading went; times are seconds after the common start."""

    began_s: float
    ended_s: float
    length: int

    @property
    def took_s(self) -> float:
        """How long the host read."""
        return self.ended_s - self.began_s


class Images:
    """The images of a benchmark: written and pre-hashed once, served in each of its labs."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.files = local.ImageFolder(folder)
        self.ids: list[ids.ImageId] = []

    def add(self, data: bytes) -> None:
        """Add an image; its number is that of images before it."""
        self.ids.append(self.files.add(data))

    def path(self, image_no: int) -> pathlib.Path:
        """Return where an image's bytes lie."""
        return self.files.path(self.ids[image_no])

    def data(self, image_no: int) -> mmap.mmap:
        """Return an image's bytes."""
        with self.path(image_no).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


@contextlib.contextmanager
def images(*all_data: bytes) -> Iterator[Images]:
    """Keep images in a folder of their own until the block ends."""
    with tempfile.TemporaryDirectory(prefix="acstor-bench-") as folder:
        kept = Images(pathlib.Path(folder) / "images")
        for data in all_data:
            kept.add(data)
        yield kept


class Cloud:
    """Hosts with agents, and an image server, joined by links of one rate.

    :param hosts: how many; they are called by their number, from 0
    :param link_mbit: rate of every link, the image server's as well; it gives the segment length
    :param groups: hosts that share a ring; a host in no group works alone
    :param without_agent: hosts on whose place on the ring no agent of ours runs
    """

    def __init__(
        self,
        hosts: int,
        link_mbit: float,
        images: Images,
        groups: Sequence[Collection[int]] = (),
        without_agent: Collection[int] = (),
    ) -> None:
        self.network = network.Network(hosts, link_mbit, link_mbit)
        self.agents: dict[int, agents.Agent] = {}
        self.images = images
        self._groups = groups
        self._without_agent = without_agent
        self._segment_chunks = segment_length.chunks_for([int(link_mbit * 1e6 / 8)])

    @contextlib.contextmanager
    def running(self, **options: object) -> Iterator["Cloud"]:
        """Start everything; caches are empty, no image is attached.

        :param options: options of [acstor_agent]
        """
        with contextlib.ExitStack() as stack:
            net = stack.enter_context(self.network)
            root = self.images.files.folder
            self.server = stack.enter_context(image_server.ImageServer(net.source, root))
            rings, urls = self._write_rings(net), self._source_urls(net, stack)
            self.agents = {
                number: stack.enter_context(
                    agents.Agent(host, urls[number], rings.get(number), **options)
                )
                for number, host in enumerate(net.hosts)
                if number not in self._without_agent
            }
            for agent in self.agents.values():
                agent.wait_ready()
            self.mark()
            yield self
            agents.ask_to_end(self.agents.values())

    def _source_urls(self, net: network.Network, stack: contextlib.ExitStack) -> list[str]:
        """Return where each host reads images; a cloud may start other servers here."""
        return [self.server.url] * len(net.hosts)

    def _write_rings(self, net: network.Network) -> dict[int, pathlib.Path]:
        rings = {}
        for group_no, group in enumerate(self._groups):
            path = net.run.folder / f"ring-{group_no}.json"
            members = [net.hosts[number] for number in sorted(group)]
            agents.write_ring(members, path, segment_chunks=self._segment_chunks)
            rings.update(dict.fromkeys(group, path))
        return rings

    def attach(self, readings: Mapping[int, Reading]) -> None:
        """Attach the images that are going to be read."""
        for number, reading in readings.items():
            os.stat(self._path(number, reading))

    def _path(self, number: int, reading: Reading) -> pathlib.Path:
        return self.agents[number].image_path(self.images.ids[reading.image_no])

    def mark(self) -> None:
        """Count what the source sends from now on."""
        self._requests_before = len(list(self.server.requests()))

    def source_bytes(self) -> int:
        """Return the bytes that the server has sent since the mark, as it logged."""
        later = list(self.server.requests())[self._requests_before :]
        return sum(request.body_bytes_sent for request in later)

    def read(self, readings: Mapping[int, Reading], is_direct: bool = False) -> dict[int, Seen]:
        """Have hosts read, each in a thread, all from one start on; return how it went.

        :param is_direct: past the kernel's page cache, as QEMU with cache=none does; spans must
            then be multiples of 4 KiB
        :raises harness.CannotRun: a host read something else than the image has, or failed
        """
        began_s: dict[int, float] = {}

        def read(number: int, reading: Reading) -> list[str]:
            start_s = time.monotonic()
            time.sleep(reading.delay_s)
            began_s[number] = time.monotonic() - start_s
            data = self.images.data(reading.image_no)
            wrong = compare(self._path(number, reading), data, reading, is_direct)
            return [f"read wrong bytes at {offset}" for offset in wrong]

        took_s = run_together(
            {number: functools.partial(read, number, one) for number, one in readings.items()}
        )
        return {
            number: Seen(began_s[number], ended_s, readings[number].length)
            for number, ended_s in took_s.items()
        }

    def settle(self) -> None:
        """Wait until no chunk is on its way: what comes late has been moved as well."""
        end = time.monotonic() + SETTLE_DEADLINE_S
        while time.monotonic() < end:
            if not any(status["exchange"]["chunks_in_flight"] for status in self.status()):
                return
            time.sleep(0.2)

    def status(self) -> list[dict[str, Any]]:
        """Return what each agent says of itself."""
        return [agent.status() for agent in self.agents.values()]

    def cpu_seconds(self) -> float:
        """Return the processor time that the agents have used so far, all together."""
        return sum(harness.cpu_seconds(agent.pid) for agent in self.agents.values())


def run_together(work: Mapping[int, Callable[[], Iterable[str]]]) -> dict[int, float]:
    """Run each host's work in a thread, all from one start on; return how long each took, in s.

    :param work: returns what went wrong
    :raises harness.CannotRun: something did, or work failed
    """
    barrier = threading.Barrier(len(work))
    took_s: dict[int, float] = {}
    faults: list[str] = []

    def run(number: int, one: Callable[[], Iterable[str]]) -> None:
        barrier.wait()
        began_s = time.monotonic()
        try:
            faults.extend(f"host {number} {fault}" for fault in one())
        except (errors.Unusable, OSError) as e:
            faults.append(f"host {number}: {e}")
        took_s[number] = time.monotonic() - began_s

    threads = [threading.Thread(target=run, args=item) for item in work.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise harness.CannotRun("; ".join(faults[:5]))
    return dict(sorted(took_s.items()))


def pieces(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Cut ranges into reads of at most READ_BYTES.

    >>> list(pieces([(0, READ_BYTES + 1), (9, 3)]))
    [(0, 1048576), (1048576, 1), (9, 3)]
    """
    for start, length in spans:
        for offset in range(start, start + length, READ_BYTES):
            yield offset, min(READ_BYTES, start + length - offset)


def compare(
    path: pathlib.Path, data: bytes | mmap.mmap, reading: Reading, is_direct: bool
) -> list[int]:
    """Read a file; return the offsets at which it has other bytes than ``data``."""
    buffer = mmap.mmap(-1, READ_BYTES)  # O_DIRECT wants it aligned
    fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if is_direct else 0))
    try:
        wrong = []
        for offset, length in pieces(reading.spans):
            count = os.preadv(fd, [memoryview(buffer)[:length]], offset)
            if buffer[:count] != data[offset : offset + length]:
                wrong.append(offset)
        return wrong
    finally:
        os.close(fd)


def wait_listening(host: network.Host, port: int) -> None:
    """Wait until something on ``host`` listens on a TCP port."""

    def is_listening() -> bool:
        return f":{port} " in host.run(["ss", "-Hltn"])

    runs.wait_for(is_listening, LISTEN_DEADLINE_S, f"port {port} of {host.name}", str)


def moved_bytes(status: Mapping[str, Any]) -> dict[str, int]:
    """Return what an agent has moved to its host for the host itself, by origin.

    What it read from the source or a cache for other hosts is not in it.
    """
    return {origin: status["fetched"][origin]["bytes"] for origin in REMOTE_ORIGINS}


def received_bytes(statuses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return what the mean host received, by origin: for itself, and as a home for others."""
    moved = [moved_bytes(status) for status in statuses]
    from_source = [status["exchange"]["source_bytes"] for status in statuses]
    by_peers = {
        origin: statistics.mean(host[origin] for host in moved) for origin in ("home", "peer")
    }
    return {"source": statistics.mean(from_source), **by_peers}


def unread_bytes(status: Mapping[str, Any], read_bytes: int) -> int:
    """Return what was moved to a host for itself and was not read there, in bytes.

    ``read_bytes`` are the different bytes that the host's reader read.  Some of them may have been
    here already without being moved for this host: as the chunk's home it had read them for
    another one.  So this is a lower bound; it is exact where no two hosts want the same chunk.
    """
    return max(0, sum(moved_bytes(status).values()) - read_bytes)
