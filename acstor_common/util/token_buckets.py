# SPDX-License-Identifier: Apache-2.0
"""How much somebody may have in a second: token buckets, one for each of many.

What is remembered is bounded.  Who was forgotten begins with a full bucket, so where
anybody can be many, all together have a bucket of their own.

Times are seconds of one clock that never goes back, given by the caller.
"""

import collections
from collections.abc import Hashable
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


class Rate(NamedTuple):
    """What one may have.

    :param per_s: in the long run
    :param burst: at once, after a pause
    """

    per_s: float
    burst: float


class TokenBuckets(Generic[Key]):
    """A bucket for each.

    :param limit: of how many something is remembered; who took nothing for longest is forgotten

    >>> buckets = TokenBuckets(Rate(per_s=1.0, burst=2.0), limit=100)
    >>> [buckets.takes("h1", 1.0, now=0.0) for _ in range(3)], buckets.takes("h2", 1.0, now=0.0)
    ([True, True, False], True)
    >>> buckets.takes("h1", 1.0, now=1.0)
    True
    """

    def __init__(self, rate: Rate, limit: int) -> None:
        self._rate = rate
        self._limit = limit
        self._levels: collections.OrderedDict[Key, tuple[float, float]] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def tokens_left(self, who: Key, now: float) -> float:
        """Return how much one may have now; less than nothing after a fine."""
        level, since = self._levels.get(who, (self._rate.burst, now))
        return min(self._rate.burst, level + max(0.0, now - since) * self._rate.per_s)

    def charge_tokens(self, who: Key, amount: float, now: float) -> None:
        """Note that one has had so much, or is fined so much: a burst is owed at most."""
        level = max(self.tokens_left(who, now) - amount, -self._rate.burst)
        _, since = self._levels.get(who, (0.0, now))
        self._levels[who] = level, max(now, since)
        self._levels.move_to_end(who)
        if len(self._levels) > self._limit:
            self._levels.popitem(last=False)

    def try_take(self, who: Key, amount: float, now: float) -> bool:
        """Take so much if one may have it; say whether that was so."""
        may = self.tokens_left(who, now) >= amount
        if may:
            self.charge_tokens(who, amount, now)
        return may
