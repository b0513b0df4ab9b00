# SPDX-License-Identifier: Apache-2.0
"""How long one attempt at a place may take before it counts as unanswered.

The rule: a slow link is not a dead one.  An attempt has twice what the longest of the latest took,
and one that was not answered in its time counts as having taken all of it; so the time doubles with
each miss up to a bound, and falls back when answers come quickly again.  Attempts that run side by
side and miss together double it once.  (RFC 6298 does the same for TCP, from a smoothed mean; here
attempts are few and of very different lengths, so it is the longest one that counts.)
"""

import collections

BASE_S = 30.0
"""No attempt has less: sixteen hosts that each read 8 MiB over one link of 25 Mbit/s take 43 s, of
which a read of 1 MiB has BASE_S and its length."""
MOST_S = 480.0
SLOWEST_BYTES_PER_S = 32 * 1024
"""The rate below which a transfer counts as dead: a long read has so much more time."""
LATEST = 16
"""Attempts that are remembered: two rounds of the usual eight side by side."""
TIMES = 2.0


class AttemptTimeout:
    """What the latest attempts at one place took.

    :param base_s: no attempt has less time
    :param most_s: none has more, unless ``base_s`` is more

    >>> timeout = AttemptTimeout(base_s=30.0)
    >>> timeout.deadline_s(), timeout.deadline_s(1 << 20)
    (30.0, 62.0)
    >>> timeout.missed(62.0)
    >>> timeout.deadline_s()
    124.0
    """

    def __init__(self, base_s: float = BASE_S, most_s: float = MOST_S) -> None:
        self.misses = 0
        """Attempts that were not answered in their time, since the start."""
        self._base_s, self._most_s = base_s, max(base_s, most_s)
        self._latest_s: collections.deque[float] = collections.deque(maxlen=LATEST)

    def deadline_s(self, length_bytes: int = 0) -> float:
        """Return how long an attempt that begins now may take.

        :param length_bytes: what it is to bring
        """
        least_s = self._base_s + length_bytes / SLOWEST_BYTES_PER_S
        return min(max(least_s, TIMES * max(self._latest_s, default=0.0)), self._most_s)

    def record_answer(self, took_s: float) -> None:
        """Note that an attempt was answered."""
        self._latest_s.append(took_s)

    def record_timeout(self, deadline_s: float) -> None:
        """Note that an attempt was given up after ``deadline_s``."""
        self.misses += 1
        self._latest_s.append(deadline_s)
