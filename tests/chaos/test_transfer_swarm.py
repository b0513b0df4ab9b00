# SPDX-License-Identifier: Apache-2.0
"""Many hosts on the exchange's own core: the invariants hold for every seed.

A failing seed is in the name of the test; ``python -m tests.chaos.transfer_swarm`` plays more.

"""

import math
import statistics

import pytest

from acstor_agent.core.images import chunk_state
from acstor_agent.core.images import prefetcher
from acstor_agent.engine import engine
from acstor_agent.engine import peer_state
from acstor_agent.engine import priority
from acstor_agent.engine import settings
from acstor_agent.engine import upload_scheduler
from acstor_agent.engine.data_structures import host_interning
from acstor_agent.engine.fetch import pending_reads
from acstor_agent.engine.fetch import prefetch_limits
from acstor_agent.engine.fetch import requests_out
from acstor_agent.engine.fetch import retries
from acstor_agent.engine.fetch import source_reads
from acstor_agent.engine.fetch import source_selection
from acstor_agent.engine.fetch import transfers
from acstor_agent.engine.gossip import announcements
from acstor_agent.engine.ring import ring_view
from acstor_agent.engine.serve import authorization
from acstor_agent.engine.serve import peer_requests
from acstor_agent.engine.serve import served_copies
from acstor_policies import topologies
from tests.chaos import transfer_patterns
from tests.chaos import transfer_swarm
from tests.fakes import hostile_hosts
from tests.fakes import transfer_hosts
from tests.fakes import transfer_world

P = priority.Priority
LINK = 25e6 / 8


@pytest.mark.parametrize("learns_ring", [False, True])
@pytest.mark.parametrize("seed", range(3, 11))  # 2 takes longer than these
def test_reads_are_answered_once_with_right_bytes_under_all_faults(seed, learns_ring):
    run, error = transfer_swarm.play(seed, learns_ring=learns_ring)
    if error is not None:
        transfer_swarm.report_failure(run, error, None, learns_ring)
        raise error
    assert sum(guest.answers for guest in run.guests)


@pytest.mark.parametrize("seed", range(6))
def test_reads_are_right_when_transfers_merge_and_split(seed):
    """Two hosts have the same owners of all chunks, so transfers are as long as possible."""
    run, error = transfer_swarm.play(seed, hosts=2, run_chunks=16)
    if error is not None:
        transfer_swarm.report_failure(run, error, 2, run_chunks=16)
        raise error
    assert sum(guest.answers for guest in run.guests)


@pytest.mark.parametrize("segment_chunks", [4, 16])
@pytest.mark.parametrize("seed", range(4))
def test_reads_are_right_with_homes_of_segments(seed, segment_chunks):
    how = None, False, 16, segment_chunks
    run, error = transfer_swarm.play(seed, *how)
    if error is not None:
        transfer_swarm.report_failure(run, error, *how)
        raise error
    assert sum(guest.answers for guest in run.guests)


follow_table = announcements.Announcements.follow_table


def announce_to_all(reported, now):
    """Make all near hosts neighbours, whatever the topology."""
    follow_table(reported, now)
    hosts = (host.host for host in reported._ring.near.hosts)
    reported._neighbours = dict.fromkeys(host for host in hosts if host != reported._ring.own_host)


came = peer_requests.PeerRequests.chunks_arrived


def serve_wrong_chunk(found, transfer, data):
    """Answer pending reads with wrong bytes."""
    came(found, transfer, b"what a guest wrote")


READS_INIT = source_reads.SourceReads.__init__


def read_all_at_once(reads, out, places):
    READS_INIT(reads, out, 1 << 30)


FAULTS = {  # a broken rule, the seed that finds it, and how it is broken
    "proofs are not verified": (6, authorization.hmac, "compare_digest", lambda *proofs: True),
    "names are not checked": (32, authorization.Authorization, "may_serve", lambda *_: True),
    "referred requesters wait long": (1, peer_requests, "HELD_WAIT_S", 60.0),
    "request deadlines are ignored": (1, peer_requests, "CHECK_S", 30.0),
    "requests of a host are unbounded": (1, settings.Settings, "requests_of_peer", 1 << 40),
    "undelivered bytes are unbounded": (1, upload_scheduler, "UNDELIVERED_BYTES", 1 << 40),
    "deliveries are not recorded": (
        0,
        peer_requests.PeerRequests,
        "answers_delivered",
        lambda *_: None,
    ),
    "look-ups are not recorded": (
        0,
        peer_requests.PeerRequests,
        "contents_looked_up",
        lambda *_: None,
    ),
    "any host is named as a holder": (2, served_copies.ServedCopies, "may_name", lambda *_: True),
    "departed hosts stay interned": (
        2,
        host_interning.HostInterning,
        "forget_host",
        lambda *_: None,
    ),
    "announced to any host": (2, announcements.Announcements, "_is_reachable", lambda *_: True),
    "queued prefetches never start": (
        5,
        prefetch_limits.PrefetchLimits,
        "start_queued",
        lambda _: iter(()),
    ),
    "dropped prefetches stay queued": (
        5,
        prefetch_limits.PrefetchLimits,
        "remove_transfer",
        lambda *_: None,
    ),
    "wrong bytes are accepted": (18, transfer_hosts.Host, "_is_right", lambda *_: True),
    "bytes in flight to a peer are unbounded": (1, peer_state, "MAX_IN_FLIGHT_BYTES", 1 << 40),
    "requests never time out": (1, requests_out.RequestsOut, "timeout_at_s", lambda *_: math.inf),
    "keepalives extend a request forever": (18, requests_out, "MAX_TIMEOUTS", 100),
    "hedged requests are not cancelled": (
        25,
        requests_out.RequestsOut,
        "cancel_attempt",
        lambda *_: None,
    ),
    "source reads are unbounded": (1, source_reads.SourceReads, "__init__", read_all_at_once),
    "read deadlines are ignored": (
        2,
        pending_reads.PendingReads,
        "deadline_passed",
        lambda *_: None,
    ),
    "failed fetches are not retried": (1, retries.Retries, "pause_ended", lambda *_: None),
    "fetches do not end": (5, pending_reads.PendingReads, "_end_fetch", lambda *_: None),
    "finished transfers are kept": (1, transfers.Transfers, "drop_if_done", lambda *_: None),
    "ended transfers stay charged": (0, transfers.Transfers, "uncharge", lambda *_: None),
    "chunks that the cache refused are kept": (
        2,
        engine.Engine,
        "chunks_not_stored",
        lambda *_: [],
    ),
    "wrong chunks are served": (
        1,
        peer_requests.PeerRequests,
        "chunks_arrived",
        serve_wrong_chunk,
    ),
    "announced to all": (11, announcements.Announcements, "follow_table", announce_to_all),
    "requests are sent in parallel": (
        4,
        source_selection.SourceSelection,
        "_has_active_attempt",
        lambda *_: False,
    ),
    "predictions are unbounded": (8, prefetcher.Prefetcher, "allowance", 1 << 30),
    "arrived chunks stay in flight": (3, chunk_state.ChunkStates, "in_flight", 1),
}


MORE_SEEDS = (1, 2, 3, 4)
"""If the world has changed since a seed was recorded, one of these may find the fault as well."""


@pytest.mark.parametrize("fault", FAULTS)
def test_swarm_detects_broken_rules(fault, monkeypatch):
    seed, *where = FAULTS[fault]
    monkeypatch.setattr(*where)
    limit = {}
    if fault == "bytes in flight to a peer are unbounded":
        limit["in_flight_limit_bytes"] = 16 * transfer_world.CHUNK
    found = (transfer_swarm.play(seed, **limit)[1] for seed in (seed, *MORE_SEEDS))
    assert any(isinstance(error, transfer_world.Broken) for error in found)


def test_same_seed_gives_the_same_run():
    def fingerprint(seed):
        run, error = transfer_swarm.play(seed)
        assert error is None
        return run.world.now, run.trace, dict(run.world.network.sent)

    assert fingerprint(5) == fingerprint(5) != fingerprint(6)


def collective(hosts, chunks, seed=1, shift_s=0.0001, window=8, **settings):
    """Let all hosts read all chunks at about the same time; return the world and the guests."""
    world = transfer_world.World(seed, hosts, chunks, link_bytes_per_s=LINK)
    for name in world.names:
        world.add(name, **settings)
    times = {}

    def read(host, at):
        if at >= chunks:
            times[host.name] = world.now
            return
        batch = world.chunks[at : at + window]

        def done(answer):
            assert answer.chunks == [world.content_of(chunk.cid) for chunk in batch]
            read(host, at + window)

        host.read(batch, P.GUEST, done)

    for number, host in enumerate(world.hosts.values()):
        world.call_later(host, number * shift_s, read, host, 0)
    world.network.run(3600.0, lambda: len(times) == hosts)
    assert len(times) == hosts
    world.check()
    return world, times


def test_many_hosts_read_the_source_about_once_and_share_their_uplinks():
    few, few_times = collective(8, 32)
    many, many_times = collective(64, 32)
    for world in (few, many):
        hedges = sum(host.core.counters.hedges for host in world.hosts.values())
        assert sum(world.source.reads.values()) <= 32 + hedges
        assert max(world.source.reads.values()) <= 2  # by the home, and by a hedge
    assert max(many_times.values()) < 4 * max(few_times.values())


def test_source_has_at_most_one_read_in_flight_per_content():
    for topology in (None, ring_view.on_ring):
        world, _ = collective(16, 64, topology=topology)
        assert not world.source.at_once


def test_lying_hosts_cost_only_time():
    world = transfer_world.World(3, 8, 64)
    for number, name in enumerate(world.names):
        kind = hostile_hosts.WrongBytesHost if number < 3 else transfer_hosts.Host
        world.add(name, kind, topology=topologies.all_hosts)
    honest = [host for host in world.hosts.values() if type(host) is transfer_hosts.Host]
    answers = []
    for host in honest:
        host.read(world.chunks, P.GUEST, answers.append)
    world.network.run(60.0, lambda: len(answers) == len(honest))
    right = [world.content_of(chunk.cid) for chunk in world.chunks]
    assert [answer.chunks for answer in answers] == [right] * len(honest)
    assert sum(host.core.counters.invalid_chunks for host in honest)


def test_host_without_cids_gets_no_chunk_of_an_image():
    world = transfer_world.World(4, 4, 16)
    for name in world.names:
        world.add(name, hostile_hosts.Spy if name == "h1" else transfer_hosts.Host)
    for host in world.hosts.values():  # the secret CIDs are here
        host.cache.update({chunk.cid: world.content_of(chunk.cid) for chunk in world.secret})
    world.hosts[world.names[0]].cache.clear()
    world.network.run(20.0)
    refused = [host.core.counters.unauthorized for host in world.hosts.values()]
    assert min(refused[1:]) > 10


def test_background_flood_delays_guests_little_and_completes():
    def waits(is_flooded):
        world = transfer_world.World(5, 4, 400, link_bytes_per_s=LINK)
        for name in world.names:
            world.add(name, background_limit=64)
        took, brought = [], []
        first, *others = world.hosts.values()
        if is_flooded:
            for host in others:
                host.read(world.chunks[:300], P.HYDRATE, brought.append)

        def read(at):
            began_s = world.now

            def done(_):
                took.append(world.now - began_s)
                world.call_later(first, 0.05, read, at + 1)

            if at < 340:
                first.read([world.chunks[at]], P.GUEST, done)

        world.call_later(first, 0.5, read, 300)
        world.network.run(300.0, lambda: len(took) == 40 and len(brought) == 3 * is_flooded)
        assert len(took) == 40 and all(answer.failure is None for answer in brought)
        return statistics.median(took)

    assert waits(True) < 10 * waits(False)


@pytest.mark.parametrize("name", transfer_patterns.NAMES)
def test_every_chunk_is_read_from_the_source_once(name):
    pattern = transfer_patterns.pattern(name, 8, 64, beyond=0)
    read = [transfer_patterns.play(pattern, seed=n, burst_bytes=None).source for n in range(7)]
    # While all wait for the source, the first hedges are wasted: at most four for each host.
    assert max(read) <= (1.0625 if name == "sync-disjoint" else 1 + 1 / 64)
    # Otherwise a hedge may be wasted if a home serves several hosts at once.
    assert name == "sync-disjoint" or sorted(read)[-2] == 1.0


def test_prefetch_helps_followers_and_wastes_little_for_diverging_readers():
    same, disjoint = (
        transfer_patterns.pattern(name, 6, 128) for name in ("shifted-same", "sync-disjoint")
    )
    follow = transfer_patterns.play(same, burst_bytes=None)
    alone = transfer_patterns.play(same, 0, burst_bytes=None)
    diverge = transfer_patterns.play(disjoint, burst_bytes=None)
    assert follow.prefetched > 0.2 and not alone.prefetched
    assert follow.completion <= 1.02 * alone.completion
    assert diverge.wasted <= 0.03


def test_chunks_of_a_segment_have_one_home_and_fewer_messages():
    wanted = transfer_patterns.pattern("sync-same", 8, 64, beyond=0, link_mbit=1000.0)
    alone, together = (
        transfer_patterns.play(wanted, 0, segment_chunks=length) for length in (1, 4)
    )
    assert together.messages < 0.8 * alone.messages
    assert together.source <= 1.0625


@pytest.mark.parametrize("kind", transfer_patterns.BAD)
def test_one_bad_host_of_three_costs_the_others_little(kind):
    well = transfer_patterns.bad_peer("well", 3, 256)
    assert transfer_patterns.bad_peer(kind, 3, 256) < 1.2 * well


@pytest.mark.parametrize(
    ("bad", "guests"), [(hostile_hosts.Withholder, 1), (hostile_hosts.PartialWithholder, 2)]
)
def test_host_that_withholds_from_a_guest_delays_it_by_about_a_second(bad, guests):
    """It answers prefetches, or other guests, at once, and this one just before the timeout."""
    well_s = max(transfer_patterns.waits_s(transfer_hosts.Host, guests=guests))
    withheld_s = max(transfer_patterns.waits_s(bad, guests=guests))
    assert withheld_s < peer_state.GUEST_FIRST_S + peer_state.INITIAL_LATE_S + 2 * well_s


def test_messages_of_a_host_do_not_grow_with_the_number_of_hosts():
    few, many = (
        transfer_patterns.play(
            transfer_patterns.pattern("sync-same", hosts, 32), 0, burst_bytes=None
        )
        for hosts in (16, 64)
    )
    assert many.messages < 1.2 * few.messages
