# SPDX-License-Identifier: Apache-2.0
"""Which answers are slow: those that took many times longer than the others'."""

import pytest

from acstor_agent.core.exchange import pace
from acstor_common import ids

H1, H2, H3 = (ids.HostId(name) for name in ("h1", "h2", "h3"))


LATE, IN_TIME, NOTHING = pace.Verdict.LATE, pace.Verdict.IN_TIME, pace.Verdict.NOTHING


def paces(**taken: float) -> pace.Pace:
    """Return what is known after ten answers of each host."""
    made = pace.Pace()
    for host, took_s in taken.items():
        for _ in range(10):
            made.note(ids.HostId(host), took_s)
    return made


def test_answer_that_took_many_times_longer_than_the_others_is_slow():
    assert paces(h1=0.1, h2=0.1).judge(H3, 0.41) is LATE


def test_answer_that_took_a_little_longer_is_not_slow():
    assert paces(h1=0.1, h2=0.1).judge(H3, 0.39) is IN_TIME


def test_one_late_answer_of_a_fast_host_does_not_make_it_slow():
    made = paces(h1=0.1, h2=0.1, h3=0.1)
    assert made.judge(H3, 1.2) is IN_TIME
    assert made.judge(H3, 1.2) is LATE


def test_where_all_are_slow_nobody_is():
    assert paces(h1=3.0, h2=4.0).judge(H3, 10.0) is IN_TIME


def test_nobody_is_compared_with_themselves():
    assert paces(h1=0.1).judge(H1, 60.0) is IN_TIME


def test_short_answers_are_never_slow():
    assert paces(h1=0.001, h2=0.001).judge(H3, pace.SHORTEST_S - 0.01) is IN_TIME


def test_host_that_became_fast_again_is_not_slow_any_more():
    made = paces(h1=0.1, h2=0.1, h3=5.0)
    assert made.judge(H3, 0.1) is IN_TIME


@pytest.mark.parametrize("slow_s", [0.5, 5.0])
def test_one_slow_host_does_not_make_slowness_usual(slow_s):
    made = paces(h1=0.05, h2=0.05, h3=slow_s)
    assert made.judge(H3, slow_s) is LATE
    assert made.judge(H1, 0.05) is IN_TIME


def test_answer_that_nobody_waited_for_does_not_clear_a_slow_host():
    made = paces(h1=0.1, h2=0.1, h3=0.5)
    hosts = (H1, H3, ids.HostId("h9"))
    assert [made.judge(host, 0.01, is_waited_for=False) for host in hosts] == [
        IN_TIME,
        NOTHING,
        IN_TIME,
    ]


def test_memory_is_bounded():
    made = pace.Pace()
    for number in range(10 * pace.MAX_HOSTS):
        made.note(ids.HostId(f"h{number}"), 0.1)
    assert len(made._usual_s) == pace.MAX_HOSTS
