# SPDX-License-Identifier: Apache-2.0
"""Health of peers: latency, backoff, probes and hedges."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import peer_state
from acstor_agent.engine import priority
from acstor_common.model import ids
from tests.fakes import one_machine
from tests.fakes.one_machine import announced
from tests.fakes.one_machine import chunk

F = failure.Failure
P = priority.Priority
H2, H3 = ids.HostId("h2"), ids.HostId("h3")
ROUNDS = 12


class Fixed:
    """Random source with one fixed value; 0.5 means no jitter."""

    def __init__(self, shown=0.5):
        self.shown = shown

    def random(self):
        return self.shown


@pytest.mark.parametrize("at_once", [1, 16])
def test_much_slower_peer_is_backed_off(at_once):
    machine = one_machine.Machine(3)
    numbers = {h: [n for n in range(6000) if machine.home_of(n) == h] for h in (H2, H3)}
    alone = set()
    for turn in range(ROUNDS):
        for host, took_s in ((H2, 0.01), (H3, 3.0)):
            batch = [chunk(numbers[host].pop()) for _ in range(at_once)]
            machine.request_chunks(batch, P.GUEST, (host, turn))
            asked = [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts]
            machine.now += took_s
            given = [(a.number, b"") for a in asked if a.host == host]
            machine.chunks_arrived(host, given)
            alone |= {action.host for action in machine.got(actions.ReportBackoff)}
    assert alone == {H3}


def test_latency_of_a_batch_counts_from_its_oldest_request():
    machine = one_machine.Machine(may_hedge=False)
    asked = []
    for number in [n for n in range(99) if machine.home_of(n) == "h2"][:3]:
        machine.request_chunks([chunk(number)], P.GUEST, number)
        asked.append(machine.attempt().number)
        machine.wait(1.0)
    machine.chunks_arrived(H2, [(number, b"") for number in reversed(asked)])
    assert machine.core.context.peers._usual_s[peer_state.HOME] == {"h2": 3.0}


def test_late_threshold_stays_initial_until_enough_responses():
    book = peer_state.PeerStates(Fixed())
    for number in range(peer_state.MEDIAN_EVERY):
        assert book.late_after_s(peer_state.HOME) == peer_state.INITIAL_LATE_S
        book.record_latency(peer_state.HOME, ids.HostId(f"h{number}"), 0.3)
    assert book.late_after_s(peer_state.HOME) == pytest.approx(peer_state.LATE_FACTOR * 0.3)


def test_queued_requests_are_neither_hedged_nor_blamed_on_the_peer():
    machine = one_machine.Machine()
    numbers = [n for n in range(8000) if machine.home_of(n) == "h2"][:300]
    machine.request_chunks([chunk(n) for n in numbers], P.GUEST, "a guest")
    waiting = [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts]
    assert len(waiting) * one_machine.CHUNK == peer_state.MAX_IN_FLIGHT_BYTES
    while machine.now < 4.0:  # the peer sends five chunks every 0.1 s
        given, waiting = waiting[:5], waiting[5:]
        machine.chunks_arrived(H2, [(a.number, b"") for a in given])
        todo = machine.last + machine.wait(0.1)
        asks = [action for action in todo if isinstance(action, actions.RequestChunks)]
        assert {ask.host for ask in asks} <= {H2}
        assert not [a for a in todo if isinstance(a, actions.ReadSource | actions.ReportBackoff)]
        waiting += [attempt for ask in asks for attempt in ask.attempts]


def test_prefetches_that_a_peer_does_not_answer_leave_bytes_in_flight_to_guests():
    machine = one_machine.Machine(background_limit=1000)
    numbers = iter([n for n in range(8000) if machine.home_of(n) == "h2"])
    machine.request_chunks([chunk(next(numbers)) for _ in range(200)], P.READAHEAD, None)
    peer = machine.core.context.peers.get_or_create(H2)
    assert peer.queue and peer.in_flight_bytes == peer_state.MAX_PREFETCH_BYTES
    machine.request_chunks([chunk(next(numbers))], P.GUEST, "a guest")
    assert machine.attempt().priority is P.GUEST
    machine.request_chunks([chunk(next(numbers)) for _ in range(200)], P.GUEST, "many")
    assert peer.in_flight_bytes == peer_state.MAX_IN_FLIGHT_BYTES


def test_backoff_releases_requests_queued_for_the_peer():
    machine = one_machine.Machine(background_limit=1000)
    numbers = [n for n in range(8000) if machine.home_of(n) == "h2"][:300]
    machine.request_chunks([chunk(n) for n in numbers], P.READAHEAD, "ahead", deadline_s=1e6)
    first = machine.attempt()
    assert machine.core.context.peers.get_or_create(H2).queue
    machine.peer_refused(H2, [(first.number, F.INVALID)])
    assert machine.got(actions.ReportBackoff)
    assert all(
        a.sent_s is not None for a in machine.core.context.peers.get_or_create(H2).pending.values()
    )


def test_backoff_doubles_and_one_successful_probe_ends_it():
    book = peer_state.PeerStates(Fixed())
    assert [book.record_failure(H2, F.BUSY, 0.0), book.record_failure(H2, F.UNREACHABLE, 0.0)] == [
        0.0,
        0.5,
    ]
    assert not book.try_acquire(H2, 0.4) and book.is_in_backoff(H2, 0.4)
    assert book.record_failure(H2, F.UNREACHABLE, 0.4) == 0.0  # the request predates the backoff
    assert [book.try_acquire(H2, 0.6), book.try_acquire(H2, 0.7)] == [True, False]
    assert book.try_acquire(H2, 1.7)
    assert book.record_failure(H2, F.UNREACHABLE, 1.8) == 1.0
    assert book.record_failure(H2, F.INVALID, 1.9) == 0.0 and book.list_backoffs(1.9)[H2] == 240.0
    book.record_success(H2, 100.0)
    assert book.is_in_backoff(H2, 100.0)  # the response predates the backoff
    book.record_success(H2, 300.0)
    assert book.try_acquire(H2, 300.0) and not book.is_suspect(H2)


def test_success_resets_the_failure_count():
    book = peer_state.PeerStates(Fixed())
    for now in range(10):
        assert book.record_failure(H2, F.UNREACHABLE, now) == 0.0
        book.record_success(H2, now)
    assert book.try_acquire(H2, 10.0) and not book.backoffs


@pytest.mark.parametrize("why", [F.MISSING, F.WITHHELD])
def test_missing_or_withheld_response_is_no_failure(why):
    book = peer_state.PeerStates(Fixed())
    assert [book.record_failure(H2, F.UNREACHABLE, 0.0), book.record_failure(H2, why, 0.0)] == [
        0.0,
        0.0,
    ]
    assert book.record_failure(H2, F.UNREACHABLE, 0.0) == 0.0 and book.try_acquire(H2, 0.0)


def test_invalid_data_lengthens_an_existing_backoff():
    book = peer_state.PeerStates(Fixed())
    for _ in range(2):
        book.record_failure(H2, F.UNREACHABLE, 0.0)
    book.record_failure(H2, F.INVALID, 0.25)
    assert book.list_backoffs(0.25)[H2] >= 60.0


@pytest.mark.parametrize(("shown", "length_s"), [(0.0, 45.0), (0.999999, 75.0)])
def test_jitter_spreads_the_end_of_backoffs(shown, length_s):
    book = peer_state.PeerStates(Fixed(shown))
    assert book.record_failure(H2, F.INVALID, 0.0) == pytest.approx(length_s, abs=1e-3)


@given(
    st.lists(st.tuples(st.sampled_from(("ask", "down", "lie", "ok")), st.floats(0.0, 400.0))),
    st.integers(0, 2**32),
)
def test_backoff_never_exceeds_its_maximum(steps, seed):
    book, now = peer_state.PeerStates(random.Random(seed)), 0.0
    for step, after_s in steps:
        now += after_s
        if step == "ask":
            book.try_acquire(H2, now)
        elif step == "ok":
            book.record_success(H2, now)
        else:
            book.record_failure(H2, F.INVALID if step == "lie" else F.UNREACHABLE, now)
        assert book.list_backoffs(now).get(H2, 0.0) <= 600.0 * 1.25
    assert book.try_acquire(H2, now + 600.0 * 1.25 + 1.0)


def test_departed_peer_is_remembered_until_its_backoff_ends():
    book = peer_state.PeerStates(Fixed())
    book.record_failure(H2, F.INVALID, 0.0)
    book.forget_others(lambda host: False, 1.0)
    assert book.is_in_backoff(H2, 1.0)
    book.forget_others(lambda host: False, 61.0)
    assert not len(book) and book.try_acquire(H2, 61.0)


def test_late_threshold_follows_the_median_of_its_kind_within_bounds():
    book = peer_state.PeerStates(Fixed())
    assert book.late_after_s(peer_state.HOME) == book.late_after_s(peer_state.SOURCE) == 0.5

    def late_s(*took_s):
        for number in range(8 * len(took_s)):
            host = number % len(took_s)
            book.record_latency(peer_state.HOME, ids.HostId(f"h{host}"), took_s[host])
        return book.late_after_s(peer_state.HOME)

    assert late_s(0.2, 0.2, 60.0) == pytest.approx(0.8)
    for _ in range(10):
        late_s(0.001, 0.001, 0.001)
    assert late_s(0.001, 0.001, 0.001) == 0.1
    for _ in range(10):
        late_s(60.0, 60.0, 60.0)
    assert late_s(60.0, 60.0, 60.0) == 5.0
    assert book.late_after_s(peer_state.SOURCE) == 0.5


def test_initial_hedges_go_only_to_peers_and_a_fast_source():
    book = peer_state.PeerStates(Fixed())
    assert not book.take_hedge(None)
    book.record_latency(peer_state.SOURCE, None, 0.2)
    assert book.may_hedge and not book.take_hedge(None)
    assert [book.take_hedge(H2), book.take_hedge(H3)] == [True, True]
    book.record_latency(peer_state.SOURCE, None, 0.0)
    for _ in range(3):
        book.record_latency(peer_state.SOURCE, None, 0.0)
    assert [book.take_hedge(None), book.take_hedge(None), book.take_hedge(None)] == [
        True,
        True,
        False,
    ]
    assert not book.take_hedge(H2) and not book.may_hedge
    assert book.hedges == peer_state.INITIAL_HEDGES


def test_earned_hedges_may_go_to_a_slow_source():
    book = peer_state.PeerStates(Fixed())
    book.record_latency(peer_state.SOURCE, None, 3.0)
    book.refill_hedges(99)  # each response earns 0.02 hedges
    assert [book.take_hedge(None), book.take_hedge(None)] == [True, False]
    assert book.may_hedge
    assert not peer_state.PeerStates(Fixed(), may_hedge=False).take_hedge(H2)


def test_busy_response_counts_as_a_failure_only_from_a_home():
    machine = one_machine.Machine(3)
    numbers = [n for n in range(4000) if machine.home_of(n) == "h3"][:11]
    numbers, others = numbers[:8], numbers[8:]
    machine.core.context.locations.add_holder(H2, announced(*map(chunk, numbers)))
    machine.request_chunks([chunk(n) for n in numbers], P.ADVERTISED, "ahead")
    for _ in numbers:
        for attempt in [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts]:
            assert attempt.host == H2
            machine.peer_refused(H2, [(attempt.number, F.BUSY)])
    book = machine.core.context.peers
    assert book.try_acquire(H2, machine.now) and not book.backoffs
    assert machine.core.counters.failovers == 0
    machine.request_chunks([chunk(n) for n in others], P.GUEST, "a guest")
    asked = [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts if a.host == H3]
    for attempt in asked:
        machine.peer_refused(H3, [(attempt.number, F.BUSY)])
    assert len(asked) == len(others) and book.is_in_backoff(H3, machine.now)
    assert machine.core.counters.failovers >= len(others)
