# SPDX-License-Identifier: Apache-2.0
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.exchange import peer_health
from acstor_common import ids

HOST = ids.HostId("h1")
DOWN = peer_health.FailureKind.UNREACHABLE
LYING = peer_health.FailureKind.LYING


class Steady:
    """Dice that always show the middle: no jitter."""

    def random(self) -> float:
        return 0.5


def make(**limits) -> peer_health.PeerHealth:
    return peer_health.PeerHealth(Steady(), peer_health.Limits(**limits))


def test_unknown_peer_is_usable():
    assert make().is_usable(HOST, 0.0)


def test_peer_is_left_alone_after_the_allowed_failures_in_a_row():
    health = make(failures_allowed=3)
    for now in (0.0, 1.0):
        health.failed(HOST, now, DOWN)
        assert health.is_usable(HOST, now)
    health.failed(HOST, 2.0, DOWN)
    assert not health.is_usable(HOST, 2.0)
    assert health.is_usable(ids.HostId("h2"), 2.0)


def test_success_between_failures_resets_their_number():
    health = make(failures_allowed=2)
    for now in range(10):
        health.failed(HOST, now, DOWN)
        health.succeeded(HOST, now)
    assert health.is_usable(HOST, 10.0) and health.statistics.quarantines == 0


def test_lying_peer_goes_in_quarantine_at_once_and_for_longer():
    health = make(failures_allowed=5, first_s=1.0, liar_first_s=60.0)
    health.failed(HOST, 0.0, LYING)
    assert not health.is_usable(HOST, 59.9)
    assert health.is_usable(HOST, 60.1)


def test_one_trial_is_let_through_after_the_quarantine():
    health = make(failures_allowed=1, first_s=1.0, trial_s=5.0)
    health.failed(HOST, 0.0, DOWN)
    assert [health.is_usable(HOST, now) for now in (0.9, 1.1, 1.2, 6.0)] == [
        False,
        True,
        False,
        False,
    ]
    assert health.is_usable(HOST, 6.2)  # nobody heard of the first trial again


def test_success_of_the_trial_opens_the_door_for_everyone():
    health = make(failures_allowed=1, first_s=1.0)
    health.failed(HOST, 0.0, DOWN)
    assert health.is_usable(HOST, 2.0)
    health.succeeded(HOST, 2.1)
    assert health.is_usable(HOST, 2.1) and health.is_usable(HOST, 2.1)
    assert health.statistics.recoveries == 1


def test_each_failed_trial_doubles_the_quarantine_up_to_the_longest():
    health, now, lengths = make(failures_allowed=1, first_s=1.0, longest_s=6.0), 0.0, []
    for _ in range(5):
        health.failed(HOST, now, DOWN)
        lengths.append(health.quarantined(now)[HOST])
        now += lengths[-1]
        assert health.is_usable(HOST, now)
    assert lengths == [1.0, 2.0, 4.0, 6.0, 6.0]


def test_answers_to_requests_from_before_the_quarantine_change_nothing():
    health = make(failures_allowed=1, first_s=1.0)
    health.failed(HOST, 0.0, DOWN)
    for now in (0.1, 0.2):
        health.failed(HOST, now, DOWN)
        health.succeeded(HOST, now)
    assert health.quarantined(0.5) == {HOST: 0.5}


def test_lie_of_an_unreachable_peer_makes_its_quarantine_longer():
    health = make(failures_allowed=1, first_s=1.0, liar_first_s=60.0)
    health.failed(HOST, 0.0, DOWN)
    health.failed(HOST, 0.5, LYING)
    assert health.quarantined(0.5)[HOST] >= 60.0


@pytest.mark.parametrize(("dice", "length_s"), [(0.0, 7.5), (0.999999, 12.5)])
def test_jitter_spreads_the_end_of_quarantines(dice, length_s):
    class Loaded:
        def random(self) -> float:
            return dice

    limits = peer_health.Limits(failures_allowed=1, first_s=10.0, jitter=0.25)
    health = peer_health.PeerHealth(Loaded(), limits)
    health.failed(HOST, 0.0, DOWN)
    assert health.quarantined(0.0)[HOST] == pytest.approx(length_s, abs=1e-3)


def test_only_so_many_peers_are_remembered():
    health = make(failures_allowed=1, max_peers=10)
    for number in range(50):
        health.failed(ids.HostId(f"h{number}"), 0.0, DOWN)
    assert set(health.quarantined(0.0)) == {f"h{number}" for number in range(40, 50)}


def test_failures_are_counted_by_kind():
    health = make()
    for kind in (DOWN, LYING, DOWN):
        health.failed(HOST, 0.0, kind)
    assert health.statistics.failures == {DOWN: 2, LYING: 1}


events = st.lists(
    st.tuples(st.sampled_from(["ask", "down", "lie", "ok"]), st.floats(0.0, 100.0)), max_size=60
)


@given(events, st.integers(0, 2**32))
def test_no_peer_is_shut_out_for_longer_than_the_longest_quarantine(steps, seed):
    limits = peer_health.Limits(longest_s=100.0)
    health, now = peer_health.PeerHealth(random.Random(seed), limits), 0.0
    for step, delay_s in steps:
        now += delay_s
        match step:
            case "ask":
                health.is_usable(HOST, now)
            case "down":
                health.failed(HOST, now, DOWN)
            case "lie":
                health.failed(HOST, now, LYING)
            case "ok":
                health.succeeded(HOST, now)
    assert health.is_usable(HOST, now + limits.longest_s * (1 + limits.jitter) + limits.trial_s)
