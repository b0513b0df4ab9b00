# SPDX-License-Identifier: Apache-2.0
import contextlib
import random
import types

import pytest
import trio

from acstor_agent.core import counters
from acstor_agent.core.cache import public_cache
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.images import chunk_state
from acstor_agent.core.mount import blocked_requests
from acstor_agent.engine import content_index
from acstor_agent.engine import failure
from acstor_agent.engine.fetch import prefetch_limits
from acstor_agent.engine_io import exchange
from acstor_agent.images.read import advertised_prefetch
from acstor_agent.runtime import disk_io
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_wire
from acstor_policies import place_identity
from acstor_policies import prefetch_by_limit
from tests.fakes import announced
from tests.fakes import exchange_cloud
from tests.fakes import one_host

CHUNK, IMAGE, OTHER = exchange_cloud.CHUNK, exchange_cloud.IMAGE, exchange_cloud.OTHER
bytes_of = exchange_cloud.bytes_of
Priority = exchange.Priority
eager = prefetch_by_limit.unbounded
Origin = counters.Origin
KeepClass = public_cache.KeepClass
DOWN = errors.SourceUnreachable("x", "memory", "down")

NO_BOOT_IMAGE = types.SimpleNamespace(covers_chunk=lambda cid: False)


@pytest.fixture
async def cloud(tmp_path):
    async with exchange_cloud.running(tmp_path, ("h1", "h2", "h3", "h4")) as made:
        yield made


def read(cloud, name, wanted, deadline_s=10.0):
    return cloud.hosts[name].fetch_chunk(wanted, Priority.GUEST, deadline_s)


async def read_everywhere(cloud, chunk_nos, names=("h1", "h2", "h3", "h4")):
    for chunk_no in chunk_nos:
        for name in names:
            assert (await read(cloud, name, cloud.ref_of(chunk_no), 20)).data == bytes_of(chunk_no)


def backoff(cloud, name, host, kind=failure.Failure.INVALID):
    book = cloud.hosts[name].core.context.peers
    book.record_failure(host, kind, trio.current_time())


async def test_whole_cloud_reads_a_chunk_from_the_source_once(cloud, autojump_clock):
    got = []

    async def one(name):
        got.append(await read(cloud, name, cloud.ref_of(0)))

    async with trio.open_nursery() as nursery:
        for name in cloud.hosts:
            for _ in range(3):
                nursery.start_soon(one, name)
    assert cloud.source.reads == [0]
    assert {bytes(fetched.data) for fetched in got} == {bytes_of(0)}
    assert sum(fetched.origin is Origin.HOME for fetched in got) == 9


async def test_batch_completes_in_its_order(cloud, autojump_clock):
    refs = [cloud.ref_of(n) for n in (5, 3, 5, 20, 4)]
    with cloud.hosts["h1"].submit_read(refs) as wish:
        got = await wish.wait()
    assert [bytes(one.data) for one in got] == [bytes_of(n) for n in (5, 3, 5, 20, 4)]
    assert not len(cloud.hosts["h1"].core)


async def test_fetched_chunk_is_cached(cloud, autojump_clock):
    name = cloud.others(cloud.ref_of(3))[0]
    await read(cloud, name, cloud.ref_of(3))
    assert await cloud.caches[name].read_chunk(cloud.ref_of(3).cid) == bytes_of(3)
    assert (await read(cloud, name, cloud.ref_of(3))).origin is Origin.CACHE


async def test_next_owner_acts_for_a_dead_home(cloud, autojump_clock):
    wanted = cloud.ref_of(0)
    cloud.dead.add(cloud.home(wanted))
    for name in cloud.others(wanted):
        await read(cloud, name, wanted)
    assert cloud.source.reads == [0]


@pytest.mark.expect_log("is in backoff for .* s: invalid")
async def test_peer_that_sends_invalid_data_is_backed_off_and_bypassed(cloud, autojump_clock):
    wanted = cloud.ref_of(0)
    home, name = cloud.home(wanted), cloud.others(wanted)[0]
    cloud.lying.add(home)
    assert (await read(cloud, name, wanted)).data == bytes_of(0)
    assert cloud.hosts[name].core.counters.invalid_chunks == 1
    assert set(cloud.hosts[name].list_backoffs()) == {home}
    cloud.asked.clear()
    await read(cloud, name, cloud.ref_of(1))
    assert home not in {asked for _, asked, _, _ in cloud.asked}


async def test_peers_serve_a_chunk_while_the_source_is_down(cloud, autojump_clock):
    wanted = cloud.ref_of(0)
    owners = cloud.ring.owners_of(wanted.cid, 4)
    await read(cloud, owners[2], wanted)
    cloud.caches[owners[0]].drop_chunk(wanted.cid)
    cloud.source.failure = DOWN
    fetched = await read(cloud, owners[0], wanted)
    assert (bytes(fetched.data), fetched.origin) == (bytes_of(0), Origin.PEER)


@pytest.mark.allow_log("is in backoff")
async def test_read_waits_for_a_source_that_recovers_before_the_deadline(cloud, autojump_clock):
    cloud.source.failure = DOWN

    async def mend():
        await trio.sleep(3)
        cloud.source.failure = None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(mend)
        assert (await read(cloud, "h1", cloud.ref_of(0))).data == bytes_of(0)


@pytest.mark.allow_log("is in backoff")
async def test_read_fails_at_its_deadline_with_the_reason(cloud, autojump_clock):
    cloud.source.failure = DOWN
    began = trio.current_time()
    with pytest.raises(errors.DeadlineExceeded, match=r"within 5 s.*down"):
        await read(cloud, cloud.home(cloud.ref_of(0)), cloud.ref_of(0), 5)
    assert trio.current_time() - began == pytest.approx(5, abs=0.1)


@pytest.mark.expect_log("data is lost")
async def test_read_of_a_lost_chunk_fails_at_once(cloud, autojump_clock):
    cloud.source.failure = errors.ChunkMissing("x", "memory")
    began = trio.current_time()
    with pytest.raises(errors.ChunkLost):
        await read(cloud, "h1", cloud.ref_of(0), 30)
    assert trio.current_time() - began < 2


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(DOWN, errors.SourceUnreachable), (errors.ChunkMissing("x", "memory"), errors.ChunkMissing)],
    ids=["down", "missing"],
)
async def test_impatient_read_fails_without_a_retry(cloud, autojump_clock, failure, kind):
    wanted = cloud.ref_of(0)
    cloud.source.failure = failure
    began_s, one = trio.current_time(), cloud.hosts["h1"]
    with pytest.raises(kind):
        await one.fetch_chunk(wanted, Priority.GUEST, 30, is_retried=False)
    assert trio.current_time() - began_s < 1
    assert len(one.core) == 0


@pytest.mark.allow_log("is in backoff")
async def test_impatient_read_does_not_end_reads_of_others(cloud, autojump_clock):
    wanted, one, got = cloud.ref_of(0), cloud.hosts["h1"], []
    cloud.source.failure = DOWN

    async def patient():
        got.append(await read(cloud, "h1", wanted, 30))

    async with trio.open_nursery() as nursery:
        for at_s in (0.0, 0.0, 1.0):  # together with it, and during its retry delay
            await trio.sleep(at_s)
            nursery.start_soon(patient)
            with pytest.raises(errors.SourceUnreachable):
                await one.fetch_chunk(wanted, Priority.GUEST, 30, is_retried=False)
        assert (got, trio.current_time() < 5) == ([], True)
        cloud.source.failure = None
    assert [fetched.data for fetched in got] == 3 * [bytes_of(0)]


@pytest.mark.expect_log("data of it is unavailable")
async def test_missing_chunks_are_logged_once_a_minute_for_each_image(
    tmp_path, autojump_clock, caplog
):
    async with exchange_cloud.running(tmp_path, ("h1",), lost_after_s=900.0) as cloud:
        cloud.source.deleted.update((IMAGE, OTHER))
        for number in range(3):
            with pytest.raises(errors.DeadlineExceeded, match="lost if none has it"):
                await read(cloud, "h1", cloud.ref_of(number), 5)
        [line] = [record.getMessage() for record in caplog.records]
        assert f"image {IMAGE}: data of it is unavailable, guests that read it wait" in line
        assert f"I/O errors in 900 s: chunk {cloud.ref_of(0).cid.hex()[:12]} " in line
        for image_id, count in ((OTHER, 2), (IMAGE, 3)):
            await trio.sleep(exchange.LOG_INTERVAL_S - 15)
            with pytest.raises(errors.DeadlineExceeded):
                await read(cloud, "h1", cloud.ref_of(0, image_id), 5)
            assert caplog.text.count("data of it is unavailable") == count


@pytest.mark.allow_log("data is lost")
@pytest.mark.parametrize("is_by_peer", [False, True])
async def test_deleted_image_does_not_fail_readers_of_another(cloud, autojump_clock, is_by_peer):
    """Both contain the chunk, so they share a transfer, perhaps under the deleted image's name."""
    theirs, ours = cloud.ref_of(0, OTHER), cloud.ref_of(0)
    cloud.source.deleted.add(OTHER)
    home, other = cloud.home(theirs), cloud.others(theirs)[0]
    got = []

    async def reader_of_theirs():
        try:
            await read(cloud, other if is_by_peer else home, theirs, 1)
        except (errors.ChunkMissing, errors.DeadlineExceeded):
            pass

    async def reader_of_ours():
        await trio.sleep(cloud.source.delay_s / 2)
        got.append((await read(cloud, home, ours)).data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader_of_theirs)
        for _ in range(3):
            nursery.start_soon(reader_of_ours)
    assert got == 3 * [bytes_of(0)]
    assert len(cloud.source.reads) <= 4


async def test_source_read_runs_in_the_stream_of_its_requester(cloud, autojump_clock):
    wanted = cloud.ref_of(0)
    home, name = cloud.home(wanted), cloud.others(wanted)[0]
    await exchange_cloud.bring(cloud.hosts[name], wanted, Priority.HYDRATE)
    assert cloud.source.streams == [requests.Stream(requests.Klass.PREFETCH, name)]
    mine = next(n for n in range(1, 40) if cloud.home(cloud.ref_of(n)) == home)
    await read(cloud, home, cloud.ref_of(mine))
    assert cloud.source.streams[1].klass is requests.Klass.GUEST


async def test_prefetched_chunks_are_written_in_their_own_streams(cloud):
    host, io = cloud.hosts["h1"], cloud.disks["h1"]
    io.change_policy("pregather")
    mine = [n for n in range(40) if cloud.home(cloud.ref_of(n)) == "h1"]
    theirs = iter(n for n in range(40) if n not in mine)
    urgencies = (
        Priority.GUEST,
        Priority.READAHEAD,
        Priority.PRE_SEED,
        Priority.FLATTEN,
        Priority.HYDRATE,
    )
    for priority in urgencies:
        await exchange_cloud.bring(host, cloud.ref_of(next(theirs)), priority)
    reported = cloud.ref_of(next(theirs))
    await read(cloud, "h3", reported)
    host.announcement_received(ids.HostId("h3"), peer_wire.Advertise(announced.alone(reported.oid)))
    await exchange_cloud.bring(host, reported, Priority.ADVERTISED)
    await read(cloud, "h2", cloud.ref_of(mine[0]))
    await exchange_cloud.bring(cloud.hosts["h2"], cloud.ref_of(mine[1]), Priority.HYDRATE)
    await cloud.caches["h1"].aclose()
    written = {  # a change of a record alone counts as one byte
        str(stream): count.bytes // CHUNK for stream, count in io.counters.streams.items()
    }
    assert written == {
        "background:agent": 2,
        "prefetch:read-ahead": 1,
        "prefetch:advertised": 1,
        "prefetch:peers": 1,
        "fill:pre-seed": 1,
        "fill:flatten": 1,
        "fill:hydrate": 1,
    }


async def test_source_read_takes_the_stream_of_the_most_urgent_joiner(tmp_path, autojump_clock):
    async with exchange_cloud.running(tmp_path, ("h1", "h2", "h3"), max_source_reads=1) as cloud:
        cloud.source.delay_s = 0.4  # below the late threshold
        home = cloud.home(cloud.ref_of(0))
        mine = [n for n in range(40) if cloud.home(cloud.ref_of(n)) == home]
        first, second = cloud.others(cloud.ref_of(0))[:2]
        async with trio.open_nursery() as nursery:
            for number in mine[0:5:2]:  # not adjacent
                ref = cloud.ref_of(number)
                nursery.start_soon(exchange_cloud.bring, cloud.hosts[first], ref, Priority.HYDRATE)
                await trio.sleep(0.02)
            nursery.start_soon(read, cloud, second, cloud.ref_of(mine[4]))
            await trio.sleep(0.5)
        assert [stream.klass for stream in cloud.source.streams] == [
            requests.Klass.PREFETCH,
            requests.Klass.PEER,
            requests.Klass.PREFETCH,
        ]
        assert cloud.source.streams[1].name == second and len(cloud.source.reads) == 3


async def test_large_reader_does_not_delay_other_guests_of_an_image(tmp_path, autojump_clock):
    took = {}
    here = exchange_cloud.running(tmp_path, ("h1",), max_source_reads=2)
    async with here as cloud, trio.open_nursery() as nursery:
        cloud.source.delay_s = 1.0

        async def guest(opener, numbers):
            with disk_io.use_stream(requests.Stream(requests.Klass.GUEST, f"{IMAGE}/{opener}")):
                with cloud.hosts["h1"].submit_read([cloud.ref_of(n) for n in numbers]) as wish:
                    await wish.wait()
            took[opener] = trio.current_time()

        nursery.start_soon(guest, 1, range(0, 40, 2))
        await trio.sleep(0.5)
        nursery.start_soon(guest, 2, (21, 23))
    assert took[2] < 4 and took[1] > 8
    names = {stream.name for stream in cloud.source.streams}
    assert names == {f"{IMAGE}/1", f"{IMAGE}/2"}


async def test_cancelled_reader_does_not_stop_the_others(cloud, autojump_clock):
    cloud.source.delay_s = 1.0
    home, got = cloud.home(cloud.ref_of(0)), []

    async def patient():
        got.append((await read(cloud, home, cloud.ref_of(0))).data)

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.5):
            nursery.start_soon(patient)
            await read(cloud, home, cloud.ref_of(0))
    assert got == [bytes_of(0)]
    assert cloud.source.reads == [0]


async def test_two_homes_that_disagree_do_not_wait_for_each_other(cloud, autojump_clock):
    """Each takes the other for the home, as during the distribution of a new ring."""
    cloud.views = {
        "h1": (hash_ring.Ring(2, (hash_ring.RingHost("h2", "10.0.0.2:7201", 1),)), None),
        "h2": (hash_ring.Ring(3, (hash_ring.RingHost("h1", "10.0.0.1:7201", 1),)), None),
    }
    with trio.fail_after(4):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, cloud, "h1", cloud.ref_of(0))
            nursery.start_soon(read, cloud, "h2", cloud.ref_of(0))


async def test_readahead_requests_in_flight_are_bounded(cloud, autojump_clock):
    cloud.source.delay_s = 1.0
    name = cloud.others(cloud.ref_of(0))[0]
    host, most = cloud.hosts[name], 0

    async def watch():
        nonlocal most
        while True:
            asked = [one for one in cloud.asked if one[0] == name]
            most = max(
                most, len(asked) - sum(host.has_chunk(cloud.ref_of(n).cid) for n in range(20))
            )
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        host.prefetch_soon([cloud.ref_of(n) for n in range(20)])
        await trio.sleep(30)
        assert all(host.has_chunk(cloud.ref_of(n).cid) for n in range(20))
        nursery.cancel_scope.cancel()
    assert 0 < most <= 4
    assert {one[2] for one in cloud.asked if one[0] == name} == {peer_wire.Priority.READAHEAD}
    host.prefetch_soon([cloud.ref_of(0)])
    assert not len(host.core)


# Hedging


async def seconds_to_read_all(cloud, name):
    began = trio.current_time()
    for chunk_no in range(40):
        await read(cloud, name, cloud.ref_of(chunk_no))
    return trio.current_time() - began


@pytest.mark.expect_log("is in backoff")
async def test_frozen_home_is_hedged_and_backed_off(cloud, autojump_clock):
    home, name = cloud.home(cloud.ref_of(0)), cloud.others(cloud.ref_of(0))[0]
    cloud.frozen.add(home)
    assert await seconds_to_read_all(cloud, name) < 5
    assert 1 <= cloud.hosts[name].core.counters.hedges <= 4


@pytest.mark.expect_log("is in backoff")
async def test_slow_home_is_backed_off_and_used_again_later(cloud, autojump_clock):
    home, name = cloud.home(cloud.ref_of(0)), cloud.others(cloud.ref_of(0))[0]
    cloud.slow.add(home)
    at_home = [n for n in range(40) if cloud.home(cloud.ref_of(n)) == home]
    assert await seconds_to_read_all(cloud, name) < len(at_home) / 2
    assert cloud.hosts[name].core.counters.backoffs
    cloud.slow.clear()
    await trio.sleep(600)
    for chunk_no in at_home:
        cloud.caches[name].drop_chunk(cloud.ref_of(chunk_no).cid)
        await read(cloud, name, cloud.ref_of(chunk_no))
    assert not cloud.hosts[name].list_backoffs()


async def test_hedges_are_bounded_if_everything_is_slow(cloud, autojump_clock):
    host = cloud.hosts[cloud.others(cloud.ref_of(0))[0]]
    cloud.source.delay_s = 0.4
    for chunk_no in range(40):
        await host.fetch_chunk(cloud.ref_of(chunk_no), Priority.GUEST, 10)
    assert host.core.counters.hedges <= 16 + 0.02 * 90


# Referrals


async def test_requester_follows_a_referral_and_falls_back_to_the_home(cloud, autojump_clock):
    wanted = cloud.ref_of(0)
    cloud.is_heard = False
    home = cloud.home(wanted)
    holder, requester, third = cloud.others(wanted)
    await read(cloud, holder, wanted)
    cloud.busy[home] = (ids.HostId(holder),)
    fetched = await read(cloud, requester, wanted)
    assert (bytes(fetched.data), fetched.origin) == (bytes_of(0), Origin.PEER)
    cloud.caches[holder].drop_chunk(wanted.cid)
    fetched = await read(cloud, third, wanted)
    assert (bytes(fetched.data), fetched.origin) == (bytes_of(0), Origin.HOME)
    assert cloud.source.reads == [0]
    assert cloud.hosts[requester].counters.referrals == 1


# Announcements


def advertised(cloud, name):
    oids = {}
    for teller, host, news in cloud.reported:
        if teller == name and isinstance(news, peer_wire.Advertise):
            oids.setdefault(host, set()).update(name for name, _ in news.chunks)
    return oids


async def test_fetched_chunk_is_announced_to_ring_neighbours(cloud, autojump_clock):
    wanted = cloud.ref_of(0)
    name = cloud.others(wanted)[0]
    await read(cloud, name, wanted)
    await trio.sleep(1)
    ring_order = sorted(cloud.hosts)
    at = ring_order.index(name)
    around = {ring_order[at - 1], ring_order[(at + 1) % 4]}
    reported = advertised(cloud, name)
    assert reported == {key: {wanted.oid} for key in around - {cloud.home(wanted)}}
    assert cloud.hosts[name].counters.advertised == len(reported)


async def test_new_neighbours_get_announcements_of_cached_chunks(cloud, autojump_clock):
    wanted, whole = cloud.ref_of(0), cloud.ring
    name = cloud.others(wanted)[0]
    alone = hash_ring.Ring(0, tuple(host for host in whole.hosts if host.host == name))
    cloud.views[name] = (alone, None)
    await read(cloud, name, wanted)
    await trio.sleep(5)
    assert not advertised(cloud, name)
    cloud.views.clear()
    await trio.sleep(5)
    assert len(advertised(cloud, name)) == 2


async def test_announced_holder_is_asked_before_the_home(cloud, autojump_clock):
    wanted = cloud.ref_of(0)
    cloud.is_heard = False
    holder, requester, _ = cloud.others(wanted)
    await read(cloud, holder, wanted)
    cloud.hosts[requester].announcement_received(
        ids.HostId(holder), peer_wire.Advertise(announced.alone(wanted.oid))
    )
    assert cloud.hosts[requester].list_announced() == [*announced.alone(wanted.oid)]
    cloud.asked.clear()
    assert (await read(cloud, requester, wanted)).origin is Origin.PEER
    assert [(who, whom) for who, whom, _, _ in cloud.asked] == [(requester, holder)]


async def test_readahead_does_not_wait_for_prefetches(cloud, autojump_clock):
    host = cloud.hosts["h1"]
    cloud.frozen.update(cloud.hosts)  # advertised chunks never arrive
    far = [n for n in range(40) if cloud.home(cloud.ref_of(n)) != "h1"][:8]
    news = peer_wire.Advertise(announced.alone(*(cloud.ref_of(n).oid for n in far)))
    host.announcement_received(ids.HostId("h2"), news)
    mine = next(n for n in range(40) if cloud.home(cloud.ref_of(n)) == "h1")

    async def prefetch(wanted):
        with contextlib.suppress(errors.ChunkUnavailable):
            await exchange_cloud.bring(host, wanted, Priority.ADVERTISED)

    async with trio.open_nursery() as nursery:
        for n in far:
            nursery.start_soon(prefetch, cloud.ref_of(n))
        await trio.sleep(0.1)
        assert (
            len([one for one in cloud.asked if one[0] == "h1"])
            <= prefetch_limits.ADVERTISED_AT_A_TIME
        )
        host.prefetch_soon([cloud.ref_of(mine)])
        await trio.sleep(1)
        assert host.has_chunk(cloud.ref_of(mine).cid)
        nursery.cancel_scope.cancel()


async def test_request_that_joins_a_holders_only_fetch_gets_the_chunk(cloud, autojump_clock):
    wanted = cloud.ref_of(0)
    liar, requester, _ = cloud.others(wanted)
    host = cloud.hosts[requester]
    host.announcement_received(ids.HostId(liar), peer_wire.Advertise(announced.alone(wanted.oid)))
    failed, got = [], []

    async def prefetch():
        try:
            await exchange_cloud.bring(host, wanted, Priority.ADVERTISED)
        except errors.ChunkUnavailable as e:
            failed.append(e)

    async def pre_seed():
        await trio.sleep(0.001)
        got.append(await exchange_cloud.bring(host, wanted, Priority.PRE_SEED))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(prefetch)
        nursery.start_soon(pre_seed)
    assert failed == []  # the other request added more sources
    assert [one.data for one in got] == [bytes_of(0)] and host.has_chunk(wanted.cid)


async def test_false_announcement_costs_one_request(cloud, autojump_clock):
    wanted = cloud.ref_of(0)
    holder, requester, _ = cloud.others(wanted)
    cloud.hosts[requester].announcement_received(
        ids.HostId(holder), peer_wire.Advertise(announced.alone(wanted.oid))
    )
    assert (await read(cloud, requester, wanted)).origin is Origin.HOME
    assert cloud.hosts[requester].list_announced() == []


async def test_announcement_of_an_unknown_host_is_ignored(cloud):
    cloud.hosts["h1"].announcement_received(
        ids.HostId("h99"), peer_wire.Advertise(announced.alone(1, 2, 3))
    )
    assert cloud.hosts["h1"].list_announced() == []


# Several tables, several groups


def homes(cloud, table, chunk_no):
    return table.home_at(cloud.ref_of(chunk_no).oid)


def relayed(cloud):
    return sum(mode is peer_wire.Mode.RELAYED for *_, mode in cloud.asked)


async def test_each_pod_reads_a_chunk_from_the_source_once(cloud, autojump_clock):
    cloud.ring = cloud.placed(2, threshold=1)
    async with trio.open_nursery() as nursery:
        for name in cloud.hosts:
            nursery.start_soon(read_everywhere, cloud, range(8), (name,))
    assert sorted(cloud.source.reads) == sorted(2 * [n * CHUNK for n in range(8)])
    pod_of = {h.host: h.location for h in cloud.ring.hosts}
    assert all(pod_of[requester] == pod_of[host] for requester, host, *_ in cloud.asked)


async def test_outer_group_reads_the_source_once_and_each_pod_relays_once(cloud, autojump_clock):
    cloud.ring = cloud.placed(2, threshold=1, outer_threshold=2)
    async with trio.open_nursery() as nursery:
        for name in cloud.hosts:
            nursery.start_soon(read_everywhere, cloud, range(8), (name,))
    assert sorted(cloud.source.reads) == [n * CHUNK for n in range(8)]
    pod_of = {h.host: h.location for h in cloud.ring.hosts}
    between = [1 for requester, host, *_ in cloud.asked if pod_of[requester] != pod_of[host]]
    assert len(between) == relayed(cloud) == 8
    assert sum(host.counters.relayed_bytes for host in cloud.hosts.values()) == 8 * CHUNK


async def test_far_hosts_serve_chunks_while_the_source_is_down(cloud, autojump_clock):
    cloud.ring = cloud.placed(2, threshold=1)
    await read_everywhere(cloud, [0], ("h1", "h2"))
    cloud.source.failure = DOWN
    assert (await read(cloud, "h3", cloud.ref_of(0), 20)).origin is Origin.PEER


async def test_new_homes_fetch_chunks_from_the_former_ones(cloud, autojump_clock):
    before = cloud.ring
    cloud.is_heard = False
    await read_everywhere(cloud, range(40), ("h2",))
    cloud.former, cloud.ring = before, cloud.placed(2, vnodes={"h1": 400})
    moved = [n for n in range(40) if homes(cloud, cloud.ring, n) != homes(cloud, before, n) == "h3"]
    assert moved
    await read_everywhere(cloud, moved, ("h4",))
    assert len(cloud.source.reads) == 40
    assert relayed(cloud) == len(moved)


@pytest.mark.parametrize("informed", range(16))
async def test_source_is_read_once_while_a_new_table_spreads(cloud, autojump_clock, informed):
    """A table reaches hosts at different times: each subset of the four has it."""
    before, after = cloud.ring, cloud.placed(2, vnodes={"h1": 400})
    moved = [n for n in range(40) if homes(cloud, after, n) == "h1" != homes(cloud, before, n)]
    for number, name in enumerate(cloud.hosts):
        cloud.views[name] = (after, before) if informed >> number & 1 else (before, None)
    rng = random.Random(informed)

    async def soon(name, chunk_no):
        await trio.sleep(rng.random() * 0.03)
        await read_everywhere(cloud, [chunk_no], (name,))

    async with trio.open_nursery() as nursery:
        for chunk_no in moved:
            for name in cloud.hosts:
                nursery.start_soon(soon, name, chunk_no)
    assert sorted(cloud.source.reads) == [n * CHUNK for n in moved]


@pytest.mark.allow_log("is in backoff")
async def test_former_home_that_left_is_asked_until_it_fails_once(cloud, autojump_clock):
    before = cloud.ring
    cloud.is_heard = False
    of_h4 = [n for n in range(40) if homes(cloud, before, n) == "h4"]
    await read_everywhere(cloud, of_h4, ("h4",))
    cloud.former = before
    cloud.ring = hash_ring.Ring(2, tuple(host for host in before.hosts if host.host != "h4"))
    first, *others = of_h4
    cloud.asked.clear()
    await read_everywhere(cloud, [first], ("h1",))
    assert len(cloud.source.reads) == len(of_h4)
    cloud.dead.add("h4")
    await read_everywhere(cloud, others, ("h1", "h2", "h3"))
    asked = [host for _, host, *_ in cloud.asked]
    assert 2 <= asked.count("h4") <= 4  # each of the three may find out itself
    assert cloud.hosts["h1"].counters.source_bytes > 0


async def test_same_chunk_of_another_image_is_a_hit_at_the_new_home(cloud, autojump_clock):
    before = cloud.ring
    await read_everywhere(cloud, range(40), ("h2",))
    cloud.former, cloud.ring = before, cloud.placed(2, vnodes={"h1": 400})
    for chunk_no in range(40):
        elsewhere = cloud.chunk_ref_at(chunk_no, (40 - chunk_no) * CHUNK, OTHER)
        assert (await read(cloud, "h4", elsewhere, 20)).data
    assert len(cloud.source.reads) == 40


async def test_by_oid_the_same_chunk_of_another_image_is_a_hit_at_shared_homes(
    tmp_path, autojump_clock
):
    """It is read again only where another host is the home of that image's chunk."""
    names = ("h1", "h2", "h3")
    async with exchange_cloud.running(tmp_path, names, place_identity.ByOid) as made:
        for chunk_no in range(30):
            await read(made, "h1", made.ref_of(chunk_no), 20)
        assert len(made.source.reads) == 30
        elsewhere = {n: made.ref_of(n, OTHER) for n in range(30)}
        hits = [n for n, ref in elsewhere.items() if ref.cid in made.caches[made.home(ref)]]
        assert 0 < len(hits) < 30
        for chunk_no in range(30):
            made.caches["h3"].drop_chunk(elsewhere[chunk_no].cid)
            assert (await read(made, "h3", elsewhere[chunk_no], 20)).data
        misses = set(range(30)) - set(hits)
        at_h3 = {n for n in hits if made.home(elsewhere[n]) == "h3"}  # dropped above
        assert {at // CHUNK for at in made.source.reads[30:]} == misses | at_h3


async def test_by_place_images_share_no_chunks(tmp_path, autojump_clock):
    names = ("h1", "h2", "h3")
    async with exchange_cloud.running(tmp_path, names, place_identity.ByPlace) as made:
        for chunk_no in range(10):
            for name in ("h1", "h2"):
                await read(made, name, made.ref_of(chunk_no), 20)
        assert len(made.source.reads) == 10
        new_to_h3 = [n for n in range(10) if made.ref_of(n).cid not in made.caches["h3"]]
        for chunk_no in range(10):
            await read(made, "h3", made.ref_of(chunk_no, OTHER), 20)
        assert made.source.reads[10:] == [n * CHUNK for n in new_to_h3] != []


async def test_homes_keep_mode_caches_a_chunk_only_at_its_home(tmp_path, autojump_clock):
    async with exchange_cloud.running(tmp_path, ("h1", "h2", "h3"), homes_keep=True) as made:
        for chunk_no in range(20):
            for name in ("h1", "h2", "h3"):
                assert (await read(made, name, made.ref_of(chunk_no), 20)).data
        for wanted in map(made.ref_of, range(20)):
            holders = [name for name, cache in made.caches.items() if wanted.cid in cache]
            assert holders == [made.home(wanted)]
        assert len(made.source.reads) == 20
        assert not any(len(host.core.context.kept) for host in made.hosts.values())


async def test_homes_keep_mode_caches_pinned_chunks(tmp_path, autojump_clock):
    async with exchange_cloud.running(tmp_path, ("h1", "h2"), homes_keep=True) as made:
        of_h2 = [ref for ref in map(made.ref_of, range(40)) if made.home(ref) == "h2"]
        promised, other = of_h2[:2]
        made.caches["h1"].pin_chunk(promised.cid, promised.length)
        for wanted in (promised, other):
            await read(made, "h1", wanted, 20)
        assert promised.cid in made.caches["h1"] and other.cid not in made.caches["h1"]


async def test_homes_keep_mode_new_home_reads_the_source_once_and_caches(tmp_path, autojump_clock):
    async with exchange_cloud.running(tmp_path, ("h1", "h2", "h3"), homes_keep=True) as made:
        for chunk_no in range(40):
            await read(made, "h3", made.ref_of(chunk_no), 20)
        before = made.ring
        made.ring = made.placed(
            2, vnodes={"h1": 5}
        )  # traffic takes v-nodes of h1: it is deprioritized
        made.former = before
        moved = [
            n for n in range(40) if before.home_at(made.ref_of(n).oid) != made.home(made.ref_of(n))
        ]
        for _ in range(2):
            for chunk_no in moved:
                await read(made, "h3", made.ref_of(chunk_no), 20)
        wanted = [made.ref_of(n) for n in moved if made.home(made.ref_of(n)) != "h3"]
        assert wanted and all(ref.cid in made.caches[made.home(ref)] for ref in wanted)
        assert sorted(made.source.reads[40:]) == [n * CHUNK for n in moved]


# Evictions and surplus copies


async def test_neighbours_are_told_of_an_eviction_and_forget_the_holder(cloud, autojump_clock):
    wanted = cloud.ref_of(0)
    name = cloud.others(wanted)[0]
    await read(cloud, name, wanted)
    await trio.sleep(2)
    known = [*announced.alone(wanted.oid)]
    told = advertised(cloud, name)
    reported = [host for host in told if cloud.hosts[host].list_announced() == known]
    assert reported
    cloud.caches[name].drop_chunk(wanted.cid)
    await trio.sleep(2)
    gone = peer_wire.Gone(announced.alone(wanted.oid))
    assert all((name, host, gone) in cloud.reported for host in reported)
    assert not any(cloud.hosts[host].list_announced() for host in reported)
    assert cloud.hosts[name].counters.withdrawn == len(reported)


async def test_chunk_evicted_after_it_was_sent_to_a_peer_is_fetched_again(cloud, autojump_clock):
    wanted = cloud.ref_of(0)
    home, *peers = cloud.home(wanted), *cloud.others(wanted)
    for name in (home, peers[0]):
        await read(cloud, name, wanted)
    for name in (home, peers[0]):
        cloud.caches[name].drop_chunk(wanted.cid)
    for name in (home, *peers):
        assert (await read(cloud, name, wanted)).data == bytes_of(0)
        assert wanted.cid in cloud.caches[name]
    assert cloud.source.reads == [0, 0]


async def test_home_sends_eviction_hints_to_the_oldest_holders(cloud, autojump_clock):
    wanted = cloud.ref_of(0)
    cloud.is_heard = False
    home, *askers = [cloud.home(wanted), *cloud.others(wanted)]
    for requester in askers:
        await read(cloud, requester, wanted)
    await trio.sleep(8)
    hints = [one for one in cloud.reported if isinstance(one[2], peer_wire.EvictionHint)]
    hint = peer_wire.EvictionHint(announced.alone(wanted.oid))
    assert hints == [(home, requester, hint) for requester in askers[:2]]
    assert cloud.hosts[home].counters.copy_hints_sent == 2


async def test_corrupt_cached_chunk_is_fetched_again_for_a_peer(cloud, autojump_clock):
    wanted = cloud.ref_of(0)
    home, name = cloud.home(wanted), cloud.others(wanted)[0]
    await read(cloud, home, wanted)
    real = cloud.caches[home].read_chunk

    async def damaged(cid):
        cloud.caches[home].drop_chunk(cid)
        cloud.caches[home].read_chunk = real

    cloud.caches[home].read_chunks_nowait = lambda cids: [None] * len(cids)
    cloud.caches[home].read_chunk = damaged
    assert (await read(cloud, name, wanted)).data == bytes_of(0)
    assert cloud.source.reads == [0, 0]


# Broadcast lookup


@pytest.fixture
async def wide_cloud(tmp_path):
    names = [f"h{n}" for n in range(1, 10)]
    async with exchange_cloud.running(tmp_path, names) as made:
        yield made


def far_holder(cloud, wanted):
    """Return a host with the chunk that is not usually asked for it, and a reader."""
    *_, holder, reader = cloud.ring.owners_of(wanted.cid, len(cloud.hosts))
    cloud.caches[holder].store_chunk(wanted.cid, bytes_of(0), KeepClass.BORROWED)
    return holder, reader


async def test_chunk_of_a_deleted_image_is_found_on_any_host(wide_cloud, autojump_clock):
    wanted = wide_cloud.ref_of(0)
    holder, reader = far_holder(wide_cloud, wanted)
    wide_cloud.source.deleted.add(IMAGE)
    fetched = await read(wide_cloud, reader, wanted)
    assert (fetched.data, fetched.origin) == (bytes_of(0), Origin.PEER)
    asked = (reader, holder, peer_wire.Priority.PEER, peer_wire.Mode.HELD_ONLY)
    assert asked in wide_cloud.asked
    assert await wide_cloud.caches[reader].read_chunk(wanted.cid) == bytes_of(0)


@pytest.mark.allow_log("h. is in backoff")
async def test_read_waits_for_the_only_holder_while_it_is_unreachable(wide_cloud, autojump_clock):
    wanted = wide_cloud.ref_of(0)
    holder, reader = far_holder(wide_cloud, wanted)
    wide_cloud.source.deleted.add(IMAGE)
    wide_cloud.dead.add(holder)
    came, waiting = [], blocked_requests.Wait(None, 0.0, None)

    async def wait():
        with wide_cloud.hosts[reader].submit_read([wanted], guest_wait=waiting) as wish:
            came.append((await wish.wait())[0].data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(40)
        assert not came
        assert holder in waiting.why
        wide_cloud.dead.clear()
    assert came == [bytes_of(0)]


@pytest.mark.allow_log("h. is in backoff")
async def test_read_without_a_deadline_waits_minutes_for_the_source(cloud, autojump_clock):
    cloud.source.failure = errors.SourceUnreachable("x", "memory", "refused")
    came, waiting = [], blocked_requests.Wait(None, 0.0, None)
    name = cloud.home(cloud.ref_of(0))

    async def wait(host):
        with host.submit_read([cloud.ref_of(0)], guest_wait=waiting) as wish:
            came.append((await wish.wait())[0].data)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait, cloud.hosts[name])
        await trio.sleep(60)
        assert not came
        assert "from memory: refused" in waiting.why
        cloud.source.failure = None
        before = len(cloud.source.reads)
    assert came == [bytes_of(0)] * 3
    assert len(cloud.source.reads) == before + 1


@pytest.mark.allow_log("h. is in backoff")
async def test_chunk_is_not_lost_while_the_source_refuses_it(cloud, autojump_clock):
    cloud.source.failure = errors.ChunkRefused("x", "memory", "no credentials")
    with trio.move_on_after(45) as waited:
        await read(cloud, "h1", cloud.ref_of(0), 1000)
    assert waited.cancelled_caught
    cloud.source.failure = None
    assert (await read(cloud, "h1", cloud.ref_of(0))).data == bytes_of(0)


@pytest.mark.allow_log("h. is in backoff")
async def test_home_in_backoff_serves_cached_chunks_while_the_source_is_down(cloud, autojump_clock):
    """The home is in backoff because it could not read the source."""
    wanted = cloud.ref_of(0)
    home, reader = cloud.home(wanted), cloud.others(wanted)[0]
    cloud.caches[home].store_chunk(wanted.cid, bytes_of(0), KeepClass.HOME)
    cloud.source.failure = errors.SourceUnreachable("x", "memory", "refused")
    for _ in range(20):
        backoff(cloud, reader, home)
        await trio.sleep(min(cloud.hosts[reader].list_backoffs()[home], 40))
    assert cloud.hosts[reader].list_backoffs()[home] > 10
    with trio.fail_after(5):
        assert (await read(cloud, reader, wanted)).data == bytes_of(0)


async def test_chunk_is_not_lost_before_the_first_v_node_table(tmp_path, autojump_clock):
    async with exchange_cloud.running(tmp_path, ("h1",), has_others=True) as made:
        made.ring, made.source.deleted = hash_ring.Ring(0, ()), {IMAGE}
        with pytest.raises(errors.DeadlineExceeded, match="no v-node table yet"):
            await read(made, "h1", made.ref_of(0), 5)


@pytest.mark.expect_log("data of it is unavailable")
async def test_successful_source_read_resets_the_time_to_loss(tmp_path, autojump_clock):
    async with exchange_cloud.running(tmp_path, ("h1",), lost_after_s=900.0) as made:
        made.source.deleted.add(IMAGE)
        with pytest.raises(errors.DeadlineExceeded, match="lost if none has it"):
            await read(made, "h1", made.ref_of(0), 5)
        made.source.deleted.clear()
        await read(made, "h1", made.ref_of(1), 5)
        await trio.sleep(1000)
        made.source.deleted.add(IMAGE)
        with pytest.raises(errors.DeadlineExceeded, match="lost if none has it"):
            await read(made, "h1", made.ref_of(2), 5)


async def test_chunks_are_stored_in_the_stream_of_their_request(cloud, autojump_clock):
    refs = [cloud.ref_of(n) for n in range(8)]
    name = cloud.others(refs[0])[0]
    here = next(n for n in range(40) if cloud.home(cloud.ref_of(n)) == name)
    stored, store = {}, cloud.caches[name].store_chunk

    def noted(cid, *more):
        stored[cid] = disk_io.deferred_stream()
        return store(cid, *more)

    cloud.caches[name].store_chunk = noted
    guest = requests.Stream(requests.Klass.GUEST, "a guest")
    fill = requests.Stream(requests.Klass.FILL, "hydrate")
    later = requests.Stream(requests.Klass.BACKGROUND, "agent")
    wanted = {cloud.ref_of(here): fill, refs[0]: fill, refs[1]: later, refs[2]: later}
    with disk_io.use_stream(guest):
        for ref, stream in wanted.items():
            if stream is fill:
                await exchange_cloud.bring(cloud.hosts[name], ref, Priority.HYDRATE)
    with disk_io.use_stream(fill):
        for ref, stream in wanted.items():
            if stream is later:
                await read(cloud, name, ref)
    assert stored == {ref.cid: stream for ref, stream in wanted.items()}


@pytest.mark.expect_log("storing chunks")
async def test_failing_cache_delays_no_read_and_holds_no_chunk_in_memory(cloud, autojump_clock):
    wanted = cloud.ref_of(0)
    name = cloud.others(wanted)[0]
    cloud.caches[name].store_chunk = None
    assert (await read(cloud, name, wanted)).data == bytes_of(0)
    assert not cloud.hosts[name].core.context.kept


async def test_former_table_is_known_from_the_start(cloud):
    cloud.former = cloud.placed(0)
    started = cloud._host(ids.HostId("h1"))
    started.prefetch_soon([cloud.ref_of(0)])
    assert started.core.context.ring.former is cloud.former


async def test_hanging_prefetch_does_not_block_others_of_its_image(cloud, autojump_clock):
    """Other chunks arrive and further prefetches begin while one holder is silent."""
    image_map = chunk_map.ChunkMap.parse(one_host.map_of(exchange_cloud.BYTES), "a map")
    name, hung, good = "h1", "h2", "h4"  # its two neighbours
    numbers = [n for n in range(40) if cloud.home(cloud.ref_of(n)) == "h3"][:4]
    oids = [cloud.ref_of(n).oid for n in numbers]
    for number in numbers:
        await exchange_cloud.bring(cloud.hosts[good], cloud.ref_of(number), Priority.HYDRATE)
    cloud.frozen.add(hung)
    cloud.is_heard = False
    cloud.hosts[name].announcement_received(
        ids.HostId(hung), peer_wire.Advertise(announced.alone(oids[0]))
    )
    cloud.hosts[name].announcement_received(
        ids.HostId(good), peer_wire.Advertise(announced.alone(*oids[1:]))
    )
    index = content_index.ContentIndex(image_map)
    ahead = advertised_prefetch.AdvertisedPrefetch(
        *(image_map, index, cloud.hosts[name], cloud.nursery, NO_BOOT_IMAGE, eager)
    )
    ahead.chunks_advertised(announced.alone(*oids[:2]))
    await trio.sleep(1)
    ahead.chunks_advertised(announced.alone(*oids[2:]))  # while the first one hangs
    await trio.sleep(1)
    states = [ahead.states.state_of(number) for number in numbers]
    assert states == [chunk_state.ChunkState.PREFETCH, *3 * [chunk_state.ChunkState.LOCAL]]
    assert cloud.hosts[name].counters.prefetched_bytes == 3 * CHUNK


async def test_prefetch_skips_chunks_held_only_by_their_home(cloud, autojump_clock):
    image_map = chunk_map.ChunkMap.parse(one_host.map_of(exchange_cloud.BYTES), "a map")
    number = next(n for n in range(40) if cloud.home(cloud.ref_of(n)) == "h4")
    oid, host = cloud.ref_of(number).oid, cloud.hosts["h1"]
    await exchange_cloud.bring(cloud.hosts["h4"], cloud.ref_of(number), Priority.HYDRATE)
    cloud.is_heard = False
    index = content_index.ContentIndex(image_map)
    ahead = advertised_prefetch.AdvertisedPrefetch(
        *(image_map, index, host, cloud.nursery, NO_BOOT_IMAGE, eager)
    )
    states = []
    for holder in ("h4", "h2"):
        host.announcement_received(ids.HostId(holder), peer_wire.Advertise(announced.alone(oid)))
        ahead.chunks_advertised(announced.alone(oid))
        states.append(ahead.states.state_of(number))
    assert states == [chunk_state.ChunkState.REMOTE, chunk_state.ChunkState.PREFETCH]
