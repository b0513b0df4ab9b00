# SPDX-License-Identifier: Apache-2.0
"""The order of the background fill."""

from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.images import fill_order

NUMBERS = st.integers(0, 3 * fill_order.FOLLOWING)


def ordered(missing, *waited_for):
    return list(fill_order.order_chunks(dict.fromkeys(missing, False), waited_for))


def test_without_waits_the_given_order_stays():
    assert ordered([5, 3, 9]) == [5, 3, 9]


def test_chunks_after_the_latest_wait_come_first():
    assert ordered(range(100, 110), 104, 107) == [108, 109, 105, 106, 107, 100, 101, 102, 103, 104]


def test_a_wait_brings_forward_a_bounded_number_of_chunks():
    missing = range(10 * fill_order.FOLLOWING)
    first = ordered(missing, 99)[: fill_order.FOLLOWING + 1]
    assert first == [*range(100, 100 + fill_order.FOLLOWING), 0]


def test_a_chunk_whose_fetch_failed_is_not_brought_forward():
    missing = {1: False, 8: True, 9: False}
    assert list(fill_order.order_chunks(missing, [7])) == [9, 1, 8]


@given(st.lists(NUMBERS, unique=True), st.lists(NUMBERS, max_size=fill_order.WAITS))
def test_each_missing_chunk_comes_once(missing, waited_for):
    assert sorted(ordered(missing, *waited_for)) == sorted(missing)
