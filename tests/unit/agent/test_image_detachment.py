# SPDX-License-Identifier: Apache-2.0
"""Eviction of unused images: when it happens, what it removes and what it keeps."""

import time

import pytest
import trio

from acstor_agent.core import counters
from acstor_agent.images.boot import boot_recording
from acstor_agent.images.image import usage
from acstor_agent.images.keep import image_detachment
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import faulty_source
from tests.fakes import manual_clock
from tests.fakes import one_host

IMAGE, OTHER = one_host.IMAGE, one_host.OTHER
NOVAS = ids.ImageId("0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
CHUNK = one_host.CHUNK
HOUR_S = 3600.0
DATA = one_host.image_bytes(4 * CHUNK)
BOOT_MAP = tuple(range(4))


class Host:
    """A host with two attached images, which are used as the test says."""

    def __init__(self, host):
        self.host, self.now_s = host, 1000.0
        self.wall_s = time.time()
        self.open, self.reported = set(), []
        self.uses = usage.ImageUsage(
            host.mirrors, lambda: self.open, set, manual_clock.FunctionClock(lambda: self.now_s)
        )
        self.detaching = image_detachment.ImageDetachment(
            host.mirrors,
            host.boots,
            self.uses,
            host.pins,
            limits=image_detachment.DetachLimits(HOUR_S),
            detach_handlers=[self.reported.append],
            clock=manual_clock.FunctionClock(lambda: self.wall_s),
        )

    async def let_pass(self, seconds):
        """Advance time while Nova touches another image, so that idle time counts."""
        while seconds > 0:
            self.now_s += min(seconds, HOUR_S)
            seconds -= HOUR_S
            self.uses.image_touched(NOVAS, is_by_nova=True)
        await self.uses.scan_processes()
        await self.detaching.detach_unused()

    def delete(self, image_id, days_ago=31):
        """Delete an image in Glance, and let its last touch be ``days_ago`` days ago."""
        for kind in (base.BlobKind.IMAGE, base.BlobKind.CHUNK_MAP):
            del self.host.blobs[base.Blob(image_id, kind)]
        self.wall_s = time.time() + days_ago * 24 * HOUR_S

    async def read(self, image_id):
        image = await self.host.mirrors.attach_image(image_id)
        return bytes(await image.read_at(0, image.size_bytes))

    def cached(self, image_id):
        return [cid for cid in self.host.mirrors.cids_of(image_id) if cid in self.host.cache]


async def until(is_true):
    with trio.fail_after(60):
        while not is_true():  # noqa: ASYNC110 - a file has no event
            await trio.sleep(0.01)


@pytest.fixture
async def used(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        host.add(DATA[: 2 * CHUNK] + one_host.image_bytes(2 * CHUNK, seed=2), OTHER)
        made = Host(host)
        for image_id in (IMAGE, OTHER):
            await made.read(image_id)
        await made.uses.scan_processes()
        yield made


async def test_unused_image_is_detached_after_the_limit(used):
    await used.let_pass(HOUR_S / 2)
    used.uses.image_touched(OTHER)
    await used.let_pass(HOUR_S / 2 + 1)
    assert used.host.mirrors.list_attached() == [OTHER]
    assert used.host.mirrors.get_nowait(IMAGE) is None
    assert (used.reported, used.detaching.detached) == ([IMAGE], 1)
    await used.let_pass(HOUR_S / 2)
    assert used.host.mirrors.list_attached() == []
    assert list(used.host.maps.iterdir()) == []


async def test_open_image_stays_attached_without_reads(used):
    used.uses.image_opened(IMAGE)
    for _ in range(30):
        await used.let_pass(HOUR_S)
    assert used.host.mirrors.list_attached() == [IMAGE]
    used.uses.image_closed(IMAGE)
    await used.let_pass(HOUR_S / 2)
    assert used.host.mirrors.list_attached() == [IMAGE]
    await used.let_pass(HOUR_S / 2 + 1)
    assert used.host.mirrors.list_attached() == []


async def test_kept_image_stays_attached_while_it_is_kept(used):
    kept = {IMAGE}
    used.detaching._is_kept = kept.__contains__
    await used.let_pass(2 * HOUR_S)
    assert used.host.mirrors.list_attached() == [IMAGE]
    kept.clear()
    await used.let_pass(1.0)
    assert used.host.mirrors.list_attached() == []


async def test_just_attached_image_stays(used):
    await used.let_pass(2 * HOUR_S)
    await used.host.mirrors.attach_image(IMAGE)
    await used.detaching.detach_unused()  # its uses are not scanned yet
    assert used.host.mirrors.list_attached() == [IMAGE]


async def test_image_opened_during_the_source_check_stays(used):
    class OpeningSource(faulty_source.MemorySource):
        async def size_bytes(self, blob):
            used.uses.image_opened(blob.image_id)
            raise errors.ChunkMissing(blob.file_name, "memory")

    used.detaching._source = OpeningSource({})
    await used.let_pass(2 * HOUR_S)
    assert used.host.mirrors.list_attached() == [IMAGE, OTHER]
    assert len(used.cached(IMAGE)) == 4


async def test_image_attached_again_during_eviction_stays_attached(used, nursery):
    """A mirror whose chunk map is gone would be unknown to the next worker."""
    used.delete(IMAGE)
    del used.host.mirrors._mirrors[IMAGE]  # as after a restart: its map is read from the disk
    make, is_making, may_go_on = used.host.mirrors._make, trio.Event(), trio.Event()

    async def make_slowly(image_map):
        is_making.set()
        await may_go_on.wait()
        return await make(image_map)

    used.host.mirrors._make = make_slowly
    nursery.start_soon(used.host.mirrors.attach_image, IMAGE)
    await is_making.wait()
    await used.let_pass(2 * HOUR_S)
    assert used.host.mirrors.list_attached() == [IMAGE]
    may_go_on.set()
    await until(lambda: used.host.mirrors.get_nowait(IMAGE))
    assert await used.read(IMAGE) == DATA


async def test_chunks_of_a_detached_image_stay_while_the_source_has_it(used):
    cids = list(used.host.mirrors.cids_of(IMAGE))
    await used.let_pass(2 * HOUR_S)
    assert all(cid in used.host.cache for cid in cids)
    reads = len(used.host.source.reads)
    assert await used.read(IMAGE) == DATA
    assert used.host.mirrors.list_attached() == [IMAGE]
    assert len(used.host.source.reads) == reads + 1  # the map; its chunks were here


async def test_chunks_of_a_deleted_image_are_purged_unless_shared(used):
    of_image, of_other = ([*used.host.mirrors.cids_of(one)] for one in (IMAGE, OTHER))
    used.delete(IMAGE)
    used.uses.image_opened(OTHER)
    await used.let_pass(2 * HOUR_S)
    assert used.host.mirrors.list_attached() == [OTHER]
    assert [cid in used.host.cache for cid in of_image] == [True, True, False, False]
    assert all(cid in used.host.cache for cid in of_other)
    assert used.detaching.purged_chunks == 2


async def test_deleted_image_stays_a_month_for_guests_of_other_hosts(used):
    """Their hosts may have no other source of its chunks."""
    used.detaching.limits = image_detachment.DetachLimits(HOUR_S, gone_check_interval_s=0.0)
    used.uses.image_opened(OTHER)
    cids = [*used.host.mirrors.cids_of(IMAGE)]
    used.delete(IMAGE, days_ago=0)
    for days in (0, 29):
        used.wall_s = time.time() + days * 24 * HOUR_S
        await used.let_pass(30 * HOUR_S)
        assert used.host.mirrors.list_attached() == [IMAGE, OTHER]
        assert all(cid in used.host.cache for cid in cids)
        assert await used.read(IMAGE) == DATA
        await used.uses.scan_processes()
    used.wall_s = time.time() + 31 * 24 * HOUR_S
    await used.let_pass(30 * HOUR_S)
    assert used.host.mirrors.list_attached() == [OTHER]
    assert used.detaching.purged_chunks == 2


async def test_source_check_of_an_image_that_stays_is_not_repeated_each_round(used):
    asked = []

    class Counting(faulty_source.MemorySource):
        async def size_bytes(self, blob):
            asked.append(blob.image_id)
            raise errors.ChunkMissing(blob.file_name, "memory")

    used.detaching._source = Counting({})
    for _ in range(3):
        await used.let_pass(2 * HOUR_S)
    assert asked == [IMAGE, OTHER]
    assert used.host.mirrors.list_attached() == [IMAGE, OTHER]
    used.detaching.detach_image(IMAGE)
    await used.detaching.detach_unused()
    assert list(used.detaching._stay_until_s) == [OTHER]


async def test_chunks_shared_with_an_image_not_opened_since_start_stay(used):
    of_image = [*used.host.mirrors.cids_of(IMAGE)]
    used.delete(IMAGE)
    del used.host.mirrors._mirrors[OTHER]  # as after a restart
    used.uses.image_opened(OTHER)
    await used.let_pass(2 * HOUR_S)
    assert [cid in used.host.cache for cid in of_image] == [True, True, False, False]
    assert used.host.mirrors.get_nowait(OTHER) is None  # and it was not opened for this


async def test_silent_source_is_asked_once_and_no_chunk_is_purged(used, autojump_clock):
    asked = []

    class Silent(faulty_source.MemorySource):
        async def size_bytes(self, blob):
            asked.append(blob.image_id)
            await trio.sleep_forever()

    used.detaching._source = Silent({})
    cids = [*used.host.mirrors.cids_of(IMAGE)]
    await used.let_pass(2 * HOUR_S)
    assert used.host.mirrors.list_attached() == []
    assert len(asked) == 1
    assert all(cid in used.host.cache for cid in cids)


async def test_eviction_removes_the_boot_image_from_memory_and_disk(used, tmp_path):
    used.host.add_boot_image(DATA, BOOT_MAP)
    image = await used.host.mirrors.attach_image(IMAGE)
    image.boots.begin_boot()
    await until((used.host.maps / f"{IMAGE}.acboot").exists)
    await used.let_pass(2 * HOUR_S)
    assert list(used.host.maps.iterdir()) == []
    assert (image.boots.in_memory, used.host.memory.used_bytes) == ({}, 0)


async def test_detach_removes_boot_image_of_an_image_not_opened_since_start(used):
    (used.host.maps / f"{IMAGE}.acboot").write_bytes(b"a head")
    del used.host.boots._images[IMAGE]
    used.detaching.detach_image(IMAGE)
    assert not (used.host.maps / f"{IMAGE}.acboot").exists()


async def test_boot_image_heads_left_by_a_killed_worker_are_removed_at_start(used, nursery):
    lost = used.host.maps / "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a99.acboot"
    kept = used.host.maps / f"{IMAGE}.acboot"
    for path in (lost, kept):
        path.write_bytes(b"a head")
    nursery.start_soon(used.detaching.run)
    await until(lambda: not lost.exists())
    assert kept.exists()


async def test_counters_of_a_detached_image_are_merged_into_the_totals(used):
    counted = used.host.chunks.counters
    before = counted.bytes_from(counted.fetched_total.bytes)
    await used.let_pass(2 * HOUR_S)
    assert before == counted.bytes_from(counted.fetched_total.bytes) == 6 * CHUNK
    assert not counted.fetched
    counted.fetched[IMAGE].add(counters.Origin.SOURCE, 5)  # by a chunk that was in flight
    await used.detaching.detach_unused()
    assert not counted.fetched
    assert sum(used.host.mirrors.reads.read.bytes.values()) == 8 * CHUNK


@pytest.mark.expect_log("image .* cannot be detached: Read-only file system")
async def test_image_whose_map_cannot_be_deleted_stays_and_others_are_detached(
    used, monkeypatch, caplog
):
    detach = used.host.mirrors.detach_image

    def refuse_one(image_id):
        if image_id == IMAGE:
            raise OSError(30, "Read-only file system")
        detach(image_id)

    monkeypatch.setattr(used.host.mirrors, "detach_image", refuse_one)
    for _ in range(5):
        await used.let_pass(2 * HOUR_S)
    assert used.host.mirrors.list_attached() == [IMAGE]
    assert await used.read(IMAGE) == DATA
    reported = [one for one in caplog.records if "cannot be detached" in one.getMessage()]
    assert len(reported) == 1
    monkeypatch.undo()
    for _ in range(2):  # it was read a moment ago
        await used.let_pass(2 * HOUR_S)
    assert used.host.mirrors.list_attached() == []


async def test_without_a_limit_no_image_is_detached(used, nursery, autojump_clock):
    used.detaching.limits = image_detachment.DetachLimits(0.0)
    nursery.start_soon(used.detaching.run)
    used.now_s += 1000 * HOUR_S
    await used.uses.scan_processes()
    await trio.sleep(1000 * HOUR_S)
    assert used.host.mirrors.list_attached() == [IMAGE, OTHER]


@pytest.mark.parametrize("unused_s", [0.0, HOUR_S])
async def test_maps_not_seen_at_start_are_found_later(used, nursery, unused_s):
    used.detaching.limits = image_detachment.DetachLimits(unused_s, check_interval_s=0.01)
    used.host.mirrors._attached.clear()
    nursery.start_soon(used.detaching.run)
    await until(lambda: used.host.mirrors.list_attached() == [IMAGE, OTHER])


async def test_boot_recordings_are_forgotten_but_operator_requests_stay(used):
    limits = boot_recording.RecordingLimits(longest_s=60.0, idle_s=10.0, boots=2)
    recording = boot_recording.BootRecording(ids.HostId("h1"), limits, lambda trace: None)
    image = await used.host.mirrors.attach_image(IMAGE)
    assert recording.image_opened(image, 7)
    for image_id, boots in ((IMAGE, 2), (OTHER, 1)):
        recording._sent[image_id] = boot_recording._SentTraces()
        for _ in range(boots):
            recording._sent[image_id].add(ids.NO_PROFILE, 0.0)
        recording.announce_boot(image_id, f"server of {image_id}", ids.profile_key_of("db"))
    recording.record_more(OTHER, 2)
    for image_id in (IMAGE, OTHER):
        recording.forget_image(image_id)
    assert (recording._open, recording._sent, recording._announced) == ({}, {}, {})
    assert (recording.remaining_boots(IMAGE), recording.remaining_boots(OTHER)) == (2, 2)


def test_number_of_images_with_requested_recordings_is_limited():
    limits = boot_recording.RecordingLimits(longest_s=60.0, idle_s=10.0, boots=1)
    recording = boot_recording.BootRecording(
        ids.HostId("h1"), limits, lambda trace: None, requested_limit=4
    )
    asked = [ids.ImageId(f"7d2c1f9e-5d6b-4a5c-9c61-{number:012}") for number in range(6)]
    for image_id in asked:
        recording.record_more(image_id, 5)
    assert [recording.remaining_boots(image_id) for image_id in asked] == [1, 1, 5, 5, 5, 5]


async def test_image_attached_for_a_lease_is_detached_when_the_lease_ends(used):
    used.host.mirrors.detach_image(OTHER)
    used.uses.image_detached(OTHER)
    used.uses._leases = {OTHER}
    await used.host.mirrors.attach_image(OTHER)
    await used.let_pass(1)
    assert used.host.mirrors.list_attached() == sorted([IMAGE, OTHER])
    used.uses._leases = set()
    await used.let_pass(1)
    assert used.host.mirrors.list_attached() == [IMAGE]
    await used.host.mirrors.attach_image(OTHER)  # for an instance of this host
    used.uses.image_opened(OTHER)
    await used.let_pass(1)
    used.uses.image_closed(OTHER)
    await used.let_pass(1)
    assert used.host.mirrors.list_attached() == sorted([IMAGE, OTHER])
