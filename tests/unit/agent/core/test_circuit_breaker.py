# SPDX-License-Identifier: Apache-2.0
from acstor_agent.core.sources import circuit_breaker


def test_source_that_is_down_gets_one_probe_at_a_time():
    one = circuit_breaker.CircuitBreaker(first_pause_s=5.0)
    assert one.attempt_request(0.0) and one.attempt_request(0.0)  # it is up
    assert one.record_failure(0.0)
    assert not one.attempt_request(4.9)
    assert one.attempt_request(5.0)
    assert not one.attempt_request(5.1)  # the first probe has no response yet
    assert one.attempt_request(10.0)  # the first probe timed out: the next one may go


def test_pause_doubles_with_each_failed_probe_and_resets_on_a_response():
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


def test_concurrent_failures_count_once():
    one = circuit_breaker.CircuitBreaker(first_pause_s=5.0)
    assert [one.record_failure(0.1 * number) for number in range(8)] == [True] + [False] * 7
    assert one.attempt_request(5.0)


def test_silence_counts_from_the_first_waiter_or_the_last_response():
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
