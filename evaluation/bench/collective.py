# SPDX-License-Identifier: Apache-2.0
"""A lab cloud whose hosts read concurrently, for P1 to P4, P11 and P13.

Each read byte is compared with the image, so wrong data cannot improve a figure.  The source's
bytes are those of the image server's log, not of agents' counters.
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
    """One host's reads: ranges of one image, in order, after a delay.

    :param spans: (offset, length) in bytes, without overlaps
    :param image_no: index of the cloud's image
    :param delay_s: after the common start
    """

    spans: tuple[tuple[int, int], ...]
    image_no: int = 0
    delay_s: float = 0.0

    @property
    def length(self) -> int:
        """The number of bytes to read."""
        return sum(length for _, length in self.spans)


@dataclasses.dataclass(frozen=True)
class Seen:
    """One host's measurements; times are seconds after the common start."""

    began_s: float
    ended_s: float
    length: int

    @property
    def took_s(self) -> float:
        """Duration of the host's reads."""
        return self.ended_s - self.began_s


class Images:
    """The images of a benchmark: written and pre-hashed once, served in each lab."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.files = local.ImageFolder(folder)
        self.ids: list[ids.ImageId] = []

    def add(self, data: bytes) -> None:
        """Append an image."""
        self.ids.append(self.files.add(data))

    def path(self, image_no: int) -> pathlib.Path:
        """Return the path of an image."""
        return self.files.path(self.ids[image_no])

    def data(self, image_no: int) -> mmap.mmap:
        """Return an image's bytes."""
        with self.path(image_no).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


@contextlib.contextmanager
def images(*all_data: bytes) -> Iterator[Images]:
    """Write images to a temporary folder for the block."""
    with tempfile.TemporaryDirectory(prefix="acstor-bench-") as folder:
        kept = Images(pathlib.Path(folder) / "images")
        for data in all_data:
            kept.add(data)
        yield kept


class Cloud:
    """Hosts with agents, and an image server, on links of one rate.

    :param hosts: their number; hosts are numbered from 0
    :param link_mbit: rate of all links, including the image server's; sets the segment length
    :param groups: hosts that share a ring; a host in no group has no peers
    :param without_agent: hosts on the ring without an agent of the lab
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
        """Start everything, with empty caches and no attached image.

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
        """Return the source URL of each host; a subclass may start other servers."""
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
        """Attach the images of readings."""
        for number, reading in readings.items():
            os.stat(self._path(number, reading))

    def _path(self, number: int, reading: Reading) -> pathlib.Path:
        return self.agents[number].image_path(self.images.ids[reading.image_no])

    def mark(self) -> None:
        """Reset the counter of the source's bytes."""
        self._requests_before = len(list(self.server.requests()))

    def source_bytes(self) -> int:
        """Return the bytes in the server's log since the mark."""
        later = list(self.server.requests())[self._requests_before :]
        return sum(request.body_bytes_sent for request in later)

    def read(self, readings: Mapping[int, Reading], is_direct: bool = False) -> dict[int, Seen]:
        """Let hosts read in parallel; return their measurements.

        :param is_direct: O_DIRECT, as QEMU with cache=none; spans must then be multiples of 4 KiB
        :raises harness.CannotRun: a host read wrong bytes, or failed
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
        """Wait until no chunk transfer is in flight."""
        end = time.monotonic() + SETTLE_DEADLINE_S
        while time.monotonic() < end:
            if not any(status["exchange"]["chunks_in_flight"] for status in self.status()):
                return
            time.sleep(0.2)

    def status(self) -> list[dict[str, Any]]:
        """Return the status of each agent."""
        return [agent.status() for agent in self.agents.values()]

    def cpu_seconds(self) -> float:
        """Return the processor time of all agents so far."""
        return sum(harness.cpu_seconds(agent.pid) for agent in self.agents.values())


def run_together(work: Mapping[int, Callable[[], Iterable[str]]]) -> dict[int, float]:
    """Run each host's work in a thread, from a common start; return durations in s.

    :param work: returns an error, "" if there is none
    :raises harness.CannotRun: there was an error, or work raised
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
    """Split ranges into reads of at most READ_BYTES.

    >>> list(pieces([(0, READ_BYTES + 1), (9, 3)]))
    [(0, 1048576), (1048576, 1), (9, 3)]
    """
    for start, length in spans:
        for offset in range(start, start + length, READ_BYTES):
            yield offset, min(READ_BYTES, start + length - offset)


def compare(
    path: pathlib.Path, data: bytes | mmap.mmap, reading: Reading, is_direct: bool
) -> list[int]:
    """Read a file; return the offsets where it differs from ``data``."""
    buffer = mmap.mmap(-1, READ_BYTES)  # O_DIRECT needs alignment
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
    """Wait until a TCP port on ``host`` is listening."""

    def is_listening() -> bool:
        return f":{port} " in host.run(["ss", "-Hltn"])

    runs.wait_for(is_listening, LISTEN_DEADLINE_S, f"port {port} of {host.name}", str)


def moved_bytes(status: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes an agent fetched for its own host, by origin.

    Its reads from the source or a cache for other hosts are not included.
    """
    return {origin: status["fetched"][origin]["bytes"] for origin in REMOTE_ORIGINS}


def received_bytes(statuses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean bytes received per host, by origin, for itself or as a home."""
    moved = [moved_bytes(status) for status in statuses]
    from_source = [status["exchange"]["source_bytes"] for status in statuses]
    by_peers = {
        origin: statistics.mean(host[origin] for host in moved) for origin in ("home", "peer")
    }
    return {"source": statistics.mean(from_source), **by_peers}


def unread_bytes(status: Mapping[str, Any], read_bytes: int) -> int:
    """Return the bytes fetched for a host and not read there.

    ``read_bytes`` is the number of distinct bytes that the host's reader read.  Some of them may
    have been cached without a fetch for this host: as the chunk's home, it read them for another
    host.  So this is a lower bound, exact if no two hosts read the same chunk.
    """
    return max(0, sum(moved_bytes(status).values()) - read_bytes)
