# SPDX-License-Identifier: Apache-2.0
import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.images import chunk_state
from acstor_agent.core.images import prefetcher
from acstor_policies import prefetch_by_limit
from tests.fakes import prefetch_reader

E = chunk_state.ChunkEvent
MANY = prefetch_reader.MANY


class Reader(prefetch_reader.PrefetchReader):
    def __init__(
        self, chunks: int = 20_000, limit: int | None = prefetcher.UNMATCHED_LIMIT, **more
    ) -> None:
        make = functools.partial(prefetch_by_limit.LimitPrefetcher, limit=limit, **more)
        super().__init__(make, chunks)

    def read(self, *chunk_nos: int) -> list[int]:
        """Read; return the chunks that are prefetched then."""
        for chunk_no in chunk_nos:
            if not self.states.can_happen(chunk_no, E.GUEST_READ):
                self.prefetcher.fetched_on_demand(chunk_no)
            self.states.apply_event(chunk_no, E.DEMAND_ARRIVED)
        return self.prefetcher.take_candidates(MANY)


def test_limit_zero_prefetches_nothing_and_no_limit_everything():
    assert Reader(limit=0).advertise(*range(100)) == []
    reader = Reader(limit=None)
    assert [reader.advertise(n) for n in range(600)] == [[n] for n in range(600)]


def test_batch_passes_completely_because_only_arrived_chunks_count():
    reader = Reader(limit=4)
    assert reader.advertise(*range(10)) == [*range(10)]
    assert reader.advertise(10) == []


def test_held_back_chunk_is_prefetched_only_when_it_is_advertised_again():
    reader = Reader(limit=2)
    reader.advertise(0, 1)
    assert reader.advertise(2) == [] == reader.read(0)
    assert reader.advertise(3) == [3]  # unmatched is 1 again
    assert reader.read(1) == []
    assert reader.advertise(2) == [2]


def test_misses_of_held_back_chunks_reactivate_the_prefetcher():
    reader = Reader(limit=3)
    reader.advertise(*range(100, 103))
    for chunk_no in range(3):
        assert reader.advertise(chunk_no) == []
    reader.read(0, 1)
    assert reader.advertise(9) == [] and reader.prefetcher.reactivations == 0
    reader.read(2)
    assert reader.prefetcher.reactivations == 1 and reader.states.unmatched == 0
    assert reader.advertise(9) == [9]


def test_misses_of_unadvertised_chunks_do_not_reactivate_the_prefetcher():
    reader = Reader(limit=2)
    reader.advertise(100, 101)
    reader.read(*range(50))
    assert reader.prefetcher.reactivations == 0 and reader.advertise(60) == []


def test_queued_chunk_is_not_fetched_again_after_a_guest_read_it():
    reader = Reader()
    for chunk_no in (5, 6):
        reader.prefetcher.chunk_advertised(chunk_no)
    assert reader.read(5) == [6]


def test_chunk_is_a_candidate_until_it_is_prefetched_or_read():
    reader = Reader(limit=1)
    assert not reader.prefetcher.has_candidates
    reader.prefetcher.chunk_advertised(5)
    assert reader.prefetcher.has_candidates
    reader.arrive()
    assert not reader.prefetcher.has_candidates
    reader.advertise(6)
    assert reader.prefetcher.has_candidates  # held back
    reader.read(6)
    assert not reader.prefetcher.has_candidates


@pytest.mark.parametrize(
    ("policy", "most"),
    [(prefetch_by_limit.limited, prefetcher.UNMATCHED_LIMIT), (prefetch_by_limit.unbounded, 600)],
)
def test_policy_of_an_image_prefetches_up_to_its_limit(policy, most):
    reader = prefetch_reader.PrefetchReader(policy)
    assert sum(len(reader.advertise(chunk_no)) for chunk_no in range(600)) == most


def test_slots_are_assigned_in_the_order_of_advertisements():
    reader = Reader()
    for chunk_no in (9, 3, 7, 3):
        reader.prefetcher.chunk_advertised(chunk_no)
    assert [reader.prefetcher.take_candidates(2), reader.prefetcher.take_candidates(2)] == [
        [9, 3],
        [7],
    ]


def test_state_is_bounded():
    reader = Reader(limit=1, held_limit=3)
    assert reader.advertise(*range(5)) == [2, 3, 4]
    reader.advertise(*range(10, 20))
    assert len(reader.prefetcher._held) == 3


@given(
    st.sampled_from([1, 3, None]),
    st.lists(st.tuples(st.sampled_from("arwe"), st.integers(0, 30)), max_size=150),
)
@pytest.mark.parametrize("batch", [1, 4])
def test_local_chunks_and_chunks_beyond_the_limit_are_not_requested(batch, limit, steps):
    reader = Reader(31, limit)
    states, prefetcher = reader.states, reader.prefetcher
    for what, chunk_no in steps:
        before = states.unmatched
        if what == "a":
            taken = reader.advertise(*(range(chunk_no, min(31, chunk_no + batch))))
            assert not taken or limit is None or before < limit
            assert all(states.state_of(n) is chunk_state.ChunkState.LOCAL for n in taken)
        elif what == "r":
            assert reader.read(chunk_no) == []
        else:
            states.apply_event(chunk_no, E.WHOLE_WRITTEN if what == "w" else E.EVICTED)
        assert prefetcher.take_candidates(MANY) == []
