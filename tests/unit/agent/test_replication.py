# SPDX-License-Identifier: Apache-2.0
"""Replica shares that hosts keep for each other: requests, leases, refusals and space."""

import uuid

import pytest
import trio

from acstor_agent.core.images import pin_record
from acstor_agent.core.images import replica_leases
from acstor_agent.core.images import replica_placement
from acstor_agent.engine import identity
from acstor_agent.images.image import usage
from acstor_agent.images.keep import fill_status
from acstor_agent.images.keep import hydration
from acstor_agent.images.keep import pins
from acstor_agent.images.keep import replication
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_wire
from acstor_common.wire.peer import replica_messages
from tests.fakes import filling_host
from tests.fakes import manual_clock
from tests.fakes import one_host

IMAGE, OTHER, CHUNK = one_host.IMAGE, one_host.OTHER, one_host.CHUNK
MIB = geometry.MIB
DATA = one_host.image_bytes(200 * CHUNK) + bytes(4 * CHUNK)
SECOND = one_host.image_bytes(100 * CHUNK, seed=3)
H1, H2, H3, H4 = (ids.HostId(f"h{number}") for number in range(1, 5))
until = filling_host.until


def table_of(*names: str, epoch: int = 1) -> hash_ring.Ring:
    made = [
        hash_ring.RingHost(name, f"10.0.0.{number}:7201", 100)
        for number, name in enumerate(names, 1)
    ]
    return hash_ring.Ring(epoch, tuple(made))


class Rig:
    """The ring table of the hosts in a test, while they run and when they start."""

    def __init__(self, *names: str) -> None:
        self.table = table_of(*names)
        self.wall_s = 1e9

    def shares(self) -> replica_placement.ReplicaPlacement:
        return replica_placement.ReplicaPlacement(H1, self, identity.ByContent().oid_of)

    def current_ring(self) -> hash_ring.Ring:
        return self.table


class Keeper(filling_host.FillingHost):
    """Host h1, which keeps its replica shares, and the messages that it sends."""

    def __init__(self, host, rig, first_pause_s=0.2, grace_s=900.0):
        super().__init__(host, host.waiting, slice_s=0.5, first_pause_s=first_pause_s)
        self.rig = rig
        self.reported: list[tuple[str, peer_wire.Notification]] = []
        leases = replica_leases.Leases()
        self.replicas = replication.Replication(
            H1,
            host.mirrors,
            self.filler,
            self,
            rig,
            leases,
            clock=manual_clock.FunctionClock(lambda: rig.wall_s),
            limits=replication.ReplicationLimits(
                tick_s=0.05, request_interval_s=0.5, report_interval_s=0.1, grace_s=grace_s
            ),
        )
        self.uses = usage.ImageUsage(
            *(host.mirrors, set, set),
            clock=manual_clock.FunctionClock(trio.current_time),
            leases=leases,
            limits=filling_host.USAGE_LIMITS,
        )
        self.hydration = hydration.Hydration(
            *(host.mirrors, self.uses, host.pins, self.filler, self.replicas),
            limits=filling_host.HYDRATION_LIMITS,
        )
        self.loops = self.uses.run, self.hydration.run, self.replicas.run

    def send_announcement(self, host_id, news):
        self.reported.append((host_id, news))

    def asks(self, host, *images, lease_s=3600):
        entries = tuple(replica_messages.Lease(one, lease_s) for one in images)
        self.replicas.report_received(host, peer_wire.ReplicaRequest(entries))

    def answers(self, host, image_id=IMAGE):
        """Return the reports to a host about this host's share of an image."""
        messages = [news for to, news in self.reported if to == host]
        kepts = [(one.ring_epoch, s) for one in messages if hasattr(one, "shares") for s in one[1]]
        return [(epoch, share) for epoch, share in kepts if share.image_id == image_id]

    async def answer(self, host, image_id=IMAGE, state=replica_messages.ShareState.KEPT, left=0):
        """Wait until the last report to a host shows this state."""

        def last():
            found = self.answers(host, image_id)[-1:]
            return found and (found[0][1].state, found[0][1].left_bytes) == (state, left)

        await until(last)
        return self.answers(host, image_id)[-1]

    async def use(self, image_id=IMAGE):
        self.uses.image_opened(image_id)
        return await self.host.mirrors.attach_image(image_id)


def running(folder, rig, limit_bytes=16 * MIB, pin_limits=one_host.PIN_LIMITS, **limits):
    return filling_host.running(
        folder,
        limit_bytes,
        (DATA, SECOND),
        lambda host: Keeper(host, rig, **limits),
        shares=rig.shares(),
        pin_limits=pin_limits,
    )


@pytest.fixture
def rig():
    return Rig("h1", "h2", "h3")


async def test_share_is_kept_until_the_last_requester_withdraws(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        keeper.asks(H2, IMAGE)
        epoch, share = await keeper.answer(H2)
        assert epoch == 1 and 0 < share.total_bytes < 200 * CHUNK
        assert share.total_bytes == keeper.promised_bytes()
        assert keeper.host.pins.get(IMAGE).is_replica
        assert keeper.hydration.status.status_of(IMAGE) is None  # it is unused here
        assert not keeper.replicas._images_in_use()
        assert not keeper.answers(H3)  # it requested nothing
        keeper.asks(H3, IMAGE)
        keeper.asks(H2, IMAGE, lease_s=0)
        await keeper.answer(H3)
        assert keeper.promised_bytes()
        keeper.asks(H3, IMAGE, lease_s=0)
        await until(lambda: not keeper.promised_bytes())
        assert not keeper.host.pins.list_pins()


async def test_unrenewed_lease_expires(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        keeper.asks(H2, IMAGE, lease_s=2)
        await until(keeper.promised_bytes)
        await until(lambda: not keeper.promised_bytes())


async def test_share_follows_the_ring_table_and_the_former_one_stays_a_while(tmp_path, rig):
    async with running(tmp_path, rig, pin_limits=pins.PinLimits(former_share_s=3.0)) as keeper:
        keeper.asks(H2, IMAGE)
        _, before = await keeper.answer(H2)
        rig.table = table_of("h1", "h2", "h3", "h4", epoch=2)
        await until(lambda: keeper.answers(H2)[-1][0] == 2)
        _, after = await keeper.answer(H2)
        assert after.total_bytes < before.total_bytes == keeper.promised_bytes()
        await until(lambda: keeper.promised_bytes() == after.total_bytes)
        rig.table = table_of("h1", "h2", epoch=3)
        await until(lambda: keeper.answers(H2)[-1][0] == 3)
        assert (await keeper.answer(H2))[1].total_bytes == 200 * CHUNK  # two hosts keep all


async def test_share_pins_survive_a_restart_without_source_reads(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        keeper.asks(H2, IMAGE)
        _, share = await keeper.answer(H2)
    async with one_host.one_host(tmp_path, is_keeping=True, shares=rig.shares()) as host:
        assert host.cache.statistics.reserved_bytes == share.total_bytes
        assert host.source.reads == []


async def test_lease_survives_a_restart_and_ends_within_a_day_at_any_date(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        keeper.asks(H2, IMAGE, lease_s=86400)
        await keeper.answer(H2)
        await until(lambda: keeper.host.pins.get(IMAGE).leased_until_s)
    rig.wall_s = 0.0  # a host without a clock battery
    async with running(tmp_path, rig) as keeper:
        await until(lambda: keeper.uses.is_leased(IMAGE))
        assert keeper.replicas.leased_until_s(IMAGE) <= 86400
        await trio.sleep(0.5)
        assert keeper.host.pins.get(IMAGE).is_replica and keeper.promised_bytes()
    rig.wall_s = 1e12  # or the host was off for long
    async with running(tmp_path, rig) as keeper:
        await until(lambda: keeper.uses.is_leased(IMAGE))
        await keeper.hydration._settle()
        assert keeper.promised_bytes()  # until its users have had time to request it again
    rig.wall_s = 1e13
    async with running(tmp_path, rig, grace_s=0.2) as keeper:
        await until(lambda: not keeper.promised_bytes())


async def test_requests_of_hosts_outside_the_ring_table_are_ignored(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        for stranger in (H4, H1):
            keeper.asks(stranger, IMAGE)
        rig.table = table_of("h2", "h3", epoch=2)  # this host has left
        keeper.asks(H2, IMAGE)
        assert keeper.replicas.ignored == 3 and not keeper.uses.is_leased(IMAGE)
        await trio.sleep(0.3)
        assert keeper.reported == [] and keeper.host.source.reads == []


async def test_unknown_images_are_refused_and_do_not_delay_other_requests(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        unknown = [ids.ImageId(str(uuid.UUID(int=number))) for number in range(200)]
        keeper.asks(H3, *unknown)
        keeper.asks(H2, IMAGE)
        await keeper.answer(H2)
        refused = replica_messages.ShareState.REFUSED
        await keeper.answer(H3, unknown[-1], refused)
        assert keeper.host.mirrors.list_attached() == [IMAGE]


async def test_refused_image_is_kept_once_the_source_has_it(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        blobs = dict(keeper.host.blobs)
        keeper.host.blobs.clear()
        keeper.asks(H2, IMAGE)
        await keeper.answer(H2, state=replica_messages.ShareState.REFUSED)
        keeper.host.blobs.update(blobs)
        await keeper.answer(H2)


async def test_requests_over_the_limit_of_a_host_are_reported_as_crowded(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        unknown = [ids.ImageId(str(uuid.UUID(int=number))) for number in range(300)]
        keeper.asks(H3, *unknown[:256])
        await keeper.answer(H3, unknown[255], replica_messages.ShareState.REFUSED)
        keeper.asks(H3, *unknown[256:], IMAGE)
        assert keeper.replicas.refused == 45
        await keeper.answer(H3, state=replica_messages.ShareState.CROWDED)
        keeper.asks(H2, IMAGE)
        await keeper.answer(H2)  # other hosts are not affected
        assert len(keeper.replicas._leases) == replica_leases.MAX_IMAGES_PER_HOST + 1


async def test_backoff_after_a_failure_outlives_the_lease(tmp_path, rig, monkeypatch):
    async with running(tmp_path, rig, first_pause_s=3600.0) as keeper:
        unknown, attached = ids.ImageId(str(uuid.UUID(int=7))), []
        attach = keeper.host.mirrors.attach_image

        async def noted(image_id, *limit):
            attached.append(image_id)
            return await attach(image_id, *limit)

        monkeypatch.setattr(keeper.host.mirrors, "attach_image", noted)
        for _ in range(5):
            keeper.asks(H3, unknown)
            await keeper.answer(H3, unknown, replica_messages.ShareState.REFUSED)
            keeper.asks(H3, unknown, lease_s=0)
            keeper.reported.clear()
            await trio.sleep(0.1)
        assert attached == [unknown]


async def test_number_of_new_images_requested_by_a_host_is_limited(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        for number in range(600):
            image_id = ids.ImageId(str(uuid.UUID(int=number)))
            keeper.asks(H3, image_id)
            keeper.asks(H3, image_id, lease_s=0)
        assert 80 <= keeper.replicas.refused <= 88
        await until(lambda: not keeper.replicas._due_reports)
        keeper.asks(H3, IMAGE)
        await keeper.answer(H3, state=replica_messages.ShareState.CROWDED)
        keeper.asks(H2, IMAGE)
        await keeper.answer(H2)


@pytest.mark.parametrize("limit", ["MAP_BYTES", "MAPS_BYTES", "MAPS_BYTES_OF_HOST"])
async def test_chunk_maps_attached_for_other_hosts_are_bounded(tmp_path, rig, monkeypatch, limit):
    one_map = max(len(one_host.map_of(data)) for data in (DATA, SECOND))
    monkeypatch.setattr(replication, limit, one_map)
    async with running(tmp_path, rig) as keeper:
        if limit == "MAP_BYTES":
            keeper.host.add(one_host.image_bytes(300 * CHUNK), IMAGE)
        else:
            keeper.asks(H2, OTHER)
            await keeper.answer(H2, OTHER)
        keeper.asks(H2, IMAGE)
        await keeper.answer(H2, state=replica_messages.ShareState.NO_ROOM)
        assert IMAGE not in keeper.host.mirrors.list_attached()
        if limit == "MAPS_BYTES_OF_HOST":
            keeper.asks(H3, IMAGE)  # another host may
            await keeper.answer(H3)
        else:
            await keeper.use(IMAGE)  # this host itself has no limit
            await until(lambda: IMAGE in keeper.host.mirrors.list_attached())


async def test_share_is_not_reported_complete_before_it_is_written(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        lock = keeper.host.cache._recovery.write_lock  # nothing is written while it is held
        async with lock:
            keeper.asks(H2, IMAGE)
            await until(lambda: keeper.host.pins.pinned_part(IMAGE))
            await until(lambda: not keeper.host.cache.pinned_missing)
            await until(lambda: keeper.replicas.share_of(IMAGE) is not None)

            def is_all_left() -> bool:
                share = keeper.replicas.share_of(IMAGE)
                assert share is None or share.left_bytes  # while it is counted, too
                return share is not None and share.left_bytes == share.total_bytes

            await until(is_all_left)
        await keeper.answer(H2)


async def test_share_without_space_is_reported(tmp_path, rig):
    async with running(tmp_path, rig, 3 * MIB) as keeper:
        keeper.asks(H2, IMAGE)
        await keeper.answer(H2, state=replica_messages.ShareState.NO_ROOM)
        assert not keeper.promised_bytes()


async def test_share_over_the_half_is_kept_once_another_replica_is_used_here(tmp_path, rig):
    rig.table = table_of("h1", "h2")  # each keeps every chunk
    async with running(tmp_path, rig, 7 * MIB) as keeper:
        keeper.asks(H2, IMAGE)
        await keeper.answer(H2)
        keeper.asks(H2, OTHER)
        await keeper.answer(H2, OTHER, replica_messages.ShareState.NO_ROOM)
        await keeper.use(IMAGE)
        await keeper.answer(H2, OTHER)
        assert keeper.promised_bytes() == 300 * CHUNK


async def test_share_without_space_is_kept_once_a_ring_table_makes_it_smaller(tmp_path, rig):
    rig.table = table_of("h1", "h2")
    async with running(tmp_path, rig, 4 * MIB) as keeper:
        keeper.asks(H2, IMAGE)
        await keeper.answer(H2, state=replica_messages.ShareState.NO_ROOM)
        rig.table = table_of("h1", "h2", *"abcdef", epoch=2)
        await keeper.answer(H2)


@pytest.mark.expect_log("no longer kept for other hosts: image .* needs the space")
async def test_replica_share_is_dropped_for_an_image_used_here(tmp_path, rig):
    rig.table = table_of("h1", "h2")  # each keeps every chunk
    async with running(tmp_path, rig, 4 * MIB) as keeper:
        keeper.asks(H2, OTHER)
        await keeper.answer(H2, OTHER)
        await keeper.use(IMAGE)
        await until(
            lambda: (
                (keeper.hydration.status.status_of(IMAGE) or {}).get("remaining_bytes")
                == 200 * CHUNK
            )
        )
        await keeper.answer(H2, OTHER, replica_messages.ShareState.NO_ROOM)
        assert keeper.promised_bytes() == 200 * CHUNK


@pytest.mark.expect_log("its chunk map is lost")
@pytest.mark.expect_log("needs the space")
@pytest.mark.allow_log("no space|fetching it from the source again")
async def test_image_that_needs_space_is_not_dropped_for_itself(tmp_path, rig):
    rig.table = table_of("h1", "h2")
    async with running(tmp_path, rig) as keeper:
        for image_id in (OTHER, IMAGE):
            keeper.asks(H2, image_id)
            await keeper.answer(H2, image_id)
    (tmp_path / "maps" / f"{IMAGE}.acmap").unlink()
    async with running(tmp_path, rig, 4 * MIB) as keeper:
        await until(lambda: list(keeper.host.pins.list_pins()) == [OTHER, IMAGE])
        assert keeper.promised_bytes() == 100 * CHUNK
        await keeper.use(IMAGE)
        await until(lambda: keeper.promised_bytes() == 200 * CHUNK)
        await until(lambda: OTHER not in keeper.host.pins.list_pins())


async def test_image_in_use_is_fully_cached_once_peers_report_their_shares(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        await keeper.use(IMAGE)
        await until(
            lambda: any(isinstance(news, peer_wire.ReplicaRequest) for _, news in keeper.reported)
        )
        asked = {host: news.leases for host, news in keeper.reported if hasattr(news, "leases")}
        assert asked == {host: (replica_messages.Lease(IMAGE, 86400),) for host in (H2, H3)}

        def shown():
            return keeper.hydration.status.status_of(IMAGE)

        await until(lambda: shown()["why"] == "h2 has not answered")
        assert shown()["state"] == "filling" and shown()["total_bytes"] == 2 * 200 * CHUNK
        rest = 2 * 200 * CHUNK - keeper.promised_bytes()
        say = [(H2, rest - CHUNK), (H3, CHUNK)]
        for host, total_bytes in say:
            share = replica_messages.ImageShare(
                IMAGE, replica_messages.ShareState.KEPT, total_bytes, 0
            )
            keeper.replicas.report_received(host, peer_wire.ReplicaReport(1, (share,)))
        assert (shown()["state"], shown()["remaining_bytes"], shown()["cached_share"]) == (
            "fully_cached",
            0,
            1.0,
        )
        assert shown()["is_shared"] is True
        await until(lambda: shown()["state"] == "filling")  # no recent report confirms it


async def test_operator_request_pins_the_whole_image_locally(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        keeper.asks(H2, IMAGE)
        await keeper.answer(H2)
        await keeper.hydration.request_hydration(await keeper.host.mirrors.attach_image(IMAGE))
        await until(
            lambda: (keeper.hydration.status.status_of(IMAGE) or {}).get("state") == "fully_cached"
        )
        assert (
            keeper.hydration.status.status_of(IMAGE)["total_bytes"]
            == 200 * CHUNK
            == keeper.promised_bytes()
        )
        assert (
            keeper.hydration.status.status_of(IMAGE)["is_shared"] is False
        )  # although others keep it, too
        await keeper.hydration.withdraw_request(IMAGE)
        await until(
            lambda: keeper.hydration.status.status_of(IMAGE)["total_bytes"] == 2 * 200 * CHUNK
        )


async def test_host_that_leaves_the_ring_table_keeps_its_share_until_a_restart(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        keeper.asks(H2, IMAGE)
        _, share = await keeper.answer(H2)
        rig.table = table_of("h2", "h3", epoch=2)
        await trio.sleep(0.5)
        assert keeper.promised_bytes() == share.total_bytes
    async with running(tmp_path, rig) as keeper:  # it has a share by neither ring table
        await until(lambda: keeper.host.pins.get(IMAGE))
        await trio.sleep(0.3)
        assert keeper.promised_bytes() == 0 and keeper.host.pins.get(IMAGE).is_replica
        rig.table = table_of("h1", "h2", "h3", epoch=3)
        await until(lambda: keeper.promised_bytes() == share.total_bytes)


async def test_replica_pins_are_dropped_when_replication_is_disabled(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        keeper.asks(H2, IMAGE)
        await keeper.answer(H2)
    async with one_host.one_host(tmp_path, is_keeping=True) as host:  # keep_images = host
        assert not host.pins.list_pins() and not host.cache.statistics.reserved_bytes


async def test_reports_to_many_hosts_are_sent_in_small_batches(tmp_path):
    names = [f"h{number}" for number in range(1, 41)]
    rig = Rig(*names)
    async with running(tmp_path, rig) as keeper:
        for name in names[1:]:
            keeper.asks(ids.HostId(name), IMAGE)
        most = 0
        while not all(keeper.answers(name) for name in names[1:]):
            before = len(keeper.reported)
            keeper.replicas.send_due_messages()
            most = max(most, len(keeper.reported) - before)
            await trio.sleep(0.01)
        assert 0 < most <= replication.AT_A_TIME


@pytest.mark.allow_log("cannot be cached completely: the cache lacks")
async def test_replica_image_is_reported_as_used_once_it_is_opened_here(tmp_path, rig):
    """Also without a pin and without space, as the image must stay in the source."""
    rig.table = table_of("h1", "h2")
    async with running(tmp_path, rig, 2 * MIB) as keeper:
        keeper.asks(H2, IMAGE)
        await keeper.host.pins._set(pin_record.ImagePin(IMAGE, 1.0, is_replica=True))
        await keeper.answer(H2, state=replica_messages.ShareState.NO_ROOM)
        assert not fill_status.fill_report(keeper.hydration.status, keeper.uses, IMAGE).is_used
        await keeper.use(IMAGE)
        reported = fill_status.fill_report(keeper.hydration.status, keeper.uses, IMAGE)
        assert (reported.is_used, reported.state) == (True, fill_status.State.NO_SPACE)
        await until(lambda: not keeper.host.pins.get(IMAGE).is_replica)
        assert not keeper.host.pins.pinned_part(IMAGE)
        assert keeper.replicas._images_in_use() == [IMAGE]


async def test_replica_image_is_not_reported_as_used_after_its_lease_ends(tmp_path, rig):
    async with running(tmp_path, rig) as keeper:
        keeper.asks(H2, IMAGE)
        await keeper.answer(H2)
        await keeper.uses.scan_processes()
        keeper.asks(H2, IMAGE, lease_s=0)
        await until(lambda: not keeper.host.pins.list_pins())
        reported = fill_status.fill_report(keeper.hydration.status, keeper.uses, IMAGE)
        assert (reported.is_used, reported.state) == (False, fill_status.State.EVICTABLE)
        await keeper.use(IMAGE)
        assert fill_status.fill_report(keeper.hydration.status, keeper.uses, IMAGE).is_used
