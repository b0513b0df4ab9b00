# SPDX-License-Identifier: Apache-2.0
import random

import pytest
import trio

from acstor_agent import disk_io
from acstor_agent.cache import cache_files
from acstor_agent.chunks import admission
from acstor_agent.chunks import exchange
from acstor_agent.chunks import fetcher
from acstor_agent.chunks import home as home_
from acstor_agent.chunks import serving
from acstor_agent.chunks import want as want_
from acstor_agent.core import counters
from acstor_agent.core.cache import public_cache
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.exchange import absences
from acstor_agent.core.exchange import gossip
from acstor_agent.core.exchange import identity
from acstor_agent.core.exchange import neighbours
from acstor_agent.core.exchange import peer_health
from acstor_agent.sources import base
from acstor_agent.sources import verify
from acstor_common import errors
from acstor_common import ids
from acstor_common import peer_wire
from acstor_common import ring

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OTHER = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
CHUNK = 16 * 1024
BYTES = random.Random(7).randbytes(40 * CHUNK)
Errand = fetcher.Errand
FailureKind = peer_health.FailureKind


def want(chunk_no):
    data = BYTES[chunk_no * CHUNK : (chunk_no + 1) * CHUNK]
    return want_.Want(IMAGE, chunk_no * CHUNK, CHUNK, ids.cid_of(data))


class MemorySource(base.Source):
    """Holds BYTES; counts reads; may be told to fail or to be slow."""

    def __init__(self):
        self.reads, self.askers = [], []
        self.failure = None
        self.deleted = set()
        self.delay_s = 0.01

    where = "memory"

    async def size_bytes(self, blob):
        return len(BYTES)

    async def read(self, blob, offset, length, content=None):
        self.reads.append(offset)
        self.askers.append(disk_io.asker())
        await trio.sleep(self.delay_s)
        if self.failure:
            raise self.failure
        if blob.image_id in self.deleted:
            raise errors.ChunkMissing(blob.name, self.where)
        return BYTES[offset : offset + length]

    async def aclose(self):
        pass


class Cloud:
    """Fetchers of several hosts, joined by calls instead of a network."""

    def __init__(self, folder, nursery, names, identity_of_chunks=identity.ByContent):
        self.names = identity_of_chunks
        self.source = MemorySource()
        self.dead, self.lying, self.frozen, self.asked, self.told = set(), set(), set(), [], []
        self.busy, self.peers, self.serving, self.slow = {}, {}, {}, set()
        self.former, self.relayed, self.news = None, 0, []
        self.ring = ring.Ring(
            1, tuple(ring.RingHost(n, f"10.0.0.{i}:7201", 100) for i, n in enumerate(names, 1))
        )
        self.caches = {
            name: cache_files.CacheFiles.open(folder / name, 4 << 20, 1 << 20) for name in names
        }
        self.hosts = {name: self._host(name, nursery) for name in names}

    def _host(self, name, nursery):
        async def ask(question, wanted):
            self.asked.append((name, question.host, question.errand, question.may_read_source))
            await trio.sleep(0.005)
            if question.host in self.dead:
                raise errors.SourceUnreachable(str(wanted), question.host, "refused")
            if question.host in self.frozen:
                await trio.sleep(60)
            if question.host in self.slow:
                await trio.sleep(1)
            if question.may_refer and question.host in self.busy:
                return peer_wire.Refer(1, self.busy[question.host])
            self.relayed += question.is_relayed
            data = await self.serving[question.host].serve(
                wanted, question.may_read_source, question.is_relayed, name, question.is_moved
            )
            return bytes(len(data)) if question.host in self.lying else data

        self.peers[name] = exchange.Exchange(
            ids.HostId(name),
            current_ring=lambda: self.ring,
            ask_peer=ask,
            tell=lambda host, address, news: self._told(name, host, news),
            former_ring=lambda: self.former,
            named=self.names(),
            copies_limit=1,
            health=peer_health.PeerHealth(random.Random(1)),
            topology=neighbours.Topology.RING,
            clock=trio.current_time,
        )
        home = home_.Home(
            ids.HostId(name),
            nursery,
            cache=self.caches[name],
            source=verify.VerifySource(self.source),
            peers=self.peers[name],
            current_ring=lambda: self.ring,
            former_ring=lambda: self.former,
        )
        chunks = fetcher.Fetcher(
            ids.HostId(name),
            nursery,
            cache=self.caches[name],
            home=home,
            current_ring=lambda: self.ring,
            peers=self.peers[name],
            background_limit=4,
            clock=trio.current_time,
        )
        self.serving[name] = serving.Serving(
            ids.HostId(name),
            admission=admission.Admission(
                ids.HostId(name), lambda *place: None, None, open_attached=None
            ),
            cache=self.caches[name],
            chunks=chunks,
            home=home,
            peers=self.peers[name],
            named=self.peers[name]._named,
        )
        return chunks

    def _told(self, name, host, news):
        if isinstance(news, peer_wire.Advertise):
            self.told.append((name, host, news.prefixes))
        else:
            self.news.append((name, host, news))

    def home(self, wanted):
        return self.ring.owners_of(wanted.cid, 1)[0]


@pytest.fixture
async def cloud(tmp_path, nursery):
    for name in ("h1", "h2", "h3", "h4"):
        (tmp_path / name).mkdir(mode=0o700)
    made = Cloud(tmp_path, nursery, ["h1", "h2", "h3", "h4"])
    yield made
    for cache in made.caches.values():
        await cache.aclose()


def others(cloud, wanted):
    return [name for name in cloud.hosts if name != cloud.home(wanted)]


async def test_whole_cloud_reads_a_chunk_from_the_source_once(cloud, autojump_clock):
    got = []

    async def one(host):
        got.append(await host.fetch(want(0), 10))

    async with trio.open_nursery() as nursery:
        for host in cloud.hosts.values():
            for _ in range(3):
                nursery.start_soon(one, host)
    assert cloud.source.reads == [0]
    assert {bytes(fetched.data) for fetched in got} == {BYTES[:CHUNK]}
    assert sum(fetched.origin is counters.Origin.HOME for fetched in got) == 9


async def test_home_that_wants_what_it_just_read_for_a_peer_does_not_read_it_again(cloud):
    """The moment matters: between the look in the cache and the read somebody else's may end."""
    for chunk_no in range(36):
        wanted = want(chunk_no)
        home = cloud.home(wanted)
        cloud.source.delay_s = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cloud.serving[home].serve, wanted, True)
            for _ in range(chunk_no % 6):
                await trio.lowlevel.checkpoint()
            await cloud.hosts[home].fetch(wanted, 10)
        assert cloud.source.reads.count(wanted.offset) == 1


async def test_chunk_that_came_is_in_the_cache(cloud, autojump_clock):
    name = others(cloud, want(3))[0]
    await cloud.hosts[name].fetch(want(3), 10)
    assert await cloud.caches[name].read_chunk(want(3).cid) == BYTES[3 * CHUNK : 4 * CHUNK]


async def test_next_host_takes_a_dead_homes_part(cloud, autojump_clock):
    home = cloud.home(want(0))
    cloud.dead.add(home)
    for name in others(cloud, want(0)):
        await cloud.hosts[name].fetch(want(0), 10)
    assert cloud.source.reads == [0]


@pytest.mark.expect_log("is left alone for .* s: .* the CID is")
async def test_lying_peer_costs_time_and_no_byte(cloud, autojump_clock):
    home = cloud.home(want(0))
    cloud.lying.add(home)
    name = others(cloud, want(0))[0]
    fetched = await cloud.hosts[name].fetch(want(0), 10)
    assert fetched.data == BYTES[:CHUNK]
    assert cloud.peers[name].invalid_chunks == 1
    assert set(cloud.peers[name].quarantined()) == {home}
    cloud.asked.clear()
    await cloud.hosts[name].fetch(want(1), 10)
    assert home not in {asked for _, asked, _, _ in cloud.asked}


async def test_while_the_source_is_down_peers_that_hold_the_chunk_give_it(cloud, autojump_clock):
    wanted = want(0)
    owners = cloud.ring.owners_of(wanted.cid, 4)
    holder, asker = cloud.hosts[owners[2]], cloud.hosts[owners[0]]
    await holder.fetch(wanted, 10)
    cloud.caches[owners[0]].drop(wanted.cid)
    cloud.source.failure = errors.SourceUnreachable("x", "memory", "down")
    fetched = await asker.fetch(wanted, 10)
    assert (bytes(fetched.data), fetched.origin) == (BYTES[:CHUNK], counters.Origin.PEER)


@pytest.mark.allow_log("down")
async def test_source_that_comes_back_before_the_deadline_is_waited_for(cloud, autojump_clock):
    cloud.source.failure = errors.SourceUnreachable("x", "memory", "down")

    async def mend():
        await trio.sleep(3)
        cloud.source.failure = None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(mend)
        fetched = await cloud.hosts["h1"].fetch(want(0), 10)
    assert fetched.data == BYTES[:CHUNK]


@pytest.mark.allow_log("down")
async def test_deadline_ends_a_read_and_says_why(cloud, autojump_clock):
    cloud.source.failure = errors.SourceUnreachable("x", "memory", "down")
    began = trio.current_time()
    with pytest.raises(errors.DeadlineExceeded, match=r"within 5 s.*down"):
        await cloud.hosts["h1"].fetch(want(0), 5)
    assert trio.current_time() - began == pytest.approx(5, abs=0.1)


@pytest.mark.expect_log("bytes of it are lost")
async def test_chunk_that_nobody_has_is_not_waited_for(cloud, autojump_clock):
    cloud.source.failure = errors.ChunkMissing("x", "memory")
    began = trio.current_time()
    with pytest.raises(errors.ChunkMissing):
        await cloud.hosts["h1"].fetch(want(0), 30)
    assert trio.current_time() - began < 2


@pytest.mark.parametrize(
    "is_by_peer", [pytest.param(False, marks=pytest.mark.expect_log("bytes of it are lost")), True]
)
async def test_image_that_its_owner_deletes_costs_readers_of_another_nothing(
    cloud, autojump_clock, is_by_peer
):
    """Both have the same content, so they share a flight, and it may be that of the deleted one."""
    theirs = want(0)._replace(image_id=OTHER)
    cloud.source.deleted.add(OTHER)
    home = cloud.home(theirs)
    failed, got = [], []

    async def reader_of_theirs():
        try:
            if is_by_peer:
                await cloud.serving[home].serve(theirs, True, requester=ids.HostId("h9"))
            else:
                await cloud.hosts[home].fetch(theirs, 10)
        except errors.ChunkMissing as e:
            failed.append(e)

    async def reader_of_ours():
        await trio.sleep(cloud.source.delay_s / 2)
        got.append((await cloud.hosts[home].fetch(want(0), 10)).data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader_of_theirs)
        for _ in range(3):
            nursery.start_soon(reader_of_ours)
    assert failed and got == 3 * [BYTES[:CHUNK]]
    assert len(cloud.source.reads) <= 4  # theirs, and ours once


async def test_what_a_peer_does_not_wait_for_any_more_still_counts_as_its(
    cloud, autojump_clock, monkeypatch
):
    monkeypatch.setattr(home_, "FLIGHTS_OF_A_PEER", 4)
    cloud.source.delay_s = 1.0
    serving_ = cloud.serving["h1"]
    busy = 0
    for chunk_no in range(20):
        with trio.move_on_after(0.001):
            try:
                await serving_.serve(want(chunk_no), True, requester=ids.HostId("h2"))
            except errors.SourceUnreachable as e:
                busy += "on their way for h2" in str(e)
    assert (busy, len(cloud.source.reads)) == (16, 4)
    assert await serving_.serve(want(0), True, requester=ids.HostId("h2")) == BYTES[:CHUNK]
    assert await serving_.serve(want(30), True, requester=ids.HostId("h3"))
    await trio.sleep(2)
    assert await serving_.serve(want(31), True, requester=ids.HostId("h2"))
    assert not serving_._home._begun_for


async def test_what_no_guest_of_a_peer_waits_for_comes_after_all_that_guests_wait_for(
    cloud, autojump_clock
):
    """And is as urgent as the first one that joins it, at the source, too."""
    cloud.source.delay_s = 1.0
    serving_, got = cloud.serving[cloud.home(want(0))], []
    get = peer_wire.Get(1, IMAGE, 0, CHUNK, bytes(32), may_read_source=True, timeout_ms=1000)

    async def ask(host, is_urgent):
        got.append(await serving_.answer(ids.HostId(host), get, want(0), is_urgent))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "h8", False)
        await trio.testing.wait_all_tasks_blocked()
        (asker,) = cloud.source.askers
        assert asker.stream == requests.Stream(requests.Klass.PREFETCH, "h8")
        nursery.start_soon(ask, "h9", True)
        await trio.testing.wait_all_tasks_blocked()
        assert asker.stream == requests.Stream(requests.Klass.PEER, "h9")
    assert got == 2 * [BYTES[:CHUNK]]
    assert len(cloud.source.reads) == 1


async def test_reader_who_gives_up_does_not_stop_the_others(cloud, autojump_clock):
    cloud.source.delay_s = 1.0
    host = cloud.hosts[cloud.home(want(0))]
    got = []

    async def patient():
        got.append((await host.fetch(want(0), 10)).data)

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.5):
            nursery.start_soon(patient)
            await host.fetch(want(0), 10)
    assert got == [BYTES[:CHUNK]]
    assert cloud.source.reads == [0]


async def test_peer_that_may_not_read_the_source_hears_that_the_chunk_is_missing(cloud):
    with pytest.raises(errors.ChunkMissing):
        await cloud.serving["h1"].serve(want(0), may_read_source=False)
    assert cloud.source.reads == []


async def test_two_homes_that_disagree_do_not_wait_for_each_other(cloud, autojump_clock):
    """Each believes that the other one is the home, as while a new ring is on its way."""
    one, two = cloud.hosts["h1"], cloud.hosts["h2"]
    one._current_ring = lambda: ring.Ring(2, (ring.RingHost("h2", "10.0.0.2:7201", 1),))
    two._current_ring = lambda: ring.Ring(3, (ring.RingHost("h1", "10.0.0.1:7201", 1),))
    with trio.fail_after(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.fetch, want(0), 10)
            nursery.start_soon(two.fetch, want(0), 10)


async def test_background_work_is_bounded_and_uses_the_bulk_connection(cloud, autojump_clock):
    wanted = want(0)
    name = others(cloud, wanted)[0]
    cloud.source.delay_s = 1.0
    host = cloud.hosts[name]
    most = 0

    async def watch():
        nonlocal most
        while True:
            most = max(most, host.in_flight)
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        host.read_ahead(want(n) for n in range(20))
        await trio.sleep(30)
        assert all(host.has(want(n).cid) for n in range(20))
        nursery.cancel_scope.cancel()
    assert 1 < most <= 4
    assert {errand for asker, _, errand, _ in cloud.asked if asker == name} == {Errand.READ_AHEAD}
    host.read_ahead([want(0)])
    assert host.in_flight == 0


# Racing


@pytest.mark.expect_log("is left alone")
async def test_frozen_home_is_raced_and_left_alone(cloud, autojump_clock, nursery):
    home = cloud.home(want(0))
    name = others(cloud, want(0))[0]
    host = cloud.hosts[name]
    nursery.start_soon(host.race)
    for _ in range(50):
        host.hedge.answered(0.02)
    cloud.frozen.add(home)
    began = trio.current_time()
    for chunk_no in range(40):
        await host.fetch(want(chunk_no), 10)
    assert trio.current_time() - began < 5
    assert 1 <= host.hedge.races <= 4


@pytest.mark.expect_log("is left alone")
async def test_slow_home_is_left_alone_though_it_answers_and_comes_back(cloud, autojump_clock):
    home = cloud.home(want(0))
    name = others(cloud, want(0))[0]
    cloud.slow.add(home)
    began = trio.current_time()
    for chunk_no in range(40):
        await cloud.hosts[name].fetch(want(chunk_no), 10)
    at_home = [wanted for wanted in map(want, range(40)) if cloud.home(wanted) == home]
    assert trio.current_time() - began < len(at_home) / 2
    assert set(cloud.peers[name].quarantined()) == {home}
    cloud.slow.clear()
    await trio.sleep(600)
    for wanted in at_home:
        cloud.caches[name].drop(wanted.cid)
        await cloud.hosts[name].fetch(wanted, 10)
    assert not cloud.peers[name].quarantined()


async def test_races_are_bounded_where_everything_is_slow(cloud, autojump_clock, nursery):
    host = cloud.hosts[others(cloud, want(0))[0]]
    nursery.start_soon(host.race)
    for _ in range(50):
        host.hedge.answered(0.001)
    cloud.source.delay_s = 0.4
    for chunk_no in range(40):
        await host.fetch(want(chunk_no), 10)
    assert host.hedge.races <= 16 + 0.02 * 90
    assert host.in_flight == 0


# Referrals


async def test_requester_follows_a_referral_and_then_asks_plainly(cloud, autojump_clock):
    wanted = want(0)
    home = cloud.home(wanted)
    holder, asker, third = others(cloud, wanted)
    await cloud.hosts[holder].fetch(wanted, 10)
    cloud.busy[home] = (ids.HostId(holder),)
    fetched = await cloud.hosts[asker].fetch(wanted, 10)
    assert (bytes(fetched.data), fetched.origin) == (BYTES[:CHUNK], counters.Origin.PEER)
    cloud.caches[holder].drop(wanted.cid)
    fetched = await cloud.hosts[third].fetch(wanted, 10)
    assert (bytes(fetched.data), fetched.origin) == (BYTES[:CHUNK], counters.Origin.HOME)
    assert cloud.source.reads == [0]


async def test_host_that_will_have_the_chunk_keeps_the_question(cloud, autojump_clock):
    wanted = want(0)
    cloud.source.delay_s = 0.5
    first = others(cloud, wanted)[0]
    got = []

    async def ask_early():
        await trio.sleep(0.1)
        got.append(bytes(await cloud.serving[first].serve(wanted, may_read_source=False)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cloud.hosts[first].fetch, wanted, 10)
        nursery.start_soon(ask_early)
    assert got == [BYTES[:CHUNK]]


# Advertisements


async def test_chunk_that_came_is_advertised_to_the_neighbours_on_the_ring(
    cloud, autojump_clock, nursery
):
    for peers in cloud.peers.values():
        nursery.start_soon(peers.run)
    await trio.sleep(0.1)
    name = others(cloud, want(0))[0]
    await cloud.hosts[name].fetch(want(0), 10)
    await trio.sleep(1)
    ring_order = sorted(cloud.hosts)
    at = ring_order.index(name)
    around = {ring_order[at - 1], ring_order[(at + 1) % 4]}
    told = {host for teller, host, prefixes in cloud.told if teller == name}
    assert told == around - {cloud.home(want(0))}
    assert {p for _, _, prefixes in cloud.told for p in prefixes} == {gossip.prefix_of(want(0).cid)}


async def test_host_that_joins_the_ring_is_told_what_is_here_already(
    cloud, autojump_clock, nursery
):
    whole = cloud.ring
    name = others(cloud, want(0))[0]
    cloud.ring = ring.Ring(0, tuple(host for host in whole.hosts if host.host == name))
    nursery.start_soon(cloud.peers[name].run)
    await cloud.hosts[name].fetch(want(0), 10)
    await trio.sleep(5)
    assert cloud.told == []
    cloud.ring = whole
    await trio.sleep(5)
    assert {prefixes for _, _, prefixes in cloud.told} == {(gossip.prefix_of(want(0).cid),)}
    assert len(cloud.told) == 2


async def test_advertiser_is_asked_before_the_home(cloud, autojump_clock):
    wanted = want(0)
    holder, asker, _ = others(cloud, wanted)
    await cloud.hosts[holder].fetch(wanted, 10)
    cloud.peers[asker].heard(ids.HostId(holder), [gossip.prefix_of(wanted.cid)])
    cloud.asked.clear()
    fetched = await cloud.hosts[asker].fetch(wanted, 10)
    assert fetched.origin is counters.Origin.PEER
    assert [(who, whom) for who, whom, _, _ in cloud.asked] == [(asker, holder)]


async def test_home_is_asked_before_an_advertiser_that_is_busier_than_it(cloud, autojump_clock):
    wanted = want(0)
    holder, asker, _ = others(cloud, wanted)
    await cloud.hosts[holder].fetch(wanted, 10)
    cloud.peers[asker].heard(ids.HostId(holder), [gossip.prefix_of(wanted.cid)])
    cloud.peers[asker]._gossip.asked(ids.HostId(holder))
    fetched = await cloud.hosts[asker].fetch(wanted, 10)
    assert fetched.origin is counters.Origin.HOME


async def test_read_ahead_waits_for_no_prefetch(cloud, autojump_clock):
    host = cloud.hosts["h1"]
    cloud.frozen.update(cloud.hosts)  # what is only advertised never comes
    holder = ids.HostId("h2")
    cloud.peers["h1"].heard(holder, [gossip.prefix_of(want(n).cid) for n in range(8)])
    mine = next(n for n in range(8, 40) if cloud.home(want(n)) == "h1")

    async with trio.open_nursery() as nursery:
        for n in range(8):
            nursery.start_soon(host.fetch_ahead, want(n), Errand.ADVERTISED)
        await trio.sleep(0.1)
        assert host.in_flight == fetcher.ADVERTISED_AT_A_TIME
        host.read_ahead([want(mine)])
        await trio.sleep(1)
        assert host.has(want(mine).cid)
        nursery.cancel_scope.cancel()


async def test_whoever_joins_a_fetch_from_holders_only_still_gets_the_chunk(cloud, autojump_clock):
    wanted = want(0)
    liar, asker, _ = others(cloud, wanted)
    host = cloud.hosts[asker]
    cloud.peers[asker].heard(ids.HostId(liar), [gossip.prefix_of(wanted.cid)])
    failed, got = [], []

    async def prefetch():
        try:
            await host.fetch_ahead(wanted, Errand.ADVERTISED)
        except errors.ChunkUnavailable as e:
            failed.append(e)

    async def pre_seed():
        await trio.sleep(0.001)
        got.append(await host.fetch_ahead(wanted, Errand.PRE_SEED))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(prefetch)
        nursery.start_soon(pre_seed)
    assert failed == []  # more places were asked for the sake of the other
    assert [bytes(fetched.data) for fetched in got] == [BYTES[:CHUNK]]


async def test_advertiser_that_has_not_got_it_costs_one_question(cloud, autojump_clock):
    wanted = want(0)
    holder, asker, _ = others(cloud, wanted)
    cloud.peers[asker].heard(ids.HostId(holder), [gossip.prefix_of(wanted.cid)])
    fetched = await cloud.hosts[asker].fetch(wanted, 10)
    assert fetched.origin is counters.Origin.HOME
    assert cloud.peers[asker].holders(wanted) == []


async def test_stranger_is_not_listened_to(cloud):
    assert cloud.peers["h1"].heard(ids.HostId("h99"), [1, 2, 3]) == []


# Several tables, several groups


def placed(cloud, epoch, threshold=None, outer_threshold=None, vnodes=None):
    """Return the cloud's table with h1 and h2 in one pod, h3 and h4 in another."""
    weights = vnodes or {}
    hosts = tuple(
        ring.RingHost(h.host, h.address, weights.get(h.host, 100), "p1" if h.host < "h3" else "p2")
        for h in cloud.ring.hosts
    )
    return ring.Ring(epoch, hosts, threshold, outer_threshold)


async def read_everywhere(cloud, chunk_nos, names=("h1", "h2", "h3", "h4")):
    for chunk_no in chunk_nos:
        for name in names:
            assert (await cloud.hosts[name].fetch(want(chunk_no), 20)).data


async def test_each_pod_reads_a_chunk_from_the_source_once(cloud, autojump_clock):
    cloud.ring = placed(cloud, 2, threshold=1)
    async with trio.open_nursery() as nursery:
        for name in cloud.hosts:
            nursery.start_soon(read_everywhere, cloud, range(8), (name,))
    assert sorted(cloud.source.reads) == sorted(2 * [n * CHUNK for n in range(8)])
    pod_of = {h.host: h.location for h in cloud.ring.hosts}
    assert all(pod_of[asker] == pod_of[host] for asker, host, *_ in cloud.asked)


async def test_with_an_outer_group_the_cloud_reads_once_and_each_pod_copies_once(
    cloud, autojump_clock
):
    cloud.ring = placed(cloud, 2, threshold=1, outer_threshold=2)
    async with trio.open_nursery() as nursery:
        for name in cloud.hosts:
            nursery.start_soon(read_everywhere, cloud, range(8), (name,))
    assert sorted(cloud.source.reads) == [n * CHUNK for n in range(8)]
    pod_of = {h.host: h.location for h in cloud.ring.hosts}
    between = [1 for asker, host, *_ in cloud.asked if pod_of[asker] != pod_of[host]]
    assert len(between) == cloud.relayed == 8
    assert sum(host.counters.relayed_bytes for host in cloud.hosts.values()) == 8 * CHUNK


async def test_while_the_source_is_down_far_hosts_give_what_they_hold(cloud, autojump_clock):
    cloud.ring = placed(cloud, 2, threshold=1)
    await read_everywhere(cloud, [0], ("h1", "h2"))
    cloud.source.failure = errors.SourceUnreachable("a chunk", "memory", "down")
    assert (await cloud.hosts["h3"].fetch(want(0), 20)).origin is counters.Origin.PEER


async def test_new_homes_take_chunks_from_the_former_ones(cloud, autojump_clock):
    before = cloud.ring
    await read_everywhere(cloud, range(40), ("h2",))
    cloud.former, cloud.ring = before, placed(cloud, 2, vnodes={"h1": 400})
    moved = [n for n in range(40) if homes(cloud.ring, n) != homes(before, n) == "h3"]
    assert moved
    await read_everywhere(cloud, moved, ("h4",))
    assert len(cloud.source.reads) == 40
    assert cloud.relayed == len(moved)


def homes(table, chunk_no):
    return table.owners_of(want(chunk_no).cid, 1)[0]


async def test_hosts_with_the_old_and_the_new_table_make_the_source_be_read_once(
    cloud, autojump_clock
):
    """h2 has not got the new table yet: it asks the former home at the same moment."""
    before, after = cloud.ring, placed(cloud, 2, vnodes={"h1": 400})
    moved = [n for n in range(40) if homes(after, n) == "h1" and homes(before, n) in ("h3", "h4")]
    cloud.former, cloud.ring = before, after
    cloud.hosts["h2"]._current_ring = lambda: before
    cloud.peers["h2"]._current_ring = lambda: before
    async with trio.open_nursery() as nursery:
        for name in ("h2", "h3", "h4"):
            nursery.start_soon(read_everywhere, cloud, moved, (name,))
    assert sorted(cloud.source.reads) == [n * CHUNK for n in moved]


@pytest.mark.parametrize("informed", range(16))
async def test_whoever_has_the_new_table_already_the_source_is_read_once(
    cloud, autojump_clock, informed
):
    """A table reaches hosts at different times: here each set of the four has it."""
    before, after = cloud.ring, placed(cloud, 2, vnodes={"h1": 400})
    moved = [n for n in range(40) if homes(after, n) == "h1" != homes(before, n)]
    for number, name in enumerate(cloud.hosts):
        tables = (after, before) if informed >> number & 1 else (before, None)
        for part in (cloud.hosts[name], cloud.hosts[name]._home, cloud.peers[name]):
            part._current_ring, part._former_ring = [lambda table=table: table for table in tables]
    rng = random.Random(informed)

    async def read(name, chunk_no):
        await trio.sleep(rng.random() * 0.03)
        await read_everywhere(cloud, [chunk_no], (name,))

    async with trio.open_nursery() as nursery:
        for chunk_no in moved:
            for name in cloud.hosts:
                nursery.start_soon(read, name, chunk_no)
    assert sorted(cloud.source.reads) == [n * CHUNK for n in moved]


async def test_former_home_that_left_is_asked_until_it_fails_once(cloud, autojump_clock):
    before = cloud.ring
    of_h4 = [n for n in range(40) if homes(before, n) == "h4"]
    await read_everywhere(cloud, of_h4, ("h4",))
    cloud.former = before
    cloud.ring = ring.Ring(2, tuple(host for host in before.hosts if host.host != "h4"))
    first, *others = of_h4
    cloud.asked.clear()
    await read_everywhere(cloud, [first], ("h1",))
    assert len(cloud.source.reads) == len(of_h4)
    cloud.dead.add("h4")
    await read_everywhere(cloud, others, ("h1", "h2", "h3"))
    asked = [host for _, host, *_ in cloud.asked]
    assert 2 <= asked.count("h4") <= 4  # each of the three may learn it for itself
    assert cloud.hosts["h1"].counters.source_bytes > 0


async def test_another_image_with_the_same_content_is_a_hit_at_the_new_home(cloud, autojump_clock):
    before = cloud.ring
    await read_everywhere(cloud, range(40), ("h2",))
    cloud.former, cloud.ring = before, placed(cloud, 2, vnodes={"h1": 400})
    other = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
    for chunk_no in range(40):
        elsewhere = want(chunk_no)._replace(image_id=other, offset=(40 - chunk_no) * CHUNK)
        assert (await cloud.hosts["h4"].fetch(elsewhere, 20)).data
    assert len(cloud.source.reads) == 40


async def test_exchange_by_place_shares_nothing_between_images(tmp_path, nursery, autojump_clock):
    for name in ("h1", "h2", "h3"):
        (tmp_path / name).mkdir(mode=0o700)
    made = Cloud(tmp_path, nursery, ("h1", "h2", "h3"), identity.ByPlace)
    other = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
    for chunk_no in range(10):
        for name in ("h1", "h2"):
            await made.hosts[name].fetch(want(chunk_no), 20)
    assert len(made.source.reads) == 10
    new_to_h3 = [n for n in range(10) if want(n).cid not in made.caches["h3"]]
    for chunk_no in range(10):
        await made.hosts["h3"].fetch(want(chunk_no)._replace(image_id=other), 20)
    assert made.source.reads[10:] == [n * CHUNK for n in new_to_h3] != []
    for cache in made.caches.values():
        await cache.aclose()


@pytest.mark.parametrize("was_attached", [True, False])
@pytest.mark.parametrize("was_there", [True, False])
async def test_by_place_a_host_gives_after_a_restart_what_it_mirrored_before(
    tmp_path, nursery, autojump_clock, was_attached, was_there
):
    for name in ("h1", "h2"):
        (tmp_path / name).mkdir(mode=0o700)
    made = Cloud(tmp_path, nursery, ("h1", "h2"), identity.ByPlace)
    wanted, serving, cache = want(0), made.serving["h2"], made.caches["h2"]
    named = serving._named
    if not was_there:  # another image brings it here later
        named.found(cache.iter_cids())
        named.note(wanted.cid, 7)
    assert cache.store(wanted.cid, BYTES[:CHUNK], public_cache.KeepClass.HOME)
    if was_there:
        named.found(cache.iter_cids())
    serving._admission._named = lambda *place: wanted.content  # it is attached now
    serving._attached = {wanted.image_id} if was_attached else set()
    serve = serving.serve
    if was_attached and was_there:
        assert await serve(wanted, may_read_source=False) == BYTES[:CHUNK]
        named.gone(wanted.cid)  # and has come again with another image
    with pytest.raises(errors.ChunkMissing):
        await serve(wanted, may_read_source=False)
    assert made.source.reads == []
    await serve(wanted, may_read_source=True)  # for who takes it for the home as ever
    assert made.source.reads == [0]
    for cache in made.caches.values():
        await cache.aclose()


# Weights


@pytest.mark.parametrize(("vnodes", "is_asked"), [(43, True), (42, False)])
async def test_who_has_less_than_half_a_share_is_not_asked_for_what_it_advertised(
    vnodes, is_asked, cloud
):
    wanted = want(0)
    told, busy = others(cloud, wanted)[:2]
    cloud.peers[told].heard(busy, [gossip.prefix_of(wanted.cid)])
    assert cloud.peers[told].holders(wanted) == [busy]
    cloud.ring = placed(cloud, 2, vnodes={busy: vnodes})
    assert cloud.peers[told].holders(wanted) == ([busy] if is_asked else [])


# What is gone, and copies


async def test_neighbours_hear_what_is_gone_and_forget_it(cloud, autojump_clock, nursery):
    wanted = want(0)
    asker = cloud.home(wanted)
    name = next(n for n in cloud.hosts if n != asker)
    nursery.start_soon(cloud.peers[name].run)
    await cloud.hosts[name].fetch(wanted, 20)
    await trio.sleep(2)
    (told,) = {host for who, host, prefixes in cloud.told if who == name} - {asker} or {asker}
    cloud.peers[told].heard(name, [gossip.prefix_of(wanted.cid)])
    assert cloud.peers[told].holders(wanted) == [name]
    cloud.caches[name].drop(wanted.cid)
    assert cloud.peers[name].gone(wanted.cid) == (ids.oid_of(wanted.cid),)
    await trio.sleep(2)
    gone = peer_wire.Gone((ids.oid_of(wanted.cid),))
    assert (name, told, gone) in cloud.news
    cloud.peers[told].heard_gone(name, gone.prefixes)
    assert cloud.peers[told].holders(wanted) == []
    nursery.cancel_scope.cancel()


async def test_home_tells_the_holder_that_asked_longest_ago_to_let_go(
    cloud, autojump_clock, nursery
):
    wanted = want(0)
    home, *askers = [cloud.home(wanted), *others(cloud, wanted)]
    nursery.start_soon(cloud.peers[home].run)
    for asker in askers:
        cloud.peers[home].gave(wanted, asker)
        cloud.peers[asker].gave(wanted, home)  # it is not the home: nothing comes of it
    await trio.sleep(exchange.LET_GO_EVERY_S + 2)
    assert cloud.news == [
        (home, asker, peer_wire.LetGo((ids.oid_of(wanted.cid),))) for asker in askers[:2]
    ]
    nursery.cancel_scope.cancel()


async def test_only_the_home_may_ask_to_let_go(cloud):
    wanted = want(0)
    home, first, *_ = [cloud.home(wanted), *others(cloud, wanted)]
    here = cloud.peers[first]
    oid = ids.oid_of(wanted.cid)
    assert here.heard_let_go(home, [oid]) == [oid]
    assert here.heard_let_go("h99", [oid]) == []
    for impostor in others(cloud, wanted):
        assert here.heard_let_go(impostor, [oid]) == []


async def test_flood_of_hints_is_not_listened_to(cloud, autojump_clock):
    wanted = want(0)
    oid = ids.oid_of(wanted.cid)
    here = cloud.peers[others(cloud, wanted)[0]]
    heard = [len(here.heard_let_go(cloud.home(wanted), [oid] * 128)) for _ in range(1000)]
    assert sum(heard) < 40_000 and here.told.ignored > 80_000


def far_holder(cloud, wanted):
    """Return a reader, and a host that has the chunk and is asked by nobody as a rule."""
    *_, holder, reader = cloud.ring.owners_of(wanted.cid, len(cloud.names_of_hosts))
    cloud.caches[holder].store(wanted.cid, BYTES[:CHUNK], public_cache.KeepClass.BORROWED)
    return holder, reader


@pytest.fixture
async def wide_cloud(tmp_path, nursery):
    names = [f"h{n}" for n in range(1, 10)]
    for name in names:
        (tmp_path / name).mkdir(mode=0o700)
    made = Cloud(tmp_path, nursery, names)
    made.names_of_hosts = names
    yield made
    for cache in made.caches.values():
        await cache.aclose()


async def test_chunk_of_an_image_that_is_gone_comes_from_any_host(wide_cloud, autojump_clock):
    holder, reader = far_holder(wide_cloud, want(0))
    wide_cloud.source.deleted.add(IMAGE)
    fetched = await wide_cloud.hosts[reader].fetch(want(0))
    assert (fetched.data, fetched.origin) == (BYTES[:CHUNK], counters.Origin.PEER)
    assert (reader, holder, Errand.GUEST_WAITS, False) in wide_cloud.asked
    assert await wide_cloud.caches[reader].read_chunk(want(0).cid) == BYTES[:CHUNK]


@pytest.mark.expect_log("h. is left alone")
async def test_only_host_that_has_it_is_waited_for_while_it_is_cut_off(wide_cloud, autojump_clock):
    holder, reader = far_holder(wide_cloud, want(0))
    wide_cloud.source.deleted.add(IMAGE)
    wide_cloud.dead.add(holder)
    came, told = [], []

    async def read():
        fetched = await wide_cloud.hosts[reader].fetch(want(0), told=told.append)
        came.append(fetched.data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.sleep(40)
        assert not came
        assert f"from {holder}" in told[-1]
        wide_cloud.dead.clear()
    assert came == [BYTES[:CHUNK]]


@pytest.mark.expect_log("h. is left alone")
async def test_hard_read_waits_for_the_source_for_minutes(cloud, autojump_clock):
    cloud.source.failure = errors.SourceUnreachable("x", "memory", "refused")
    came, told = [], []

    async def read(host):
        came.append((await host.fetch(want(0), told=told.append)).data)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(read, cloud.hosts["h1"])
        await trio.sleep(60)
        assert not came
        assert "from memory: refused" in told[-1]
        cloud.source.failure = None
        before = len(cloud.source.reads)
    assert came == [BYTES[:CHUNK]] * 3
    assert len(cloud.source.reads) == before + 1


async def test_refusal_of_the_source_is_no_loss(cloud, autojump_clock):
    cloud.source.failure = errors.ChunkRefused("x", "memory", "no credentials")
    with trio.move_on_after(45) as waited:
        await cloud.hosts["h1"].fetch(want(0))
    assert waited.cancelled_caught
    cloud.source.failure = None
    assert (await cloud.hosts["h1"].fetch(want(0))).data == BYTES[:CHUNK]


@pytest.mark.expect_log("h. is left alone")
async def test_home_that_is_left_alone_gives_what_it_has_while_the_source_is_away(
    cloud, autojump_clock
):
    """It is left alone because it could not read the source for others."""
    home, reader = cloud.home(want(0)), others(cloud, want(0))[0]
    cloud.caches[home].store(want(0).cid, BYTES[:CHUNK], public_cache.KeepClass.HOME)
    cloud.source.failure = errors.SourceUnreachable("x", "memory", "refused")
    for _ in range(20):
        cloud.peers[reader].failed(home, FailureKind.LYING, cloud.source.failure)
        await trio.sleep(min(cloud.peers[reader].quarantined()[home], 40))
    assert cloud.peers[reader].quarantined()[home] > 10
    with trio.fail_after(5):
        assert (await cloud.hosts[reader].fetch(want(0))).data == BYTES[:CHUNK]


async def test_host_that_leaves_the_table_before_it_is_asked_leaves_hope(cloud):
    cloud.ring = ring.Ring(2, tuple(host for host in cloud.ring.hosts if host.host != "h4"))
    with pytest.raises(errors.SourceUnreachable, match="not on the ring any more"):
        await cloud.peers["h1"].ask(ids.HostId("h4"), want(0), Errand.GUEST_WAITS, False)


@pytest.mark.expect_log("bytes of it are lost")
async def test_nothing_is_lost_without_a_table_where_there_are_others(cloud, autojump_clock):
    alone = cloud.hosts["h1"]
    cloud.ring, cloud.source.deleted = ring.Ring(0, ()), {want(0).image_id}
    alone._has_others = True
    with pytest.raises(errors.DeadlineExceeded, match="no v-node table yet"):
        await alone.fetch(want(0), 5)
    alone._has_others = False
    with pytest.raises(errors.ChunkLost):
        await alone.fetch(want(0), 5)


@pytest.mark.expect_log("bytes of it cannot be had")
async def test_absence_ends_when_the_source_gives_something(cloud, autojump_clock):
    alone = cloud.hosts["h1"]
    cloud.ring, alone._last_search._absences = ring.Ring(0, ()), absences.Absences(900)
    cloud.source.deleted.add(want(0).image_id)
    with pytest.raises(errors.DeadlineExceeded, match="lost if that is still so"):
        await alone.fetch(want(0), 5)
    assert len(alone._last_search._absences) == 1
    cloud.source.deleted.clear()
    await alone.fetch(want(1), 5)
    assert len(alone._last_search._absences) == 0
