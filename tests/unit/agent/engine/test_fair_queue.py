# SPDX-License-Identifier: Apache-2.0
"""Fair queue: urgent items first, no starvation, round robin among flows."""

import collections

from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.engine import priority
from acstor_agent.engine.data_structures import fair_queue

P = priority.Priority
ITEMS = st.tuples(st.sampled_from(P), st.integers(0, 3))


@given(st.lists(ITEMS, max_size=200))
def test_each_item_is_taken_once_in_the_order_of_its_flow(items):
    line = fair_queue.FairQueue()
    for number, (urgency, who) in enumerate(items):
        line.put_item(urgency, who, (urgency, who, number))
    taken = [line.take_next() for _ in items]
    assert sorted(number for _, _, number in taken) == list(range(len(items)))
    for owner in {(urgency, who) for urgency, who, _ in taken}:
        numbers = [number for urgency, who, number in taken if (urgency, who) == owner]
        assert numbers == sorted(numbers)
    assert line.take_next() is None and not len(line)


def test_each_lower_priority_gets_a_share_under_load():
    line = fair_queue.FairQueue()
    for urgency in P:
        for number in range(2000):
            line.put_item(urgency, number % 7, (urgency, number))
    taken = collections.Counter(line.take_next()[0] for _ in range(1400))
    assert taken[P.GUEST] == 1050
    assert {taken[urgency] for urgency in P if urgency} == {50}


def test_flows_of_one_priority_take_turns():
    line = fair_queue.FairQueue()
    for number in range(100):
        line.put_item(P.PEER, "greedy", number)
    line.put_item(P.PEER, "modest", "first")
    line.put_item(P.PEER, "modest", "second")
    assert [line.take_next() for _ in range(4)] == [0, "first", 1, "second"]


def test_subflows_share_the_turns_of_their_flow():
    line = fair_queue.FairQueue()
    for number in range(3):
        line.put_item(P.GUEST, "image", number, "greedy")
    line.put_item(P.GUEST, "other", 7)
    assert line.put_item(P.GUEST, "image", 8, "modest") == 1
    assert not line.remove(P.GUEST, "image", 8) and len(line) == 5  # it belongs to a subflow
    assert [line.take_next() for _ in range(6)] == [0, 7, 8, 1, 2, None]
    line.put_item(P.GUEST, "image", 9, "modest")
    assert line.remove(P.GUEST, "image", 9, "modest") and not len(line)


def test_removed_items_are_skipped_and_duplicates_are_taken_once():
    line = fair_queue.FairQueue()
    assert [line.put_item(P.READAHEAD, "image", number) for number in (1, 2, 3, 2)] == [1, 2, 3, 3]
    assert line.remove(P.READAHEAD, "image", 1) and not line.remove(P.READAHEAD, "image", 1)
    assert not line.remove(P.GUEST, "image", 2)
    assert len(line) == 2 and line.put_item(P.READAHEAD, "image", 3) == 2
    assert [line.take_by_priority(P.READAHEAD), line.take_next(), line.take_next()] == [2, 3, None]


def test_take_next_honours_urgent_only_and_the_skipped_flow():
    line = fair_queue.FairQueue()
    line.put_item(P.GUEST, "full", 1)
    line.put_item(P.PEER, "h2", 2)
    assert line.take_next(urgent_only=True, skipped="full") is None
    assert line.take_next(skipped="full") == 2
    assert line.take_next() == 1
