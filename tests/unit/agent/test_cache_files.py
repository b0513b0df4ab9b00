# SPDX-License-Identifier: Apache-2.0
"""The public cache on real files: reads, write-behind, faults and restarts."""

import contextlib
import errno
import os
import pathlib
import random
import shutil
import stat
import tempfile
import threading
import time

import pytest
import trio

from acstor_agent.cache import cache_files
from acstor_agent.cache import slab_files
from acstor_agent.cache import write_behind
from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import folder_health
from acstor_agent.core.cache import public_cache
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.runtime import disk_io
from acstor_common import errors
from acstor_common.model import ids

KeepClass = public_cache.KeepClass
KIB = 1024
SLAB_BYTES = 1 << 20
LIMIT_BYTES = 4 << 20
DICE = random.Random(7)
CHUNKS = [DICE.randbytes(64 * KIB) for _ in range(24)]
CIDS = [ids.cid_of(chunk) for chunk in CHUNKS]


def open_cache(folder, **options) -> cache_files.CacheFiles:
    arguments = {"limit_bytes": LIMIT_BYTES, "slab_bytes": SLAB_BYTES} | options
    return cache_files.CacheFiles.open(folder, **arguments)


@contextlib.asynccontextmanager
async def running(folder, **options):
    cache = open_cache(folder, **options)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        yield cache
        nursery.cancel_scope.cancel()
    await cache.aclose()


def knows_nowait(folder) -> bool:
    with tempfile.TemporaryFile(dir=folder) as probe:
        try:
            os.preadv(probe.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError as failure:
            assert failure.errno == errno.EOPNOTSUPP
            return False
        return True


@pytest.fixture
def disk_path(tmp_path):
    """A folder on a file system with RWF_NOWAIT, which tmpfs (/tmp of Debian 13) lacks."""
    for parent in (tmp_path, "/var/tmp"):
        if knows_nowait(parent):
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                yield pathlib.Path(folder)
            return
    pytest.skip("neither the temporary folder nor /var/tmp knows RWF_NOWAIT")


async def settle(cache: cache_files.CacheFiles) -> None:
    await cache._write_behind.flush()


async def fill(folder, count=24, **options) -> None:
    async with running(folder, **options) as cache:
        for cid, chunk in zip(CIDS[:count], CHUNKS, strict=False):
            assert cache.store_chunk(cid, chunk)


def parts_of(cache, cids, start=0, stop=64 * KIB):
    return [(cache.lookup(cid), start, stop) for cid in cids]


def flip_a_bit(folder: pathlib.Path, cid: ids.Cid) -> None:
    chunk = CHUNKS[CIDS.index(cid)]
    for path in folder.glob("slab-*.acslab"):
        raw = path.read_bytes()
        at = raw.find(chunk)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + 40_000)
                file.write(bytes([chunk[40_000] ^ 1]))
            return
    raise AssertionError("the chunk is in no slab file")


async def test_chunk_is_read_from_memory_until_it_is_on_disk(tmp_path):
    async with running(tmp_path) as cache:
        assert cache.store_chunk(CIDS[0], CHUNKS[0])
        assert cache.lookup(CIDS[0]).data is not None
        assert await cache.read_chunk(CIDS[0]) == CHUNKS[0]
        assert cache.statistics.pending_bytes == 64 * KIB
        await settle(cache)
        assert cache.lookup(CIDS[0]).data is None
        assert await cache.read_chunk(CIDS[0]) == CHUNKS[0]
        assert cache.statistics.pending_bytes == 0
        assert await cache.read_chunk(CIDS[1]) is None


async def written(cache, cid) -> None:
    for _ in range(10_000):
        if cache.is_written(cid):
            return
        await trio.sleep(0.001)
    raise AssertionError("it is not written")


async def test_chunks_stored_one_by_one_are_written_together(tmp_path, monkeypatch):
    batches = []
    perform = slab_files.SlabFiles.perform_batch

    def note(self, actions, jobs):
        batches.append(len(jobs))
        return perform(self, actions, jobs)

    monkeypatch.setattr(slab_files.SlabFiles, "perform_batch", note)
    async with running(tmp_path) as cache:
        for cid, chunk in zip(CIDS[:3], CHUNKS, strict=False):
            assert cache.store_chunk(cid, chunk)
            await trio.sleep(0.001)
        await written(cache, CIDS[0])
        assert batches == [3] and cache.is_written(CIDS[2])


@pytest.mark.parametrize("limit", ["enough_bytes", "pending_bytes", "batch_jobs"])
async def test_full_write_batch_is_written_at_once(tmp_path, limit):
    enough = {limit: 20 * (64 * KIB if "bytes" in limit else 1)}
    limits = write_behind.WriteLimits(**{"enough_bytes": 1 << 30, "gather_s": 3600.0, **enough})
    async with running(tmp_path, write_limits=limits) as cache:
        for cid, chunk in zip(CIDS[:19], CHUNKS, strict=False):
            assert cache.store_chunk(cid, chunk)
        await trio.sleep(0.1)
        assert not any(map(cache.is_written, CIDS[:19]))
        assert cache.store_chunk(CIDS[19], CHUNKS[19])
        await written(cache, CIDS[19])


async def test_chunk_without_room_triggers_the_pending_writes(tmp_path):
    limits = write_behind.WriteLimits(gather_s=3600.0)
    async with running(tmp_path, limit_bytes=SLAB_BYTES, write_limits=limits) as cache:
        count = next(n for n in range(24) if not cache.store_chunk(CIDS[n], CHUNKS[n]))
        await written(cache, CIDS[count - 1])
        assert cache.store_chunk(CIDS[count], CHUNKS[count])


async def test_parts_fill_the_buffer_contiguously_from_memory_and_disk(disk_path):
    short = DICE.randbytes(5000)
    async with running(disk_path) as cache:
        for cid, chunk in zip(CIDS[:20], CHUNKS, strict=False):
            cache.store_chunk(cid, chunk)
        cache.store_chunk(ids.cid_of(short), short)
        await settle(cache)
        cache.store_chunk(CIDS[20], CHUNKS[20])  # in memory only
        wanted = [(3, 100, 65536), (4, 0, 65536), (5, 0, 10), (20, 7, 70), (18, 1, 2), (19, 0, 9)]
        parts = [(cache.lookup(CIDS[n]), a, b) for n, a, b in wanted]
        parts.append((cache.lookup(ids.cid_of(short)), 4000, 5000))
        expected = b"".join(CHUNKS[n][a:b] for n, a, b in wanted) + short[4000:]
        for fills in (True, False):
            buffer = bytearray(len(expected) + 3)
            view = memoryview(buffer)[: len(expected)]
            if fills:
                assert cache.read_slots_nowait(parts, view)
            else:
                assert await cache.read_parts(parts, view) == []
            assert bytes(buffer) == expected + b"\0\0\0"


async def test_adjacent_chunks_are_read_with_one_call_plus_one_for_checksums(
    disk_path, monkeypatch
):
    calls = []

    def counting(fd, buffers, offset, flags=0):
        calls.append(offset)
        return preadv(fd, buffers, offset, flags)

    preadv = os.preadv
    async with running(disk_path) as cache:
        for cid, chunk in zip(CIDS[:15], CHUNKS, strict=False):
            cache.store_chunk(cid, chunk)
        await settle(cache)
        monkeypatch.setattr(os, "preadv", counting)
        buffer = bytearray(15 * 64 * KIB)
        assert cache.read_slots_nowait(parts_of(cache, CIDS[:15]), memoryview(buffer))
        assert bytes(buffer) == b"".join(CHUNKS[:15])
        assert len(calls) == 2


async def test_chunks_are_readable_at_once_after_a_restart(disk_path):
    await fill(disk_path)
    async with running(disk_path) as cache:
        assert set(cache.iter_cids()) == set(CIDS)
        view = memoryview(bytearray(4096))
        assert cache.read_slots_nowait(parts_of(cache, CIDS[:1], 0, 4096), view)
        assert view == CHUNKS[0][:4096]


@pytest.mark.expect_log(r"^Chunk .* is damaged in slab file 0; dropped")
@pytest.mark.parametrize("is_read_before", [False, True])
async def test_chunk_with_a_flipped_bit_is_detected_and_dropped_for_good(
    disk_path, caplog, is_read_before
):
    await fill(disk_path)
    async with running(disk_path) as cache:
        if is_read_before:
            assert await cache.read_chunk(CIDS[1]) == CHUNKS[1]
        flip_a_bit(disk_path, CIDS[1])
        assert cache.read_chunk_nowait(CIDS[1]) is None
        parts, view = parts_of(cache, CIDS[:3], 36_864, 40_960), memoryview(bytearray(3 * 4096))
        assert not cache.read_slots_nowait(parts, view)
        assert await cache.read_parts(parts, view) == [CIDS[1]]
        assert CIDS[1] not in cache and cache.statistics.corrupt_chunks == 1
        assert CIDS[1].hex() in caplog.text
        assert await cache.read_chunk(CIDS[1]) is None
        assert await cache.read_chunk(CIDS[2]) == CHUNKS[2]
    async with running(disk_path) as cache:
        assert CIDS[1] not in cache
        assert cache.store_chunk(CIDS[1], CHUNKS[1])
    async with running(disk_path) as cache:
        assert await cache.read_chunk(CIDS[1]) == CHUNKS[1]
        assert cache.statistics.corrupt_chunks == 0


async def test_other_blocks_of_a_corrupt_chunk_are_readable(disk_path):
    await fill(disk_path, count=1)
    async with running(disk_path) as cache:
        flip_a_bit(disk_path, CIDS[0])  # in the tenth block
        view = memoryview(bytearray(32 * KIB))
        assert cache.read_slots_nowait(parts_of(cache, CIDS[:1], 0, 32 * KIB), view)
        assert view == CHUNKS[0][: 32 * KIB]
        assert not cache.read_slots_nowait(parts_of(cache, CIDS[:1], 36_870, 36_871), view[:1])


@pytest.mark.expect_log(r"^Chunk .* is damaged in slab file 0; dropped")
async def test_chunk_lost_in_a_power_failure_is_not_read_as_the_former_one(tmp_path):
    await fill(tmp_path, count=1, limit_bytes=SLAB_BYTES)
    path = tmp_path / "slab-00000.acslab"
    former = path.read_bytes()
    async with running(tmp_path, limit_bytes=SLAB_BYTES) as cache:
        slot = cache.lookup(CIDS[0])
        data_offset, sums_offset = slot.slab.data_offset, slot.slab.sums_offset
        cache.drop_chunk(CIDS[0])
        await settle(cache)
        assert cache.store_chunk(CIDS[1], CHUNKS[1])
        await settle(cache)
        slot = cache.lookup(CIDS[1])
        assert slot.slot_no == 0
        set_bytes(path, sums_offset, former[sums_offset:])  # data and checksums were not written
        assert former[data_offset : data_offset + 64 * KIB] == CHUNKS[0]
        assert await cache.read_chunk(CIDS[1]) is None
        assert cache.statistics.corrupt_chunks == 1


@pytest.mark.parametrize("is_data", [True, False])
@pytest.mark.expect_log("cannot be read: .*Input/output error")
@pytest.mark.expect_log("damaged in slab file 0")
async def test_unreadable_chunk_is_dropped(tmp_path, monkeypatch, is_data):
    await fill(tmp_path)

    def broken(fd, buffers, offset, flags=0):
        if (offset >= slot.slab.data_offset) == is_data:
            raise OSError(errno.EIO, "Input/output error")
        return preadv(fd, buffers, offset, flags)

    preadv = os.preadv
    async with running(tmp_path) as cache:
        slot = cache.lookup(CIDS[0])
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", broken)
            assert await cache.read_chunk(CIDS[0]) is None
        assert CIDS[0] not in cache and cache.statistics.corrupt_chunks == 1


async def test_data_outside_the_page_cache_is_read_in_a_thread(disk_path):
    async with running(disk_path) as cache:
        cache.store_chunk(CIDS[0], CHUNKS[0])
        await settle(cache)
        fd = cache._files.fds[0]
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        parts, view = parts_of(cache, CIDS[:1]), memoryview(bytearray(64 * KIB))
        try:
            os.preadv(fd, [bytearray(4096)], 4096, os.RWF_NOWAIT)
        except BlockingIOError:
            assert not cache.read_slots_nowait(parts, view)
        else:
            pytest.skip("the file system of the temporary folder keeps its pages")
        assert await cache.read_parts(parts, view) == [] and view == CHUNKS[0]
        assert cache.read_slots_nowait(parts, view)


async def test_file_system_without_nowait_is_read_in_threads():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        async with running(folder) as cache:
            cache.store_chunk(CIDS[0], CHUNKS[0])
            await settle(cache)
            with contextlib.suppress(BlockingIOError):
                try:
                    os.preadv(cache._files.fds[0], [bytearray(1)], 0, os.RWF_NOWAIT)
                    pytest.skip("/dev/shm knows RWF_NOWAIT")
                except OSError as exc:
                    assert exc.errno == errno.EOPNOTSUPP
            parts, view = parts_of(cache, CIDS[:1]), memoryview(bytearray(64 * KIB))
            assert not cache.read_slots_nowait(parts, view)
            assert not cache._files.io._nowait_flags
            assert await cache.read_chunk(CIDS[0]) == CHUNKS[0]


async def test_slot_dropped_after_its_lookup_yields_no_data(tmp_path):
    async with running(tmp_path) as cache:
        cache.store_chunk(CIDS[0], CHUNKS[0])
        parts, view = parts_of(cache, CIDS[:1]), memoryview(bytearray(64 * KIB))
        assert cache.drop_chunk(CIDS[0]) and not cache.drop_chunk(CIDS[0])
        assert not cache.read_slots_nowait(parts, view)
        assert await cache.read_parts(parts, view) == [CIDS[0]]
        assert cache.statistics.corrupt_chunks == 0


async def test_dropped_chunk_does_not_come_back_after_a_restart(tmp_path):
    async with running(tmp_path) as cache:
        for cid, chunk in zip(CIDS[:4], CHUNKS, strict=False):
            cache.store_chunk(cid, chunk)
        cache.drop_chunk(CIDS[0])  # before it was written
        await settle(cache)
        cache.drop_chunk(CIDS[1])  # after
        assert cache.statistics.pending_bytes == 0
    async with running(tmp_path) as cache:
        assert sorted(cache.iter_cids()) == sorted(CIDS[2:4])


async def test_changes_during_a_write_reach_the_disk(tmp_path, monkeypatch):
    go_on, is_writing = threading.Event(), threading.Event()

    def slow(fd, pieces, offset):
        is_writing.set()
        go_on.wait(5)
        return pwritev(fd, pieces, offset)

    pwritev = os.pwritev
    async with running(tmp_path) as cache:
        cache.store_chunk(CIDS[2], CHUNKS[2])
        await settle(cache)
        monkeypatch.setattr(os, "pwritev", slow)
        cache.store_chunk(CIDS[0], CHUNKS[0])
        cache.store_chunk(CIDS[1], CHUNKS[1])
        await trio.to_thread.run_sync(is_writing.wait, 5)
        cache.drop_chunk(CIDS[0])
        cache.promote_chunk(CIDS[1], KeepClass.BOOT)
        cache.store_chunk(CIDS[0], CHUNKS[0], KeepClass.HOME)
        assert await cache.read_chunk(CIDS[0]) == CHUNKS[0]
        go_on.set()
        await settle(cache)
        assert cache.statistics.pending_bytes == 0
    async with running(tmp_path) as cache:
        by_class = cache.statistics.chunks_by_class
        assert by_class == {"borrowed": 1, "home": 1, "prefetched": 0, "boot": 1}
        for number in range(3):
            assert await cache.read_chunk(CIDS[number]) == CHUNKS[number]


async def test_storing_a_cached_chunk_promotes_it_across_a_restart(tmp_path):
    async with running(tmp_path) as cache:
        cache.store_chunk(CIDS[0], CHUNKS[0])
        await settle(cache)
        assert cache.store_chunk(CIDS[0], CHUNKS[0], KeepClass.BOOT)
        assert cache.statistics.pending_bytes == 0
        assert not cache.promote_chunk(CIDS[1], KeepClass.BOOT)
    async with running(tmp_path) as cache:
        by_class = cache.statistics.chunks_by_class
        assert by_class == {"borrowed": 0, "home": 0, "prefetched": 0, "boot": 1}


async def test_chunk_being_read_by_a_thread_is_not_overwritten(tmp_path, monkeypatch):
    go_on, is_reading = threading.Event(), threading.Event()

    def slow(fd, buffers, offset, flags=0):
        if flags:
            raise BlockingIOError
        is_reading.set()
        go_on.wait(5)
        return preadv(fd, buffers, offset, flags)

    preadv = os.preadv
    await fill(tmp_path, count=15, limit_bytes=SLAB_BYTES)
    results = []

    async def read() -> None:
        results.append(await cache.read_chunk(CIDS[0]))

    async with running(tmp_path, limit_bytes=SLAB_BYTES) as cache:
        for cid in CIDS[1:15]:
            cache.lookup(cid)  # so the chunk being read is the least recently used
        monkeypatch.setattr(os, "preadv", slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.to_thread.run_sync(is_reading.wait, 5)
            for cid, chunk in zip(CIDS[15:], CHUNKS[15:], strict=True):
                cache.store_chunk(cid, chunk)
            await settle(cache)
            go_on.set()
        assert results == [CHUNKS[0]]
        assert cache.statistics.evictions == 9 and cache.statistics.corrupt_chunks == 0


async def test_zero_chunk_is_never_stored(tmp_path):
    async with running(tmp_path) as cache:
        assert not cache.store_chunk(ids.ZERO_CID, bytes(64 * KIB))
        assert ids.ZERO_CID not in cache and cache.statistics.slabs == 0


async def test_producers_wait_while_too_many_bytes_are_pending(tmp_path):
    cache = open_cache(tmp_path, write_limits=write_behind.WriteLimits(pending_bytes=128 * KIB))
    for number in range(2):
        cache.store_chunk(CIDS[number], CHUNKS[number])
    with trio.move_on_after(0.05) as scope:
        await cache.wait_for_room()
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        with trio.fail_after(5):
            await cache.wait_for_room()
        assert cache.statistics.pending_bytes < 128 * KIB
        nursery.cancel_scope.cancel()
    await cache.aclose()


async def test_pending_bytes_are_bounded_even_if_producers_do_not_wait(tmp_path):
    cache = open_cache(tmp_path, write_limits=write_behind.WriteLimits(pending_bytes=128 * KIB))
    stored = [cache.store_chunk(cid, chunk) for cid, chunk in zip(CIDS, CHUNKS, strict=True)]
    assert stored == [True] * 4 + [False] * 20
    assert cache.statistics.rejected_chunks == 20
    await cache.aclose()


async def test_close_writes_pending_chunks(tmp_path):
    cache = open_cache(tmp_path)
    for cid, chunk in zip(CIDS, CHUNKS, strict=True):
        cache.store_chunk(cid, chunk)
    await cache.aclose()
    async with running(tmp_path) as cache:
        for cid, chunk in zip(CIDS, CHUNKS, strict=True):
            assert await cache.read_chunk(cid) == chunk


@pytest.mark.expect_log(r"^1 chunks cannot be written: .*Input/output error")
async def test_failed_write_drops_only_its_own_chunk(tmp_path, monkeypatch):
    def broken(fd, pieces, offset):
        if CHUNKS[2] in pieces:
            raise OSError(errno.EIO, "Input/output error")
        return pwritev(fd, pieces, offset)

    pwritev = os.pwritev
    monkeypatch.setattr(os, "pwritev", broken)
    async with running(tmp_path) as cache:
        for cid, chunk in zip(CIDS[:5], CHUNKS, strict=False):
            cache.store_chunk(cid, chunk)
        await settle(cache)
        assert [cid in cache for cid in CIDS[:5]] == [True, True, False, True, True]
        assert cache.statistics.write_errors == 1 and cache.statistics.pending_bytes == 0
        for number in (0, 1, 3, 4):
            assert await cache.read_chunk(CIDS[number]) == CHUNKS[number]


@pytest.mark.expect_log(r"The cache takes no new chunks: .*short write")
async def test_short_write_counts_as_a_failed_write(tmp_path, monkeypatch):
    def short(fd, pieces, offset):
        return os.pwrite(fd, pieces[0][:100], offset)

    async with running(tmp_path) as cache:
        cache.store_chunk(CIDS[0], CHUNKS[0])
        await settle(cache)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", short)
            cache.store_chunk(CIDS[1], CHUNKS[1])
            await settle(cache)
        assert CIDS[1] not in cache
    async with running(tmp_path) as cache:
        assert list(cache.iter_cids()) == [CIDS[0]]


@pytest.mark.expect_log(r"The cache stops growing: .*No space left")
async def test_full_disk_only_stops_the_growth_of_the_cache(tmp_path, monkeypatch, caplog):
    def full(fd, offset, length):
        if len(list(tmp_path.glob("slab-*.acslab"))) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return fallocate(fd, offset, length)

    fallocate = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", full)
    async with running(tmp_path) as cache:
        for cid, chunk in zip(CIDS, CHUNKS, strict=True):
            cache.store_chunk(cid, chunk)
            await trio.sleep(0.001)
        await settle(cache)
        assert cache.statistics.slabs == 1 and cache.statistics.chunks == 15
        assert caplog.text.count("stops growing") == 1
        assert CIDS[-1] in cache  # new chunks evict older ones
        kept = [n for n, cid in enumerate(CIDS) if cid in cache]
        for number in kept:
            assert await cache.read_chunk(CIDS[number]) == CHUNKS[number]
    assert [path.name for path in tmp_path.iterdir()] == ["slab-00000.acslab"]


@pytest.mark.expect_log(r"The cache stops growing: .*No space left")
async def test_cache_on_a_full_disk_stores_nothing(tmp_path, monkeypatch):
    def full(fd, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    async with running(tmp_path) as cache:
        cache.store_chunk(CIDS[0], CHUNKS[0])
        assert await cache.read_chunk(CIDS[0]) == CHUNKS[0]
        await settle(cache)
        assert CIDS[0] not in cache and not cache.store_chunk(CIDS[1], CHUNKS[1])
        assert cache.statistics.pending_bytes == 0
    assert list(tmp_path.iterdir()) == []


async def test_chunk_of_another_size_takes_over_a_slab(tmp_path):
    async with running(tmp_path, limit_bytes=2 << 20) as cache:
        for cid, chunk in zip(CIDS, CHUNKS, strict=True):
            cache.store_chunk(cid, chunk)
        await settle(cache)
        big = DICE.randbytes(300 * KIB)
        assert cache.store_chunk(ids.cid_of(big), big)
        await settle(cache)
        assert await cache.read_chunk(ids.cid_of(big)) == big
        assert cache.statistics.slabs == 2 and cache.statistics.evictions == 15
    async with running(tmp_path, limit_bytes=2 << 20) as cache:
        assert await cache.read_chunk(ids.cid_of(big)) == big
        assert cache.statistics.chunks == 10


async def test_smaller_limit_removes_slab_files(tmp_path):
    await fill(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    async with running(tmp_path, limit_bytes=1 << 20) as cache:
        assert cache.statistics.slabs == 1
        (path,) = tmp_path.iterdir()
        assert path.stat().st_size == cache.statistics.disk_bytes <= 1 << 20
        assert await cache.read_chunk(CIDS[-1]) == CHUNKS[-1]


async def test_changed_slab_size_keeps_the_existing_slabs(tmp_path):
    await fill(tmp_path)
    async with running(tmp_path, slab_bytes=512 * KIB) as cache:
        assert cache.statistics.chunks == 24
        for number, cid in enumerate(CIDS):
            assert await cache.read_chunk(cid) == CHUNKS[number]


def set_bytes(path: pathlib.Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda path: set_bytes(path, 8, b"\xff"), "version 255"),
        (lambda path: set_bytes(path, 20, b"\xff"), "checksum"),
        (
            lambda path: set_bytes(
                path, 0, cache_slab.pack_header(cache_slab.SlabLayout(4096, 9999))
            ),
            "fit",
        ),
        (lambda path: os.truncate(path, 500_000), "slots do not fit"),
        (lambda path: os.truncate(path, 30), "truncated"),
        (lambda path: os.truncate(path, 0), "not a slab file"),
        (lambda path: set_bytes(path, 0, bytes(64)), "not a slab file"),
    ],
)
@pytest.mark.expect_log(r"slab-00000.acslab: byte")
async def test_damaged_slab_file_is_replaced_with_a_warning(tmp_path, caplog, damage, word):
    await fill(tmp_path)
    damage(tmp_path / "slab-00000.acslab")
    async with running(tmp_path) as cache:
        assert "slab-00000.acslab" in caplog.text and word in caplog.text
        assert cache.statistics.chunks == 9
        for cid, chunk in zip(CIDS, CHUNKS, strict=True):
            cache.store_chunk(cid, chunk)
    async with running(tmp_path) as cache:
        assert cache.statistics.chunks == 24


@pytest.mark.expect_log(r"is not a slab file")
async def test_foreign_file_is_renamed_and_kept(tmp_path, caplog):
    text = b"Dear diary, " * 1000
    (tmp_path / "slab-00000.acslab").write_bytes(text)
    (tmp_path / "slab-00001.acslab").mkdir()
    (tmp_path / "slab-00002.acslab").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "slab-00003.acslab")
    (tmp_path / "notes.txt").write_bytes(text)
    (tmp_path / "slab-000001.acslab").write_bytes(text)  # would be a second slab 1
    await fill(tmp_path)
    assert caplog.text.count("is not a slab file") == 4
    aside = [path for path in tmp_path.iterdir() if ".foreign-" in path.name]
    assert len(aside) == 4
    assert text in [path.read_bytes() for path in aside if path.is_file()]
    assert (tmp_path / "notes.txt").read_bytes() == text
    assert (tmp_path / "slab-000001.acslab").read_bytes() == text
    async with running(tmp_path) as cache:
        assert cache.statistics.chunks == 24


async def test_incomplete_slab_file_is_removed_at_start(tmp_path):
    (tmp_path / "slab-00000.acslab.new").write_bytes(bytes(100))
    async with running(tmp_path) as cache:
        assert list(tmp_path.iterdir()) == [] and cache.statistics.slabs == 0


async def test_damaged_record_is_a_free_slot(tmp_path):
    await fill(tmp_path, count=3)
    set_bytes(tmp_path / "slab-00000.acslab", cache_slab.record_offset(1) + 33, b"\xff")
    async with running(tmp_path) as cache:
        assert sorted(cache.iter_cids()) == sorted([CIDS[0], CIDS[2]])


OFTEN = folder_health.CheckIntervals(healthy_s=0.05, first_s=0.01, longest_s=0.05)


async def until(is_true) -> None:
    with trio.fail_after(10):
        while not is_true():  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.01)


@pytest.mark.expect_log("The cache takes no new chunks: .*/file/cache: Not a directory")
@pytest.mark.expect_log("The cache recovered: ")
async def test_creation_of_the_folder_is_retried_until_it_succeeds(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    async with running(tmp_path / "file" / "cache", checks=OFTEN) as cache:
        assert not cache.store_chunk(CIDS[0], CHUNKS[0]) and cache.statistics.rejected_chunks == 1
        assert await cache.read_chunk(CIDS[0]) is None
        what, since_s = cache.fault
        assert "Not a directory" in what and 0 <= time.time() - since_s < 60
        (tmp_path / "file").unlink()
        await until(lambda: cache.fault is None)
        assert cache.store_chunk(CIDS[0], CHUNKS[0])
    again = open_cache(tmp_path / "file" / "cache", checks=OFTEN)
    assert list(again.iter_cids()) == [CIDS[0]]
    await again.aclose()


@pytest.mark.expect_log("The cache takes no new chunks: ")
@pytest.mark.expect_log("The cache recovered: ")
async def test_chunks_of_a_folder_unreadable_at_start_are_found_later(tmp_path, monkeypatch):
    await fill(tmp_path)

    def unreadable(path):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "iterdir", unreadable)
        cache = open_cache(tmp_path, checks=OFTEN)
    gone = []
    cache.set_evicted_callback(gone.append)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        await until(lambda: cache.fault is None)
        for cid, chunk in zip(CIDS, CHUNKS, strict=True):
            assert await cache.read_chunk(cid) == chunk
        cache.drop_chunk(CIDS[0])
        assert gone == [CIDS[0]]
        nursery.cancel_scope.cancel()
    await cache.aclose()


@pytest.mark.expect_log("The cache takes no new chunks: .*Read-only file system")
@pytest.mark.expect_log("The cache recovered: ")
async def test_failing_disk_is_used_again_after_recovery(tmp_path, monkeypatch):
    def failing(fd, pieces, offset):
        calls.append(offset)
        raise OSError(errno.EROFS, "Read-only file system")

    calls = []
    await fill(tmp_path, count=10)
    async with running(tmp_path, checks=OFTEN) as cache:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", failing)
            assert cache.store_chunk(CIDS[10], CHUNKS[10])
            await settle(cache)
            assert CIDS[10] not in cache and cache.statistics.write_errors == 1
            assert "Read-only file system" in cache.fault.what
            assert not cache.store_chunk(CIDS[10], CHUNKS[10])
            for number in range(10):
                assert await cache.read_chunk(CIDS[number]) == CHUNKS[number]
            cache.drop_chunk(CIDS[9])
            await settle(cache)
            await until(lambda: len(calls) > 4)  # checked again, and failed
        await until(lambda: cache.fault is None)
        assert cache.store_chunk(CIDS[11], CHUNKS[11])
    async with running(tmp_path, checks=OFTEN) as cache:
        assert await cache.read_chunk(CIDS[11]) == CHUNKS[11]


@pytest.mark.allow_log("The cache takes no new chunks: .*Input/output error")
@pytest.mark.allow_log("The cache recovered: ")
async def test_slot_with_a_write_error_is_not_used_again(tmp_path, monkeypatch):
    def bad_place(fd, pieces, offset):
        if offset == bad_offset:
            tried.append(offset)
            raise OSError(errno.EIO, "Input/output error")
        return pwritev(fd, pieces, offset)

    pwritev, tried = os.pwritev, []
    async with running(tmp_path, limit_bytes=SLAB_BYTES, checks=OFTEN) as cache:
        cache.store_chunk(CIDS[0], CHUNKS[0])
        await settle(cache)
        bad_offset = cache.lookup(CIDS[0]).offset + 64 * KIB
        monkeypatch.setattr(os, "pwritev", bad_place)
        for cid, chunk in zip(CIDS[1:], CHUNKS[1:], strict=True):
            await until(lambda: cache.fault is None)
            cache.store_chunk(cid, chunk)
            await settle(cache)
        assert tried == [bad_offset]
        assert cache.statistics.chunks == 14 and cache.statistics.write_errors == 1


@pytest.mark.expect_log("The cache stops growing: .*No space left")
@pytest.mark.expect_log("The cache recovered: ")
async def test_cache_grows_again_when_the_disk_has_space(tmp_path, monkeypatch):
    def full(fd, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    async with running(tmp_path, checks=OFTEN) as cache:
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            cache.store_chunk(CIDS[0], CHUNKS[0])
            await settle(cache)
            assert cache.fault is not None and cache.statistics.slabs == 0
        await until(lambda: cache.fault is None)
        for cid, chunk in zip(CIDS, CHUNKS, strict=True):
            assert cache.store_chunk(cid, chunk)
        await settle(cache)
        assert cache.statistics.slabs == 2


@pytest.mark.expect_log("Slab file 0 was deleted")
@pytest.mark.allow_log("The cache takes no new chunks: .*removed or replaced")
@pytest.mark.allow_log("The cache recovered: ")
@pytest.mark.parametrize("what", ["file", "folder"])
async def test_deleted_slab_file_is_forgotten_and_the_cache_continues(tmp_path, what):
    folder = tmp_path / "cache"
    await fill(folder, count=15)
    async with running(folder, checks=OFTEN) as cache:
        if what == "file":
            (folder / "slab-00000.acslab").unlink()
        else:
            shutil.rmtree(folder)
        await until(lambda: cache.statistics.slabs == 0 and cache.fault is None)
        if what == "folder":
            await until(folder.exists)
        assert cache.statistics.chunks == 0
        for cid, chunk in zip(CIDS, CHUNKS, strict=True):
            await until(lambda cid=cid, chunk=chunk: cache.store_chunk(cid, chunk))
    async with running(folder) as cache:
        assert set(cache.iter_cids()) == set(CIDS)


async def test_folder_and_files_are_private_to_the_agent(tmp_path):
    await fill(tmp_path / "new")
    assert modes(tmp_path / "new") == {0o700, 0o600}
    (tmp_path / "new").chmod(0o755)
    (tmp_path / "new" / "slab-00000.acslab").chmod(0o644)
    await open_cache(tmp_path / "new").aclose()
    assert modes(tmp_path / "new") == {0o700, 0o600}


def modes(folder: pathlib.Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}


async def test_folder_in_use_is_refused_until_it_is_closed(tmp_path):
    cache = open_cache(tmp_path)
    with pytest.raises(errors.Unusable, match="another process is using it"):
        open_cache(tmp_path)
    await cache.aclose()
    await open_cache(tmp_path).aclose()


@pytest.mark.expect_log("Slab file . cannot be removed: .*x")
@pytest.mark.expect_log("The cache takes no new chunks: .*: x")
@pytest.mark.expect_log("The cache recovered: ")
async def test_slab_file_removal_is_retried(tmp_path):
    await fill(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pathlib.Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "x"))
        )
        cache = open_cache(tmp_path, limit_bytes=SLAB_BYTES, checks=OFTEN)
        assert len(list(tmp_path.glob("slab-*"))) == 2
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        await until(lambda: cache.fault is None)
        nursery.cancel_scope.cancel()
    assert len(list(tmp_path.glob("slab-*"))) == 1
    await cache.aclose()


async def test_refused_folder_leaves_no_open_file(tmp_path, monkeypatch):
    await fill(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    holder = open_cache(tmp_path)
    with pytest.raises(errors.Unusable):
        open_cache(tmp_path)
    await holder.aclose()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_membership_may_be_tested_from_another_thread(tmp_path):
    async with running(tmp_path) as cache:
        for cid, chunk in zip(CIDS, CHUNKS, strict=True):
            cache.store_chunk(cid, chunk)
        known = await trio.to_thread.run_sync(lambda: [cid in cache for cid in CIDS])
        assert known == [True] * 24
        assert await trio.to_thread.run_sync(lambda: set(cache.iter_cids())) == set(CIDS)


PREFETCH = requests.Stream(requests.Klass.PREFETCH, "read-ahead")
GUEST = requests.Stream(requests.Klass.GUEST, "a")


@pytest.mark.parametrize("policy", ["none", "pregather"])
async def test_prefetched_chunks_are_written_as_a_separate_stream(tmp_path, policy):
    async with trio.open_nursery() as nursery:
        io = disk_io.DiskIo(policy)
        await nursery.start(io.serve)
        async with running(tmp_path, io=io) as cache:
            for number, (cid, chunk) in enumerate(zip(CIDS, CHUNKS, strict=True)):
                with disk_io.use_stream((PREFETCH, GUEST, None)[number % 3]):
                    cache.store_chunk(cid, chunk)
        counts = {str(stream): count.bytes for stream, count in io.counters.streams.items()}
        nursery.cancel_scope.cancel()
    third = sum(map(len, CHUNKS)) // 3
    expected = {"prefetch:read-ahead": third, "background:agent": 2 * third}
    assert counts == (expected if policy == "pregather" else {})
    again = open_cache(tmp_path)
    assert set(again.iter_cids()) == set(CIDS)
    await again.aclose()
