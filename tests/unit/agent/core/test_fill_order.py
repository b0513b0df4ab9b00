# SPDX-License-Identifier: Apache-2.0
"""The order of the background fill."""

import itertools
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.images import fill_order
from acstor_common.model import geometry

NEAR = fill_order.NEAR_BYTES // geometry.DEFAULT_CHUNK_BYTES
NUMBERS = st.integers(0, 3 * NEAR)


def missing_chunks(numbers, chunk_bytes=geometry.DEFAULT_CHUNK_BYTES):
    missing = fill_order.MissingChunks(chunk_bytes)
    for number in numbers:
        missing.append(number)
    return missing


def ordered(numbers, *waited_for):
    return list(missing_chunks(numbers).in_order(waited_for))


def test_without_waits_the_given_order_stays():
    assert ordered([5, 3, 9]) == [5, 3, 9]


def test_chunks_near_the_latest_wait_come_first():
    assert ordered([1, 499, 500, 501, 502, 900, 901], 500, 900) == [901, 501, 499, 502, 1, 500, 900]


def test_a_wait_brings_forward_a_bounded_number_of_chunks():
    wait = 5 * NEAR
    first = ordered(range(10 * NEAR), wait)[: 2 * NEAR + 1]
    assert sorted(first[:-1]) == [*range(wait - NEAR, wait), *range(wait + 1, wait + NEAR + 1)]
    assert first[-1] == 0


def test_only_missing_chunks_are_near():
    missing = missing_chunks([NEAR, 9 * NEAR])
    assert missing.has_near([0])
    missing.remove(NEAR)
    assert not missing.has_near([0, 9 * NEAR])


@given(
    st.sets(NUMBERS),
    st.lists(NUMBERS, max_size=fill_order.WAITS),
    st.sampled_from([1, 5, NEAR, 4 * NEAR]),
)
def test_of_the_chunks_near_a_wait_the_nearest_come_first(numbers, waited_for, count):
    expected = []
    for number in reversed(waited_for):
        for distance in range(1, count + 1):
            for near in (number + distance, number - distance):
                if near in numbers and near not in expected:
                    expected.append(near)
    missing = missing_chunks(numbers, fill_order.NEAR_BYTES // count)
    assert list(missing.near(waited_for)) == expected
    assert missing.has_near(waited_for) == bool(expected)


def test_a_chunk_whose_fetch_failed_is_not_brought_forward():
    missing = missing_chunks([1, 8, 9])
    missing.remove(8)
    missing.put_back(8)
    assert list(missing.in_order([10])) == [9, 1, 8]
    missing.remove(8)
    assert (list(missing.in_order([10])), len(missing)) == ([9, 1], 2)


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
    for number in range(first_removed, count - NEAR):
        missing.remove(number)

    def seconds_of(chunks):
        began_s = time.process_time()
        for _ in range(200):
            list(itertools.islice(chunks.in_order(()), 2))
        return time.process_time() - began_s

    seconds_of(missing)  # passes over them once
    few = missing_chunks(range(NEAR))
    assert seconds_of(missing) < 50 * seconds_of(few)
    assert len(list(missing.in_order(()))) == first_removed + NEAR


def test_chunks_taken_in_order_leave_nothing_in_memory():
    missing = missing_chunks(range(1 << 16))
    tracemalloc.start()
    try:
        while missing:
            for number in list(itertools.islice(missing.in_order(()), 2)):
                missing.remove(number)
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
