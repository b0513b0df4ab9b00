# SPDX-License-Identifier: Apache-2.0
from acstor_agent.core.sources import circuit_breaker


def test_one_at_a_time_tries_a_source_that_is_down():
    one = circuit_breaker.CircuitBreaker(first_pause_s=5.0)
    assert one.record_failure(0.0)
    assert not one.attempt_request(4.9)
    assert one.attempt_request(5.0)
    assert not one.attempt_request(5.1)  # the first one has no answer yet
    assert one.attempt_request(10.0)  # nor will it get any: the next one tries


def test_pause_doubles_when_a_try_fails_and_is_short_again_after_an_answer():
    one = circuit_breaker.CircuitBreaker(first_pause_s=5.0)
    now_s, pauses = 0.0, []
    one.record_failure(now_s)
    for _ in range(6):
        pause_s = next(s for s in range(1000) if one.attempt_request(now_s + s))
        pauses.append(pause_s)
        now_s += pause_s
        assert not one.record_failure(now_s)
    assert pauses == [5, 10, 20, 40, 60, 60]
    one.begin_wait(now_s)
    one.record_answer(now_s)
    assert one.record_failure(now_s)
    assert one.attempt_request(now_s + 5)


def test_many_who_fail_together_are_one_failure():
    one = circuit_breaker.CircuitBreaker(first_pause_s=5.0)
    assert [one.record_failure(0.1 * number) for number in range(8)] == [True] + [False] * 7
    assert one.attempt_request(5.0)


def test_silence_begins_with_the_first_who_waits_and_with_each_answer():
    one = circuit_breaker.CircuitBreaker()
    one.begin_wait(10.0)
    one.begin_wait(12.0)
    assert one.silent_since_s == 10.0
    assert one.record_answer(13.0) == 3.0
    one.end_wait()
    assert one.silent_since_s == 13.0
    one.end_wait()
    one.begin_wait(20.0)
    assert one.silent_since_s == 20.0
