# SPDX-License-Identifier: Apache-2.0
"""Pinned chunks on real files: under load, across restarts, and after loss of the folder."""

import contextlib
import random
import shutil

import pytest
import trio

from acstor_agent.cache import cache_files
from acstor_agent.core.cache import cache_pins
from acstor_agent.core.cache import folder_health
from acstor_common.model import ids

KIB = 1024
SLAB_BYTES = 1 << 20  # 15 slots of 64 KiB
LIMIT_BYTES = 4 << 20
DICE = random.Random(7)
CHUNKS = [DICE.randbytes(64 * KIB) for _ in range(100)]
CIDS = [ids.cid_of(chunk) for chunk in CHUNKS]
PINNED = range(20)


@pytest.fixture
def pins():
    made = cache_pins.Pins()
    for number in PINNED:
        made.add(CIDS[number], len(CHUNKS[number]))
    return made


@contextlib.asynccontextmanager
async def running(folder, pins, limit_bytes=LIMIT_BYTES, **options):
    cache = cache_files.CacheFiles.open(folder, limit_bytes, SLAB_BYTES, pins=pins, **options)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        yield cache
        nursery.cancel_scope.cancel()
    await cache.aclose()


async def store(cache, numbers) -> None:
    for number in numbers:
        await cache.wait_for_room()
        cache.store_chunk(CIDS[number], CHUNKS[number])
    await cache._write_behind.flush()


async def read_all(cache, numbers=PINNED) -> None:
    for number in numbers:
        assert await cache.read_chunk(CIDS[number]) == CHUNKS[number], number


def slab_files(folder) -> int:
    return len(list(folder.glob("slab-*.acslab")))


async def test_pinned_chunks_stay_under_load_and_across_a_restart(tmp_path, pins):
    async with running(tmp_path, pins) as cache:
        await store(cache, range(100))
        await read_all(cache)
        assert cache.statistics.pinned_bytes == 20 * 64 * KIB == cache.statistics.reserved_bytes
    async with running(tmp_path, pins) as cache:
        await store(cache, range(20, 100))
        await store(cache, range(20, 100))
        await read_all(cache)
        assert cache.pinned_missing == 0


async def test_only_lost_pinned_chunks_are_counted(tmp_path, pins):
    async with running(tmp_path, pins) as cache:
        await store(cache, range(40))
        before = cache.pinned_lost
        assert cache.drop_chunk(CIDS[39]) and cache.pinned_lost == before
        assert cache.drop_chunk(CIDS[3]) and cache.pinned_lost == before + 1
        assert not cache.drop_chunk(CIDS[3]) and cache.pinned_lost == before + 1


async def test_smaller_limit_evicts_no_pinned_chunk(tmp_path, pins):
    async with running(tmp_path, pins) as cache:
        await store(cache, range(40))
    async with running(tmp_path, pins, limit_bytes=SLAB_BYTES) as cache:
        await read_all(cache)
        assert cache.statistics.disk_bytes > cache.statistics.limit_bytes
        await store(cache, range(40, 100))
        await read_all(cache)
        assert slab_files(tmp_path) == 2
        for number in PINNED:
            cache.unpin_chunk(CIDS[number], 64 * KIB)
        cache.shrink_to_limit()
        await cache._write_behind.flush()
        assert slab_files(tmp_path) == 1
        assert cache.statistics.disk_bytes <= cache.statistics.limit_bytes
    async with running(tmp_path, cache_pins.Pins(), limit_bytes=SLAB_BYTES) as cache:
        assert cache.statistics.chunks > 0


async def test_small_pinned_chunk_in_a_large_slot_survives_a_restart(tmp_path):
    pins, small = cache_pins.Pins(), random.Random(9).randbytes(5001)
    for number in (0, 20):
        pins.add(CIDS[number], 64 * KIB)
    pins.add(ids.cid_of(small), len(small))
    limit_bytes = 2 * SLAB_BYTES
    async with running(tmp_path, pins, limit_bytes) as cache:
        await store(cache, range(30))
        assert cache.store_chunk(ids.cid_of(small), small)
        await cache._write_behind.flush()
        assert cache.lookup(ids.cid_of(small)).slab.layout.slot_bytes == 64 * KIB
    async with running(tmp_path, pins, limit_bytes) as cache:
        assert await cache.read_chunk(ids.cid_of(small)) == small
        part = memoryview(bytearray(100))
        assert await cache.read_parts([(cache.lookup(ids.cid_of(small)), 4901, 5001)], part) == []
        assert bytes(part) == small[4901:]
        await read_all(cache, (0, 20))


OFTEN = folder_health.CheckIntervals(healthy_s=0.05, first_s=0.01, longest_s=0.05)


@pytest.mark.expect_log("Slab file 0 was deleted")
@pytest.mark.allow_log("Slab file . was deleted")
@pytest.mark.allow_log("The cache takes no new chunks: .*removed or replaced")
@pytest.mark.allow_log("The cache recovered: ")
async def test_pins_survive_the_loss_of_the_cache_folder(tmp_path, pins):
    folder = tmp_path / "cache"
    async with running(folder, pins, checks=OFTEN) as cache:
        await store(cache, range(20))
        shutil.rmtree(folder)
        with trio.fail_after(30):
            while cache.pinned_missing < 20 or cache.fault or not folder.exists():  # noqa: ASYNC110
                await trio.sleep(0.05)
        await store(cache, range(100))
        await read_all(cache)
