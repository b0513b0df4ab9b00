# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.sources import attempt_timeout

MIB = 1 << 20


def test_timeout_grows_with_the_length_of_the_read():
    waits = attempt_timeout.AttemptTimeout(base_s=30.0)
    assert waits.deadline_s() == 30.0
    assert attempt_timeout.AttemptTimeout(base_s=1.0).deadline_s() == 1.0
    assert waits.deadline_s(MIB) == 30.0 + MIB / attempt_timeout.SLOWEST_BYTES_PER_S
    assert waits.deadline_s(MIB) > 43  # sixteen hosts, eight reads each, one link of 25 Mbit/s


def test_timeout_doubles_with_each_miss_up_to_its_maximum():
    waits = attempt_timeout.AttemptTimeout(base_s=30.0, most_s=480.0)
    seen = []
    for _ in range(6):
        seen.append(waits.deadline_s())
        waits.record_timeout(seen[-1])
    assert seen == [30.0, 60.0, 120.0, 240.0, 480.0, 480.0]
    assert waits.misses == 6


def test_concurrent_misses_double_the_timeout_once():
    waits = attempt_timeout.AttemptTimeout(base_s=30.0)
    for deadline_s in [waits.deadline_s()] * 8:
        waits.record_timeout(deadline_s)
    assert waits.deadline_s() == 60.0


def test_timeout_stays_long_after_slow_responses_and_falls_after_quick_ones():
    waits = attempt_timeout.AttemptTimeout(base_s=30.0)
    waits.record_timeout(30.0)
    waits.record_answer(43.0)
    waits.record_answer(0.1)  # a short read between long ones changes nothing
    assert waits.deadline_s() == 86.0
    for _ in range(attempt_timeout.LATEST):
        waits.record_answer(0.1)
    assert waits.deadline_s() == 30.0


def test_base_above_the_maximum_replaces_the_maximum():
    waits = attempt_timeout.AttemptTimeout(base_s=600.0, most_s=480.0)
    waits.record_timeout(waits.deadline_s())
    assert waits.deadline_s() == 600.0


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 1000), st.integers(0, 4 * MIB))),
    st.integers(0, 4 * MIB),
)
def test_timeout_is_within_bounds_and_at_least_twice_the_latest_response(attempts, length):
    waits = attempt_timeout.AttemptTimeout(base_s=5.0, most_s=480.0)
    for is_answered, took_s, of_bytes in attempts:
        deadline_s = waits.deadline_s(of_bytes)
        if is_answered and took_s < deadline_s:
            waits.record_answer(took_s)
        else:
            waits.record_timeout(deadline_s)
        assert waits.deadline_s() >= min(480.0, 2 * min(took_s, deadline_s))
    assert 5.0 <= waits.deadline_s(length) <= 480.0
