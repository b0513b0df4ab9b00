# SPDX-License-Identifier: Apache-2.0
"""Indicators of a stream, and the time slice that they yield (equation 8)."""

import hypothesis
import pytest
from hypothesis import strategies as st

from acstor_agent.core.disk_scheduling import navigator
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.disk_scheduling import stream_profile

FIRST_S = 0.2
REGION = 12 * 10**9
LENGTH = 4096
STREAM = requests.Stream(requests.Klass.GUEST, "a")


def served(*offsets: int) -> stream_profile.StreamProfile:
    """Return a stream whose requests were served one by one."""
    profile = stream_profile.StreamProfile(STREAM, navigator.Navigator())
    for number, offset in enumerate(offsets):
        request = requests.DiskRequest(STREAM, offset, LENGTH)
        now_s = number * 0.01
        profile.request_arrived(request, now_s, now_s)
        profile.queue.add(request, now_s + 1.0)
        profile.dispatched(request, now_s)
        profile.request_completed(request, now_s + 0.005, now_s + 0.005)
    return profile


def with_share_at_zero(percent: int) -> stream_profile.StreamProfile:
    """Return a stream with this percentage of seeks of distance zero."""
    offsets = [0]
    for number in range(100):
        gap = 0 if number < percent else 10**6
        offsets.append(offsets[-1] + LENGTH + gap)
    return served(*offsets)


@pytest.mark.parametrize(
    ("percent", "slices"), [(0, 1.0), (55, 1.0), (60, 1.0), (65, 1.0), (75, 2.0), (100, 4.5)]
)
def test_slice_grows_with_the_share_of_seeks_at_zero(percent: int, slices: float) -> None:
    profile = with_share_at_zero(percent)
    assert profile.begin_slice(FIRST_S, REGION) == pytest.approx(slices * FIRST_S)


def test_stream_without_regional_locality_gets_half_a_slice() -> None:
    profile = served(0, 2 * REGION, 0, 2 * REGION)
    assert profile.begin_slice(FIRST_S, REGION) == pytest.approx(FIRST_S / 2)


def test_unused_slice_halves_the_next_one() -> None:
    profile = with_share_at_zero(0)
    for is_idle, share in ((False, 1.0), (True, 0.5), (True, 0.5), (False, 1.0)):
        profile.end_slice(0.05, is_idle)
        assert profile.begin_slice(FIRST_S, REGION) == pytest.approx(share * FIRST_S)


@hypothesis.given(st.lists(st.integers(0, 10**12), max_size=30), st.booleans())
def test_slice_is_between_a_fourth_and_4_5_times_the_first(
    offsets: list[int], is_idle: bool
) -> None:
    profile = served(*offsets)
    profile.end_slice(0.1, is_idle)
    assert FIRST_S / 4 <= profile.begin_slice(FIRST_S, REGION) <= FIRST_S * 4.5 * (1 + 1e-9)
