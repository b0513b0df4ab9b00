# SPDX-License-Identifier: Apache-2.0
"""What this host wants for itself: who is asked, in which order, and how it ends."""

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


def test_batch_is_asked_of_each_home_in_one_action_and_answered_once(machine):
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
            told = [(n, data_of(offset // one_machine.CHUNK)) for n, offset in offsets]
            machine.source_read_progressed(number, told)
    (done,) = machine.completes()
    assert done.token == "a guest" and done.failure is None
    assert done.chunks == [data_of(n) for n in numbers]
    assert not len(machine.core) and not machine.core.pending


def test_what_has_come_is_remembered_by_nothing_though_its_time_is_not_over(machine):
    """Not by the deadlines either: at 1 GB/s there are 80,000 chunks in five seconds."""
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


def test_own_chunk_is_read_from_the_source_stored_as_home_and_told(machine):
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
def test_where_homes_keep_others_store_what_is_to_be_here_only(home, priority, is_stored):
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


def test_where_homes_keep_who_reads_for_others_keeps_it():
    machine = one_machine.Machine(homes_keep=True)
    number = machine.chunk_of("h2")  # by the table of h3 this host is its home
    machine.ask_me("h3", machine.request(number, "h3"))
    read = next(iter(machine.got(actions.ReadSource)))
    machine.source_read_progressed(read.number, [(0, data_of(number))])
    (store,) = machine.got(actions.Store)
    assert store.runs[0].is_stored


def test_what_lies_together_of_an_image_is_one_read(machine):
    machine = one_machine.Machine(hosts=1)
    machine.request_chunks([chunk(n) for n in (3, 4, 5, 9)], Priority.GUEST, 1)
    refs = [read.refs for read in machine.got(actions.ReadSource)]
    assert refs == [[chunk(3), chunk(4), chunk(5)], [chunk(9)]]


def test_same_chunk_twice_in_a_batch_and_by_many_is_fetched_once(machine):
    number = machine.chunk_of("h2")
    machine.request_chunks([chunk(number), chunk(number)], Priority.GUEST, "twice")
    attempt = machine.attempt()
    for token in range(1000):
        request(machine, number, token)
        assert not machine.got(actions.RequestChunks)
    give(machine, attempt, number)
    assert len(machine.completes()) == 1001
    assert machine.completes()[0].chunks == [data_of(number)] * 2


def test_holder_goes_before_the_home_unless_it_has_more_to_answer(machine):
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


def test_what_was_merely_advertised_is_asked_of_holders_alone():
    machine, _, attempt = prefetching()
    assert attempt.host == "h3"
    machine.peer_refused(H3, [(attempt.number, Failure.MISSING)])
    (done,) = machine.completes()
    assert done.failure is Failure.NO_HOLDER and not len(machine.core)


def test_guest_who_joins_a_prefetch_makes_it_ask_everybody():
    machine, number, attempt = prefetching()
    request(machine, number)
    machine.peer_refused(H3, [(attempt.number, Failure.MISSING)])
    assert machine.asks() == {"h2": [(number, Mode.HOME)]}
    give(machine, machine.attempt(), number)
    assert {done.token for done in machine.completes()} == {"prefetch", "a guest"}


def test_who_acts_for_a_home_is_asked_then_the_source_then_who_may_have_it(machine):
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
    assert [told.token for told in machine.got(actions.ReportStall)] == ["a guest"]
    machine.wait(0.2)  # it is tried again
    assert machine.got(actions.RequestChunks) or machine.got(actions.ReadSource)


def test_who_is_no_guest_is_told_why_and_nothing_goes_on(machine):
    machine = one_machine.Machine(hosts=1)
    request(machine, 1, "ahead", Priority.READAHEAD)
    machine.source_ended(machine.got(actions.ReadSource)[0].number, Failure.UNREACHABLE)
    (done,) = machine.completes()
    assert (done.failure, done.chunks) == (Failure.UNREACHABLE, [None])
    assert not len(machine.core)


def test_deadline_ends_the_wait_with_the_reason(machine):
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


def test_cancelled_waiter_is_never_answered_and_what_was_under_way_is_stored(machine):
    number = machine.chunk_of("h2")
    request(machine, number)
    attempt = machine.attempt()
    machine.cancel_reads("a guest")
    give(machine, attempt, number)
    assert machine.got(actions.Store) and not machine.completes()


def test_lost_connection_sends_all_its_chunks_elsewhere_and_is_one_failure(machine):
    numbers = [machine.chunk_of("h2", skip) for skip in range(4)]
    machine.request_chunks([chunk(n) for n in numbers], Priority.GUEST, 1)
    machine.connection_lost(H2)
    assert sum(map(len, machine.asks().values())) + len(machine.got(actions.ReadSource)) >= 4
    assert "h2" not in machine.asks()
    assert not machine.core.context.peers.is_in_backoff(H2, machine.now)
    assert sum(peer.failures for peer in machine.core.context.peers.list_peers()) == 1


def test_liar_is_left_alone_at_once_and_the_chunk_comes_from_elsewhere(machine):
    number = machine.chunk_of("h2")
    request(machine, number)
    attempt = machine.attempt()
    machine.peer_refused(H2, [(attempt.number, Failure.INVALID)])
    assert machine.got(actions.ReportBackoff)[0].host == "h2"
    assert machine.asks().keys() | {"source"} != {"h2"}


def test_answers_nobody_asked_for_doubled_or_from_another_host_change_nothing(machine):
    number = machine.chunk_of("h2")
    request(machine, number)
    attempt = machine.attempt()
    assert not machine.chunks_arrived(H3, [(attempt.number, b"x")])
    assert not machine.chunks_arrived(H2, [(attempt.number + 7, b"x")])
    assert not machine.peer_refused(H3, [(attempt.number, Failure.MISSING)])
    give(machine, attempt, number)
    assert len(machine.completes()) == 1
    assert not give(machine, attempt, number)


def test_referral_is_followed_once_and_ends_at_who_referred(machine):
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
    machine.peer_referred(H2, last.number, (H3,))  # it may not
    assert machine.got(actions.ReportBackoff)[0].host == "h2"


def test_late_attempt_is_raced_and_the_winner_ends_it(machine):
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


def test_home_that_refers_late_has_nobody_asked_beside_the_place_that_was_raced(machine):
    number = machine.chunk_of("h2")
    request(machine, number)
    asked = machine.attempt()
    machine.wait(0.6)
    hedged = machine.attempt()
    named = next(name for name in map(ids.HostId, ("h3", "h4")) if name != hedged.host)
    assert not machine.peer_referred(H2, asked.number, (named,))
    machine.peer_refused(hedged.host, [(hedged.number, Failure.MISSING)])
    assert machine.asks() == {named: [(number, Mode.HELD_ONLY)]}


def test_silent_peer_loses_its_chunks_when_its_time_is_over(machine):
    numbers = [machine.chunk_of("h2", skip) for skip in range(3)]
    machine.request_chunks([chunk(n) for n in numbers], Priority.READAHEAD, 1)
    machine.wait(9.9)
    assert not machine.got(actions.CancelRequests)
    machine.wait(0.3)
    (cancel,) = machine.got(actions.CancelRequests)
    assert cancel.host == "h2" and len(cancel.numbers) == 3


def test_peer_that_answers_something_has_more_time_but_not_for_ever(machine):
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


def test_bytes_asked_of_one_peer_are_bounded_and_guests_overtake(machine):
    most = peer_state.MAX_IN_FLIGHT_BYTES // one_machine.CHUNK
    numbers = [machine.chunk_of("h2", skip) for skip in range(most + 10)]
    machine = one_machine.Machine(background_limit=10_000)
    machine.request_chunks([chunk(n) for n in numbers[:-1]], Priority.READAHEAD, 1)
    sent = [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts]
    assert len(sent) == most
    assert {len(ask.attempts) for ask in machine.got(actions.RequestChunks)} == {
        peer_request.MAX_BATCH
    }
    request(machine, numbers[-1])
    assert not machine.got(actions.RequestChunks)
    give(machine, sent[0], numbers[0])
    assert machine.asks() == {"h2": [(numbers[-1], Mode.HOME)]}


def test_lanes_bound_what_nobody_waits_for_and_the_cache_stops_them():
    machine = one_machine.Machine(hosts=2, background_limit=3)
    numbers = [machine.chunk_of("h2", skip) for skip in range(8)]
    machine.request_chunks([chunk(n) for n in numbers], Priority.HYDRATE, 1)
    assert len(machine.asks()["h2"]) == 3
    attempts = machine.got(actions.RequestChunks)[0].attempts
    machine.room_changed(False)
    give(machine, attempts[0], numbers[0])
    assert not machine.got(actions.RequestChunks)
    machine.room_changed(True)
    assert len(machine.asks()["h2"]) == 1
    request(machine, numbers[7])
    assert machine.asks() == {"h2": [(numbers[7], Mode.HOME)]}
    assert machine.attempt().priority is Priority.GUEST


def test_image_that_is_gone_does_not_take_the_same_content_of_another_one_along():
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
    """Have no chunk at the source, and a failure of each peer; return all actions."""
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


def test_chunk_is_lost_when_the_source_and_every_host_say_no_for_long_enough():
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


def test_silent_host_leaves_hope_that_nothing_is_lost():
    machine = one_machine.Machine(hosts=3)
    request(machine, machine.chunk_of("h1"))
    for _ in range(60):
        todo = refuse_all(machine, lambda host: Failure.MISSING if host == "h2" else Failure.BUSY)
        assert not [a for a in todo if isinstance(a, actions.CompleteRead)]
        machine.wait(1.0)
    assert len(machine.core) == 1


def test_host_that_left_the_ring_is_no_place():
    machine = one_machine.Machine(hosts=3)
    number = machine.chunk_of("h3")
    machine.table_changed(one_machine.table(2, epoch=2), None)
    request(machine, number)
    assert "h3" not in machine.asks()


def test_new_home_is_told_that_it_is_one():
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


def test_what_was_merely_advertised_is_asked_of_all_when_it_is_wanted_for_another_reason():
    machine = one_machine.Machine(topology=topologies.all_hosts)
    numbers = [machine.chunk_of("h2", skip) for skip in range(6)]
    machine.announcement_received(H3, announced(*map(chunk, numbers)), [], [])
    machine.request_chunks([chunk(n) for n in numbers], Priority.ADVERTISED, "prefetch")
    attempts = [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts]
    assert len(attempts) == 4  # two wait in their lane
    machine.request_chunks([chunk(n) for n in numbers], Priority.HYDRATE, "whole")
    for attempt in attempts:
        machine.peer_refused(H3, [(attempt.number, Failure.MISSING)])
        assert machine.asks()["h2"] and not machine.completes()


def test_answered_batch_leaves_no_bytes_behind_in_its_deadline(machine):
    number = machine.chunk_of("h2")
    machine.request_chunks([chunk(number)], Priority.GUEST, 1, deadline_s=1000.0)
    (waiter,) = machine.core.pending._waiters.values()
    give(machine, machine.attempt(), number)
    assert machine.completes()[0].chunks == [data_of(number)]
    assert (waiter.got, waiter.refs) == ([], [])


def test_late_answer_of_a_peer_that_was_forgotten_meanwhile_is_not_taken_for_another_one(machine):
    number = machine.chunk_of("h2")
    request(machine, number)
    former = machine.attempt().number
    machine.connection_lost(H2)
    machine.table_changed(one_machine.table(1, epoch=2), None)
    machine.table_changed(machine.table, None)
    request(machine, machine.chunk_of("h2", skip=1), 2)
    assert machine.attempt().host == "h2" and machine.attempt().number != former


def test_lane_goes_on_when_what_was_in_it_failed():
    machine = one_machine.Machine(hosts=1, background_limit=1)
    machine.request_chunks([chunk(1)], Priority.HYDRATE, 1)
    machine.request_chunks([chunk(3)], Priority.HYDRATE, 2)
    machine.source_ended(1, Failure.UNREACHABLE)
    assert machine.completes()[0].failure is Failure.UNREACHABLE
    assert [read.refs for read in machine.got(actions.ReadSource)] == [[chunk(3)]]


def test_host_on_trial_is_raced_at_once_and_shows_how_it_is(machine):
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
    give(machine, asked[0], numbers[0])  # the content is here, but it shows that the host is well
    assert not machine.last and not book.is_suspect(H2)


def test_trial_without_an_answer_in_the_usual_time_is_a_failure(machine):
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


def test_nobody_is_asked_for_what_came_in_the_same_event(machine):
    most = peer_state.MAX_IN_FLIGHT_BYTES // one_machine.CHUNK
    numbers = [machine.chunk_of("h2", skip) for skip in range(most + 1)]
    machine = one_machine.Machine(background_limit=10_000)
    machine.request_chunks(
        [chunk(n) for n in numbers], Priority.READAHEAD, 1
    )  # the last one waits in a line
    both = [machine.request(n, "h3") for n in (numbers[0], numbers[-1])]
    machine.peer_requested("a link", H3, both)  # by its table this host is their home
    first, second = machine.got(actions.ReadSource)
    machine.core.source_read_progressed(0.0, first.number, [(0, data_of(numbers[0]))])
    machine.source_read_progressed(second.number, [(0, data_of(numbers[-1]))])
    assert len(machine.got(actions.Store)[0].runs) == 1
    assert not machine.got(actions.RequestChunks)
    (cancel,) = machine.got(actions.CancelRequests)
    assert len(cancel.numbers) == 1
