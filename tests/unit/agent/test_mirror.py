# SPDX-License-Identifier: Apache-2.0
import math
import os
import random

import pytest
import trio
import trio.testing

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.images import readahead
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_agent.images.read import mirror
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_request
from acstor_policies import unit_readahead
from tests.fakes import one_host

CHUNK = one_host.CHUNK
ZEROS = bytes(CHUNK)
DATA = one_host.image_bytes(20 * CHUNK) + 3 * ZEROS + one_host.image_bytes(CHUNK + 777, seed=2)


@pytest.fixture
async def host(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as made:
        yield made


@pytest.fixture
async def image(host):
    return await host.mirrors.attach_image(one_host.IMAGE)


async def read(image, offset, length):
    """Read, and keep the bytes before the buffer is used again."""
    return bytes(await image.read_at(offset, length))


async def test_read_of_any_range_returns_the_image_bytes(image):
    rng = random.Random(3)
    for _ in range(200):
        offset = rng.randrange(len(DATA) + CHUNK)
        length = rng.choice([0, 1, 4096, CHUNK, 3 * CHUNK + 1, geometry.MIB])
        assert await read(image, offset, length) == DATA[offset : offset + length]


async def test_chunk_is_fetched_once_and_then_comes_from_the_cache(host, image):
    before = len(host.source.reads)
    for _ in range(3):
        assert await read(image, CHUNK, CHUNK) == DATA[CHUNK : 2 * CHUNK]
    assert host.source.reads[before:] == [(CHUNK, CHUNK)]
    tally = image.counters.read.as_dict()
    assert tally["source"] == {"requests": 1, "bytes": CHUNK}
    assert tally["cache"] == {"requests": 2, "bytes": 2 * CHUNK}
    assert image.counters.latency.count == 3


async def test_zero_chunks_are_read_without_the_source(host, image):
    before = len(host.source.reads)
    assert await read(image, 20 * CHUNK + 5, 2 * CHUNK) == bytes(2 * CHUNK)
    assert len(host.source.reads) == before
    assert image.counters.read.as_dict()["zero"]["bytes"] == 2 * CHUNK


async def test_cached_read_does_not_block(image):
    await image.read_at(0, 4 * CHUNK)
    with trio.CancelScope() as scope:
        scope.cancel()  # any wait is cancelled now
        assert bytes(await image.read_at(0, 4 * CHUNK)) == DATA[: 4 * CHUNK]
    assert not scope.cancelled_caught


async def test_reused_buffer_has_no_bytes_of_a_former_read(image):
    used, image.buffers = (
        memoryview(bytearray(b"\xff" * mirror.MAX_READ_BYTES)),
        mirror.BufferPool(),
    )
    image.buffers.put_back(used)
    found = await image.read_at(0, len(DATA))
    assert bytes(found) == DATA and found.obj is used.obj and image.buffers.free == [used]
    assert bytes(await image.read_at(0, len(DATA))) == DATA


async def test_concurrent_reads_use_separate_buffers(host, image):
    right, image.buffers = [], mirror.BufferPool(limit=2)

    async def one(offset):
        right.append(await read(image, offset, 8 * CHUNK) == DATA[offset : offset + 8 * CHUNK])

    async with trio.open_nursery() as nursery:
        for chunk_no in (0, 3, 8, 15):
            nursery.start_soon(one, chunk_no * CHUNK)
    assert right == [True] * 4 and len(image.buffers.free) == 2


async def test_buffer_of_a_failed_read_is_not_reused(host, image, autojump_clock):
    image.buffers = mirror.BufferPool()
    host.source._share = 1.0
    with pytest.raises(errors.DeadlineExceeded):
        await image.read_at(0, len(DATA))
    assert not image.buffers.free


async def test_read_combines_memory_and_fetched_chunks_without_a_thread(image, monkeypatch):
    await image.read_at(0, 4 * CHUNK)
    monkeypatch.setattr(image._cache, "read_parts", None)  # it would use a thread
    assert await read(image, 0, 8 * CHUNK) == DATA[: 8 * CHUNK]


async def test_readers_of_one_chunk_share_its_fetch(host, image):
    before = len(host.source.reads)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(image.read_at, 5 * CHUNK, CHUNK)
    assert len(host.source.reads) == before + 1


async def test_cancelled_reader_does_not_stop_the_fetch(host, image):
    with trio.move_on_after(0):
        await image.read_at(6 * CHUNK, CHUNK)
    await trio.testing.wait_all_tasks_blocked()
    before = len(host.source.reads)
    assert await read(image, 6 * CHUNK, CHUNK) == DATA[6 * CHUNK : 7 * CHUNK]
    assert len(host.source.reads) == before


async def test_corrupt_chunk_is_refetched_until_it_is_valid(host, image, autojump_clock):
    at = len(host.source.reads)
    host.source._corrupt = {at + 1, at + 2}
    assert await read(image, 0, CHUNK) == DATA[:CHUNK]
    assert len(host.source.reads) == at + 3


async def test_read_of_an_unavailable_chunk_fails_at_its_deadline(host, image, autojump_clock):
    host.source._share = 1.0
    began = trio.current_time()
    with pytest.raises(errors.DeadlineExceeded, match="fails by order"):
        await image.read_at(0, 3 * CHUNK)
    assert trio.current_time() - began == pytest.approx(one_host.DEADLINE_S)
    assert (image.counters.failed_reads, image.counters.in_flight) == (1, 0)
    host.source._share = 0.0
    assert await read(image, 0, 3 * CHUNK) == DATA[: 3 * CHUNK]


@pytest.mark.expect_log("data is lost")
async def test_read_of_a_missing_chunk_fails_at_once(host, image, autojump_clock):
    host.source._share = 1.0
    host.source._error = errors.ChunkMissing
    began = trio.current_time()
    with pytest.raises(errors.ChunkMissing):
        await image.read_at(0, 3 * CHUNK)
    assert trio.current_time() == began
    assert (image.counters.failed_reads, image.counters.lost_reads) == (1, 1)


async def test_readahead_prefetches_for_a_sequential_reader(host, autojump_clock):
    host.ahead = readahead.ReadAhead(8 * CHUNK)
    image = await host.mirrors.attach_image(one_host.IMAGE)
    for chunk_no in range(20):
        assert await read(image, chunk_no * CHUNK, CHUNK) == DATA[chunk_no * CHUNK :][:CHUNK]
        await trio.sleep(1)
    assert image.counters.read.as_dict()["source"]["requests"] <= readahead.SEQUENTIAL_READS
    assert sorted(set(host.source.reads)) == sorted(host.source.reads)


async def test_readahead_window_is_requested_before_the_reader_waits(host, autojump_clock):
    host.ahead = readahead.ReadAhead(8 * CHUNK)
    image = await host.mirrors.attach_image(one_host.IMAGE)
    for chunk_no in range(readahead.SEQUENTIAL_READS - 1):
        await image.read_at(chunk_no * CHUNK, CHUNK)
    before = len(host.source.reads)
    host.source._delay, host.source._delay_s = range(10_000), 1e6  # no read completes
    with trio.move_on_after(1):
        await image.read_at((readahead.SEQUENTIAL_READS - 1) * CHUNK, CHUNK)
    assert len(host.source.reads[before:]) > 1


async def test_unit_readahead_prefetches_for_a_reader_within_one_unit(host, autojump_clock):
    host.ahead = unit_readahead.UnitReadahead(8 * CHUNK)
    image = await host.mirrors.attach_image(one_host.IMAGE)
    for chunk_no in (7, 3, 5, 1, 6):
        assert await read(image, chunk_no * CHUNK, CHUNK) == DATA[chunk_no * CHUNK :][:CHUNK]
        await trio.sleep(1)
    assert image.counters.read.as_dict()["source"]["requests"] == 1
    assert sorted(set(host.source.reads)) == sorted(host.source.reads)


async def test_failed_readahead_fails_no_read(host, autojump_clock):
    host.ahead = readahead.ReadAhead(8 * CHUNK)
    image = await host.mirrors.attach_image(one_host.IMAGE)
    await image.read_at(0, CHUNK)
    await image.read_at(CHUNK, CHUNK)
    host.source._share = 1.0
    await trio.sleep(1)
    host.source._share = 0.0
    for chunk_no in range(2, 20):
        assert await read(image, chunk_no * CHUNK, CHUNK) == DATA[chunk_no * CHUNK :][:CHUNK]


async def test_cached_bytes_count_the_chunks_in_the_cache(image):
    assert image.cached_bytes() == 0
    await image.read_at(0, 3 * CHUNK)
    assert image.cached_bytes() == 3 * CHUNK
    await image.read_at(0, len(DATA))
    assert len(DATA) - 4 * CHUNK <= image.cached_bytes() <= len(DATA)


async def test_missing_bytes_exclude_cached_and_zero_chunks(image):
    count = len(image.map)
    wanted = count - sum(image.map.is_zero(number) for number in range(count))
    assert wanted < count
    assert image.count_cached() == (0, wanted * CHUNK, None)
    await image.read_at(0, CHUNK)
    assert image.count_cached() == (CHUNK, (wanted - 1) * CHUNK, None)
    await image.read_at(0, len(DATA))
    assert image.count_cached().missing_bytes == 0


async def test_cached_image_needs_no_source_after_restart(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        image = await host.mirrors.attach_image(one_host.IMAGE)
        await image.read_at(0, len(DATA))
    async with one_host.one_host(tmp_path) as host:  # its source has nothing
        image = await host.mirrors.attach_image(one_host.IMAGE)
        assert await read(image, 0, len(DATA)) == DATA


@pytest.mark.allow_log("is damaged in slab file")
async def test_damaged_cache_slots_are_refetched_transparently(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        await (await host.mirrors.attach_image(one_host.IMAGE)).read_at(0, len(DATA))
    for slab in (tmp_path / "cache").glob("*.acslab"):  # in any order
        raw = bytearray(slab.read_bytes())
        for at in range(len(raw) // 6, len(raw), 5 * CHUNK):
            raw[at] ^= 1
        slab.write_bytes(raw)
    async with one_host.one_host(tmp_path, data=DATA) as host:
        image = await host.mirrors.attach_image(one_host.IMAGE)
        assert await read(image, 0, len(DATA)) == DATA
        assert host.cache.statistics.corrupt_chunks > 0


async def test_late_guests_are_listed_with_image_and_latest_failure(host, image, autojump_clock):
    host.add(DATA[::-1], one_host.OTHER)
    images = {"one": image, "two": await host.mirrors.attach_image(one_host.OTHER)}
    guests = {name: requests.Stream(requests.Klass.GUEST, name) for name in images}

    async def wait(name):
        with pytest.raises(errors.DeadlineExceeded):
            await images[name].read_at(0, CHUNK, guests[name])

    host.source._share = 1.0
    before = len(host.source.reads)
    async with trio.open_nursery() as nursery:
        for name in images:
            nursery.start_soon(wait, name)
        await trio.sleep(one_host.DEADLINE_S / 2)
        late = host.waiting.table.late_guests(math.inf, 0.0)
        reads = len(host.source.reads)
    assert reads > before + 2  # each was tried again
    for name, of in images.items():
        why = late[guests[name]].why
        assert of.map.image_id in why
        assert not any(f"read {nth} fails" in why for nth in (before + 1, before + 2))  # the first


def run_of(first, count, **changes):
    length = min(count * CHUNK, len(DATA) - first * CHUNK)
    how = peer_request.Mode.HOME, priority.Priority.PEER, 1.0, CHUNK
    made = chunk_ref.Request(1, one_host.IMAGE, first * CHUNK, length, b"", *how)
    return made._replace(**changes)


async def test_peer_requests_resolve_to_cids_along_chunk_boundaries(host, image):
    cids = [image.map.cid_of(number) for number in range(len(image.map))]
    whole = run_of(0, len(cids))
    assert [content.cid for content in image.contents_of(whole)] == cids
    assert [content.cid for content in image.contents_of(run_of(3, 2))] == cids[3:5]
    assert image.contents_of(run_of(3, 2, offset=1)) == []
    assert image.contents_of(whole._replace(length=whole.length - 1)) == []
    assert image.contents_of(whole._replace(length=whole.length + CHUNK)) == []
    halves = image.contents_of(run_of(3, 2, chunk_bytes=CHUNK // 2))
    assert {content.cid for content in halves} == {ids.ZERO_CID}
    frame = run_of(0, 1, offset=base.AT_BOOT_IMAGE, chunk_bytes=0)
    assert image.contents_of(frame) is None  # whether there is a boot image is not known yet
    assert host.naming.segments_of(whole) is None
    host.naming._rings = one_host.OneTable(hash_ring.Ring(1, (), segment_chunks=4))
    assert host.naming.segments_of(run_of(2, 1)) == (cids[:4], 2, CHUNK, 4)


def test_forked_process_has_its_own_read_buffer():
    """The kernel may still fill the buffer of a killed worker while the next one answers."""
    mirror._SCRATCH[:1] = b"p"
    if not (child := os.fork()):
        mirror._SCRATCH[:1] = b"c"
        os._exit(0)
    os.waitpid(child, 0)
    assert mirror._SCRATCH[:1] == b"p"
