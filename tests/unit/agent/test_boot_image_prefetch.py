# SPDX-License-Identifier: Apache-2.0
"""Prefetch of boot images: conditions, limits, and the boot that follows."""

import types

import pytest
import trio

from acstor_agent.cache import cache_files
from acstor_agent.core.boot import prefetch_policy as core
from acstor_agent.core.cache import public_cache
from acstor_agent.images.image import usage
from acstor_agent.images.prefetch import boot_image_prefetch
from acstor_agent.images.read import boot_session
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages
from tests.fakes import chunk_maps
from tests.fakes import one_host

CHUNK = one_host.CHUNK
DATA = one_host.image_bytes(20 * CHUNK)
TRACE = [5, 2, 9, 10, 7, 1, 19, 18, 3, 4, 6, 8, 11, 12, 13, 17]
FORMER, NEW = one_host.OTHER, one_host.IMAGE
KEY, OTHER_KEY = (ids.ScopeKey(bytes([n]) * 32) for n in (7, 8))
Mode = core.Mode
BOOT_BLOB = base.Blob(NEW, base.BlobKind.BOOT_IMAGE)
LATE = boot_image_prefetch.MAX_IN_FLIGHT + 2
"""A turn at which some frames have arrived."""
KeepClass = public_cache.KeepClass
NO_HOSTS = hash_ring.Ring(0, ())


def task(*after, is_public=False):
    return decision_messages.ImageTask(
        request=1,
        kind=decision_messages.TaskKind.PREFETCH_BOOT_IMAGE,
        image_id=NEW,
        previous_images=after,
        is_public=is_public,
    )


async def report(_done, _total):
    pass


class Parts:
    """A host and the parts of its boot image prefetch."""

    def __init__(self, host):
        self.host, self.remote_idle_s, self.for_others = host, 100.0, set()
        self.uses = usage.ImageUsage(host.mirrors, set, set, leases=self.for_others)
        self.progress = []
        host.add_boot_image(DATA, TRACE)
        self.stored = host.blobs[BOOT_BLOB]

    def ahead(self, mode=Mode.BOOTED, remote_idle_s=None, table=NO_HOSTS, **limits):
        return boot_image_prefetch.BootImagePrefetch(
            mode,
            self.host.boots,
            self.host.mirrors,
            self.uses,
            self.host.naming,
            types.SimpleNamespace(remote_idle_s=remote_idle_s or (lambda: self.remote_idle_s)),
            one_host.OneTable(table),
            limits=boot_image_prefetch.PrefetchLimits(**limits),
        )

    async def report(self, done, total):
        self.progress.append((done, total))

    def name_by(self, image_id, key):
        """Make an image private to the project with this key."""
        cut = geometry.Geometry(len(DATA), CHUNK)
        cids = (ids.cid_of(DATA[at : at + CHUNK], key) for at in range(0, len(DATA), CHUNK))
        raw = chunk_maps.made(image_id, cut, cids, scope_keys=(key,))
        self.host.blobs[base.Blob(image_id, base.BlobKind.CHUNK_MAP)] = raw
        writer = boot_image.Writer(boot_image.Binding(image_id, cut), 1, 2 * CHUNK, key=key)
        for chunk_no in TRACE:
            writer.add(chunk_no, DATA[chunk_no * CHUNK : (chunk_no + 1) * CHUNK])
        self.host.blobs[base.Blob(image_id, base.BlobKind.BOOT_IMAGE)] = b"".join(
            writer.iter_parts()
        )

    @property
    def frames_bytes(self):
        head = boot_image.parse_head(self.stored, "boot image")
        return head.size_bytes - head.header.head_bytes

    @property
    def kept(self):
        return self.host.cache.statistics.bytes_by_class


@pytest.fixture
async def parts(tmp_path):
    async with one_host.one_host(tmp_path) as host:
        for image_id in (FORMER, NEW):
            host.add(DATA, image_id)
        yield Parts(host)


async def test_boot_of_a_new_version_reads_its_boot_image_from_the_cache(parts):
    host = parts.host
    await host.mirrors.attach_image(FORMER)
    ahead = parts.ahead()
    assert ahead.is_for(task(FORMER))
    came = await ahead.prefetch_boot_image(task(FORMER), parts.report)
    assert came == {"done_bytes": parts.frames_bytes}
    assert parts.progress[-1] == (parts.frames_bytes, parts.frames_bytes)
    assert (parts.kept["prefetched"], parts.kept["boot"]) == (parts.frames_bytes, 0)
    assert not host.mirrors.is_attached(NEW)
    assert ahead.boot_set_of(NEW) == (parts.frames_bytes, parts.frames_bytes)
    assert ahead.boot_set_of(FORMER) is None
    counted = host.boots.counters
    assert (counted.prefetched, counted.prefetched_bytes) == (1, parts.frames_bytes)
    host.source.reads.clear()
    image = await host.mirrors.attach_image(NEW)
    image.boots.begin_boot()
    with trio.fail_after(30):
        while image.boots.state is not boot_session.State.READY:  # noqa: ASYNC110
            await trio.sleep(0.001)
    for chunk_no in TRACE:
        start = chunk_no * CHUNK
        assert bytes(await image.read_at(start, CHUNK)) == DATA[start : start + CHUNK]
    assert image.counters.read.as_dict()["boot"]["requests"] == len(TRACE)
    head = boot_image.parse_head(parts.stored, "boot image").header.head_bytes
    frames = [read for read in host.source.reads if read[0] >= head and read[1] > CHUNK]
    assert frames == []
    assert (parts.kept["prefetched"], parts.kept["boot"]) == (0, parts.frames_bytes)
    assert counted.prefetched_used_bytes == parts.frames_bytes


async def test_cached_boot_image_is_not_fetched_again(parts):
    await parts.host.mirrors.attach_image(FORMER)
    ahead = parts.ahead()
    await ahead.prefetch_boot_image(task(FORMER), report)
    parts.host.source.reads.clear()
    assert await ahead.prefetch_boot_image(task(FORMER), report) == {
        "done_bytes": parts.frames_bytes
    }
    assert parts.host.boots.counters.prefetched_bytes == parts.frames_bytes
    assert all(length <= 1024 for _, length in parts.host.source.reads)


@pytest.mark.parametrize("mode", list(Mode))
async def test_image_without_a_local_predecessor_is_prefetched_in_mode_all_only(parts, mode):
    ahead = parts.ahead(mode)
    assert ahead.is_for(task(FORMER, is_public=True)) is (mode is Mode.ALL)
    assert not ahead.is_for(task(FORMER))


async def test_chunk_map_is_read_only_if_a_predecessor_is_attached(parts):
    blob = base.Blob(NEW, base.BlobKind.CHUNK_MAP)
    parts.host.blobs[blob] = parts.host.blobs[blob][: chunk_map.HEADER_BYTES]
    came = await parts.ahead(Mode.ALL).prefetch_boot_image(task(FORMER, is_public=True), report)
    assert came == {"done_bytes": parts.frames_bytes}
    await parts.host.mirrors.attach_image(FORMER)
    with pytest.raises(errors.ChunkMissing):
        await parts.ahead(Mode.ALL).prefetch_boot_image(task(FORMER, is_public=True), report)


async def test_image_leased_to_other_hosts_only_is_no_predecessor(parts):
    parts.for_others.add(FORMER)
    await parts.host.mirrors.attach_image(FORMER)
    await parts.uses.scan_processes()
    assert not parts.ahead().is_for(task(FORMER))


async def test_nothing_is_prefetched_if_boot_images_are_disabled(parts):
    await parts.host.mirrors.attach_image(FORMER)
    parts.host.memory.limit_bytes = 0
    assert not parts.ahead(Mode.ALL).is_for(task(FORMER, is_public=True))


@pytest.mark.parametrize(
    ("former_key", "is_served"), [(KEY, True), (OTHER_KEY, False), (None, False)]
)
async def test_private_image_is_prefetched_if_its_project_has_the_predecessor(
    parts, former_key, is_served
):
    parts.name_by(NEW, KEY)
    if former_key is not None:
        parts.name_by(FORMER, former_key)
    await parts.host.mirrors.attach_image(FORMER)
    ahead = parts.ahead(Mode.ALL)
    if is_served:
        await ahead.prefetch_boot_image(task(FORMER), report)
        assert parts.kept["prefetched"] > 0
        return
    with pytest.raises(errors.Unusable, match="project"):  # although the decision service says so
        await ahead.prefetch_boot_image(task(FORMER, is_public=True), report)
    assert parts.kept["prefetched"] == 0


async def test_image_in_use_on_this_host_is_not_prefetched(parts):
    for image_id in (FORMER, NEW):
        await parts.host.mirrors.attach_image(image_id)
    assert await parts.ahead().prefetch_boot_image(task(FORMER), report) == {"done_bytes": 0}


async def test_deleted_image_is_not_prefetched(parts):
    await parts.host.mirrors.attach_image(FORMER)
    for kind in base.BlobKind:
        parts.host.blobs.pop(base.Blob(NEW, kind), None)
    with pytest.raises(errors.ChunkMissing):
        await parts.ahead().prefetch_boot_image(task(FORMER), report)


async def test_missing_or_damaged_boot_image_is_not_prefetched(parts):
    await parts.host.mirrors.attach_image(FORMER)
    parts.host.blobs[BOOT_BLOB] = b"#!/bin/sh\n" * 100
    with pytest.raises(errors.BootImageFormatError):
        await parts.ahead().prefetch_boot_image(task(FORMER), report)
    del parts.host.blobs[BOOT_BLOB]
    with pytest.raises(errors.ChunkMissing):
        await parts.ahead().prefetch_boot_image(task(FORMER), report)
    assert parts.host.boots.counters.prefetched_bytes == 0


async def test_frames_whose_chunks_are_cached_are_not_fetched(parts):
    former = await parts.host.mirrors.attach_image(FORMER)
    for chunk_no in (*TRACE[2:6], TRACE[6]):  # two frames, and half of one
        await former.read_at(chunk_no * CHUNK, CHUNK)
    came = await parts.ahead().prefetch_boot_image(task(FORMER), report)
    frames = boot_image.parse_head(parts.stored, "boot image").frames
    left = [frame for frame in frames if frame.number not in (1, 2)]
    assert came["done_bytes"] == sum(frame.stored_bytes for frame in left)
    assert {frame.number for frame in frames if frame.cid in parts.host.cache} == {
        frame.number for frame in left
    }


async def test_newer_boot_image_is_fetched_after_a_recent_prefetch(parts):
    await parts.host.mirrors.attach_image(FORMER)
    ahead = parts.ahead()
    await ahead.prefetch_boot_image(task(FORMER), report)
    newer = parts.host.add_boot_image(DATA, [15, 14, 13], revision=2)
    await ahead.prefetch_boot_image(task(FORMER), report)
    for frame in boot_image.parse_head(newer, "newer").frames:
        assert frame.cid in parts.host.cache


async def test_prefetch_is_bounded_by_the_cache_share_and_a_daily_limit(
    parts, monkeypatch, mock_clock
):
    await parts.host.mirrors.attach_image(FORMER)
    limit = parts.frames_bytes - 1
    limited = property(lambda cache: limit)
    monkeypatch.setattr(cache_files.CacheFiles, "prefetched_limit_bytes", limited)
    ahead = parts.ahead()
    with pytest.raises(errors.Unusable, match="are prefetched"):
        await ahead.prefetch_boot_image(task(FORMER), report)
    limit += 1
    monkeypatch.setattr(
        core, "daily", lambda kept: core.token_buckets.Rate(1.0, parts.frames_bytes)
    )
    ahead = parts.ahead()
    mock_clock.jump(1000)
    await ahead.prefetch_boot_image(task(FORMER), report)
    parts.host.add_boot_image(DATA, [15], revision=2)
    with pytest.raises(errors.Unusable, match="daily limit"):
        await ahead.prefetch_boot_image(task(FORMER), report)
    mock_clock.jump(parts.frames_bytes)
    await ahead.prefetch_boot_image(task(FORMER), report)


async def test_pins_and_boot_chunks_reduce_the_prefetch_limit(parts):
    cache = parts.host.cache
    limit = cache.statistics.limit_bytes
    assert cache.prefetched_limit_bytes == limit // public_cache.BOOT_SHARES[KeepClass.PREFETCHED]
    for number in range(limit // CHUNK - 10):
        cache.pin_chunk(ids.cid_of(number.to_bytes(8)), CHUNK)
    assert 0 < cache.prefetched_limit_bytes < 16 * CHUNK
    chunk = one_host.image_bytes(12 * CHUNK, seed=5)
    for at in range(0, len(chunk), CHUNK):
        piece = chunk[at : at + CHUNK]
        cache.store_chunk(ids.cid_of(piece), piece, KeepClass.BOOT)
    assert cache.prefetched_limit_bytes < 4 * CHUNK


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_boot_image_changed_midway_ends_the_prefetch_and_keeps_its_frames(parts, is_deleted):
    await parts.host.mirrors.attach_image(FORMER)
    turns = []

    def turn():
        turns.append(1)
        if len(turns) == LATE and is_deleted:
            parts.host.blobs.clear()
        elif len(turns) == LATE:
            parts.host.blobs[BOOT_BLOB] = bytes(len(parts.stored))
        return 100.0

    with pytest.raises(errors.AcstorError) as caught:
        await parts.ahead(remote_idle_s=turn).prefetch_boot_image(task(FORMER), report)
    assert not isinstance(caught.value, errors.Unusable)
    assert 0 < parts.kept["prefetched"] < parts.frames_bytes
    assert parts.host.boots.counters.prefetched == 0


async def test_cache_that_refuses_chunks_ends_the_prefetch(parts, monkeypatch):
    await parts.host.mirrors.attach_image(FORMER)
    monkeypatch.setattr(parts.host.cache, "store_chunk", lambda *what: False)
    with pytest.raises(errors.Unusable, match="the cache has no space"):
        await parts.ahead().prefetch_boot_image(task(FORMER), report)


async def test_frames_yield_to_waiting_guests_for_a_bounded_time(parts):
    await parts.host.mirrors.attach_image(FORMER)
    parts.remote_idle_s = 0.0
    begun_s = trio.current_time()
    ahead = parts.ahead(yield_s=0.05, yield_tick_s=0.01)
    await ahead.prefetch_boot_image(task(FORMER), report)
    assert trio.current_time() - begun_s >= 3 * 0.05


async def test_prefetches_of_hosts_start_at_evenly_spread_fixed_delays(parts):
    spread_s = core.spread_s(1000)
    hosts = (hash_ring.RingHost(f"h{n}", f"10.0.0.1:{n}", 1) for n in range(1, 1001))
    table = hash_ring.Ring(1, tuple(hosts))
    ahead = [parts.ahead(table=table) for _ in range(1000)]
    delays_s = sorted(one.delay_s() for one in ahead)
    assert 0 <= delays_s[0] and delays_s[-1] < spread_s
    for share in (0.25, 0.5, 0.75):
        assert delays_s[int(share * 1000)] == pytest.approx(share * spread_s, abs=0.1 * spread_s)
    assert ahead[0].delay_s() == ahead[0].delay_s()
