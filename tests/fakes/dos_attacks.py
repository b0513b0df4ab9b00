# SPDX-License-Identifier: Apache-2.0
"""Denial-of-service attacks by a tenant, a stranger or a local user."""

import collections
import contextlib
import itertools
import mmap
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_checkpoint.vault import connection_limit
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_writer
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import qcow2_bombs
from tests.fakes import qcow2_images
from tests.lab import local

CHUNK = geometry.DEFAULT_CHUNK_BYTES
GIB = 1024 * geometry.MIB
LARGE_GIB = 2048
DENSE_CHUNKS = 1 << 19
"""Distinct chunks of a large image: 32 GiB, as of a 10 MiB qcow2 file."""
CLUSTER = 1 << qcow2_bombs.MAX_CLUSTER_BITS
SLOW_CLUSTERS = 12
SLOW_STORED_BYTES = 3 * geometry.MIB
SCRAPERS = 16
STRANGERS = [f"127.0.1.{n}" for n in range(1, 101)]
"""Loopback addresses of no host: the v-node table has only hosts at 127.0.0.1."""
READS = 500
HELD = 300
"""Silent connections that strangers keep open; they close the oldest beyond it."""


def large_image(
    images: local.ImageFolder, gib: int = LARGE_GIB, distinct: int = DENSE_CHUNKS
) -> ids.ImageId:
    """Add a sparse image whose chunk map names no zero chunks.

    :param distinct: number of distinct chunks at the start, a multiple of a map page; the
        others are all alike
    """
    image_id = ids.parse_image_id(str(uuid.uuid4()))
    cut = geometry.Geometry(gib * GIB, CHUNK)
    with images.path(image_id).open("wb") as file:
        file.truncate(cut.size_bytes)
    raw = layout.raw_file(cut.size_bytes)
    subject = chunk_map.Subject(image_id, cut, chunk_map.UNKNOWN_OS_HASH, (), raw)
    dense = (ids.cid_of(b"%d" % number) for number in range(distinct))
    page = ids.cid_of(b"the same") * chunk_map.PAGE_CHUNKS
    pages = itertools.repeat(page, (cut.chunk_count - distinct) // chunk_map.PAGE_CHUNKS)
    with images.map_path(image_id).open("wb") as file:
        file.writelines(chunk_map_writer.write_map(subject, itertools.chain(dense, pages)))
    return image_id


def slow_image(images: local.ImageFolder) -> ids.ImageId:
    """Add an image of SLOW_CLUSTERS clusters with distinct chunks."""
    data = b"".join(
        struct.pack(">Q", number + 1) * (CHUNK // 8)
        for number in range(SLOW_CLUSTERS * CLUSTER // CHUNK)
    )
    image_id = ids.parse_image_id(str(uuid.uuid4()))
    stored = qcow2_bombs.slow_clusters(data, SLOW_STORED_BYTES)
    (images.folder / f"{image_id}.qcow2").write_bytes(stored)
    chunk_map = qcow2_images.map_of(stored, data, image_id, CHUNK)
    images.map_path(image_id).write_bytes(chunk_map)
    return image_id


def chunk_times_s(path: pathlib.Path, data: bytes, chunks: Sequence[int]) -> list[float]:
    """Return the read latencies of uncached chunks; assert that the data is right."""
    took, buffer = [], mmap.mmap(-1, 4096)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for chunk in chunks:
            began_s = time.perf_counter()
            os.preadv(fd, [buffer], chunk * CHUNK)
            took.append(time.perf_counter() - began_s)
            assert buffer[:] == data[chunk * CHUNK : chunk * CHUNK + 4096]
    finally:
        os.close(fd)
    return took


SCRAPE = """
import socket, sys, threading

def scrape() -> None:
    while True:
        try:
            with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10) as link:
                link.sendall(b"GET /metrics HTTP/1.1\\r\\nHost: h\\r\\n\\r\\n")
                while link.recv(1 << 20):
                    pass
        except OSError:
            pass

for _ in range(int(sys.argv[2])):
    threading.Thread(target=scrape, daemon=True).start()
print("scrapes", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def scraping(port: int) -> Iterator[None]:
    """Scrape from another process, on SCRAPERS connections at a time."""
    argv = ["nice", sys.executable, "-c", SCRAPE, str(port), str(SCRAPERS)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"scrapes\n"
            yield
        finally:
            process.kill()


class SilentConnections:
    """Silent connections from many addresses, opened at full speed during the block."""

    def __init__(self, port: int) -> None:
        self.made = 0
        self._port, self._ended = port, threading.Event()
        self._held: collections.deque[socket.socket] = collections.deque()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "SilentConnections":
        self._thread.start()
        while self.made < 2 * connection_limit.UNAUTHENTICATED and self._thread.is_alive():
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for sock in self._held:
            sock.close()

    def _run(self) -> None:
        for address in itertools.cycle(STRANGERS):
            if self._ended.wait(0.0005):
                return
            with contextlib.suppress(OSError):
                self._held.append(silent(self._port, address))
            self.made += 1
            if len(self._held) > HELD:
                self._held.popleft().close()


def silent(port: int, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 5, source_address=(address, 0))


def reads(path: pathlib.Path, data: bytes, until: threading.Event | None = None) -> list[float]:
    """Read 4 KiB of a cached image at least READS times; return the latencies.

    Assert that the data is right.
    """
    took, buffer = [], mmap.mmap(-1, 4096)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        while len(took) < READS or (until is not None and not until.is_set()):
            offset = len(took) * 7 * 4096 % len(data)
            began_s = time.perf_counter()
            os.preadv(fd, [buffer], offset)
            took.append(time.perf_counter() - began_s)
            assert buffer[:] == data[offset : offset + 4096]
    finally:
        os.close(fd)
    return took


@contextlib.contextmanager
def doing(action: Callable[[], object]) -> Iterator[threading.Event]:
    """Run an action in a thread for the block; yield an event that its end sets."""
    done, failed = threading.Event(), list[OSError]()

    def run() -> None:
        try:
            action()
        except OSError as e:
            failed.append(e)
        finally:
            done.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        thread.join()
    if failed:
        raise failed[0]


def reads_beside(path: pathlib.Path, data: bytes, action: Callable[[], object]) -> list[float]:
    """Return the latencies of :func:`reads` while an action runs in a thread."""
    with doing(action) as done:
        return reads(path, data, done)


def p99_s(took: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(took, n=100)[98]
