# SPDX-License-Identifier: Apache-2.0
"""Recovery of the cache's folder from full and failing disks, over minutes of the mock clock."""

import contextlib
import errno
import itertools
import os
import pathlib
import random
import types

import pytest
import trio

from acstor_agent.cache import cache_files
from acstor_agent.cache import slab_files
from acstor_common.model import ids

KIB = 1024
SLAB_BYTES = 1 << 20  # 15 chunks
DICE = random.Random(8)
CHUNKS = [DICE.randbytes(64 * KIB) for _ in range(40)]
CIDS = [ids.cid_of(chunk) for chunk in CHUNKS]
WAITS_S = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]

pytestmark = pytest.mark.usefixtures("no_threads")


@contextlib.asynccontextmanager
async def running(folder):
    cache = cache_files.CacheFiles.open(folder, 4 * SLAB_BYTES, SLAB_BYTES)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        yield cache
        nursery.cancel_scope.cancel()
    await cache.aclose()


async def store(cache: cache_files.CacheFiles, numbers) -> bool:
    """Store chunks one by one; return whether the cache took all."""
    taken = []
    for number in numbers:
        taken.append(cache.store_chunk(CIDS[number], CHUNKS[number]))
        await cache._write_behind.flush()
    return all(taken)


class Disk:
    """A disk with ``free_bytes``, which may refuse all writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free_bytes = 1 << 30
        self.failure: int | None = None
        self.fullness = errno.ENOSPC
        self._pwritev, self._fallocate = os.pwritev, os.posix_fallocate
        monkeypatch.setattr(os, "pwritev", self.write)
        monkeypatch.setattr(os, "posix_fallocate", self.allocate)
        monkeypatch.setattr(os, "statvfs", self.measure)

    def _take(self, count: int) -> None:
        if count > self.free_bytes:
            raise OSError(self.fullness, os.strerror(self.fullness))

    def write(self, fd, pieces, offset):
        if self.failure is not None:
            raise OSError(self.failure, os.strerror(self.failure))
        if os.fstat(fd).st_size == 0:  # no slab file
            self._take(sum(map(len, pieces)))
        return self._pwritev(fd, pieces, offset)

    def allocate(self, fd, offset, length):
        self._take(length)
        return self._fallocate(fd, offset, length)

    def measure(self, path):
        return types.SimpleNamespace(f_bavail=self.free_bytes // 4096, f_frsize=4096)


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


@pytest.mark.expect_log("The cache stops growing: .*(No space left|quota exceeded)")
@pytest.mark.expect_log("The cache recovered: ")
@pytest.mark.parametrize(
    ("free_bytes", "fullness"),
    [(0, errno.ENOSPC), (100 * KIB, errno.ENOSPC), (0, errno.EDQUOT)],
)
async def test_cache_on_a_full_disk_goes_on_with_its_slabs(
    tmp_path, disk, caplog, free_bytes, fullness, autojump_clock
):
    disk.fullness = fullness
    async with running(tmp_path) as cache:
        assert await store(cache, range(10))
        disk.free_bytes = free_bytes
        for begin in range(10, 40, 10):
            await store(cache, range(begin, begin + 10))
            await trio.sleep(300)
            assert CIDS[begin + 9] in cache and cache.statistics.slabs == 1
            assert os.strerror(fullness) in cache.fault.what
        assert await cache.read_chunk(CIDS[39]) == CHUNKS[39]
        assert len(caplog.messages) == 1
        disk.free_bytes = SLAB_BYTES + 100 * KIB
        await trio.sleep(61)
        assert cache.fault is None
        assert await store(cache, range(10)) and cache.statistics.slabs == 2


@pytest.mark.expect_log("The cache stops growing: .*No space left")
async def test_cache_opened_on_a_full_disk_uses_its_slabs(tmp_path, disk, autojump_clock):
    async with running(tmp_path) as cache:
        assert await store(cache, range(10))
    disk.free_bytes = 0
    async with running(tmp_path) as cache:
        assert await store(cache, range(10, 15))
        await trio.sleep(300)
        await store(cache, range(15, 20))
        assert CIDS[19] in cache and cache.statistics.slabs == 1


@pytest.mark.expect_log("The cache takes no new chunks: .*No space left")
@pytest.mark.expect_log("The cache recovered: ")
async def test_cache_whose_folder_does_not_fit_takes_chunks_once_it_does(
    tmp_path, monkeypatch, autojump_clock
):
    def full(path, **_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "mkdir", full)
        async with running(tmp_path / "cache") as cache:
            await trio.sleep(10)
            assert not await store(cache, [0]) and cache.statistics.write_errors == 0
            patch.undo()
            await trio.sleep(10)
            assert await store(cache, [0])


@pytest.mark.expect_log("The cache stops growing: .*No space left")
@pytest.mark.expect_log("The cache takes no new chunks: .*Read-only file system")
async def test_write_fault_on_a_full_disk_stops_caching_only_while_it_lasts(
    tmp_path, disk, caplog, autojump_clock
):
    async with running(tmp_path) as cache:
        assert await store(cache, range(10))
        disk.free_bytes = 100 * KIB
        await store(cache, range(10, 20))
        disk.failure = errno.EROFS
        await store(cache, [20])
        assert not await store(cache, [21])
        await trio.sleep(300)
        assert not await store(cache, [21])
        disk.failure = None
        await trio.sleep(61)
        assert await store(cache, [21]) and "No space left" in cache.fault.what
        assert [message.split(":")[0] for message in caplog.messages] == [
            "The cache stops growing",
            "The cache takes no new chunks",
            "The cache stops growing",
        ]


@pytest.mark.expect_log("The cache stops growing: .*No space left")
@pytest.mark.expect_log("Slab file 0 was deleted")
async def test_deleted_slab_file_is_closed_even_if_the_disk_is_full(tmp_path, disk, autojump_clock):
    async with running(tmp_path) as cache:
        assert await store(cache, range(10))
        disk.free_bytes = 0
        await store(cache, range(10, 20))
        (tmp_path / "slab-00000.acslab").unlink()
        await trio.sleep(61)
        assert cache.statistics.slabs == 0 and cache.fault is not None


@pytest.mark.expect_log("The cache takes no new chunks: .*Read-only file system")
async def test_checks_of_a_failing_folder_are_at_most_a_minute_apart(
    tmp_path, disk, monkeypatch, autojump_clock
):
    def check(files):
        times.append(trio.current_time())
        make_writable(files)

    times, make_writable = [], slab_files.SlabFiles.make_writable
    async with running(tmp_path) as cache:
        assert await store(cache, range(10))
        monkeypatch.setattr(slab_files.SlabFiles, "make_writable", check)
        disk.failure = errno.EROFS
        times.append(trio.current_time())
        await store(cache, [10])
        await trio.sleep(sum(WAITS_S) + 1)
        waits = [after - before for before, after in itertools.pairwise(times)]
        assert waits == pytest.approx(WAITS_S)
