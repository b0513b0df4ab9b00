# SPDX-License-Identifier: Apache-2.0
"""Which answers are slow: those that took many times longer than the others'."""

import pytest

from acstor_agent.core import pace
from acstor_common import ids

H1, H2, H3 = (ids.HostId(name) for name in ("h1", "h2", "h3"))


def paces(**taken: float) -> pace.Pace:
    """Return what is known after ten answers of each host."""
    made = pace.Pace()
    for host, took_s in taken.items():
        for _ in range(10):
            made.is_slow(ids.HostId(host), took_s)
    return made


def test_answer_that_took_many_times_longer_than_the_others_is_slow():
    assert paces(h1=0.1, h2=0.1).is_slow(H3, 0.41)


def test_answer_that_took_a_little_longer_is_not_slow():
    assert not paces(h1=0.1, h2=0.1).is_slow(H3, 0.39)


def test_one_late_answer_of_a_fast_host_does_not_make_it_slow():
    made = paces(h1=0.1, h2=0.1, h3=0.1)
    assert not made.is_slow(H3, 1.2)
    assert made.is_slow(H3, 1.2)


def test_where_all_are_slow_nobody_is():
    assert not paces(h1=3.0, h2=4.0).is_slow(H3, 10.0)


def test_nobody_is_compared_with_themselves():
    assert not paces(h1=0.1).is_slow(H1, 60.0)


def test_short_answers_are_never_slow():
    assert not paces(h1=0.001, h2=0.001).is_slow(H3, pace.SHORTEST_S - 0.01)


def test_host_that_became_fast_again_is_not_slow_any_more():
    made = paces(h1=0.1, h2=0.1, h3=5.0)
    assert not made.is_slow(H3, 0.1)


@pytest.mark.parametrize("slow_s", [0.5, 5.0])
def test_one_slow_host_does_not_make_slowness_usual(slow_s):
    made = paces(h1=0.05, h2=0.05, h3=slow_s)
    assert made.is_slow(H3, slow_s)
    assert not made.is_slow(H1, 0.05)


def test_it_is_known_who_has_been_slow():
    made = paces(h1=0.1, h2=0.1, h3=0.5)
    assert [made.has_been_slow(host) for host in (H1, H3, ids.HostId("h9"))] == [False, True, False]


def test_memory_is_bounded():
    made = pace.Pace()
    for number in range(10 * pace.MAX_HOSTS):
        made.is_slow(ids.HostId(f"h{number}"), 0.1)
    assert len(made._usual_s) == pace.MAX_HOSTS
