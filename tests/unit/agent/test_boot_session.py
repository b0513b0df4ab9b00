# SPDX-License-Identifier: Apache-2.0
"""Boot sessions: reads from a boot image in memory, and boots without one."""

import errno
import os
import threading

import pytest
import trio
import trio.testing

from acstor_agent.control import image_status
from acstor_agent.core.boot import boot_memory
from acstor_agent.engine_io import exchange
from acstor_agent.images.read import boot_session
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.formats import boot_frames
from acstor_common.formats import boot_image
from acstor_common.model import ids
from tests.fakes import announced
from tests.fakes import exchange_cloud
from tests.fakes import faulty_source
from tests.fakes import one_host

CHUNK = one_host.CHUNK
DATA = one_host.image_bytes(20 * CHUNK) + bytes(3 * CHUNK) + one_host.image_bytes(777, seed=2)
TRACE = [5, 2, 20, 9, 10, 23, 7]
BOOT_BLOB = base.Blob(one_host.IMAGE, base.BlobKind.BOOT_IMAGE)
IN_MEMORY = 6  # chunk 20 is zeros


@pytest.fixture
async def host(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as made:
        yield made


async def attached(host):
    return await host.mirrors.attach_image(one_host.IMAGE)


async def loaded(host):
    """Attach the image and load its boot image into memory."""
    host.add_boot_image(DATA, TRACE)
    image = await attached(host)
    image.boots.begin_boot()
    await until(lambda: image.boots.state is boot_session.State.READY)
    return image


async def until(condition):
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110  (several things change it)
            await trio.sleep(0.001)


async def check(image, *chunk_nos):
    for chunk_no in chunk_nos:
        start = chunk_no * CHUNK
        assert bytes(await image.read_at(start, CHUNK)) == DATA[start : start + CHUNK]


def read_by(image, origin):
    return image.counters.read.as_dict()[origin]["requests"]


async def test_chunks_of_the_boot_image_are_read_from_memory(host):
    image = await loaded(host)
    asked = len(host.source.reads)
    await check(image, *TRACE)
    assert len(host.source.reads) == asked
    assert read_by(image, "boot") == IN_MEMORY
    assert len(image.boots.in_memory) == IN_MEMORY
    assert image_status.of_boot_image(image.boots) == {
        "state": "ready",
        "revision": 1,
        "chunks": IN_MEMORY,
        "chunks_in_memory": IN_MEMORY,
    }


async def test_reads_across_the_edges_of_the_boot_image_are_correct(host):
    image = await loaded(host)
    for offset, length in [(CHUNK, 5 * CHUNK), (4 * CHUNK + 5, 7 * CHUNK), (19 * CHUNK, 5 * CHUNK)]:
        assert bytes(await image.read_at(offset, length)) == DATA[offset : offset + length]


async def test_each_byte_of_the_boot_image_is_read_from_the_source_once(host):
    image = await loaded(host)
    raw = host.blobs[BOOT_BLOB]
    header = (0, boot_image.HEADER_BYTES)
    reads = [read for read in host.source.reads if read[1] < CHUNK * 2 + 1]
    assert sum(length for _, length in reads if (0, length) != header) >= len(raw)
    frames = [read for read in reads if read[0] > boot_image.HEADER_BYTES]
    assert len(frames) == len(set(frames)) == 3
    assert image.boots.head.header.frame_count == 3


async def test_early_guest_read_waits_for_its_frame_without_a_second_fetch(host):
    host.add_boot_image(DATA, TRACE)
    image = await attached(host)
    image.boots.begin_boot()
    await check(image, *TRACE)  # at once, before any frame arrives
    await until(lambda: image.boots.state is boot_session.State.READY)
    asked = host.source.reads
    frames = [read for read in asked if CHUNK < read[1]]
    assert len(frames) == len(set(frames)) == 3
    assert not [read for read in asked if read[1] == CHUNK]


async def test_cached_chunks_are_not_loaded_from_frames(host):
    image = await attached(host)
    await check(image, 5, 2)
    host.add_boot_image(DATA, TRACE)
    image.boots.begin_boot()
    await until(lambda: image.boots.state is boot_session.State.READY)
    assert len(image.boots.in_memory) == IN_MEMORY - 2
    await check(image, *TRACE)


@pytest.mark.parametrize("at", [1, -1])
async def test_batch_of_a_frame_and_a_chunk_reads_each_at_its_own_location(host, at):
    raw = host.add_boot_image(DATA, TRACE)
    image, frame = await attached(host), raw[100:300]
    place = base.AT_BOOT_IMAGE + 100, len(frame)
    refs = [
        host.chunks.chunk_ref_at(one_host.IMAGE, (), *place, ids.cid_of(frame)),
        host.chunks.chunk_ref_of(image.map, 5),
    ][::at]
    with host.chunks.submit_read(refs, deadline_s=one_host.DEADLINE_S) as wish:
        came = [bytes(fetched.data) for fetched in await wish.wait()]
    assert came == [frame, DATA[5 * CHUNK : 6 * CHUNK]][::at]
    assert sorted(host.source.reads[-2:]) == [(100, len(frame)), (5 * CHUNK, CHUNK)]


async def test_second_boot_loads_the_boot_image_from_the_cache(host, tmp_path):
    image = await loaded(host)
    await until(lambda: (tmp_path / "maps" / BOOT_BLOB.file_name).exists())
    image.boots.drop()
    assert (image.boots.state, len(image.boots.in_memory)) == (boot_session.State.DROPPED, 0)
    before = host.chunks.counters.source_bytes
    image.boots.begin_boot()
    await until(lambda: image.boots.state is boot_session.State.READY)
    assert host.chunks.counters.source_bytes == before
    await check(image, *TRACE)
    assert read_by(image, "boot") == IN_MEMORY


async def begin(host, image, profile, chunks_in_memory):
    image.boots.begin_boot(ids.profile_key_of(profile))
    await until(lambda: image.boots.state is boot_session.State.READY)
    assert len(image.boots.in_memory) == chunks_in_memory
    held_bytes = sum(data.nbytes for data in image.boots.in_memory.values())
    assert held_bytes <= host.boots.memory.used_bytes


PROFILES = {"db": (1, 3, 4, 11), "web": (6, 8)}


@pytest.fixture
async def profiled(host):
    host.add_boot_image(DATA, TRACE, of_profiles=PROFILES)
    return await attached(host)


async def test_frames_of_a_profile_are_loaded_only_for_its_guests(host, profiled):
    await begin(host, profiled, "unknown", IN_MEMORY)
    assert host.boots.memory.used_bytes == 5 * CHUNK + 777
    await begin(host, profiled, "db", IN_MEMORY + 4)
    fetched_bytes, loaded = host.chunks.counters.source_bytes, host.boots.counters.loaded
    await begin(host, profiled, "db", IN_MEMORY + 4)
    await begin(host, profiled, "", IN_MEMORY + 4)
    assert (host.chunks.counters.source_bytes, host.boots.counters.loaded) == (
        fetched_bytes,
        loaded,
    )
    await begin(host, profiled, "web", IN_MEMORY + 6)
    await check(profiled, *TRACE, 1, 3, 4, 11, 6, 8)
    assert read_by(profiled, "boot") == IN_MEMORY + 6


async def test_reads_of_another_profile_take_no_memory(host, profiled):
    await begin(host, profiled, "web", IN_MEMORY + 2)
    profiled.boots.drop()
    await begin(host, profiled, "db", IN_MEMORY + 4)
    fetched_bytes = host.chunks.counters.source_bytes
    await check(profiled, 6, 8)
    assert host.chunks.counters.source_bytes == fetched_bytes  # their frame is in the cache
    await begin(host, profiled, "db", IN_MEMORY + 4)


async def test_guest_of_a_profile_that_begins_during_loading_gets_its_frames(host, profiled):
    profiled.boots.begin_boot()
    await begin(host, profiled, "db", IN_MEMORY + 4)


@pytest.mark.expect_log("no space for .* bytes in memory")
@pytest.mark.parametrize("first", ["", "db"])
async def test_profile_without_space_in_memory_leaves_the_other_chunks_there(host, profiled, first):
    host.boots.memory.limit_bytes = 5 * CHUNK + 777
    await begin(host, profiled, first, IN_MEMORY)
    await begin(host, profiled, "db", IN_MEMORY)
    await check(profiled, *TRACE)
    host.boots.memory.limit_bytes *= 2
    await begin(host, profiled, "db", IN_MEMORY + 4)
    await check(profiled, *PROFILES["db"])


async def test_profile_that_fails_costs_another_one_nothing(host, profiled):
    raw = host.blobs[BOOT_BLOB]
    frames = boot_image.parse_head(raw, "it").frames
    host.blobs[BOOT_BLOB] = raw[: -frames[-1].stored_bytes]  # of "web" alone
    profiled.boots.begin_boot(ids.profile_key_of("web"))
    await begin(host, profiled, "db", IN_MEMORY + 4)
    host.blobs[BOOT_BLOB] = raw
    await begin(host, profiled, "web", IN_MEMORY + 6)


@pytest.mark.parametrize("first", ["", "db"])
async def test_profile_whose_frames_fail_leaves_the_other_chunks_in_memory(host, profiled, first):
    raw = host.blobs[BOOT_BLOB]
    profile_bytes = sum(
        frame.stored_bytes for frame in boot_image.parse_head(raw, "it").frames[-3:]
    )
    host.blobs[BOOT_BLOB] = raw[:-profile_bytes]
    await begin(host, profiled, first, IN_MEMORY)
    await begin(host, profiled, "db", IN_MEMORY)
    await check(profiled, *TRACE)
    host.blobs[BOOT_BLOB] = raw
    await begin(host, profiled, "db", IN_MEMORY + 4)
    await check(profiled, *PROFILES["db"])


async def test_frames_of_profiles_are_dropped_with_the_others(host, profiled):
    await begin(host, profiled, "db", IN_MEMORY + 4)
    profiled.boots.drop()
    assert host.boots.memory.used_bytes == 0
    await begin(host, profiled, "", IN_MEMORY)


async def test_image_dropped_while_its_last_frame_is_unpacked_takes_no_memory(
    host, profiled, monkeypatch
):
    begun, is_dropped = threading.Event(), threading.Event()
    unpack = boot_frames.unpack_checked

    def unpack_slowly(image_map, frame, *more):
        if set(frame.chunk_nos) & set(PROFILES["db"]):
            begun.set()
            assert is_dropped.wait(30)
        return unpack(image_map, frame, *more)

    monkeypatch.setattr(boot_frames, "unpack_checked", unpack_slowly)
    profiled.boots.begin_boot(ids.profile_key_of("db"))
    await until(begun.is_set)
    await until(lambda: len(profiled.boots.in_memory) >= IN_MEMORY)
    profiled.boots.drop()
    is_dropped.set()
    for _ in range(50):
        await trio.sleep(0.01)
        assert (host.boots.memory.used_bytes, profiled.boots.in_memory) == (0, {})
    assert profiled.boots.state is boot_session.State.DROPPED


async def press(host, seed, limit_bytes=8 * one_host.geometry.MIB):
    """Store twice as many other bytes as the cache may hold."""
    data = one_host.image_bytes(2 * limit_bytes, seed)
    for start in range(0, len(data), CHUNK):
        chunk = data[start : start + CHUNK]
        while not host.cache.store_chunk(ids.cid_of(chunk), chunk):
            await host.cache.wait_for_room()
            await trio.lowlevel.checkpoint()


async def test_boot_image_stays_cached_under_load_and_across_a_restart(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as first:
        image = await loaded(first)
        await check(image, 0, 1)
        cids = [frame.cid for frame in image.boots.head.frames]
        image.boots.drop()
        await press(first, seed=3)
        assert image.map.cid_of(0) not in first.cache  # borrowed chunks are evicted first
        assert all(cid in first.cache for cid in cids)
        assert first.cache.statistics.chunks_by_class["boot"] == len(cids)
    async with one_host.one_host(tmp_path, data=DATA) as second:
        second.add_boot_image(DATA, TRACE)
        await press(second, seed=4)
        image = await attached(second)
        image.boots.begin_boot()
        await until(lambda: image.boots.state is boot_session.State.READY)
        await check(image, *TRACE)
        assert read_by(image, "boot") == IN_MEMORY
        assert second.chunks.counters.source_bytes == 0


async def test_guest_boots_from_frames_that_the_cache_has_no_room_for(host, monkeypatch):
    monkeypatch.setattr(host.cache, "store_chunk", lambda *_: False)
    image = await loaded(host)
    await check(image, *TRACE)
    assert read_by(image, "boot") == IN_MEMORY
    assert host.cache.statistics.chunks_by_class["boot"] == 0


async def test_after_the_boot_chunks_are_read_from_cached_frames(host):
    image = await loaded(host)
    image.boots.drop()
    before = host.chunks.counters.source_bytes
    await check(image, 5, 2, 5)
    assert host.chunks.counters.source_bytes == before
    assert read_by(image, "boot") == 0
    assert read_by(image, "cache") == 3


async def test_boot_image_is_dropped_from_memory_when_idle(host, autojump_clock):
    image = await loaded(host)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.boots.run)
        host.now_s = one_host.BOOT_IDLE_S - 1
        await check(image, 5)
        await trio.sleep(2 * boot_session.TICK_S)
        host.now_s += one_host.BOOT_IDLE_S - 1
        await trio.sleep(2 * boot_session.TICK_S)
        assert image.boots.state is boot_session.State.READY
        host.now_s += 1
        await trio.sleep(2 * boot_session.TICK_S)
        assert image.boots.state is boot_session.State.DROPPED
        nursery.cancel_scope.cancel()
    assert image_status.of_boots(host.boots)["memory_bytes"] == 0
    assert image_status.of_boots(host.boots)["dropped"] == 1


async def test_second_boot_keeps_the_boot_image_in_memory(host):
    image = await loaded(host)
    host.now_s = one_host.BOOT_IDLE_S - 1
    image.boots.begin_boot()
    assert host.memory.take_due(one_host.BOOT_IDLE_S) == []
    assert host.boots.counters.loaded == 1


async def test_image_without_a_boot_image_boots_from_its_chunks(host):
    image = await attached(host)
    image.boots.begin_boot()
    await check(image, 5)
    await until(lambda: image.boots.state is boot_session.State.NONE)
    host.add_boot_image(DATA, TRACE)
    image.boots.begin_boot()
    assert image.boots.state is boot_session.State.NONE  # not looked up again at once
    host.now_s = boot_session.RECHECK_S
    image.boots.begin_boot()
    await until(lambda: image.boots.state is boot_session.State.READY)


async def test_equal_chunks_are_read_once_while_the_boot_image_is_looked_up(host):
    host.add(8 * DATA[:CHUNK])
    image = await attached(host)
    image.boots.begin_boot()
    assert image.boots.may_load_chunk(image.map.cid_of(0))  # the look-up has not ended yet
    assert bytes(await image.read_at(0, 8 * CHUNK)) == 8 * DATA[:CHUNK]
    assert [length for _, length in host.source.reads].count(CHUNK) == 1


async def test_chunk_fetched_during_the_boot_image_lookup_is_not_read_again(host):
    image = await attached(host)
    image.boots.begin_boot()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check, image, 5)
        await exchange_cloud.bring(host.chunks, image.chunk_ref_of(5), exchange.Priority.PRE_SEED)
    assert [length for _, length in host.source.reads].count(CHUNK) == 1


async def test_boot_image_is_not_looked_up_without_memory_for_it(host):
    host.memory.limit_bytes = 0
    image = await loaded_or_not(host)
    assert image.boots.state is boot_session.State.UNKNOWN
    assert all(length != boot_image.HEADER_BYTES for _, length in host.source.reads)


async def loaded_or_not(host):
    host.add_boot_image(DATA, TRACE)
    image = await attached(host)
    image.boots.begin_boot()
    await check(image, *TRACE)
    return image


@pytest.mark.expect_log("no space for .* bytes in memory")
async def test_boot_image_larger_than_its_memory_is_not_used(host):
    host.boots.memory = boot_memory.BootMemory(CHUNK, 60.0, 600.0)
    image = await loaded_or_not(host)
    await until(lambda: image.boots.state is boot_session.State.REFUSED)
    assert image_status.of_boots(host.boots)["refused"] == 1
    await check(image, *TRACE)


async def test_idle_boot_image_is_evicted_for_another(host):
    image = await loaded(host)
    host.boots.memory.limit_bytes = image.boots.head.raw_bytes
    host.add(DATA, one_host.OTHER)
    host.add_boot_image(DATA, TRACE, one_host.OTHER)
    other = await host.mirrors.attach_image(one_host.OTHER)
    host.now_s = boot_memory.QUIET_S
    other.boots.begin_boot()
    await until(lambda: other.boots.state is boot_session.State.READY)
    assert image.boots.state is boot_session.State.DROPPED
    await check(image, *TRACE)


def flipped(raw, at):
    return raw[:at] + bytes([raw[at] ^ 0x40]) + raw[at + 1 :]


@pytest.mark.allow_log("ignored; guests boot without it")
@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: raw[:100],
        lambda raw: b"no boot image at all" * 100,
        lambda raw: flipped(raw, 20),
        lambda raw: flipped(raw, 196),
        lambda raw: flipped(raw, len(raw) - 1),
        lambda raw: raw[:-1],
        lambda raw: one_host.boot_image_of(DATA, TRACE, one_host.OTHER),
        lambda raw: one_host.boot_image_of(DATA[::-1], TRACE),
        lambda raw: one_host.boot_image_of(DATA[:-1], TRACE[:2]),
    ],
    ids="empty short rubbish header table frame cut other-image other-bytes other-size".split(),
)
async def test_guests_read_on_without_a_damaged_boot_image(host, damage):
    raw = host.add_boot_image(DATA, TRACE)
    host.blobs[BOOT_BLOB] = damage(raw)
    image = await attached(host)
    image.boots.begin_boot()
    await check(image, *TRACE, *range(24))
    await until(lambda: image.boots.state is not boot_session.State.LOADING)
    assert image.boots.state is not boot_session.State.READY
    assert not image.boots.in_memory
    assert host.memory.used_bytes == 0


@pytest.mark.expect_log("does not match the chunk map; ignored; guests boot without it")
async def test_boot_image_that_contradicts_the_chunk_map_is_logged_and_counted(host):
    host.blobs[BOOT_BLOB] = one_host.boot_image_of(DATA[::-1], TRACE)
    image = await attached(host)
    image.boots.begin_boot()
    await until(lambda: image.boots.state is boot_session.State.IGNORED)
    assert image_status.of_boots(host.boots)["ignored"] == 1


@pytest.mark.parametrize("nth", range(1, 12))
async def test_reads_are_correct_if_the_source_fails_at_any_point(tmp_path, nth):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        image = await attached(host)
        host.source._fail = {len(host.source.reads) + nth}
        host.add_boot_image(DATA, TRACE)
        image.boots.begin_boot()
        await check(image, *TRACE)
        await until(lambda: image.boots.state is not boot_session.State.LOADING)
        await check(image, *TRACE)


async def test_newer_boot_image_replaces_the_cached_one(host):
    image = await loaded(host)
    image.boots.drop()
    host.add_boot_image(DATA, [1, 3, 4], revision=2)
    for _ in range(2):  # the first boot finds the new revision, the second one loads it
        host.now_s += boot_session.RECHECK_S
        image.boots.begin_boot()
        await until(lambda: image.boots.state is boot_session.State.READY)
        await trio.testing.wait_all_tasks_blocked()
        image.boots.drop()
    assert image.boots.head.header.revision == 2
    image.boots.begin_boot()
    await until(lambda: image.boots.state is boot_session.State.READY)
    await check(image, 1, 3, 4, 5)
    assert read_by(image, "boot") == 3


async def test_forgotten_image_frees_its_boot_image(host, tmp_path):
    image = await loaded(host)
    host.boots.forget_image(one_host.IMAGE)
    assert not (tmp_path / "maps" / BOOT_BLOB.file_name).exists()
    assert (image.boots.in_memory, host.memory.used_bytes) == ({}, 0)
    host.boots.forget_image(one_host.IMAGE)


async def test_image_forgotten_while_its_head_is_parsed_takes_no_memory(host, monkeypatch):
    host.add_boot_image(DATA, TRACE)
    image = await attached(host)
    parse, is_parsing, may_end = image.boots._head._parse, threading.Event(), threading.Event()

    def slow(*args):
        is_parsing.set()
        may_end.wait(5)
        return parse(*args)

    monkeypatch.setattr(image.boots._head, "_parse", slow)
    image.boots.begin_boot()
    await until(is_parsing.is_set)
    host.boots.forget_image(one_host.IMAGE)
    may_end.set()
    await until(lambda: image.boots.head is not None)
    await trio.testing.wait_all_tasks_blocked()
    assert host.memory.used_bytes == 0  # memory must belong to attached images only


@pytest.mark.expect_log("its head cannot be stored")
async def test_boot_image_is_used_if_its_head_cannot_be_stored(host, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    host.add_boot_image(DATA, TRACE)
    image = await attached(host)
    monkeypatch.setattr(boot_session.atomic_file, "atomic_write", full)
    monkeypatch.setattr(type(image.boots._head.path), "read_bytes", full)
    image.boots.begin_boot()
    await until(lambda: image.boots.state is boot_session.State.READY)


@pytest.mark.expect_log("Read-only file system")
async def test_undeletable_head_does_not_prevent_forgetting_the_image(host, monkeypatch):
    image = await loaded(host)

    def read_only(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(type(image.boots._head.path), "unlink", read_only)
    host.boots.forget_image(one_host.IMAGE)
    assert host.memory.used_bytes == 0


async def test_advertised_chunk_of_the_boot_image_is_not_prefetched(host, monkeypatch):
    image = await loaded(host)
    monkeypatch.setattr(host.chunks, "holders_bitmap", lambda segment: 1)
    cid = image.map.cid_of(5)
    image.prefetch.chunks_advertised(announced.alone(ids.oid_of(cid)))
    assert image.prefetch.states.in_flight == 0
    assert image.boots.covers_chunk(cid) and not image.boots.covers_chunk(image.map.cid_of(6))


async def test_failed_boot_image_load_causes_no_guest_error(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        host.add_boot_image(DATA, TRACE)
        faulty = faulty_source.FaultySource(
            faulty_source.MemorySource(host.blobs), share=1.0, error=errors.SourceUnreachable
        )
        host.boots.source = faulty
        image = await attached(host)
        image.boots.begin_boot()
        await until(lambda: image.boots.state is boot_session.State.FAILED)
        await check(image, *TRACE)
        assert image_status.of_boots(host.boots)["failed"] == 1


@pytest.mark.parametrize("error", [errors.SourceUnreachable, errors.ChunkMissing])
async def test_guest_read_falls_back_when_the_source_fails_to_deliver_a_frame(
    host, autojump_clock, error
):
    image = await attached(host)
    host.add_boot_image(DATA, TRACE)
    real, may_fail = host.source._read, trio.Event()

    async def without_frames(nth, blob, offset, length):
        if blob == BOOT_BLOB and offset:
            await may_fail.wait()
            raise error(blob.describe_range(offset, length), "memory", "not this frame")
        return await real(nth, blob, offset, length)

    host.source._read = without_frames
    image.boots.begin_boot()
    await until(lambda: image.boots._head.frames)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check, image, TRACE[0])
        await trio.testing.wait_all_tasks_blocked()
        may_fail.set()
        began_s = trio.current_time()
    assert trio.current_time() - began_s < one_host.DEADLINE_S / 10
