# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core import longest_queue_drop


def test_newest_waiter_of_the_longest_queue_is_dropped_first():
    waiting = longest_queue_drop.LongestQueueDrop(limit=100)
    for number in range(100):
        assert waiting.add_waiter("flood", number, 1) == []
    assert [waiting.add_waiter("small", f"s{n}", 1) for n in range(3)] == [[99], [98], [97]]
    assert waiting.add_waiter("flood", "more", 1) == ["more"]
    assert (waiting.total, len(waiting)) == (100, 100)


def test_queue_length_is_measured_by_weight():
    waiting = longest_queue_drop.LongestQueueDrop(limit=10)
    assert waiting.add_waiter("heavy", "h", 8) == []
    assert [waiting.add_waiter("light", n, 1) for n in range(3)] == [[], [], ["h"]]
    assert waiting.total == 3


def test_dropped_waiter_may_leave_without_being_counted_twice():
    waiting = longest_queue_drop.LongestQueueDrop(limit=1)
    waiting.add_waiter("a", 1, 1)
    assert waiting.add_waiter("a", 2, 1) == [2]
    waiting.remove_waiter("a", 2)
    waiting.remove_waiter("a", 1)
    waiting.remove_waiter("b", 7)
    assert (waiting.total, len(waiting)) == (0, 0)


def test_heavy_waiter_drops_several_others():
    waiting = longest_queue_drop.LongestQueueDrop(limit=10)
    assert [waiting.add_waiter("light", n, 2) for n in range(5)] == 5 * [[]]
    assert waiting.add_waiter("heavy", "h", 5) == [4, 3, 2]
    assert waiting.total == 9


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 30), st.booleans()), max_size=80))
def test_total_is_the_weight_of_waiters_and_never_exceeds_the_limit(steps):
    waiting, held = longest_queue_drop.LongestQueueDrop(limit=100), {}
    for token, (who, weight, leaves) in enumerate(steps):
        if leaves and held:
            gone, (owner, _) = held.popitem()
            waiting.remove_waiter(owner, gone)
            continue
        held[token] = (who, weight)
        for dropped in waiting.add_waiter(who, token, weight):
            del held[dropped]
        assert waiting.total == sum(weight for _, weight in held.values()) <= 100
        assert len(waiting) == len(held)
