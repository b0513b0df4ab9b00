# SPDX-License-Identifier: Apache-2.0
"""Waiting guests: failures and load of other requests do not delay them."""

import collections
import gc
import itertools
import time
import types
import weakref

import pytest

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_agent.engine.data_structures import timers
from acstor_agent.engine.fetch import prefetch_limits
from acstor_agent.engine.fetch import retries
from acstor_agent.engine.fetch import source_preference
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from acstor_policies import topologies
from tests.fakes import one_machine
from tests.fakes.one_machine import announced
from tests.fakes.one_machine import chunk
from tests.fakes.one_machine import data_of

F = failure.Failure
P = priority.Priority
Mode = peer_request.Mode
H2, H3 = ids.HostId("h2"), ids.HostId("h3")


def test_empty_batch_is_complete_at_once(machine):
    machine.request_chunks([], P.GUEST, "a guest")
    assert machine.completes() == [actions.CompleteRead("a guest", [], None, "")]
    assert not machine.core.pending
    assert not machine.request_chunks([], P.READAHEAD, None)


@pytest.mark.parametrize("priority", [P.PEER, P.PREFETCH])
def test_local_request_with_a_peer_priority_is_rejected(machine, priority):
    with pytest.raises(errors.LocalProtocolError, match=priority.name):
        machine.request_chunks([chunk(1)], priority, "who")
    with pytest.raises(errors.LocalProtocolError, match=priority.name):
        machine.request_batches([("who", (chunk(1),))], priority)
    assert not len(machine.core) and not machine.core.pending


def test_dead_home_does_not_prevent_the_broadcast_lookup():
    machine = one_machine.Machine(24)
    tables = machine.core.context.ring
    number = next(
        n
        for n in range(1000)
        if machine.home_of(n) != "h1" and "h1" not in tables.owners_of(chunk(n).oid, 8)
    )
    owners = tables.owners_of(chunk(number).oid, 8)
    holder = next(host for host in tables.other_hosts() if host not in owners)

    def peer(host, attempt):
        if host == owners[0]:
            return F.UNREACHABLE
        return data_of(number) if host == holder else F.MISSING

    machine.request_chunks([chunk(number)], P.GUEST, "a guest")
    done = machine.play(5.0, peer, lambda _: F.MISSING)
    assert done["a guest"].chunks == [data_of(number)]


def test_invalid_chunk_does_not_fail_its_neighbours_in_a_read():
    machine = one_machine.Machine(1)
    machine.request_chunks([chunk(n) for n in range(16, 32)], P.READAHEAD, "ahead")
    reads = {}

    def source(wanted):
        number = wanted.offset // one_machine.CHUNK
        reads[number] = reads.get(number, 0) + 1
        return F.INVALID if number == 20 else data_of(number)

    machine.play(3.0, source=source)
    assert set(reads) == set(range(16, 32)) and set(reads.values()) == {1}


def test_chunks_of_a_source_read_are_stored_as_they_arrive():
    machine = one_machine.Machine(1)
    for number in range(3):
        machine.last = []
        machine.core.request_chunks(0.0, [chunk(number)], P.GUEST, number)
    machine.request_chunks([chunk(3), chunk(4)], P.GUEST, "two")
    (read,) = machine.got(actions.ReadSource)
    machine.source_read_progressed(read.number, [(1, b"4")])
    assert machine.got(actions.Store) and not machine.completes()
    machine.source_read_progressed(read.number, [(1, b"4 again"), (7, b"what?"), (0, b"3")])
    assert machine.completes()[0].chunks == [b"3", b"4"]
    assert not machine.source_ended(read.number) and not machine.source_read_progressed(
        99, [(0, b"")]
    )


def test_source_read_that_ends_early_fails_only_the_remaining_chunks():
    machine = one_machine.Machine(1)
    machine.request_chunks([chunk(1), chunk(2)], P.READAHEAD, "ahead")
    (read,) = machine.got(actions.ReadSource)
    machine.source_read_progressed(read.number, [(0, b"1")])
    machine.source_ended(read.number, F.UNREACHABLE)
    assert machine.completes()[0].failure is F.UNREACHABLE and not len(machine.core)


def test_new_guest_does_not_wait_for_the_retry_delay_of_others():
    machine = one_machine.Machine(1)
    for number in range(0, 2000):
        machine.core.request_chunks(0.0, [chunk(number, one_machine.OTHER)], P.GUEST, number)
    machine.request_chunks([chunk(5000, one_machine.OTHER)], P.GUEST, "one more")
    machine.last = machine.core.keep_alive_received(0.0, H2)
    for _ in range(60):  # all of them wait for their retry
        for number in list(machine.core.context.source_reads._ranges):
            machine.source_ended(number, F.UNREACHABLE)
        machine.wait(0.1)
    paused = [t for t in machine.core.context.transfers.values() if t.retry is not None]
    assert len(paused) > 1500
    wanted = paused[-1].first_ref
    machine.request_chunks([wanted._replace(image_id=one_machine.IMAGE)], P.GUEST, "new")
    found = list(machine.last)
    for _ in range(3):
        for number in list(machine.core.context.source_reads._ranges):
            found += machine.source_ended(number, F.UNREACHABLE)
        found += machine.wait(0.02)
    reads = [ref for read in found if isinstance(read, actions.ReadSource) for ref in read.refs]
    assert wanted.cid in [ref.cid for ref in reads]


def test_retries_are_rate_limited_and_images_take_turns():
    machine = one_machine.Machine(1)
    for number in range(3000):
        machine.core.request_chunks(0.0, [chunk(number)], P.GUEST, number)
    machine.request_chunks([chunk(9000, one_machine.OTHER)], P.GUEST, "other")
    tried = []
    for _ in range(400):
        reads = machine.core.context.source_reads._ranges
        if machine.now >= 10:
            tried += [
                (machine.now, r.first_ref) for one in reads.values() for r in one.reads.values()
            ]
        for number in list(reads):
            machine.source_ended(number, F.UNREACHABLE)
        machine.wait(0.05)
    assert len(tried) <= 1.1 * 200 * 10
    others = [at_s for at_s, ref in tried if ref.image_id == one_machine.OTHER]
    assert max(b - a for a, b in itertools.pairwise(others)) < 3.0


def test_arrived_chunk_ends_the_oldest_pauses_without_visiting_the_others():
    visited = []

    class Watched(collections.OrderedDict):
        def __iter__(self):
            for pause in super().__iter__():
                visited.append(pause)
                yield pause

    pauses = retries.Retries(timers.Timers())
    pauses._waiting = Watched()
    for number in range(1000):
        paused = types.SimpleNamespace(first_ref=chunk(number), tries=1, retry=None)
        pauses.pause_transfer(paused, 0.0)
    pauses.chunk_became_available()
    assert [pause.transfer.first_ref for pause in visited] == [*map(chunk, range(retries.WOKEN))]
    assert len(pauses.due) == retries.WOKEN


def test_full_queue_drops_only_readahead_of_the_largest_requester():
    machine = one_machine.Machine(hosts=1, background_limit=1)
    most = prefetch_limits.QUEUED_PREFETCHES
    seeds = [chunk(n) for n in range(most + 100)]
    others = [chunk(n, one_machine.OTHER) for n in range(5000, 5000 + most + 100)]
    machine.request_chunks(seeds, P.PRE_SEED, "a")
    assert not machine.completes() and not machine.request_chunks(others, P.PRE_SEED, "b")
    machine.request_chunks(others[:2], P.READAHEAD, "few")
    machine.request_chunks([chunk(n) for n in range(20_000, 20_002 + most)], P.READAHEAD, "many")
    assert [(done.token, done.failure) for done in machine.completes()] == [("many", F.FORGOTTEN)]


def test_background_fetches_take_turns_among_images():
    machine = one_machine.Machine(hosts=1, background_limit=2)
    machine.request_chunks([chunk(n) for n in range(100)], P.PRE_SEED, "a")
    machine.request_chunks([chunk(n, one_machine.OTHER) for n in range(500, 600)], P.PRE_SEED, "b")
    seen = []
    for _ in range(20):
        for number, found in list(machine.core.context.source_reads._ranges.items()):
            seen += [read.first_ref.image_id for read in found.reads.values()]
            machine.source_read_progressed(number, [(n, b"") for n in found.reads])
    assert abs(seen.count(one_machine.IMAGE) - seen.count(one_machine.OTHER)) <= 3


def test_batches_of_one_call_complete_and_fail_independently(machine):
    numbers = [machine.chunk_of("h2", skip) for skip in range(3)]
    machine.request_batches([(n, (chunk(n),)) for n in numbers], P.PRE_SEED)
    [ask] = machine.got(actions.RequestChunks)
    assert len(ask.attempts) == 3

    def source(wanted):
        number = wanted.offset // one_machine.CHUNK
        return F.MISSING if number == numbers[1] else data_of(number)

    done = machine.play(5.0, lambda host, attempt: F.MISSING, source)
    assert {n: (done[n].failure, done[n].chunks) for n in numbers} == {
        numbers[0]: (None, [data_of(numbers[0])]),
        numbers[1]: (F.MISSING, [None]),
        numbers[2]: (None, [data_of(numbers[2])]),
    }


def test_queued_prefetch_is_dropped_with_its_last_requester():
    machine = one_machine.Machine(1, background_limit=2)
    machine.request_batches([(n, (chunk(n),)) for n in range(9)], P.PRE_SEED)
    [read] = machine.got(actions.ReadSource)
    assert len(read.refs) == 2
    machine.request_chunks([chunk(5)], P.PRE_SEED, "another")
    machine.request_chunks([chunk(6)], P.READAHEAD, None)
    machine.cancel_reads(*range(2, 9))
    assert [one.offset // one_machine.CHUNK for one in read.refs] == [0, 1]
    lanes_, transfers = machine.core.pending.prefetch_limits, machine.core.context.transfers
    left = {one.first_ref.offset // one_machine.CHUNK for one in transfers.values()}
    assert left == {0, 1, 5, 6}
    assert len(lanes_) == 1 and lanes_.in_flight == 3  # readahead has begun
    machine.cancel_reads(0, 1, "another")
    assert len(lanes_) == 0 and lanes_.in_flight == 3  # transfers in flight continue


def test_cancelled_batch_holds_no_bytes_until_its_deadline(machine):
    class Data:
        pass

    numbers = [machine.chunk_of("h2", skip) for skip in range(2)]
    machine.request_chunks([chunk(n) for n in numbers], P.GUEST, "a guest", deadline_s=3600.0)
    data = Data()
    held = weakref.ref(data)
    machine.chunks_arrived(H2, [(machine.attempt(0).number, data)])
    machine.chunks_stored(machine.got(actions.Store)[0].runs)
    machine.cancel_reads("a guest")
    machine.last = []
    del data
    gc.collect()
    assert held() is None


def test_cost_of_expiring_reads_of_one_chunk_is_linear():
    def leaving_s(count):
        machine = one_machine.Machine(1)
        for token in range(count):
            machine.core.request_chunks(0.0, [chunk(1)], P.GUEST, token, 5.0)
        machine.core.source_ended(0.0, 1)
        began_s = time.process_time()
        machine.core.run_due_timers(5.0)
        assert not machine.core.pending
        return time.process_time() - began_s

    few = min(leaving_s(500) for _ in range(3))
    assert min(leaving_s(4000) for _ in range(3)) < 24 * few  # 64, if each looked at all


def test_arrived_chunk_is_served_from_memory_until_it_is_stored(machine):
    number = machine.chunk_of("h1")
    machine.request_chunks([chunk(number)], P.GUEST, 1)
    (read,) = machine.got(actions.ReadSource)
    machine.source_read_progressed(read.number, [(0, b"bytes")])
    (store,) = machine.got(actions.Store)
    machine.request_chunks([chunk(number)], P.GUEST, 2)
    assert machine.completes()[0].chunks == [b"bytes"] and not machine.got(actions.ReadSource)
    machine.ask_me("h2", machine.request(number, "h2"))
    assert machine.answers()[0].data == b"bytes"
    machine.chunks_not_stored(store.runs)
    machine.request_chunks([chunk(number)], P.GUEST, 3)
    assert machine.got(actions.ReadSource)


def test_background_fetch_pauses_while_cache_writes_lag():
    machine = one_machine.Machine(hosts=1)
    chunks = []
    for first in range(0, 1024, 64):
        machine.request_chunks([chunk(n) for n in range(first, first + 64)], P.GUEST, first)
        for read in machine.got(actions.ReadSource):
            machine.source_read_progressed(read.number, [(n, b"") for n in range(len(read.refs))])
            chunks += machine.got(actions.Store)[0].runs
    machine.request_chunks([chunk(5000)], P.HYDRATE, "ahead")
    assert not machine.last
    machine.chunks_stored(chunks[:1])
    assert machine.got(actions.ReadSource)


def test_lost_connection_ends_only_its_own_requests(machine):
    numbers = [machine.chunk_of("h2", skip) for skip in range(3)]
    for number, connection in zip(numbers, ("old", "new", None), strict=True):
        machine.request_chunks([chunk(number)], P.READAHEAD, number)
        machine.attempt().connection = connection
    machine.connection_lost(H2, "old")
    assert machine.core.context.peers.pending_attempts(H2) == 2
    machine.connection_lost(H2, "old")
    assert machine.core.context.peers.pending_attempts(H2) == 2
    machine.connection_lost(H2)  # no connection could be made
    assert machine.core.context.peers.pending_attempts(H2) == 1


def with_slow_peers(machine):
    """Make peers slow and the source fast; return chunks of other homes."""
    numbers = [n for n in range(3000) if machine.home_of(n) != "h1"]
    own = [n for n in range(3000) if machine.home_of(n) == "h1"]
    for turn in range(8):
        machine.request_chunks([chunk(numbers.pop()), chunk(own.pop())], P.GUEST, turn)
        (read,) = machine.got(actions.ReadSource)
        asked = machine.attempt()
        machine.now += 0.002
        machine.source_read_progressed(read.number, [(0, b"")])
        machine.now += 0.09
        machine.chunks_arrived(asked.host, [(asked.number, b"")])
    return numbers


def test_guests_ask_peers_first_if_source_first_is_disabled():
    machine = one_machine.Machine(may_ask_source_first=False)
    numbers = with_slow_peers(machine)
    for turn in range(8, 16):
        machine.request_chunks([chunk(numbers.pop())], P.GUEST, turn)
        assert machine.got(actions.RequestChunks) and not machine.got(actions.ReadSource)
    assert machine.core.counters.source_preferred == 0


def test_guests_read_the_source_first_if_peers_are_clearly_slower(machine):
    numbers = with_slow_peers(machine)
    firsts = []
    for turn in range(8, 16):
        machine.request_chunks([chunk(numbers.pop())], P.GUEST, turn)
        firsts.append(
            bool(machine.got(actions.ReadSource)) and not machine.got(actions.RequestChunks)
        )
    assert firsts.count(True) == 7  # one read still asks the peers
    assert machine.core.counters.source_preferred == 7
    machine.request_chunks([chunk(numbers.pop())], P.READAHEAD, "ahead")
    assert machine.got(actions.RequestChunks)


def ask_home(machine, host, numbers):
    """Have a guest of another host read chunks whose home is this host."""
    for number in numbers:
        machine.ask_me(host, machine.request(number, host, urgency=P.PEER))
        for read in machine.got(actions.ReadSource):
            machine.source_read_progressed(read.number, [(0, data_of(number))])
            machine.cache.add(chunk(number).cid)


def test_readahead_uses_the_source_first_if_hosts_share_few_reads(machine):
    numbers = with_slow_peers(machine)
    own = [n for n in range(3000, 6000) if machine.home_of(n) == "h1"][
        : source_preference.MIN_CHUNKS
    ]
    machine.request_chunks([chunk(numbers.pop())], P.GUEST, "a guest")
    ask_home(machine, "h2", own)
    machine.request_chunks([chunk(numbers.pop())], P.READAHEAD, "ahead")
    assert machine.got(actions.ReadSource) and not machine.got(actions.RequestChunks)
    machine.request_chunks([chunk(numbers.pop())], P.PRE_SEED, "for an operator")
    assert machine.got(actions.RequestChunks) and not machine.got(actions.ReadSource)
    ask_home(machine, "h3", own[:16])  # both hosts read the same chunks
    machine.request_chunks([chunk(numbers.pop())], P.READAHEAD, "ahead again")
    assert machine.got(actions.RequestChunks) and not machine.got(actions.ReadSource)


def test_advertised_chunk_counts_towards_the_read_overlap():
    machine = one_machine.Machine(topology=topologies.all_hosts)
    numbers = with_slow_peers(machine)
    share = machine.core.context.overlap.share
    number = numbers.pop()
    machine.announcement_received(H2, announced(chunk(number)), [], [])
    machine.request_chunks([chunk(number)], P.GUEST, "a guest")
    assert machine.core.context.overlap.share > share


# Relays


def relayed(machine, urgency):
    """Let a home ask its predecessor for a chunk; return the chunk's number and the attempt."""
    number = machine.move_home("h2", "h1", vnodes=300)
    machine.ask_me("h3", machine.request(number, "h3", urgency=urgency))
    assert machine.attempt().track is transfer.Track.RELAY
    return number, machine.attempt()


def test_keepalives_of_a_slow_home_do_not_delay_a_guest(machine):
    relayed(machine, P.PEER)
    found = []
    while machine.now < 40 and not found:
        machine.keep_alive_received(H2)
        todo = machine.wait(0.25)
        found = [action for action in todo if isinstance(action, actions.ReadSource)]
    assert machine.now <= 1.0 and machine.got(actions.CancelRequests) == []


def test_home_overtaken_by_the_source_twice_is_backed_off(machine):
    number, _ = relayed(machine, P.PEER)
    alone = []
    for request_id in range(100, 102):
        while not machine.got(actions.ReadSource):
            machine.wait(0.25)
        machine.source_read_progressed(machine.got(actions.ReadSource)[0].number, [(0, b"")])
        alone += machine.got(actions.ReportBackoff)
        machine.chunks_stored(machine.got(actions.Store)[0].runs)
        machine.ask_me("h4", machine.request(number, "h4", request_id=request_id))
    assert [action.host for action in alone] == [H2]


def test_relay_of_a_prefetch_times_out_despite_keepalives(machine):
    relayed(machine, P.PREFETCH)
    while machine.now < 9.9:
        machine.keep_alive_received(H2)
        assert not [a for a in machine.wait(0.3) if isinstance(a, actions.ReadSource)]
    machine.wait(1.0)
    assert machine.got(actions.ReadSource)


def test_joining_request_raises_priority_of_transfer_in_flight(machine):
    number, relay = relayed(machine, P.PREFETCH)
    machine.ask_me("h4", machine.request(number, "h4"))
    assert machine.got(actions.RaisePriority) == [actions.RaisePriority(H2, [relay.number])]
    machine.request_chunks([chunk(number)], P.GUEST, "a guest")
    assert not machine.got(actions.RaisePriority)  # a peer's priority cannot rise further


def test_relay_of_a_prefetch_is_late_once_a_guest_request_joins(machine):
    number, _ = relayed(machine, P.PREFETCH)
    machine.wait(2.0)
    machine.ask_me("h4", machine.request(number, "h4"))
    todo = machine.last + machine.wait(1.0)
    assert [action for action in todo if isinstance(action, actions.ReadSource)]


@pytest.mark.parametrize("joins", [True, False])
def test_request_timeout_counts_from_its_sending(joins, machine):
    number = machine.chunk_of("h2")
    machine.request_chunks([chunk(number)], P.READAHEAD, "ahead")
    asked = machine.attempt()
    machine.wait(9.9)
    if joins:
        machine.request_chunks([chunk(number)], P.GUEST, "a guest")
    else:
        machine.recover_from_fault("a fault")
    machine.wait(0.2)
    assert machine.got(actions.CancelRequests) == [actions.CancelRequests(H2, [asked.number])]


def test_guest_joining_readahead_raises_priority_here_and_at_the_peer(machine):
    machine = one_machine.Machine(background_limit=1000)
    numbers = [machine.chunk_of("h2", skip) for skip in range(140)]
    machine.request_chunks([chunk(n) for n in numbers], P.READAHEAD, "ahead")
    asked = [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts]
    machine.request_chunks([chunk(numbers[5]), chunk(numbers[-1])], P.GUEST, "a guest")
    assert machine.got(actions.RaisePriority) == [actions.RaisePriority(H2, [asked[5].number])]
    assert machine.attempt().first_ref == chunk(numbers[-1])  # beyond the limit of prefetches


def test_abandoned_source_read_is_cancelled_when_others_need_its_slot():
    machine = one_machine.Machine(1, max_source_reads=2)
    machine.request_chunks([chunk(1), chunk(3)], P.GUEST, "gone", deadline_s=5.0)
    reads = machine.got(actions.ReadSource)
    assert [read.refs for read in reads] == [[chunk(1)], [chunk(3)]]
    machine.cancel_reads("gone")
    assert not machine.last  # it continues: the chunk may be of use
    machine.request_chunks([chunk(5)], P.GUEST, "waits")
    assert machine.got(actions.CancelSourceRead) == [
        actions.CancelSourceRead(reads[1].number)
    ]  # and no more
    assert [wanted.refs for wanted in machine.got(actions.ReadSource)] == [[chunk(5)]]
    machine.request_chunks([chunk(7)], P.GUEST, "waits, too")
    assert machine.got(actions.CancelSourceRead) == [actions.CancelSourceRead(reads[0].number)]
