# SPDX-License-Identifier: Apache-2.0
import itertools
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.images import chunk_state
from acstor_common import errors

S = chunk_state.ChunkState
E = chunk_state.ChunkEvent
ILLEGAL = {
    *((state, E.PREFETCH_SENT) for state in S if state is not S.REMOTE),
    *itertools.product((S.REMOTE, S.PREFETCH), (E.GUEST_READ, E.PART_WRITTEN)),
}
TO_REACH = {
    S.REMOTE: [],
    S.PREFETCH: [E.PREFETCH_SENT],
    S.LOCAL: [E.PREFETCH_SENT, E.PREFETCH_ARRIVED],
    S.READ: [E.DEMAND_ARRIVED],
    S.WRITTEN: [E.WHOLE_WRITTEN],
}
PAIRS = list(itertools.product(S, E))


def states_with(state: S) -> chunk_state.ChunkStates:
    states = chunk_state.ChunkStates(1)
    for event in TO_REACH[state]:
        states.apply_event(0, event)
    assert states.state_of(0) is state
    return states


def next_state(state, event):
    return chunk_state.TRANSITIONS[state][event]


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_packed_states_follow_the_transition_table(state, event):
    states = states_with(state)
    assert states.can_happen(0, event) == ((state, event) not in ILLEGAL)
    if (state, event) in ILLEGAL:
        with pytest.raises(errors.IllegalTransition, match=f"{event.name}.*{state.name}"):
            states.apply_event(0, event)
        assert states.state_of(0) is state
    else:
        after = next_state(state, event)
        assert states.apply_event(0, event) is after is states.state_of(0)


@pytest.mark.parametrize("event", E)
def test_written_state_is_final(event):
    if (S.WRITTEN, event) not in ILLEGAL:
        assert next_state(S.WRITTEN, event) is S.WRITTEN


@pytest.mark.parametrize("state", S)
def test_late_or_duplicate_prefetch_changes_only_a_waiting_chunk(state):
    after = next_state(state, E.PREFETCH_ARRIVED)
    assert after is (S.LOCAL if state is S.PREFETCH else state)


def test_overwritten_prefetch_counts_as_neither_matched_nor_unmatched():
    states = states_with(S.LOCAL)
    assert states.unmatched == 1
    states.apply_event(0, E.WHOLE_WRITTEN)
    assert states.unmatched == 0 == states.matched


@pytest.mark.parametrize(
    ("events", "matched", "evicted_unread"),
    [
        ([E.PREFETCH_ARRIVED, E.GUEST_READ, E.GUEST_READ, E.EVICTED], 1, 0),
        ([E.DEMAND_ARRIVED, E.PREFETCH_ARRIVED], 1, 0),
        ([E.PREFETCH_ARRIVED, E.PART_WRITTEN], 1, 0),
        ([E.PREFETCH_ARRIVED, E.WHOLE_WRITTEN, E.EVICTED], 0, 0),
        ([E.PREFETCH_ARRIVED, E.EVICTED, E.DEMAND_ARRIVED], 0, 1),
        ([E.PREFETCH_FAILED, E.DEMAND_ARRIVED], 0, 0),
    ],
)
def test_prefetch_outcome_is_counted_once(events, matched, evicted_unread):
    states = states_with(S.PREFETCH)
    for event in events:
        states.apply_event(0, event)
    assert (states.matched, states.evicted_unread) == (matched, evicted_unread)


@pytest.mark.parametrize("count", [1000, chunk_state._MAPPED_CHUNKS])
def test_accept_unmatched_clears_all_local_chunks_and_no_others(count):
    states = chunk_state.ChunkStates(count)
    local, read = (0, 7, 8, 500, count - 1), (1, 9)
    for chunk_no in (*local, *read):
        states.apply_event(chunk_no, E.PREFETCH_SENT)
        states.apply_event(chunk_no, E.PREFETCH_ARRIVED)
    for chunk_no in read:
        states.apply_event(chunk_no, E.GUEST_READ)
    assert len(states) == count and states.unmatched == len(local)
    states.accept_unmatched()
    assert states.unmatched == 0
    for chunk_no in local:
        assert states.state_of(chunk_no) is S.LOCAL
        states.apply_event(chunk_no, E.GUEST_READ)
    assert states.matched == len(local) + len(read) and states.unmatched == 0
    assert states.state_of(2) is S.REMOTE


def test_accepted_chunk_stays_local_and_is_no_longer_unmatched():
    states = states_with(S.LOCAL)
    states.accept_unmatched()
    assert states.state_of(0) is S.LOCAL
    assert states.unmatched == 0
    states.apply_event(0, E.PREFETCH_ARRIVED)
    assert states.unmatched == 0
    states.apply_event(0, E.GUEST_READ)
    assert states.unmatched == 0 and states.matched == 1
    states.apply_event(0, E.EVICTED)
    states.apply_event(0, E.PREFETCH_SENT)
    states.apply_event(0, E.PREFETCH_ARRIVED)
    assert states.unmatched == 1


def test_documentation_shows_the_transition_table():
    page = pathlib.Path(__file__).parents[4] / "doc/source/contributor/exchange.rst"
    lines = page.read_text().splitlines()
    columns = next(line for line in lines if line.startswith("event "))
    begins = [columns.index(state.name) for state in S]
    for event in E:
        line = next(line for line in lines if line.startswith(event.name))
        cells = [line[a:b].strip() for a, b in zip(begins, [*begins[1:], None], strict=True)]
        after = [chunk_state.TRANSITIONS[state].get(event) for state in S]
        assert cells == [state.name if state else "" for state in after]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([*E, None])), max_size=60))
def test_counters_agree_with_the_states_under_random_events(happenings):
    states = chunk_state.ChunkStates(5)
    model, forgiven = [S.REMOTE] * 5, set()
    for chunk_no, event in happenings:
        if event is None:
            states.accept_unmatched()
            forgiven = {n for n in range(5) if model[n] is S.LOCAL}
        elif (model[chunk_no], event) not in ILLEGAL:
            states.apply_event(chunk_no, event)
            model[chunk_no] = next_state(model[chunk_no], event)
            forgiven -= {chunk_no} if model[chunk_no] is not S.LOCAL else set()
        assert list(states) == model
        assert states.unmatched == model.count(S.LOCAL) - len(forgiven)
        assert states.in_flight == model.count(S.PREFETCH)
    assert len(states) == 5
