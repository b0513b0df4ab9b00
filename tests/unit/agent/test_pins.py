# SPDX-License-Identifier: Apache-2.0
"""Image pins: the pin file, the pinned chunks, their order, and faults."""

import os

import pytest
import trio

from acstor_agent.core.images import capacity
from acstor_agent.core.images import pin_record
from acstor_agent.core.images import replica_placement
from acstor_agent.engine import identity
from acstor_agent.images.keep import pin_file
from acstor_agent.images.keep import pins
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from tests.fakes import one_host

IMAGE, OTHER, CHUNK = one_host.IMAGE, one_host.OTHER, one_host.CHUNK
MIB = geometry.MIB
DATA = one_host.image_bytes(2 * MIB) + bytes(2 * CHUNK)
SHARED = DATA[:MIB] + one_host.image_bytes(MIB, seed=3)


def keeping(folder, limit_bytes=8 * MIB, **options):
    return one_host.one_host(folder, limit_bytes, is_keeping=True, **options)


async def make(host, image_id, **options):
    image = await host.mirrors.attach_image(image_id)
    return await host.pins.pin_image(image_id, image.map, **options)


@pytest.fixture
async def host(tmp_path):
    async with keeping(tmp_path) as made:
        made.add(DATA)
        made.add(SHARED, OTHER)
        yield made


def promised_bytes(host) -> int:
    return host.cache.statistics.reserved_bytes


async def test_shared_chunks_of_pinned_images_are_reserved_once(host):
    assert await make(host, IMAGE) == 0
    assert promised_bytes(host) == 2 * MIB  # zeros need no space
    assert await make(host, OTHER) == 0
    assert promised_bytes(host) == 3 * MIB
    await host.pins.unpin_image(IMAGE)
    assert promised_bytes(host) == 2 * MIB
    await host.pins.unpin_image(OTHER)
    await host.pins.unpin_image(OTHER)
    assert promised_bytes(host) == 0 and not host.pins.list_pins()


async def test_repeated_pin_counts_once(host):
    await make(host, IMAGE)
    since_s = host.pins.get(IMAGE).since_s
    await make(host, IMAGE, is_operator_pin=True)
    await make(host, IMAGE)
    assert host.pins.get(IMAGE) == pin_record.ImagePin(IMAGE, since_s, is_operator_pin=True)
    await host.pins.unpin_image(IMAGE)
    assert promised_bytes(host) == 0


async def test_concurrent_pins_do_not_both_take_the_last_space(tmp_path):
    async with keeping(tmp_path, 3 * MIB) as host:
        host.add(one_host.image_bytes(2 * MIB, seed=5))
        host.add(one_host.image_bytes(2 * MIB, seed=6), OTHER)
        lacking = []

        async def promise_one(image_id):
            lacking.append(await make(host, image_id))

        async with trio.open_nursery() as nursery:
            for image_id in (IMAGE, OTHER):
                nursery.start_soon(promise_one, image_id)
        assert sorted(map(bool, lacking)) == [False, True]
        assert len(host.pins.list_pins()) == 1


async def test_pins_survive_a_restart_in_their_order(tmp_path):
    async with keeping(tmp_path) as host:
        host.add(DATA)
        host.add(SHARED, OTHER)
        await make(host, OTHER)
        await make(host, IMAGE, is_operator_pin=True)
        await host.pins.change_pin(OTHER, mode=pin_record.FillMode.PAUSED)
        before = host.pins.list_pins()
    async with keeping(tmp_path) as host:
        assert host.pins.list_pins() == before and list(before) == [OTHER, IMAGE]
        assert promised_bytes(host) == 3 * MIB
        assert host.source.reads == []


@pytest.mark.expect_log("pinned, but its chunk map is lost")
async def test_pin_with_a_lost_map_is_kept_and_applied_once_the_map_is_back(tmp_path):
    async with keeping(tmp_path) as host:
        host.add(DATA)
        await make(host, IMAGE, is_operator_pin=True)
    (tmp_path / "maps" / f"{IMAGE}.acmap").unlink()
    async with keeping(tmp_path) as host:
        assert host.pins.get(IMAGE).is_operator_pin
        assert host.pins.pinned_part(IMAGE) is None and promised_bytes(host) == 0
        host.add(DATA)
        assert await make(host, IMAGE) == 0
        assert promised_bytes(host) == 2 * MIB
        assert host.pins.get(IMAGE).is_operator_pin


@pytest.mark.allow_log("pinning the attached images again")
@pytest.mark.parametrize("raw", [None, b"", b"rubbish"])
async def test_lost_pin_file_is_rebuilt_from_attached_images_newest_first(tmp_path, raw):
    async with keeping(tmp_path, 3 * MIB) as host:
        host.add(one_host.image_bytes(2 * MIB, seed=5))
        host.add(one_host.image_bytes(2 * MIB, seed=6), OTHER)
        await make(host, IMAGE)
        await make(host, OTHER)
    os.utime(tmp_path / "maps" / f"{IMAGE}.acmap", (1000, 1000))
    path = tmp_path / pin_file.FILE_NAME
    if raw is None:
        path.unlink()
    else:
        path.write_bytes(raw)
    async with keeping(tmp_path, 3 * MIB) as host:
        assert list(host.pins.list_pins()) == [OTHER]


async def test_lowered_limit_keeps_existing_pins_and_admits_no_new_one(tmp_path):
    async with keeping(tmp_path) as host:
        host.add(DATA)
        await make(host, IMAGE)
    async with keeping(tmp_path, MIB) as host:
        assert list(host.pins.list_pins()) == [IMAGE] and promised_bytes(host) == 2 * MIB
        host.add(SHARED, OTHER)
        assert await make(host, OTHER) > 0


async def test_failed_write_of_the_pin_file_loses_no_pin(host, tmp_path, monkeypatch):
    def full(path, raw):
        raise OSError(28, "No space left on device")

    reported = []
    host.pins.report_write = reported.append
    with monkeypatch.context() as patch:
        patch.setattr(pin_file, "_write", full)
        assert await make(host, IMAGE) == 0
        assert "No space left" in reported[-1]
        assert promised_bytes(host) == 2 * MIB
    await make(host, OTHER)
    assert not reported[-1]
    assert set(pin_record.decode((tmp_path / pin_file.FILE_NAME).read_bytes(), "")) == {
        IMAGE,
        OTHER,
    }


async def test_unpin_after_a_map_change_releases_the_former_chunks(host):
    await make(host, IMAGE)
    host.mirrors.detach_image(IMAGE)
    host.add(SHARED)
    await host.mirrors.attach_image(IMAGE)
    await host.pins.unpin_image(IMAGE)
    assert promised_bytes(host) == 0


class Rig:
    """The ring table of a host h1 that keeps replica shares."""

    def __init__(self, *names):
        self.epoch = 0
        self.be(*names)

    def be(self, *names):
        self.epoch += 1
        hosts = [
            hash_ring.RingHost(name, f"10.0.0.{at}:7201", 100) for at, name in enumerate(names, 1)
        ]
        self.table = hash_ring.Ring(self.epoch, tuple(hosts))

    def current_ring(self):
        return self.table

    def shares(self):
        return replica_placement.ReplicaPlacement(
            ids.HostId("h1"), self, identity.ByContent().oid_of
        )


async def test_shares_of_former_ring_tables_stay_pinned_until_they_expire(tmp_path, mock_clock):
    limits = pins.PinLimits(former_shares=3)
    rig = Rig("h1", "h2")  # each has all of it
    async with keeping(tmp_path, shares=rig.shares(), pin_limits=limits) as host:
        host.add(DATA)
        await make(host, IMAGE)
        parts, names = [host.pins.pinned_part(IMAGE)], ["h1", "h2"]
        for number in range(3, 9):  # more tables than are remembered one by one
            mock_clock.jump(100)
            names.append(f"h{number}")
            rig.be(*names)
            assert await host.pins.apply_ring(IMAGE) == 0
            parts.append(host.pins.pinned_part(IMAGE))
            await host.pins.release_former_shares()
            assert promised_bytes(host) == 2 * MIB
        assert len(host.pins._former[IMAGE]) == 3
        left = {cid for part in parts[-3:] for cid in part.list_contents()}
        mock_clock.jump(limits.former_share_s - 200)  # that long after the fourth change
        await host.pins.release_former_shares()
        assert promised_bytes(host) == CHUNK * len(left) < 2 * MIB
        mock_clock.jump(200)
        await host.pins.release_former_shares()
        assert promised_bytes(host) == parts[-1].total_bytes
        await host.pins.unpin_image(IMAGE)
        assert promised_bytes(host) == 0


SMALL = 3 * MIB


async def place_three(host):
    """Pin IMAGE, and OTHER of the same contents as a replica; add a larger THIRD."""
    host.add(one_host.image_bytes(MIB))
    host.add(one_host.image_bytes(MIB), OTHER)
    host.add(one_host.image_bytes(2 * MIB, seed=9), THIRD)
    assert await make(host, IMAGE) == 0
    assert await make(host, OTHER, is_replica=True) == 0


THIRD = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a13")


async def test_replica_pin_is_dropped_only_if_that_frees_space(tmp_path):
    async with keeping(tmp_path, SMALL) as host:
        await place_three(host)
        assert await make(host, THIRD) > 0
        assert OTHER in host.pins.list_pins()  # its contents stay pinned in any case


@pytest.mark.expect_log("no longer kept for other hosts")
async def test_replica_pins_with_the_same_contents_are_dropped_together(tmp_path):
    async with keeping(tmp_path, SMALL) as host:
        await place_three(host)
        await host.pins.change_pin(IMAGE, is_replica=True)
        assert await make(host, THIRD) == 0
        assert list(host.pins.list_pins()) == [THIRD]
        assert promised_bytes(host) == 2 * MIB


@pytest.mark.expect_log("no longer kept for other hosts")
async def test_share_that_grows_with_a_new_ring_table_displaces_replicas(tmp_path):
    rig = Rig("h1", "h2", "h3", "h4", "h5", "h6")
    async with keeping(tmp_path, SMALL, shares=rig.shares()) as host:
        host.add(one_host.image_bytes(2 * MIB))
        host.add(one_host.image_bytes(3 * MIB, seed=4), OTHER)
        assert await make(host, IMAGE) == 0 == await make(host, OTHER, is_replica=True)
        rig.be("h1", "h2")
        assert await host.pins.apply_ring(OTHER) > 0
        assert await host.pins.apply_ring(IMAGE) == 0
        assert list(host.pins.list_pins()) == [IMAGE] and promised_bytes(host) == 2 * MIB


@pytest.mark.expect_log(f"image {OTHER}: not kept for other hosts now: no space")
async def test_lowered_limit_unpins_chunks_of_replicas_at_start(tmp_path, monkeypatch):
    rig = Rig("h1", "h2")
    async with keeping(tmp_path, shares=rig.shares()) as host:
        host.add(one_host.image_bytes(MIB), OTHER)
        host.add(one_host.image_bytes(2 * MIB, seed=5))
        assert await make(host, OTHER, is_replica=True) == 0 == await make(host, IMAGE)
    looked, slots_of = [], capacity.slots_of
    monkeypatch.setattr(
        capacity, "slots_of", lambda *found: looked.append(found) or slots_of(*found)
    )
    async with keeping(tmp_path, SMALL, shares=rig.shares()) as host:
        assert promised_bytes(host) == 2 * MIB
        assert list(host.pins.list_pins()) == [OTHER, IMAGE]
        assert len(looked) == 2  # once for each image


async def test_slabs_over_a_lowered_limit_are_evicted_once_a_former_share_expires(tmp_path):
    rig, limits = Rig("h1", *"abcdefg"), pins.PinLimits(former_share_s=0.0)
    data = one_host.image_bytes(3 * MIB)
    async with keeping(tmp_path, shares=rig.shares()) as host:
        host.add(data)
        image = await host.mirrors.attach_image(IMAGE)
        later = rig.shares().part_of(image.map, rig.table).list_contents()
        rig.be("h1", "h2")
        assert await make(host, IMAGE) == 0
        chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
        chunks.sort(key=lambda chunk: ids.cid_of(chunk) not in later)  # which fill one slab
        for chunk in chunks:
            await host.cache.wait_for_room()
            assert host.cache.store_chunk(ids.cid_of(chunk), chunk)
    async with keeping(tmp_path, 2 * MIB, shares=rig.shares(), pin_limits=limits) as host:
        rig.be("h1", *"abcdefg")
        assert await host.pins.apply_ring(IMAGE) == 0
        assert host.cache.statistics.disk_bytes >= 3 * MIB
        await host.pins.release_former_shares()
        assert host.cache.statistics.disk_bytes <= 2 * MIB
        assert host.cache.pinned_missing == 0


async def test_share_of_an_image_without_space_is_computed_once_per_table(tmp_path):
    limits = pins.PinLimits(unpinned_parts=1)
    rig, found = Rig("h1", "h2"), []
    keeps = rig.shares()
    part_of = keeps.part_of

    def noted(image_map, table, pause):
        found.append(image_map.image_id)
        return part_of(image_map, table, pause)

    keeps.part_of = noted
    async with keeping(tmp_path, 2 * MIB, shares=keeps, pin_limits=limits) as host:
        host.add(one_host.image_bytes(3 * MIB))
        host.add(one_host.image_bytes(3 * MIB, seed=4), OTHER)
        for _ in range(3):
            assert await make(host, IMAGE, is_replica=True) > 0
        assert found == [IMAGE]
        rig.be("h1", "h2")
        assert await make(host, IMAGE) > 0 < await make(host, OTHER)
        assert found == [IMAGE, IMAGE, OTHER] and list(host.pins._found) == [OTHER]


async def test_pin_without_droppable_replicas_computes_capacity_once(tmp_path, monkeypatch):
    async with keeping(tmp_path, 3 * MIB) as host:
        host.add(one_host.image_bytes(2 * MIB, seed=5))
        host.add(one_host.image_bytes(2 * MIB, seed=6), OTHER)
        assert await make(host, OTHER) == 0
        looked, slots_of = [], capacity.slots_of
        monkeypatch.setattr(
            capacity, "slots_of", lambda *found: looked.append(found) or slots_of(*found)
        )
        assert await make(host, IMAGE) > 0
        assert len(looked) == 1


async def test_contents_of_an_image_larger_than_the_cache_are_not_listed(tmp_path, monkeypatch):
    async with keeping(tmp_path, MIB) as host:
        host.add(DATA)
        await host.mirrors.attach_image(IMAGE)
        monkeypatch.setattr(replica_placement.ReplicaPart, "list_contents", None)
        assert await make(host, IMAGE) == MIB
    async with keeping(tmp_path, MIB) as host:  # without a pin file
        assert not host.pins.list_pins()


async def test_cancel_while_former_shares_are_merged_leaves_no_stale_pin(
    tmp_path, monkeypatch, mock_clock
):
    limits = pins.PinLimits(former_shares=1)
    rig, both = Rig("h1", "h2", "h3"), replica_placement.union_of_parts
    async with keeping(tmp_path, shares=rig.shares(), pin_limits=limits) as host:
        host.add(DATA)
        await make(host, IMAGE)
        rig.be("h1", "h2", "h3", "h4")
        await host.pins.apply_ring(IMAGE)
        rig.be("h1", "h2", "h3", "h4", "h5")
        with trio.CancelScope() as scope:

            def give_up(*parts):
                trio.from_thread.run_sync(scope.cancel)
                return both(*parts)

            monkeypatch.setattr(replica_placement, "union_of_parts", give_up)
            await host.pins.apply_ring(IMAGE)
        mock_clock.jump(10 * limits.former_share_s)
        await host.pins.release_former_shares()
        assert promised_bytes(host) == host.pins.pinned_part(IMAGE).total_bytes
        await host.pins.unpin_image(IMAGE)
        assert promised_bytes(host) == 0


@pytest.mark.parametrize("is_replica", [False, True])
async def test_shrinking_share_follows_the_ring_table_without_free_space(tmp_path, is_replica):
    rig = Rig("h1", "h2")
    async with keeping(tmp_path, shares=rig.shares()) as host:
        host.add(DATA)
        assert await make(host, IMAGE, is_replica=is_replica) == 0
        host.cache.lacking_bytes = lambda more: MIB  # pins exceed the limit
        host.pins._limit_bytes = CHUNK
        rig.be("h1", "h2", "h3", "h4")
        assert await host.pins.apply_ring(IMAGE) == 0
        assert host.pins.pinned_part(IMAGE).table is rig.table
        assert host.pins.pinned_part(IMAGE).total_bytes < 2 * MIB
        rig.be("h1", "h2")
        await host.pins._release(IMAGE)
        assert await host.pins.apply_ring(IMAGE) > 0  # it grows


async def test_pins_made_before_the_ring_table_arrives_stay_within_the_limit(tmp_path):
    rig = Rig("h1", "h2", "h3", "h4", "h5", "h6")
    async with keeping(tmp_path, SMALL, shares=rig.shares()) as host:
        host.add(DATA)
        host.add(one_host.image_bytes(2 * MIB, seed=7), OTHER)
        assert await make(host, IMAGE) == 0 == await make(host, OTHER)
    rig.be("h2", "h3")
    async with keeping(tmp_path, SMALL, shares=rig.shares()) as host:
        assert promised_bytes(host) == 2 * MIB and not host.pins.pinned_part(OTHER)
        assert list(host.pins.list_pins()) == [IMAGE, OTHER]
        rig.be("h1", "h2", "h3", "h4", "h5", "h6")
        assert await host.pins.apply_ring(IMAGE) == 0
        await host.pins._release(IMAGE)
        assert await make(host, OTHER) == 0 and host.pins.pinned_part(OTHER)


async def test_replica_totals_are_computed_without_walking_chunks(host, monkeypatch):
    for image_id in (IMAGE, OTHER):
        await make(host, image_id, is_replica=True)
    monkeypatch.setattr(
        geometry.Geometry, "chunk_length", lambda *_: pytest.fail("it takes long for many images")
    )
    assert host.pins.replica_totals() == (2, 4 * MIB)
