# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_common.identity import replay_filter

NOW_S = 1_800_000_000.0


@pytest.fixture
def fresh():
    return replay_filter.ReplayFilter()


def test_message_is_accepted_once(fresh):
    assert fresh.check_and_remember((1, "a"), NOW_S, NOW_S) == ""
    assert "accepted before" in fresh.check_and_remember(
        (1, "a"), NOW_S, NOW_S + replay_filter.AGE_S
    )
    assert fresh.check_and_remember((1, "b"), NOW_S, NOW_S) == ""


@pytest.mark.parametrize(
    ("age_s", "why"),
    [
        (0.0, ""),
        (replay_filter.AGE_S, ""),
        (replay_filter.AGE_S + 1, "901 s ago"),
        (86_400.0, "86400 s ago"),
        (-replay_filter.FUTURE_S, ""),
        (-replay_filter.FUTURE_S - 1, "301 s in the future: one of the two clocks is wrong"),
    ],
)
def test_untimely_message_is_refused(fresh, age_s, why):
    found = fresh.check_and_remember(1, NOW_S, NOW_S + age_s)
    assert why in found
    assert bool(found) == bool(why)


def test_messages_are_remembered_until_they_are_too_old():
    fresh = replay_filter.ReplayFilter(limit=3)
    for number in range(3):
        assert fresh.check_and_remember(number, NOW_S, NOW_S) == ""
    assert "3 others" in fresh.check_and_remember(3, NOW_S, NOW_S)
    later_s = NOW_S + replay_filter.AGE_S + 1
    assert fresh.check_and_remember(4, later_s, later_s) == ""
    assert "ago" in fresh.check_and_remember(0, NOW_S, later_s)
