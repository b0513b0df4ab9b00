# SPDX-License-Identifier: Apache-2.0
"""Whether guests of this host boot from an image, judged by its remote reads."""

import math


class BootActivity:
    """The boots from one image; those back to back count as one.

    A boot ends after ``idle_s`` without a fetch, at the latest ``longest_s`` after it began. Times
    are seconds of one monotonic clock, given by the caller.

    >>> activity = BootActivity(idle_s=10.0, longest_s=60.0)
    >>> activity.last_begin(100.0)
    >>> activity.is_on(105.0, is_expected=False), activity.is_on(110.0, is_expected=False)
    (True, False)
    >>> activity.note_fetches(7, is_waited_for=False, now_s=110.0)
    >>> activity.is_on(115.0, is_expected=False), activity.is_on(160.0, is_expected=True)
    (True, False)
    """

    def __init__(self, idle_s: float, longest_s: float) -> None:
        self._idle_s, self._longest_s = idle_s, longest_s
        self._fetched = 0
        self._active_s = self._begun_s = -math.inf
        self._since_s: float | None = None

    def last_begin(self, begun_s: float) -> None:
        """Record when the last guest began to boot; -inf if none did."""
        if begun_s == self._begun_s:
            return
        if self._since_s is None or begun_s - max(self._begun_s, self._active_s) >= self._idle_s:
            self._since_s = begun_s
        self._begun_s = begun_s

    def note_fetches(self, count: int, *, is_waited_for: bool, now_s: float) -> None:
        """Record the count of remote reads so far, and whether one waits now."""
        if count != self._fetched or is_waited_for:
            self._fetched, self._active_s = count, now_s

    def is_on(self, now_s: float, *, is_expected: bool) -> bool:
        """Return whether a guest boots; ``is_expected``: a boot image is kept in memory for one."""
        if self._since_s is None:
            return is_expected
        if now_s - self._since_s >= self._longest_s:
            return False
        return is_expected or now_s - max(self._begun_s, self._active_s) < self._idle_s
