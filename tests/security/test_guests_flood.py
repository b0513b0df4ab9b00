# SPDX-License-Identifier: Apache-2.0
"""A guest floods the agent with reads; other guests must not notice."""

import contextlib
import itertools
import mmap
import os
import pathlib
import statistics
import threading
import time

import pytest

from acstor_common import errors
from tests.fakes import flood
from tests.fakes import hosts
from tests.fakes import http_server
from tests.lab import local

pytestmark = [hosts.needs_fuse, pytest.mark.timed]

CHUNK = 64 * 1024
P99_S = 0.010
READS = 1000


def read_direct(fd: int, offset: int, length: int = 4096) -> bytes:
    buffer = mmap.mmap(-1, length)
    return buffer[: os.preadv(fd, [buffer], offset)]


def p99_s(fd: int, data: bytes) -> float:
    """Read 4 KiB at random offsets, and verify every byte."""
    took = []
    for number in range(READS):
        offset = number * 7 * 4096 % (len(data) - 4096) // 4096 * 4096
        began = time.perf_counter()
        found = read_direct(fd, offset)
        took.append(time.perf_counter() - began)
        assert found == data[offset : offset + 4096]
    return statistics.quantiles(took, n=100)[98]


class Source:
    """A web server that responds for all images except the hanging ones, until the test ends."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self.goes_on = threading.Event()
        self.hanging: set[bytes] = set()
        self.asked = itertools.count()

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self._folder.iterdir()}

    def behave(self, handler, asked) -> None:
        if handler.path.endswith(".raw") and asked.body[:16] in self.hanging:
            self.goes_on.wait(60)
            handler.close_connection = True
            return
        http_server.fine(handler, asked)


@pytest.fixture
def two(images):
    """The image of a flooding guest and that of another guest."""
    made = {}
    for name, chunks in (("flood", 2048), ("other", 64)):
        data = local.random_bytes(chunks * CHUNK, seed=chunks)
        made[name] = (images.add(data), data)
    return made


@pytest.fixture
def source(images, two):
    made = Source(images.folder)
    with http_server.serve(made.files()) as served:
        served.always = made.behave
        made.url = served.url
        yield made
        made.goes_on.set()


def close(fd: int) -> None:
    with contextlib.suppress(OSError):  # the agent is gone
        os.close(fd)


@contextlib.contextmanager
def flooding(agent, source, image, reads, length):
    """Have reads of an image wait for a source that hangs from now on."""
    image_id, data = image
    agent.image_path(image_id).stat()
    source.hanging.add(data[:16])
    with flood.reading(agent.image_path(image_id), reads, length, CHUNK):
        hosts.wait_until(
            lambda: agent.status()["guests"]["waiting_reads"] >= reads * 0.99, "the flood"
        )
        yield


@pytest.mark.parametrize(("reads", "length"), [(300, 4096), (2000, 4096), (300, 1 << 20)])
def test_cached_reads_do_not_wait_for_a_guest_with_a_hung_source(two, source, start, reads, length):
    other, data = two["other"]
    agent = start(**hosts.http_options(source.url, timeout_s=60.0))
    fd = os.open(agent.image_path(other), os.O_RDONLY | os.O_DIRECT)
    try:
        assert read_direct(fd, 0, len(data)) == data
        with flooding(agent, source, two["flood"], reads, length):
            took_s = p99_s(fd, data)
            waiting = agent.status()["guests"]["waiting_reads"]
            rss_kib = int(
                next(
                    line.split()[1]
                    for line in pathlib.Path(f"/proc/{agent.worker_pid()}/status")
                    .read_text()
                    .splitlines()
                    if line.startswith("VmRSS")
                )
            )
            print(f"{reads} x {length}: p99 {took_s * 1e3:.3f} ms, {rss_kib >> 10} MiB")
            hosts.kill_agent(agent)  # a process that waits for a response cannot be killed before
    finally:
        close(fd)
    assert waiting >= reads * 0.99
    assert took_s < P99_S
    assert rss_kib < 512 << 10


def test_cache_miss_is_served_while_another_guest_has_a_hung_source(two, source, start):
    other, data = two["other"]
    agent = start(**hosts.http_options(source.url, timeout_s=60.0))
    fd = os.open(agent.image_path(other), os.O_RDONLY | os.O_DIRECT)
    try:
        with flooding(agent, source, two["flood"], 300, 4096):
            hosts.wait_until(lambda: agent.status()["guests"]["waiting_reads"] >= 297, "the flood")
            began = time.monotonic()
            assert read_direct(fd, 0, len(data)) == data
            took_s = time.monotonic() - began
            assert agent.status()["guests"]["waiting_reads"] >= 297
            hosts.kill_agent(agent)  # a process that waits for a response cannot be killed before
    finally:
        close(fd)
    assert took_s < 2


def test_new_worker_keeps_guests_isolated_from_a_hung_source(two, source, start):
    """The kernel resends all waiting reads, and it has not answered the kernel's INIT itself."""
    other, data = two["other"]
    agent = start(**hosts.http_options(source.url, timeout_s=60.0))
    fd = os.open(agent.image_path(other), os.O_RDONLY | os.O_DIRECT)
    try:
        assert read_direct(fd, 0, len(data)) == data
        hosts.wait_written(agent)
        with flooding(agent, source, two["flood"], 600, 4096):
            former = agent.worker_pid()
            hosts.kill(former)
            hosts.wait_until(lambda: agent.worker_pid() not in (None, former), "a worker")
            hosts.wait_until(lambda: waiting_reads(agent) >= 594, "what was given again")
            took_s = p99_s(fd, data)
            hosts.kill_agent(agent)  # a process that waits for a response cannot be killed before
    finally:
        close(fd)
    assert took_s < P99_S


def waiting_reads(agent) -> int:
    try:
        return agent.status()["guests"]["waiting_reads"]
    except (errors.Unusable, OSError):  # between two workers
        return 0
