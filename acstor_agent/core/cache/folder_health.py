# SPDX-License-Identifier: Apache-2.0
"""Fault state of the cache's folder, and when to check it again: at growing intervals."""

from typing import NamedTuple


class CheckIntervals(NamedTuple):
    """Intervals of the checks of a folder."""

    healthy_s: float = 30.0  # without a fault, for deleted files
    first_s: float = 1.0  # after a fault; it doubles with each failed check
    longest_s: float = 60.0  # up to this; after as long without a fault, first_s holds again


CHECK_INTERVALS = CheckIntervals()


class FolderFault(NamedTuple):
    """A fault and its start (seconds of the Unix epoch)."""

    what: str
    since_s: float


class FolderHealth:
    """Whether a folder is usable, and when to check again.

    >>> health = FolderHealth()
    >>> [health.record_fault("No space left on device", now_s, time_s=1e9) for now_s in (5.0, 6.0)]
    [True, False]
    >>> health.next_check_s, health.fault
    (8.0, FolderFault(what='No space left on device', since_s=1000000000.0))
    >>> health.is_over(now_s=8.0)
    True
    """

    def __init__(self, intervals: CheckIntervals = CHECK_INTERVALS) -> None:
        self._intervals = intervals
        self.fault: FolderFault | None = None
        self.next_check_s = float("inf")  # time of the next check, by the caller's clock
        self._wait_s = intervals.first_s
        self._over_at_s = float("-inf")

    def record_fault(self, what: str, now_s: float, time_s: float) -> bool:
        """Record a fault (``time_s``: wall clock); return whether it is new."""
        is_news = self.fault is None
        if is_news and now_s - self._over_at_s > self._intervals.longest_s:
            self._wait_s = self._intervals.first_s
        if is_news or now_s >= self.next_check_s:
            self.next_check_s = now_s + self._wait_s
            self._wait_s = min(self._intervals.longest_s, 2 * self._wait_s)
        self.fault = FolderFault(what, time_s if self.fault is None else self.fault.since_s)
        return is_news

    def is_over(self, now_s: float) -> bool:
        """Record that the folder works; return whether that ends a fault."""
        if self.fault is None:
            return False
        self.fault, self.next_check_s, self._over_at_s = None, float("inf"), now_s
        return True
