# SPDX-License-Identifier: Apache-2.0
"""A guest's reads, recorded once and replayed on several hosts.

Several emulated guests would measure the processor.  So each host repeats the reads of one real
boot, up to the end of the program, with the same pauses: a read starts as long after all that had
ended before it as it did in the guest.  Each read is compared with the image.
"""

import contextlib
import dataclasses
import datetime
import heapq
import itertools
import json
import mmap
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
from typing import NamedTuple

from acstor_checkpoint.capture import nbd_client
from acstor_common.util import atomic_file
from evaluation.bench import harness
from evaluation.bench import peer_boots
from evaluation.bench import peer_plan
from evaluation.bench import peer_ways
from tests.lab import guest
from tests.lab import network
from tests.lab import runs

DEPTH = 16
TIMEOUT_S = 600.0
_LINE = re.compile(
    r"(?P<when>\S+ \S+) connection=\d+ (?:\.\.\.)?Read id=(?P<id>\d+) "
    r"(?:offset=(?P<offset>0x[0-9a-f]+) count=(?P<count>0x[0-9a-f]+)|return=)"
)

Reader = Callable[[int, int], bytes]
"""Returns the bytes at an offset, of a length."""


class Read(NamedTuple):
    """A read of the guest, in seconds after the first."""

    start_s: float
    end_s: float
    offset: int
    length: int


@dataclasses.dataclass
class Replay:
    """The measurements of one replay; ``host_s`` counts from the request for the image."""

    host_s: list[float]
    read_bytes: int
    link_bytes: int
    source_bytes: int
    cpu_s: float
    memory_mib: float

    @property
    def done_s(self) -> float:
        """When the slowest host has read all."""
        return max(self.host_s)


def recorded(made: peer_ways.Prepared, path: pathlib.Path) -> list[Read]:
    """Return the reads in a file; record them first if they are of another image."""
    stored_bytes = (made.folder / made.file_name).stat().st_size
    if path.exists():
        former = json.loads(path.read_text())
        if former["stored_bytes"] == stored_bytes:
            return [Read(*read) for read in former["reads"]]
    reads = record(made.raw)
    with atomic_file.atomic_write(path) as file:
        file.write(json.dumps({"stored_bytes": stored_bytes, "reads": reads}).encode())
    return reads


def record(raw: pathlib.Path) -> list[Read]:
    """Boot a guest from a raw file until it has run the program; return its reads."""
    with network.Network(1) as net, peer_ways.serve_by_nbdkit(net.hosts[0]) as serve:
        log = net.hosts[0].folder / "reads.log"
        where = serve("log", ["file", str(raw), f"logfile={log}"])
        disk = peer_boots.make_disk(net.hosts[0], peer_ways.Backing(where, "raw"))
        options = {"cache": "writeback", "memory_mib": peer_boots.MEMORY_MIB}
        with guest.Guest(net.hosts[0], disk, **options) as booted:  # type: ignore[arg-type]
            peer_boots.wait_login(booted)
            peer_boots.wait_service(booted)
            peer_boots.run_program(booted)
        return parse(log.read_text())


def parse(log: str) -> list[Read]:
    """Return the finished reads in a log of nbdkit's filter ``log``, by their start."""
    began: dict[str, tuple[float, int, int]] = {}
    found: list[Read] = []
    for match in _LINE.finditer(log):
        at_s = datetime.datetime.fromisoformat(match["when"]).timestamp()
        if match["offset"]:
            began[match["id"]] = (at_s, int(match["offset"], 16), int(match["count"], 16))
        elif match["id"] in began:
            start_s, offset, length = began.pop(match["id"])
            found.append(Read(start_s, at_s, offset, length))
    first_s = min((read.start_s for read in found), default=0.0)
    return sorted(
        read._replace(start_s=read.start_s - first_s, end_s=read.end_s - first_s) for read in found
    )


def replay(reads: Sequence[Read], do_read: Callable[[Read], object]) -> None:
    """Repeat reads with their pauses and their concurrency."""

    def timed(read: Read) -> float:
        do_read(read)
        return time.monotonic()

    recorded_s, ended_s, numbers = 0.0, time.monotonic(), itertools.count()
    pending: list[tuple[float, int, futures.Future[float]]] = []
    with futures.ThreadPoolExecutor(DEPTH) as pool:
        for read in reads:
            while pending and pending[0][0] <= read.start_s:
                end_s, _, done = heapq.heappop(pending)
                recorded_s, ended_s = max(recorded_s, end_s), max(ended_s, done.result())
            time.sleep(max(0.0, ended_s + read.start_s - recorded_s - time.monotonic()))
            heapq.heappush(pending, (read.end_s, next(numbers), pool.submit(timed, read)))
        for _, _, done in pending:
            done.result()


def measure(
    made: peer_ways.Prepared, cell: peer_plan.Cell, way: str, reads: Sequence[Read]
) -> Replay:
    """Replay a guest's reads on all hosts of a cell at once."""
    with (
        made.raw.open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content,
        peer_boots.Cloud(made, cell, way) as cloud,
        futures.ThreadPoolExecutor(cell.hosts) as pool,
    ):
        pairs = zip(cloud.net.hosts, cloud.clients, strict=True)
        running = [pool.submit(_on_host, host, one, reads, content) for host, one in pairs]
        return Replay(
            [one.result() for one in running],
            cell.hosts * sum(read.length for read in reads),
            cloud.link_bytes(),
            cloud.source_bytes(),
            cloud.cpu_s(),
            cloud.memory_mib(),
        )


def _on_host(
    host: network.Host, client: peer_ways.Client, reads: Sequence[Read], content: mmap.mmap
) -> float:
    """Request the image on a host and replay its guest's reads; return the seconds."""
    began_s = time.monotonic()
    with opened(host, client.request()) as reader:

        def check(read: Read) -> None:
            if reader(read.offset, read.length) != content[read.offset : read.offset + read.length]:
                raise harness.CannotRun(f"wrong bytes at {read.offset}")

        replay(reads, check)
        return time.monotonic() - began_s


@contextlib.contextmanager
def opened(host: network.Host, backing: peer_ways.Backing) -> Iterator[Reader]:
    """Yield a reader of a backing file, which threads may share."""
    if backing.disk_format == "raw":
        fd = os.open(backing.where, os.O_RDONLY)
        try:
            yield lambda offset, length: os.pread(fd, length, offset)
        finally:
            os.close(fd)
        return
    with tempfile.TemporaryDirectory(prefix="acstor-nbd-") as folder:
        socket = pathlib.Path(folder, "s")
        words = ["qemu-nbd", "--persistent", "--read-only", "--shared=0", f"--socket={socket}"]
        process = host.popen(
            [*words, "--cache=writeback", f"--format={backing.disk_format}", str(backing.where)]
        )
        try:
            runs.wait_for(socket.exists, TIMEOUT_S, "qemu-nbd", str)
            with _connections(socket, process) as reader:
                yield reader
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _connections(socket: pathlib.Path, process: subprocess.Popen[bytes]) -> Iterator[Reader]:
    """Yield a reader with one connection for each thread."""
    export = nbd_client.Export(str(socket), "", process.pid, peer_ways.DISK_BYTES)
    mine, stack = threading.local(), contextlib.ExitStack()

    def read(offset: int, length: int) -> bytes:
        if not hasattr(mine, "disk"):
            disk = nbd_client.ExportedDisk(export, nbd_client.ALLOCATION, TIMEOUT_S)
            mine.disk = stack.enter_context(disk)
        data = bytearray(length)
        for start in range(0, length, nbd_client.MAX_READ_BYTES):
            view = memoryview(data)[start : start + nbd_client.MAX_READ_BYTES]
            mine.disk.read_into(view, offset + start)
        return bytes(data)

    with stack:
        yield read
