# SPDX-License-Identifier: Apache-2.0
"""Reads of this host: selection of sources, hedges, retries and failures."""

import gc

import pytest

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import peer_state
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from acstor_policies import topologies
from tests.fakes import one_machine
from tests.fakes.one_machine import announced
from tests.fakes.one_machine import chunk
from tests.fakes.one_machine import data_of

Failure = failure.Failure
Mode = peer_request.Mode
Priority = priority.Priority
H1, H2, H3 = map(ids.HostId, ("h1", "h2", "h3"))


def alive(kind):
    gc.collect()
    return sum(type(one) is kind for one in gc.get_objects())


def request(machine, number, token="a guest", urgency=Priority.GUEST):
    return machine.request_chunks([chunk(number)], urgency, token)


def give(machine, attempt, number):
    return machine.chunks_arrived(attempt.host, [(attempt.number, data_of(number))])


def test_batch_is_one_request_per_home_and_completes_once(machine):
    numbers = list(range(16))
    machine.request_chunks([chunk(n) for n in numbers], Priority.GUEST, "a guest")
    asked, attempts = (
        machine.asks(),
        [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts],
    )
    own = [n for n in numbers if machine.home_of(n) == "h1"]
    assert set(asked) == {machine.home_of(n) for n in numbers} - {"h1"}
    assert all(machine.home_of(n) == host for host, ns in asked.items() for n, _ in ns)
    assert {m for ns in asked.values() for _, m in ns} == {Mode.HOME}
    for attempt in attempts:
        assert not machine.completes()
        give(machine, attempt, attempt.first_ref.offset // one_machine.CHUNK)
    if own:
        for number, found in machine.core.context.source_reads._ranges.copy().items():
            offsets = [(n, read.first_ref.offset) for n, read in found.reads.items()]
            reported = [(n, data_of(offset // one_machine.CHUNK)) for n, offset in offsets]
            machine.source_read_progressed(number, reported)
    (done,) = machine.completes()
    assert done.token == "a guest" and done.failure is None
    assert done.chunks == [data_of(n) for n in numbers]
    assert not len(machine.core) and not machine.core.pending


def test_completed_transfers_are_freed_before_their_deadline(machine):
    """Timers must not hold them: at 1 GB/s, 80,000 chunks arrive in five seconds."""
    numbers = [n for n in range(64) if machine.home_of(n) != "h1"]
    machine.request_chunks([chunk(n) for n in numbers], Priority.GUEST, "a guest")
    assert alive(transfer.Attempt) == alive(transfer.Transfer) == len(numbers)
    for attempt in [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts]:
        give(machine, attempt, attempt.first_ref.offset // one_machine.CHUNK)
    assert len(machine.completes()) == 1
    assert machine.core.next_s is None  # no timer wakes for it
    del attempt
    machine.last = []
    assert alive(transfer.Attempt) == alive(transfer.Transfer) == 0


def test_home_reads_its_own_chunk_from_the_source_and_stores_it(machine):
    number = machine.chunk_of("h1")
    request(machine, number)
    (read,) = machine.got(actions.ReadSource)
    assert read.refs == [chunk(number)]
    machine.source_read_progressed(read.number, [(0, b"bytes")])
    (store,) = machine.got(actions.Store)
    assert store.runs[0].is_kept and store.runs[0].provider is None and store.runs[0].is_own
    assert machine.completes()[0].chunks == [b"bytes"]


@pytest.mark.parametrize(
    ("home", "priority", "is_stored"),
    [
        ("h1", Priority.GUEST, True),
        ("h2", Priority.GUEST, False),
        ("h2", Priority.HYDRATE, True),
        ("h2", Priority.PRE_SEED, True),
    ],
)
def test_homes_keep_mode_stores_only_own_hydrated_or_pre_seeded_chunks(home, priority, is_stored):
    machine = one_machine.Machine(homes_keep=True)
    number = machine.chunk_of(home)
    machine.request_chunks([chunk(number)], priority, "a guest")
    if home == "h1":
        (read,) = machine.got(actions.ReadSource)
        machine.source_read_progressed(read.number, [(0, data_of(number))])
    else:
        give(machine, machine.attempt(), number)
    (store,), (done,) = machine.got(actions.Store), machine.completes()
    assert store.runs[0].is_stored == is_stored
    assert done.chunks == [data_of(number)]


def test_homes_keep_mode_stores_chunks_read_for_peers():
    machine = one_machine.Machine(homes_keep=True)
    number = machine.chunk_of("h2")  # by the table of h3 this host is its home
    machine.ask_me("h3", machine.request(number, "h3"))
    read = next(iter(machine.got(actions.ReadSource)))
    machine.source_read_progressed(read.number, [(0, data_of(number))])
    (store,) = machine.got(actions.Store)
    assert store.runs[0].is_stored


def test_consecutive_chunks_are_one_source_read(machine):
    machine = one_machine.Machine(hosts=1)
    machine.request_chunks([chunk(n) for n in (3, 4, 5, 9)], Priority.GUEST, 1)
    refs = [read.refs for read in machine.got(actions.ReadSource)]
    assert refs == [[chunk(3), chunk(4), chunk(5)], [chunk(9)]]


def test_concurrent_requests_for_a_chunk_are_deduplicated(machine):
    number = machine.chunk_of("h2")
    machine.request_chunks([chunk(number), chunk(number)], Priority.GUEST, "twice")
    attempt = machine.attempt()
    for token in range(1000):
        request(machine, number, token)
        assert not machine.got(actions.RequestChunks)
    give(machine, attempt, number)
    assert len(machine.completes()) == 1001
    assert machine.completes()[0].chunks == [data_of(number)] * 2


def test_holder_is_preferred_to_the_home_unless_it_has_more_in_flight(machine):
    numbers = [machine.chunk_of("h2", skip) for skip in range(3)]
    machine = one_machine.Machine(topology=topologies.all_hosts)
    machine.announcement_received(H3, announced(*map(chunk, numbers)), [], [])
    request(machine, numbers[0], 0)
    assert machine.asks() == {"h3": [(numbers[0], Mode.HELD)]}
    request(machine, numbers[1], 1)
    assert machine.asks() == {"h2": [(numbers[1], Mode.HOME)]}
    request(machine, numbers[2], 2)
    assert machine.asks() == {"h3": [(numbers[2], Mode.HELD)]}


def prefetching():
    """Return a machine that asks h3 for an advertised chunk of h2, its number, and the attempt."""
    machine = one_machine.Machine(topology=topologies.all_hosts)
    number = machine.chunk_of("h2")
    machine.announcement_received(H3, announced(chunk(number)), [], [])
    request(machine, number, "prefetch", Priority.ADVERTISED)
    return machine, number, machine.attempt()


def test_prefetch_of_an_advertised_chunk_asks_only_holders():
    machine, _, attempt = prefetching()
    assert attempt.host == "h3"
    machine.peer_refused(H3, [(attempt.number, Failure.MISSING)])
    (done,) = machine.completes()
    assert done.failure is Failure.NO_HOLDER and not len(machine.core)


def test_guest_read_that_joins_a_prefetch_falls_back_to_the_home():
    machine, number, attempt = prefetching()
    request(machine, number)
    machine.peer_refused(H3, [(attempt.number, Failure.MISSING)])
    assert machine.asks() == {"h2": [(number, Mode.HOME)]}
    give(machine, machine.attempt(), number)
    assert {done.token for done in machine.completes()} == {"prefetch", "a guest"}


def test_chunk_is_requested_from_acting_homes_source_then_other_owners(machine):
    number = machine.chunk_of("h2")
    owners = [h for h in machine.table.owners_of(chunk(number).cid) if h != "h1"]
    first_two = machine.table.owners_of(chunk(number).cid)[:2]
    if "h1" in first_two:
        pytest.skip("h1 acts as the home")
    request(machine, number)
    asked = []
    for _ in range(2):
        attempt = machine.attempt()
        asked.append((attempt.host, attempt.mode))
        machine.peer_refused(attempt.host, [(attempt.number, Failure.BUSY)])
    assert asked == [(owners[0], Mode.HOME), (owners[1], Mode.HOME)]
    (read,) = machine.got(actions.ReadSource)
    machine.source_ended(read.number, Failure.UNREACHABLE)
    for _ in range(2):
        attempt = machine.attempt()
        asked.append((attempt.host, attempt.mode))
        machine.peer_refused(attempt.host, [(attempt.number, Failure.MISSING)])
    assert asked[2:] == [(owners[2], Mode.HELD), (owners[3], Mode.HELD)]
    assert [reported.token for reported in machine.got(actions.ReportStall)] == ["a guest"]
    machine.wait(0.2)  # it is retried
    assert machine.got(actions.RequestChunks) or machine.got(actions.ReadSource)


def test_failed_readahead_completes_with_the_reason_and_is_not_retried(machine):
    machine = one_machine.Machine(hosts=1)
    request(machine, 1, "ahead", Priority.READAHEAD)
    machine.source_ended(machine.got(actions.ReadSource)[0].number, Failure.UNREACHABLE)
    (done,) = machine.completes()
    assert (done.failure, done.chunks) == (Failure.UNREACHABLE, [None])
    assert not len(machine.core)


def test_read_fails_at_its_deadline_with_the_reason(machine):
    machine = one_machine.Machine(hosts=1)
    machine.request_chunks([chunk(1)], Priority.GUEST, "a guest", deadline_s=5.0)
    while not machine.completes() and machine.now < 20:
        for read in machine.got(actions.ReadSource):
            machine.source_ended(read.number, Failure.UNREACHABLE)
        machine.wait(0.3)
    assert machine.now == pytest.approx(5.1, abs=0.3)
    (done,) = machine.completes()
    assert done.failure is Failure.LATE and done.why == "unreachable"
    assert not len(machine.core)


def test_chunk_of_a_cancelled_read_is_stored_but_not_delivered(machine):
    number = machine.chunk_of("h2")
    request(machine, number)
    attempt = machine.attempt()
    machine.cancel_reads("a guest")
    give(machine, attempt, number)
    assert machine.got(actions.Store) and not machine.completes()


def test_lost_connection_redirects_its_chunks_and_counts_one_failure(machine):
    numbers = [machine.chunk_of("h2", skip) for skip in range(4)]
    machine.request_chunks([chunk(n) for n in numbers], Priority.GUEST, 1)
    machine.connection_lost(H2)
    assert sum(map(len, machine.asks().values())) + len(machine.got(actions.ReadSource)) >= 4
    assert "h2" not in machine.asks()
    assert not machine.core.context.peers.is_in_backoff(H2, machine.now)
    assert sum(peer.failures for peer in machine.core.context.peers.list_peers()) == 1


def test_peer_that_sends_invalid_data_is_backed_off_at_once(machine):
    number = machine.chunk_of("h2")
    request(machine, number)
    attempt = machine.attempt()
    machine.peer_refused(H2, [(attempt.number, Failure.INVALID)])
    assert machine.got(actions.ReportBackoff)[0].host == "h2"
    assert machine.asks().keys() | {"source"} != {"h2"}


def test_unsolicited_or_duplicate_responses_are_ignored(machine):
    number = machine.chunk_of("h2")
    request(machine, number)
    attempt = machine.attempt()
    assert not machine.chunks_arrived(H3, [(attempt.number, b"x")])
    assert not machine.chunks_arrived(H2, [(attempt.number + 7, b"x")])
    assert not machine.peer_refused(H3, [(attempt.number, Failure.MISSING)])
    give(machine, attempt, number)
    assert len(machine.completes()) == 1
    assert not give(machine, attempt, number)


def test_referral_is_followed_once_then_the_referrer_is_asked_again(machine):
    number = machine.chunk_of("h2")
    request(machine, number)
    first = machine.attempt()
    machine.peer_referred(H2, first.number, (H1, H3, ids.HostId("unknown"), ids.HostId("h4")))
    assert machine.asks() == {"h3": [(number, Mode.HELD_ONLY)]}
    machine.peer_refused(H3, [(machine.attempt().number, Failure.MISSING)])
    assert machine.asks() == {"h4": [(number, Mode.HELD_ONLY)]}
    machine.peer_refused(ids.HostId("h4"), [(machine.attempt().number, Failure.MISSING)])
    assert machine.asks() == {"h2": [(number, Mode.HOME_ONLY)]}
    last = machine.attempt()
    machine.peer_referred(H2, last.number, (H3,))  # it must not refer twice
    assert machine.got(actions.ReportBackoff)[0].host == "h2"


def test_late_request_is_hedged_and_cancelled_when_the_hedge_wins(machine):
    number = machine.chunk_of("h2")
    request(machine, number)
    slow = machine.attempt()
    machine.wait(0.6)
    if machine.got(actions.RequestChunks):
        rival = machine.attempt()
        assert rival.host != "h2"
        give(machine, rival, number)
    else:
        (read,) = machine.got(actions.ReadSource)
        machine.source_read_progressed(read.number, [(0, data_of(number))])
    assert machine.completes()[0].chunks == [data_of(number)]
    assert machine.got(actions.CancelRequests) == [actions.CancelRequests(H2, [slow.number])]


def test_late_referral_is_followed_only_after_the_hedge_fails(machine):
    number = machine.chunk_of("h2")
    request(machine, number)
    asked = machine.attempt()
    machine.wait(0.6)
    hedged = machine.attempt()
    named = next(name for name in map(ids.HostId, ("h3", "h4")) if name != hedged.host)
    assert not machine.peer_referred(H2, asked.number, (named,))
    machine.peer_refused(hedged.host, [(hedged.number, Failure.MISSING)])
    assert machine.asks() == {named: [(number, Mode.HELD_ONLY)]}


def test_requests_to_a_silent_peer_time_out(machine):
    numbers = [machine.chunk_of("h2", skip) for skip in range(3)]
    machine.request_chunks([chunk(n) for n in numbers], Priority.READAHEAD, 1)
    machine.wait(9.9)
    assert not machine.got(actions.CancelRequests)
    machine.wait(0.3)
    (cancel,) = machine.got(actions.CancelRequests)
    assert cancel.host == "h2" and len(cancel.numbers) == 3


def test_keepalives_extend_the_request_timeout_within_a_limit(machine):
    numbers = [machine.chunk_of("h2", skip) for skip in range(30)]
    machine.request_chunks([chunk(n) for n in numbers], Priority.READAHEAD, 1)
    cancelled = 0
    for _ in range(12):
        machine.wait(5.0)
        cancels = [cancel for cancel in machine.got(actions.CancelRequests) if cancel.host == "h2"]
        cancelled += sum(len(cancel.numbers) for cancel in cancels)
        machine.keep_alive_received(H2)
        if machine.now == 35.0:
            assert not cancelled
    assert cancelled == 30


def test_bytes_in_flight_per_peer_are_bounded_and_guests_go_first(machine):
    most = peer_state.MAX_IN_FLIGHT_BYTES // one_machine.CHUNK
    numbers = [machine.chunk_of("h2", skip) for skip in range(most + 10)]
    machine = one_machine.Machine(background_limit=10_000)
    prefetched = peer_state.MAX_PREFETCH_BYTES // one_machine.CHUNK
    machine.request_chunks([chunk(n) for n in numbers[: prefetched + 9]], Priority.READAHEAD, 1)
    sent = [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts]
    assert len(sent) == prefetched
    batches = [len(ask.attempts) for ask in machine.got(actions.RequestChunks)]
    assert batches == [peer_request.MAX_BATCH, prefetched - peer_request.MAX_BATCH]
    machine.request_chunks([chunk(n) for n in numbers[prefetched + 9 : -1]], Priority.GUEST, 2)
    assert len(machine.asks()["h2"]) == most - prefetched
    request(machine, numbers[-1])
    assert not machine.got(actions.RequestChunks)
    give(machine, sent[0], numbers[0])
    assert machine.asks() == {"h2": [(numbers[-1], Mode.HOME)]}


def test_background_fetches_are_limited_and_stop_without_cache_room():
    machine = one_machine.Machine(hosts=2, background_limit=3)
    numbers = [machine.chunk_of("h2", skip) for skip in range(8)]
    machine.request_chunks([chunk(n) for n in numbers], Priority.HYDRATE, 1)
    assert len(machine.asks()["h2"]) == 3
    attempts = machine.got(actions.RequestChunks)[0].attempts
    machine.cache_space_changed(False)
    give(machine, attempts[0], numbers[0])
    assert not machine.got(actions.RequestChunks)
    machine.cache_space_changed(True)
    assert len(machine.asks()["h2"]) == 1
    request(machine, numbers[7])
    assert machine.asks() == {"h2": [(numbers[7], Mode.HOME)]}
    assert machine.attempt().priority is Priority.GUEST


def test_missing_image_does_not_fail_the_same_chunk_of_another_image():
    machine = one_machine.Machine(hosts=1)
    request(machine, 1, "gone")
    read = machine.got(actions.ReadSource)[0]
    machine.request_chunks([chunk(1, one_machine.OTHER)], Priority.GUEST, "there")
    machine.source_ended(read.number, Failure.MISSING)
    (read,) = machine.got(actions.ReadSource)
    assert read.image_id == one_machine.OTHER
    machine.source_read_progressed(read.number, [(0, b"bytes")])
    assert {done.token for done in machine.completes()} == {"gone", "there"}


def refuse_all(machine, failure_of):
    """Answer MISSING for the source and a failure for each peer; return all actions."""
    todo = machine.last
    for action in todo:
        if isinstance(action, actions.ReadSource):
            machine.source_ended(action.number, Failure.MISSING)
            todo += machine.last
        elif isinstance(action, actions.RequestChunks):
            refused = failure_of(action.host)
            machine.peer_refused(action.host, [(a.number, refused) for a in action.attempts])
            todo += machine.last
    return todo


def test_chunk_is_lost_once_source_and_all_hosts_deny_it_long_enough():
    machine = one_machine.Machine(hosts=4, lost_after_s=30.0)
    request(machine, machine.chunk_of("h1"))
    asked = set()
    while not machine.completes():
        assert machine.now < 60
        todo = refuse_all(machine, lambda host: Failure.MISSING)
        asked |= {action.host for action in todo if isinstance(action, actions.RequestChunks)}
        if not any(isinstance(action, actions.CompleteRead) for action in todo):
            machine.wait(1.0)
        else:
            machine.last = todo
    assert asked == {"h2", "h3", "h4"} and machine.now >= 30
    assert machine.completes()[0].failure is Failure.LOST and not len(machine.core)


def test_chunk_is_not_lost_while_one_host_has_not_denied_it():
    machine = one_machine.Machine(hosts=3)
    request(machine, machine.chunk_of("h1"))
    for _ in range(60):
        todo = refuse_all(machine, lambda host: Failure.MISSING if host == "h2" else Failure.BUSY)
        assert not [a for a in todo if isinstance(a, actions.CompleteRead)]
        machine.wait(1.0)
    assert len(machine.core) == 1


def test_host_that_left_the_ring_is_not_asked():
    machine = one_machine.Machine(hosts=3)
    number = machine.chunk_of("h3")
    machine.table_changed(one_machine.table(2, epoch=2), None)
    request(machine, number)
    assert "h3" not in machine.asks()


def test_request_to_a_new_home_is_marked_as_such():
    machine = one_machine.Machine(hosts=8)
    former = machine.core.context.ring.table
    new = one_machine.table(8, epoch=2, weights={"h2": 80})
    machine.table_changed(new, former)
    moved = [
        n
        for n in range(2000)
        if former.owners_of(chunk(n).cid, 1) != new.owners_of(chunk(n).cid, 1)
        and machine.home_of(n) != "h1"
    ]
    request(machine, moved[0])
    assert machine.attempt().mode is Mode.NEW_HOME


def test_hydration_that_joins_a_prefetch_falls_back_to_the_home():
    machine = one_machine.Machine(topology=topologies.all_hosts)
    numbers = [machine.chunk_of("h2", skip) for skip in range(6)]
    machine.announcement_received(H3, announced(*map(chunk, numbers)), [], [])
    machine.request_chunks([chunk(n) for n in numbers], Priority.ADVERTISED, "prefetch")
    attempts = [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts]
    assert len(attempts) == 4  # two wait for the prefetch limit
    machine.request_chunks([chunk(n) for n in numbers], Priority.HYDRATE, "whole")
    for attempt in attempts:
        machine.peer_refused(H3, [(attempt.number, Failure.MISSING)])
        assert machine.asks()["h2"] and not machine.completes()


def test_completed_batch_holds_no_bytes_until_its_deadline(machine):
    number = machine.chunk_of("h2")
    machine.request_chunks([chunk(number)], Priority.GUEST, 1, deadline_s=1000.0)
    (waiter,) = machine.core.pending._waiters.values()
    give(machine, machine.attempt(), number)
    assert machine.completes()[0].chunks == [data_of(number)]
    assert (waiter.got, waiter.refs) == ([], [])


def test_request_numbers_are_not_reused_after_a_peer_is_forgotten(machine):
    number = machine.chunk_of("h2")
    request(machine, number)
    former = machine.attempt().number
    machine.connection_lost(H2)
    machine.table_changed(one_machine.table(1, epoch=2), None)
    machine.table_changed(machine.table, None)
    request(machine, machine.chunk_of("h2", skip=1), 2)
    assert machine.attempt().host == "h2" and machine.attempt().number != former


def test_failed_background_fetch_frees_its_slot():
    machine = one_machine.Machine(hosts=1, background_limit=1)
    machine.request_chunks([chunk(1)], Priority.HYDRATE, 1)
    machine.request_chunks([chunk(3)], Priority.HYDRATE, 2)
    machine.source_ended(1, Failure.UNREACHABLE)
    assert machine.completes()[0].failure is Failure.UNREACHABLE
    assert [read.refs for read in machine.got(actions.ReadSource)] == [[chunk(3)]]


def test_suspect_host_is_hedged_at_once_and_cleared_by_its_response(machine):
    numbers = [machine.chunk_of("h2", skip) for skip in range(4)]
    book = machine.core.context.peers
    for _ in range(2):
        book.record_failure(H2, Failure.UNREACHABLE, machine.now)
    machine.wait(1.0)
    request(machine, numbers[0])
    asked = [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts]
    assert asked[0].host == "h2"
    if len(asked) == 2:
        give(machine, asked[1], numbers[0])
    else:
        (read,) = machine.got(actions.ReadSource)
        machine.source_read_progressed(read.number, [(0, data_of(numbers[0]))])
    assert machine.completes() and not machine.got(actions.CancelRequests)
    assert book.is_suspect(H2)
    machine.now += 0.01
    give(
        machine, asked[0], numbers[0]
    )  # the chunk is here already, but the response clears the host
    assert not machine.last and not book.is_suspect(H2)


def test_suspect_host_that_responds_late_is_backed_off(machine):
    number = machine.chunk_of("h2")
    book = machine.core.context.peers
    for _ in range(2):
        book.record_failure(H2, Failure.UNREACHABLE, machine.now)
    machine.wait(1.0)
    request(machine, number)
    asked = [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts]
    if len(asked) == 2:
        give(machine, asked[1], number)
    else:
        machine.source_read_progressed(
            machine.got(actions.ReadSource)[0].number, [(0, data_of(number))]
        )
    machine.wait(0.6)
    assert machine.got(actions.CancelRequests) == [actions.CancelRequests(H2, [asked[0].number])]
    assert book.is_in_backoff(H2, machine.now) and not machine.core.context.peers.pending_attempts(
        H2
    )


def test_queued_request_is_not_sent_if_its_chunk_arrived(machine):
    most = peer_state.MAX_PREFETCH_BYTES // one_machine.CHUNK
    numbers = [machine.chunk_of("h2", skip) for skip in range(most + 1)]
    machine = one_machine.Machine(background_limit=10_000)
    machine.request_chunks(
        [chunk(n) for n in numbers], Priority.READAHEAD, 1
    )  # the last one is queued
    both = [machine.request(n, "h3") for n in (numbers[0], numbers[-1])]
    machine.peer_requested("a link", H3, both)  # by h3's table this host is their home
    first, second = machine.got(actions.ReadSource)
    machine.core.source_read_progressed(0.0, first.number, [(0, data_of(numbers[0]))])
    machine.source_read_progressed(second.number, [(0, data_of(numbers[-1]))])
    assert len(machine.got(actions.Store)[0].runs) == 1
    assert not machine.got(actions.RequestChunks)
    (cancel,) = machine.got(actions.CancelRequests)
    assert len(cancel.numbers) == 1
