# SPDX-License-Identifier: Apache-2.0
from acstor_agent.core.sources import hung_calls

LONG_S = hung_calls.HANGS_AFTER_S


def left(made, of, now_s):
    call = made.begin_call(of, now_s)
    made.abandon_call(call)
    return call


def test_call_hangs_only_when_it_is_left_and_old():
    made = hung_calls.Fence(most=1, most_of_one=1)
    call = made.begin_call("a", 0.0)
    assert made.count_hung(100.0).calls == 0  # somebody still waits for it
    made.abandon_call(call)
    assert made.count_hung(LONG_S - 0.1).calls == 0  # a reader lost interest
    assert made.count_hung(LONG_S) == (1, LONG_S)
    made.end_call(call)
    assert made.count_hung(100.0) == (0, 0.0)


def test_fence_closes_when_most_hang_and_opens_when_one_comes_back():
    made = hung_calls.Fence(most=3, most_of_one=3)
    calls = [left(made, number, 0.0) for number in range(3)]
    assert not made.is_refused("x", LONG_S - 0.1)
    assert made.is_refused("x", LONG_S)
    made.end_call(calls[1])
    assert not made.is_refused("x", LONG_S)


def test_one_thing_that_hangs_leaves_the_place_to_the_others():
    made = hung_calls.Fence(most=4, most_of_one=2)
    for _ in range(2):
        left(made, "a", 0.0)
    assert made.is_refused("a", LONG_S)
    assert not made.is_refused("b", LONG_S)


def test_call_that_ends_twice_or_after_it_was_left_is_forgotten_once():
    made = hung_calls.Fence(most=1, most_of_one=1)
    call = left(made, "a", 0.0)
    made.end_call(call)
    made.end_call(call)
    assert made.count_hung(100.0).calls == 0


def test_words_say_how_many_and_how_long():
    made = hung_calls.Fence(most=9, most_of_one=9)
    left(made, "a", 0.0)
    assert str(made.count_hung(40.0)) == "1 call hangs, the oldest for 40 s"
    left(made, "a", 10.0)
    assert str(made.count_hung(40.0)) == "2 calls hang, the oldest for 40 s"


def test_call_that_comes_back_opens_the_place_though_older_ones_hang():
    made = hung_calls.Fence(most=2, most_of_one=2)
    for _ in range(2):
        left(made, "a", 0.0)
    assert made.is_refused("a", hung_calls.TRY_AGAIN_S - 1)
    assert not made.is_refused("a", hung_calls.TRY_AGAIN_S)
    trial = made.begin_call("a", hung_calls.TRY_AGAIN_S)
    assert made.is_refused("a", hung_calls.TRY_AGAIN_S + 1)  # one at a time
    made.end_call(trial)
    assert not made.is_refused("a", hung_calls.TRY_AGAIN_S + 1)
    assert made.count_hung(100.0).calls == 2
    for _ in range(2):  # and hangs again
        left(made, "a", 100.0)
    assert made.is_refused("b", 1e9)  # twice as many hang as may: no trial any more


def test_closed_place_is_tried_less_and_less_often_and_not_for_ever():
    made = hung_calls.Fence(most=4, most_of_one=4)
    for _ in range(4):
        left(made, "a", 0.0)
    now_s, tries = 0.0, []
    for _ in range(4):
        pause_s = next(s for s in range(10_000) if not made.is_refused("a", now_s + s + LONG_S))
        now_s += pause_s + LONG_S
        left(made, "a", now_s)
        tries.append(pause_s + LONG_S)
    assert tries == [60, 120, 240, 480]
    assert made.is_refused("a", 1e9)


def test_answers_about_others_do_not_open_one_thing_that_hangs():
    made = hung_calls.Fence(most=8, most_of_one=2)
    for _ in range(2):
        left(made, "a", 0.0)
    made.end_call(made.begin_call("b", 10.0))
    assert made.is_refused("a", 11.0)
    assert not made.is_refused("b", 11.0)


def test_answer_to_an_older_call_proves_nothing_for_younger_ones():
    made = hung_calls.Fence(most=2, most_of_one=2)
    old = left(made, "a", 0.0)
    for _ in range(2):
        left(made, "a", 10.0)
    made.end_call(old)
    assert made.is_refused("a", 20.0)


def test_call_that_was_waited_for_when_others_came_back_counts_when_it_hangs():
    made = hung_calls.Fence(most=1, most_of_one=1)
    hung = made.begin_call("a", 0.0)
    made.end_call(made.begin_call("b", 1.0))  # and then the server stops
    made.abandon_call(hung)
    assert made.is_refused("b", 30.0)


def test_one_thing_that_hangs_is_tried_again_while_the_place_is_busy_with_others():
    made = hung_calls.Fence(most=8, most_of_one=2)
    for _ in range(2):
        left(made, "a", 0.0)
    tried = []
    for now_s in range(10, 1000):
        assert not made.is_refused("b", now_s)
        other = made.begin_call("b", now_s)
        if not made.is_refused("a", now_s):
            left(made, "a", now_s)
            tried.append(now_s)
        made.end_call(other)
    assert tried == [60, 180, 420, 900]
