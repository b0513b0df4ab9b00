# SPDX-License-Identifier: Apache-2.0
"""Rate limit for a single worker in bytes per second."""

from collections.abc import Callable
from typing import Final

_AHEAD_S: Final = 0.1
"""Unused time that is credited at most, so that a pause causes no burst."""


class RateLimiter:
    """Computes the pauses of one worker, which sleeps itself; rate 0: no limit.

    >>> now_s = [100.0]
    >>> pace = RateLimiter(1000, lambda: now_s[0])
    >>> round(pace.wait_s(600), 3), round(pace.wait_s(100), 3)
    (0.5, 0.6)
    >>> now_s[0] += 3600.0
    >>> round(pace.wait_s(100), 3), round(pace.wait_s(100), 3)
    (0.0, 0.1)
    """

    def __init__(self, rate_bytes_s: int, clock: Callable[[], float]) -> None:
        self._rate_bytes_s, self._clock = rate_bytes_s, clock
        self._free_at_s = clock() - _AHEAD_S

    def wait_s(self, count_bytes: int) -> float:
        """Account for ``count_bytes``, and return how long to wait."""
        if not self._rate_bytes_s:
            return 0.0
        now_s = self._clock()
        saved_s = max(self._free_at_s, now_s - _AHEAD_S)
        self._free_at_s = saved_s + count_bytes / self._rate_bytes_s
        return max(0.0, self._free_at_s - now_s)
