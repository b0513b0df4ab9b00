# SPDX-License-Identifier: Apache-2.0
import functools
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.images import chunk_state
from acstor_agent.core.images import prefetcher
from tests.fakes import prefetch_reader

E = chunk_state.ChunkEvent


class Reader(prefetch_reader.PrefetchReader):
    def __init__(self, chunks: int = 20_000, **options) -> None:
        super().__init__(functools.partial(prefetcher.Prefetcher, **options), chunks)

    def read(self, *chunk_nos: int) -> list[int]:
        """Read chunks, and return the prefetches that this allows."""
        for chunk_no in chunk_nos:
            if self.states.can_happen(chunk_no, E.GUEST_READ):
                self.states.apply_event(chunk_no, E.GUEST_READ)
            else:
                self.prefetcher.fetched_on_demand(chunk_no)
                self.states.apply_event(chunk_no, E.DEMAND_ARRIVED)
        return self.arrive()


@pytest.mark.parametrize("first", [None, 8])
def test_limit_zero_never_prefetches(first):
    reader = Reader(unmatched_limit=0, initial_allowance=first)
    assert reader.advertise(*range(100)) == []
    assert reader.read(*range(100)) == [] == reader.advertise(*range(100, 200))
    assert reader.prefetcher.reactivations == 0


def test_prefetch_without_limit_follows_the_order_of_advertisements():
    order = [*range(500, 3000), *range(500)]
    assert Reader(unmatched_limit=None).advertise(*order) == order


def test_limit_counts_prefetches_in_flight():
    reader = Reader(unmatched_limit=10, initial_allowance=None)
    for chunk_no in range(50):
        reader.prefetcher.chunk_advertised(chunk_no)
    assert reader.prefetcher.take_candidates(4) == [0, 1, 2, 3]
    assert reader.prefetcher.take_candidates(50) == [4, 5, 6, 7, 8, 9]
    reader.states.apply_event(3, E.PREFETCH_FAILED)
    assert reader.prefetcher.take_candidates(50) == [10]


def test_read_of_a_prefetched_chunk_allows_a_held_back_one():
    reader = Reader(unmatched_limit=4, initial_allowance=None)
    assert reader.advertise(*range(10)) == [0, 1, 2, 3]
    assert reader.read(2, 0) == [4, 5]


def test_overwrite_of_a_prefetched_chunk_allows_another():
    reader = Reader(unmatched_limit=2, initial_allowance=None)
    assert reader.advertise(*range(5)) == [0, 1]
    reader.states.apply_event(0, E.WHOLE_WRITTEN)
    assert reader.arrive() == [2]


def test_eviction_of_unread_chunks_allows_no_more_prefetches():
    reader = Reader(unmatched_limit=4, initial_allowance=None)
    for chunk_no in reader.advertise(*range(10)):
        reader.states.apply_event(chunk_no, E.EVICTED)
    assert reader.arrive() == []


def test_held_back_chunk_that_arrived_on_demand_is_not_fetched_again():
    reader = Reader(unmatched_limit=1, initial_allowance=None)
    assert reader.advertise(0, 1, 2) == [0]
    reader.states.apply_event(1, E.DEMAND_ARRIVED)
    assert reader.read(0) == [2]


def test_chunk_advertised_twice_is_fetched_once_in_its_first_position():
    reader = Reader(unmatched_limit=1, initial_allowance=None)
    reader.advertise(0, 1, 2, 1, 0)
    assert reader.read(0) == [1]
    assert reader.read(1) == [2]
    assert reader.read(2) == []


def test_converging_access_patterns_reactivate_prefetching():
    reader = Reader(unmatched_limit=20, initial_allowance=None)
    wasted = reader.advertise(*range(1000, 1100))
    assert wasted == list(range(1000, 1020))
    assert reader.read(*range(2000, 2020)) == []  # not advertised
    assert reader.read(*range(1081, 1100)) == []
    assert reader.read(1080) == list(range(1020, 1040))
    assert reader.prefetcher.reactivations == 1
    assert reader.states.state_of(wasted[0]) is chunk_state.ChunkState.LOCAL


def test_each_reactivation_needs_as_many_held_back_chunks_as_the_limit():
    reader = Reader(unmatched_limit=5, initial_allowance=None)
    reader.advertise(*range(100))
    reactivated = []
    for chunk_no in range(99, 60, -1):
        reader.read(chunk_no)
        reactivated.append(reader.prefetcher.reactivations)
    assert reactivated == [n // 5 for n in range(1, 40)]


def test_reactivation_also_clears_evicted_chunks():
    reader = Reader(unmatched_limit=3, initial_allowance=None)
    for chunk_no in reader.advertise(*range(50)):
        reader.states.apply_event(chunk_no, E.EVICTED)
    assert reader.read(40, 41) == []
    assert len(reader.read(42)) == 3


def test_diverging_reader_wastes_only_the_initial_allowance():
    reader = Reader(unmatched_limit=256, initial_allowance=8)
    fetched = []
    for n in range(500):
        fetched += reader.advertise(10_000 + n)
        fetched += reader.read(n)
    assert len(fetched) == 8


def test_allowance_grows_to_the_limit_with_each_match():
    reader = Reader(unmatched_limit=256, initial_allowance=8, gain=2)
    assert len(reader.advertise(*range(3000))) == 8
    allowed = []
    for chunk_no in range(1000):
        reader.read(chunk_no)
        allowed.append(reader.prefetcher.allowance)
    assert allowed[:3] == [10, 12, 14] and allowed[-1] == 256
    assert all(a <= b for a, b in itertools.pairwise(allowed))
    assert reader.states.unmatched == 256


def test_held_back_chunk_read_on_demand_does_not_raise_the_allowance():
    reader = Reader(unmatched_limit=256, initial_allowance=8, gain=2)
    reader.advertise(*range(100))
    assert reader.read(99) == []
    assert reader.prefetcher.allowance == 8


def test_held_back_chunks_are_bounded_and_the_oldest_is_dropped():
    reader = Reader(unmatched_limit=1, initial_allowance=None)
    reader.advertise(19_999)
    reader.advertise(*range(prefetcher.HELD_LIMIT + 3))
    assert reader.read(19_999) == [3]


@given(
    st.sampled_from([1, 3, 10, None]),
    st.sampled_from([None, 0, 2]),
    st.lists(st.tuples(st.sampled_from("arwef"), st.integers(0, 30)), max_size=150),
)
def test_unproven_chunks_stay_within_the_allowance(limit, first, steps):
    reader = Reader(31, unmatched_limit=limit, initial_allowance=first)
    states, prefetcher = reader.states, reader.prefetcher
    for what, chunk_no in steps:
        if what == "a":
            prefetcher.chunk_advertised(chunk_no)
        elif what == "r":
            reader.read(chunk_no)
        elif what == "w":
            states.apply_event(chunk_no, E.WHOLE_WRITTEN)
        elif what == "e":
            states.apply_event(chunk_no, E.EVICTED)
        taken = prefetcher.take_candidates(3)
        assert len(taken) <= 3
        if taken and prefetcher.allowance is not None:
            assert prefetcher.unproven_chunks <= prefetcher.allowance <= limit
        for arrived in taken:
            assert states.state_of(arrived) is chunk_state.ChunkState.PREFETCH
            states.apply_event(arrived, E.PREFETCH_FAILED if what == "f" else E.PREFETCH_ARRIVED)
