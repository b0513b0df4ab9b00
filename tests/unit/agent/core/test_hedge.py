# SPDX-License-Identifier: Apache-2.0
import random

from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.sources import hedge


def test_delay_is_a_default_until_enough_responses():
    racer = hedge.HedgeBudget()
    for _ in range(hedge.ENOUGH - 1):
        racer.record_latency(3.0)
    assert racer.delay_s == hedge.FIRST_GUESS_S
    racer.record_latency(3.0)
    assert racer.delay_s == 3.0 * hedge.TIMES


def test_delay_has_a_minimum():
    racer = hedge.HedgeBudget()
    for _ in range(100):
        racer.record_latency(0.0001)
    assert racer.delay_s == hedge.SHORTEST_S


def test_delay_follows_rising_latency():
    racer = hedge.HedgeBudget()
    for _ in range(hedge.WINDOW):
        racer.record_latency(0.05)
    for _ in range(hedge.WINDOW // 10):
        racer.record_latency(1.0)
    assert racer.delay_s == 1.0 * hedge.TIMES


@given(st.lists(st.floats(0, 10), min_size=hedge.ENOUGH, max_size=3 * hedge.WINDOW))
def test_delay_is_a_multiple_of_a_high_quantile_of_recent_latency(latencies_s):
    racer = hedge.HedgeBudget()
    for seconds in latencies_s:
        racer.record_latency(seconds)
    latest = sorted(latencies_s[-hedge.WINDOW :])
    usual = latest[int(hedge.SHARE_OF_ANSWERS * (len(latest) - 1))]
    assert racer.delay_s == max(hedge.SHORTEST_S, hedge.TIMES * usual)


def test_hedges_stay_within_the_budget():
    racer = hedge.HedgeBudget()
    rng = random.Random(3)
    fetches = 5000
    for _ in range(fetches):
        racer.record_latency(rng.random())
        racer.may_hedge()
    assert racer.hedges <= hedge.BUDGET_FIRST + hedge.BUDGET_SHARE * fetches
    assert racer.hedges >= hedge.BUDGET_SHARE * fetches


def test_unused_budget_is_capped():
    racer = hedge.HedgeBudget()
    for _ in range(100_000):
        racer.record_latency(0.01)
    hedges = sum(racer.may_hedge() for _ in range(1000))
    assert hedges == hedge.BUDGET_MOST
