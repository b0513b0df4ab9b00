# SPDX-License-Identifier: Apache-2.0
"""When to hedge a request: to ask the next place as well because an answer is late.

A place that is much slower than usual is probably frozen or cut off.  A hedge costs bytes, so it
starts after several times the usual latency and only for a small share of fetches.  Where
everything is slow at once, as on a full link, hedging would make it slower.
"""

import bisect
import collections

WINDOW = 200
"""Latest answers that make up what is usual."""
SHARE_OF_ANSWERS = 0.95
TIMES = 3.0
"""How much longer than nearly all answers one may take before it is hedged."""
SHORTEST_S = 0.1
FIRST_GUESS_S = 0.5
"""The delay while there are fewer than ENOUGH answers to go by."""
ENOUGH = 20
BUDGET_SHARE = 0.02
"""Hedges a fetch: at most 2 % of all fetches are made twice."""
BUDGET_FIRST = 4.0
"""Hedges at the start, when little is known; two put a frozen peer in backoff."""
BUDGET_MOST = 16.0


class HedgeBudget:
    """What is usual, and how many hedges are left.

    :param shortest_s: no answer is late before
    :param first_guess_s: when one is late as long as little is known
    :param longest_s: any answer is late after it

    >>> hedge = HedgeBudget()
    >>> for _ in range(100):
    ...     hedge.answered(0.1)
    >>> round(hedge.delay_s, 3)
    0.3
    """

    def __init__(
        self,
        shortest_s: float = SHORTEST_S,
        first_guess_s: float = FIRST_GUESS_S,
        longest_s: float = float("inf"),
    ) -> None:
        self._shortest_s, self._first_guess_s = shortest_s, first_guess_s
        self._longest_s = longest_s
        self._latest_s: collections.deque[float] = collections.deque()
        self._sorted_s: list[float] = []
        self._budget = BUDGET_FIRST
        self.hedges = 0

    @property
    def delay_s(self) -> float:
        """After how long an answer is late."""
        if len(self._sorted_s) < ENOUGH:
            return self._first_guess_s
        usual_s = self._sorted_s[int(SHARE_OF_ANSWERS * (len(self._sorted_s) - 1))]
        return min(max(self._shortest_s, TIMES * usual_s), self._longest_s)

    def record_latency(self, seconds: float) -> None:
        """Note that a place took ``seconds`` to give a chunk."""
        self._budget = min(BUDGET_MOST, self._budget + BUDGET_SHARE)
        self._latest_s.append(seconds)
        bisect.insort(self._sorted_s, seconds)
        if len(self._latest_s) > WINDOW:
            oldest_s = self._latest_s.popleft()
            del self._sorted_s[bisect.bisect_left(self._sorted_s, oldest_s)]

    def may_hedge(self) -> bool:
        """Take one hedge out of the budget; say whether there was one."""
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        self.hedges += 1
        return True
