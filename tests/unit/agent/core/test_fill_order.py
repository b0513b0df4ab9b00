# SPDX-License-Identifier: Apache-2.0
"""The order of the background fill."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.images import fill_order

NUMBERS = st.integers(0, 3 * fill_order.FOLLOWING)


def missing_chunks(numbers):
    missing = fill_order.MissingChunks()
    for number in numbers:
        missing.append(number)
    return missing


def ordered(numbers, *waited_for):
    return list(missing_chunks(numbers).in_order(waited_for))


def test_without_waits_the_given_order_stays():
    assert ordered([5, 3, 9]) == [5, 3, 9]


def test_chunks_after_the_latest_wait_come_first():
    assert ordered(range(100, 110), 104, 107) == [108, 109, 105, 106, 107, 100, 101, 102, 103, 104]


def test_a_wait_brings_forward_a_bounded_number_of_chunks():
    missing = range(10 * fill_order.FOLLOWING)
    first = ordered(missing, 99)[: fill_order.FOLLOWING + 1]
    assert first == [*range(100, 100 + fill_order.FOLLOWING), 0]


def test_a_chunk_whose_fetch_failed_is_not_brought_forward():
    missing = missing_chunks([1, 8, 9])
    missing.remove(8)
    missing.put_back(8)
    assert list(missing.in_order([7])) == [9, 1, 8]
    missing.remove(8)
    assert (list(missing.in_order([7])), len(missing)) == ([9, 1], 2)


@given(
    st.lists(NUMBERS, unique=True), st.sets(NUMBERS), st.lists(NUMBERS, max_size=fill_order.WAITS)
)
def test_each_missing_chunk_comes_once(numbers, removed, waited_for):
    missing, removed = missing_chunks(numbers), removed.intersection(numbers)
    for number in removed:
        missing.remove(number)
    left = list(missing.in_order(waited_for))
    assert sorted(left) == sorted(set(numbers) - removed)
    assert len(missing) == len(left)


@pytest.mark.parametrize("first_removed", [0, 1])
def test_next_chunks_cost_no_more_after_many_were_removed(first_removed):
    count = 1 << 18
    missing = missing_chunks(range(count))
    for number in range(first_removed, count - fill_order.FOLLOWING):
        missing.remove(number)

    def seconds_of(chunks):
        began_s = time.process_time()
        for _ in range(200):
            list(itertools.islice(chunks.in_order(()), 2))
        return time.process_time() - began_s

    seconds_of(missing)  # passes over them once
    few = missing_chunks(range(fill_order.FOLLOWING))
    assert seconds_of(missing) < 50 * seconds_of(few)
    assert len(list(missing.in_order(()))) == first_removed + fill_order.FOLLOWING
