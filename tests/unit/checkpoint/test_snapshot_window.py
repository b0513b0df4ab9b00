# SPDX-License-Identifier: Apache-2.0
"""Snapshot windows: short by default, long for servers whose captures stall."""

import pytest

from acstor_checkpoint.capture import snapshot_window
from tests.fakes import manual_clock


@pytest.fixture
def clock() -> manual_clock.ManualClock:
    return manual_clock.ManualClock()


def looks(clock: manual_clock.ManualClock, should_stop: snapshot_window.ShouldStop) -> float:
    """Return the seconds until the capture should stop."""
    began_s = clock.now_s
    while not should_stop():
        clock.now_s += 1.0
    return clock.now_s - began_s


def test_windows_are_short_until_several_parts_stalled(clock: manual_clock.ManualClock) -> None:
    it = snapshot_window.SnapshotWindow(10.0, 100.0, clock)
    for stalled_parts in range(5):
        with it.open_window(stalled_parts) as (should_stop, is_long):
            assert is_long is (stalled_parts >= snapshot_window.MAX_STALLED_PARTS)
            clock.now_s += 500.0  # the window has not begun
            assert looks(clock, should_stop) == (101 if is_long else 11)


def test_one_server_at_a_time_has_a_long_window(clock: manual_clock.ManualClock) -> None:
    it = snapshot_window.SnapshotWindow(10.0, 100.0, clock)
    with it.open_window(9) as (_, is_long), it.open_window(9) as (should_stop, is_other_long):
        assert is_long and not is_other_long
        assert looks(clock, should_stop) == 11
    with it.open_window(9) as (_, is_long):
        assert is_long


def test_failed_long_window_is_released(clock: manual_clock.ManualClock) -> None:
    it = snapshot_window.SnapshotWindow(10.0, 100.0, clock)
    with pytest.raises(KeyError), it.open_window(9):
        raise KeyError
    with it.open_window(9) as (_, is_long):
        assert is_long
