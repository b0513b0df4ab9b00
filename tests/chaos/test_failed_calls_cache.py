# SPDX-License-Identifier: Apache-2.0
"""Each file system call of the cache fails: a read is right or finds nothing, and it recovers."""

import pathlib
import random

import trio

from acstor_agent.cache import cache_files
from acstor_agent.cache import write_behind
from acstor_agent.core.cache import folder_health
from acstor_agent.core.cache import public_cache
from acstor_common.model import ids
from tests.fakes import failing_calls

KIB = 1024
SLAB_BYTES = 96 * KIB
LIMIT_BYTES = 3 * SLAB_BYTES
CHUNKS = {
    ids.cid_of(data): data
    for data in (random.Random(n).randbytes((16, 30)[n % 2] * KIB) for n in range(18))
}
CIDS = list(CHUNKS)
CHECKS = folder_health.CheckIntervals(healthy_s=0.02, first_s=0.001, longest_s=0.004)
LIMITS = write_behind.WriteLimits(gather_s=0.0)

pytestmark = failing_calls.marks


def open_cache(folder: pathlib.Path) -> cache_files.CacheFiles:
    return cache_files.CacheFiles.open(
        folder / "cache", LIMIT_BYTES, SLAB_BYTES, write_limits=LIMITS, checks=CHECKS
    )


async def read_all(cache: cache_files.CacheFiles) -> int:
    """Read all chunks, one by one and as a run; return how many are there."""
    found = 0
    for cid, data in CHUNKS.items():
        read = await cache.read_chunk(cid)
        assert read is None or read == data
        found += read is not None
    run = cache.read_run_nowait(CIDS[:4:2])
    assert run is None or run == b"".join(CHUNKS[cid] for cid in CIDS[:4:2])
    return found


async def wait_written(cache: cache_files.CacheFiles) -> None:
    with trio.fail_after(60):
        while cache.statistics.pending_bytes:  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.001)


async def use(cache: cache_files.CacheFiles) -> None:
    """Store, read, promote, drop and evict."""
    for begin in range(0, len(CIDS), 6):
        for cid in CIDS[begin : begin + 6]:
            cache.store_chunk(cid, CHUNKS[cid])
        await wait_written(cache)
        cache.promote_chunk(CIDS[begin], public_cache.KeepClass.BOOT)
        cache.drop_chunk(CIDS[begin + 1])
    await read_all(cache)


async def one_life(calls: failing_calls.FailingCalls) -> None:
    with calls:
        cache = open_cache(calls.folder)
        async with trio.open_nursery() as nursery:
            await nursery.start(cache.run)
            await use(cache)
            nursery.cancel_scope.cancel()
        await cache.aclose()
    check_closed(cache, calls)
    open_to_others(calls.folder / "cache")
    with calls:
        cache = open_cache(calls.folder)
        await read_all(cache)
    await check_recovery(cache, calls)


def open_to_others(folder: pathlib.Path) -> None:
    """Let the agent restrict its files again."""
    for path in folder.glob("*"):
        path.chmod(0o640)


def check_closed(cache: cache_files.CacheFiles, calls: failing_calls.FailingCalls) -> None:
    """Without failed reads no chunk was damaged; a failed slab file takes no space."""
    if calls.fault is failing_calls.Fault.EIO_SINCE:
        return
    if calls.hit not in failing_calls.READS:
        assert cache.statistics.corrupt_chunks == 0
    if calls.hit != "unlink":
        assert not list(calls.folder.rglob("*.new"))


async def check_recovery(cache: cache_files.CacheFiles, calls: failing_calls.FailingCalls) -> None:
    """The fault is over: the open cache takes chunks again and has no file too many."""
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        with trio.fail_after(60):
            while cache.fault is not None:  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.001)
        await use(cache)
        assert cache.fault is None
        found = await read_all(cache)
        assert found >= 6
        nursery.cancel_scope.cancel()
    await cache.aclose()
    check_closed(cache, calls)
    check_files(calls.folder / "cache", cache.statistics.disk_bytes)
    cache = open_cache(calls.folder)
    assert await read_all(cache) == found
    assert cache.statistics.corrupt_chunks == 0
    await cache.aclose()
    check_files(calls.folder / "cache", cache.statistics.disk_bytes)


def check_files(folder: pathlib.Path, disk_bytes: int) -> None:
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert sum(files.values()) == disk_bytes <= LIMIT_BYTES, files


def test_cache_with_a_failed_call_reads_right_bytes_and_recovers(tmp_path):
    for calls in failing_calls.each_call(tmp_path, least=100):
        trio.run(one_life, calls)
