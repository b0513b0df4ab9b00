# SPDX-License-Identifier: Apache-2.0
"""Adaptive timeout of one attempt at a source or peer: each miss doubles it, up to a bound."""

import collections

BASE_S = 30.0
"""Least timeout. Sixteen hosts that each read 8 MiB over one link of 25 Mbit/s take 43 s, of
which a read of 1 MiB has BASE_S plus its length."""
MOST_S = 480.0
SLOWEST_BYTES_PER_S = 32 * 1024
"""A slower transfer counts as dead; a long read gets its time at this rate in addition."""
LATEST = 16  # attempts remembered: two rounds of the usual eight in parallel
TIMES = 2.0  # an attempt may take this many times the longest; one that timed out counts in full


class AttemptTimeout:
    """Timeout from the latest attempts at one place, too few and uneven for RFC 6298's mean.

    >>> timeout = AttemptTimeout(base_s=30.0)
    >>> timeout.deadline_s(), timeout.deadline_s(1 << 20)
    (30.0, 62.0)
    >>> timeout.record_timeout(62.0)
    >>> timeout.deadline_s()
    124.0
    """

    def __init__(self, base_s: float, most_s: float = MOST_S) -> None:
        self.misses = 0
        self._base_s, self._most_s = base_s, max(base_s, most_s)
        self._latest_s: collections.deque[float] = collections.deque(maxlen=LATEST)

    def deadline_s(self, length_bytes: int = 0) -> float:
        """Return how long an attempt that begins now may take."""
        least_s = self._base_s + length_bytes / SLOWEST_BYTES_PER_S
        return min(max(least_s, TIMES * max(self._latest_s, default=0.0)), self._most_s)

    def record_answer(self, took_s: float) -> None:
        """Record an attempt that was answered."""
        self._latest_s.append(took_s)

    def record_timeout(self, deadline_s: float) -> None:
        """Record an attempt that timed out after ``deadline_s``."""
        self.misses += 1
        self._latest_s.append(deadline_s)
