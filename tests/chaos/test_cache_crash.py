# SPDX-License-Identifier: Apache-2.0
"""kill -9 at any moment, at any write, and a full disk: never a wrong byte.

A killed process loses no write that the kernel has accepted, so after a kill each slot must be free
or complete: the tests also check that no slot needs repair, and that every chunk with a written
record is there.

"""

import contextlib
import functools
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from acstor_agent.cache import cache_files
from acstor_agent.cache import slab_io
from acstor_agent.cache import write_behind
from acstor_agent.core.cache import public_cache
from acstor_common.model import ids
from tests.fakes import failing_calls

KeepClass = public_cache.KeepClass
KIB = 1024
SLAB_BYTES = 96 * KIB
LIMIT_BYTES = 3 * SLAB_BYTES
SIZES = (16 * KIB, 9000, 3000, 30 * KIB)
KILLS = 25
START_S = 30.0

pytestmark = failing_calls.forks


@functools.cache
def chunk(number: int) -> bytes:
    return random.Random(number).randbytes(SIZES[number // 40 % len(SIZES)])


@functools.cache
def content() -> dict[ids.Cid, bytes]:
    return {ids.cid_of(chunk(number)): chunk(number) for number in range(160)}


def cid(number: int) -> ids.Cid:
    return list(content())[number]


def open_cache(folder: pathlib.Path, **options: Any) -> cache_files.CacheFiles:
    return cache_files.CacheFiles.open(folder, LIMIT_BYTES, SLAB_BYTES, **options)


@contextlib.contextmanager
def child(work: Callable[[], None]) -> Iterator[tuple[int, int]]:
    """Run ``work`` in a process that reports on a pipe which chunks it wrote and dropped."""
    reports, reporting = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reports)
            report_changes(functools.partial(os.write, reporting))
            work()
            status = 0
        finally:
            os._exit(status)
    os.close(reporting)
    try:
        yield pid, reports
    finally:
        os.close(reports)


def report_changes(tell: Callable[[bytes], object]) -> None:
    write_run, drop = slab_io.SlabIo._write_run, public_cache.PublicCache.drop_chunk

    def reporting_write(self, run):
        write_run(self, run)
        for job in run:
            tell((b"-" if job.is_gone else b"+") + job.slot.cid)

    def reporting_drop(self, slot):
        tell(b"-" + slot.cid)
        drop(self, slot)

    slab_io.SlabIo._write_run = reporting_write
    public_cache.PublicCache.drop_chunk = reporting_drop


def written(raw: bytes, before: set[ids.Cid]) -> set[ids.Cid]:
    """Return the chunks on disk by the child's reports until its death."""
    now = set(before)
    for at in range(0, len(raw) - 32, 33):
        (now.add if raw[at : at + 1] == b"+" else now.discard)(raw[at + 1 : at + 33])
    return now


def check(folder: pathlib.Path, expected: set[ids.Cid]) -> set[ids.Cid]:
    """Read the whole cache; return its chunks."""

    async def read_all() -> set[ids.Cid]:
        cache = open_cache(folder)
        present = set(cache.iter_cids())
        for one in present:
            assert await cache.read_chunk(one) == content()[one]
        assert cache.statistics.corrupt_chunks == 0
        await cache.aclose()
        return present

    present = trio.run(read_all)
    assert expected <= present
    assert sum(path.stat().st_size for path in folder.iterdir()) <= LIMIT_BYTES
    return present


async def live(folder: pathlib.Path) -> None:
    """Store, promote and drop endlessly, with frequent writes, so that kills hit writes."""
    dice = random.Random(os.getpid())
    cache = open_cache(folder, write_limits=write_behind.WriteLimits(gather_s=0.02))
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        while True:
            number = dice.randrange(160)
            cache.store_chunk(cid(number), chunk(number), dice.choice(list(KeepClass)))
            if dice.random() < 0.1:
                cache.drop_chunk(cid(dice.randrange(160)))
            if dice.random() < 0.1:
                await trio.sleep(0.011)


def test_kill_at_random_moments_leaves_every_slot_free_or_whole(tmp_path):
    dice = random.Random(5)
    on_disk: set[ids.Cid] = set()
    found = 0
    for number in range(KILLS):
        with child(lambda: trio.run(live, tmp_path)) as (pid, reports):
            if number % 2:  # even on a slow machine some die during a write
                select.select([reports], [], [], START_S)
            time.sleep(dice.uniform(0.02, 0.08))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raw = b"".join(iter(functools.partial(os.read, reports, 1 << 16), b""))
            on_disk = check(tmp_path, written(raw, on_disk))
        found += len(on_disk)
    assert found > KILLS


async def run_phase(folder: pathlib.Path, work: Callable[[cache_files.CacheFiles], None]) -> None:
    cache = open_cache(folder)
    work(cache)
    await cache.aclose()


def store_some(numbers, keep_class=KeepClass.BORROWED) -> Callable[[cache_files.CacheFiles], None]:
    def work(cache: cache_files.CacheFiles) -> None:
        for number in numbers:
            cache.store_chunk(cid(number), chunk(number), keep_class)

    return work


def drop_and_promote(cache: cache_files.CacheFiles) -> None:
    cache.drop_chunk(cid(1))
    cache.promote_chunk(cid(2), KeepClass.BOOT)
    cache.store_chunk(cid(4), chunk(4))


PHASES = [
    store_some(range(3)),
    drop_and_promote,
    store_some(range(5, 13), KeepClass.HOME),  # fills three slabs
    store_some(range(20, 24)),  # evicts
    store_some([40, 80, 41], KeepClass.BOOT),  # other sizes take slabs over
    store_some(range(24, 27)),
]


def run_phases(folder: pathlib.Path) -> None:
    for phase in PHASES:
        trio.run(run_phase, folder, phase)


def run_reporting(folder: pathlib.Path, tell: Callable[[bytes], object]) -> None:
    report_changes(tell)
    run_phases(folder)


def test_kill_at_a_call_leaves_every_slot_free_or_whole(tmp_path):
    for folder, reported, _ in failing_calls.each_kill(tmp_path, 100, run_reporting):
        check(folder, written(b"".join(reported), set()))
        trio.run(run_phase, folder, store_some(range(50, 53), KeepClass.BOOT))
        assert {cid(number) for number in range(50, 53)} <= check(folder, set())


@pytest.fixture
def small_disk(tmp_path) -> Iterator[pathlib.Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={200 * KIB}", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, stderr=sys.stderr).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.expect_log(r"The cache stops growing: .*No space left")
async def test_full_disk_loses_chunks_but_fails_no_read(small_disk):
    cache = open_cache(small_disk)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        for number in range(40):
            if not cache.store_chunk(cid(number), chunk(number)):  # all slots wait for the writer
                await trio.sleep(0.05)
                assert cache.store_chunk(cid(number), chunk(number))
            assert await cache.read_chunk(cid(number)) == chunk(number)
        nursery.cancel_scope.cancel()
    await cache.aclose()
    assert cache.statistics.slabs == 2 and cache.statistics.chunks == 10
    assert cache.statistics.write_errors == 1
    cache = open_cache(small_disk)
    present = list(cache.iter_cids())
    assert len(present) == 10
    for one in present:
        assert await cache.read_chunk(one) == content()[one]
    await cache.aclose()
