# SPDX-License-Identifier: Apache-2.0
"""Hedges: requests to the next source too, late and few, as they load a full link further."""

import bisect
import collections

WINDOW = 200  # latest answers from which the usual latency is computed
SHARE_OF_ANSWERS = 0.95
TIMES = 3.0  # lateness, as a multiple of the 95th percentile
SHORTEST_S = 0.1
FIRST_GUESS_S = 0.5  # the delay with fewer than ENOUGH answers
ENOUGH = 20
BUDGET_SHARE = 0.02  # hedges per answer
BUDGET_FIRST = 4.0  # hedges at the start; two put a frozen peer in backoff
BUDGET_MOST = 16.0


class HedgeBudget:
    """Computes when an answer is late, and limits hedges.

    >>> hedge = HedgeBudget()
    >>> for _ in range(100):
    ...     hedge.record_latency(0.1)
    >>> round(hedge.delay_s, 3)
    0.3
    """

    def __init__(
        self,
        shortest_s: float = SHORTEST_S,
        first_guess_s: float = FIRST_GUESS_S,
        longest_s: float = float("inf"),
    ) -> None:
        self._shortest_s, self._first_guess_s = shortest_s, first_guess_s  # bounds of the delay
        self._longest_s = longest_s
        self._latest_s: collections.deque[float] = collections.deque()
        self._sorted_s: list[float] = []
        self._budget = BUDGET_FIRST
        self.hedges = 0

    @property
    def delay_s(self) -> float:
        """Seconds after which an answer is late."""
        if len(self._sorted_s) < ENOUGH:
            return self._first_guess_s
        usual_s = self._sorted_s[int(SHARE_OF_ANSWERS * (len(self._sorted_s) - 1))]
        return min(max(self._shortest_s, TIMES * usual_s), self._longest_s)

    def record_latency(self, seconds: float) -> None:
        """Record the seconds that an answer took."""
        self._budget = min(BUDGET_MOST, self._budget + BUDGET_SHARE)
        self._latest_s.append(seconds)
        bisect.insort(self._sorted_s, seconds)
        if len(self._latest_s) > WINDOW:
            oldest_s = self._latest_s.popleft()
            del self._sorted_s[bisect.bisect_left(self._sorted_s, oldest_s)]

    def may_hedge(self) -> bool:
        """Take a hedge from the budget; return whether there was one."""
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        self.hedges += 1
        return True
