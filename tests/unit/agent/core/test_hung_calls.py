# SPDX-License-Identifier: Apache-2.0
from acstor_agent.core.sources import hung_calls

LONG_S = hung_calls.HANGS_AFTER_S


def left(made, of, now_s):
    call = made.begin_call(of, now_s)
    made.abandon_call(call)
    return call


def test_call_counts_as_hung_only_if_abandoned_and_old():
    made = hung_calls.Fence(most=1, most_of_one=1)
    call = made.begin_call("a", 0.0)
    assert made.count_hung(100.0).calls == 0  # a caller still waits for it
    made.abandon_call(call)
    assert made.count_hung(LONG_S - 0.1).calls == 0  # too young to count as hung
    assert made.count_hung(LONG_S) == (1, LONG_S)
    made.end_call(call)
    assert made.count_hung(100.0) == (0, 0.0)


def test_fence_closes_at_the_limit_of_hung_calls_and_reopens_on_a_return():
    made = hung_calls.Fence(most=3, most_of_one=3)
    calls = [left(made, number, 0.0) for number in range(3)]
    assert not made.is_refused("x", LONG_S - 0.1)
    assert made.is_refused("x", LONG_S)
    made.end_call(calls[1])
    assert not made.is_refused("x", LONG_S)


def test_one_hanging_file_does_not_block_others():
    made = hung_calls.Fence(most=4, most_of_one=2)
    for _ in range(2):
        left(made, "a", 0.0)
    assert made.is_refused("a", LONG_S)
    assert not made.is_refused("b", LONG_S)


def test_abandoned_call_that_ends_twice_is_removed_once():
    made = hung_calls.Fence(most=1, most_of_one=1)
    call = left(made, "a", 0.0)
    made.end_call(call)
    made.end_call(call)
    assert made.count_hung(100.0).calls == 0


def test_description_gives_the_count_and_the_age():
    made = hung_calls.Fence(most=9, most_of_one=9)
    left(made, "a", 0.0)
    assert str(made.count_hung(40.0)) == "1 call hangs, the oldest for 40 s"
    left(made, "a", 10.0)
    assert str(made.count_hung(40.0)) == "2 calls hang, the oldest for 40 s"


def test_returning_call_reopens_the_fence_while_older_ones_hang():
    made = hung_calls.Fence(most=2, most_of_one=2)
    for _ in range(2):
        left(made, "a", 0.0)
    assert made.is_refused("a", hung_calls.TRY_AGAIN_S - 1)
    assert not made.is_refused("a", hung_calls.TRY_AGAIN_S)
    trial = made.begin_call("a", hung_calls.TRY_AGAIN_S)
    assert made.is_refused("a", hung_calls.TRY_AGAIN_S + 1)  # one trial at a time
    made.end_call(trial)
    assert not made.is_refused("a", hung_calls.TRY_AGAIN_S + 1)
    assert made.count_hung(100.0).calls == 2
    for _ in range(2):  # and all calls hang again
        left(made, "a", 100.0)
    assert made.is_refused("b", 1e9)  # twice the limit hangs: no more trials


def test_trials_of_a_closed_fence_back_off_and_stop():
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


def test_responses_of_other_files_do_not_reopen_a_hanging_one():
    made = hung_calls.Fence(most=8, most_of_one=2)
    for _ in range(2):
        left(made, "a", 0.0)
    made.end_call(made.begin_call("b", 10.0))
    assert made.is_refused("a", 11.0)
    assert not made.is_refused("b", 11.0)


def test_response_to_an_older_call_does_not_reopen_the_fence():
    made = hung_calls.Fence(most=2, most_of_one=2)
    old = left(made, "a", 0.0)
    for _ in range(2):
        left(made, "a", 10.0)
    made.end_call(old)
    made.end_call(made.begin_call("a", 10.0))
    assert made.is_refused("a", 20.0)


def test_response_of_a_file_reopens_it_whatever_other_files_return_later():
    made = hung_calls.Fence(most=8, most_of_one=2)
    for _ in range(2):
        left(made, "a", 0.0)
    for of in ("a", "b"):
        made.end_call(made.begin_call(of, 10.0))
    assert not made.is_refused("a", 11.0)


def test_call_abandoned_after_other_responses_counts_as_hung():
    made = hung_calls.Fence(most=1, most_of_one=1)
    hung = made.begin_call("a", 0.0)
    made.end_call(made.begin_call("b", 1.0))  # and then the server stops
    made.abandon_call(hung)
    assert made.is_refused("b", 30.0)


def test_hanging_file_is_retried_while_others_are_in_use():
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
