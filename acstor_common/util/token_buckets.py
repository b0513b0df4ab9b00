# SPDX-License-Identifier: Apache-2.0
"""Token buckets: rate limits per key, with bounded memory.

A forgotten key has a full bucket again.  If clients choose keys, add a bucket for all together.
"""

from collections.abc import Hashable
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

from acstor_common.util import lru_table

Key = TypeVar("Key", bound=Hashable)


class Rate(NamedTuple):
    """Rate of tokens, and capacity of the bucket."""

    per_s: float  # seconds of one monotonic clock
    burst: float


class TokenBuckets(Generic[Key]):
    """One token bucket per key; of ``limit`` keys, the least recently charged is forgotten.

    >>> buckets = TokenBuckets(Rate(per_s=1.0, burst=2.0), limit=100)
    >>> [buckets.try_take("h1", 1.0, now=0.0) for _ in range(3)]
    [True, True, False]
    >>> buckets.try_take("h2", 1.0, now=0.0), buckets.try_take("h1", 1.0, now=1.0)
    (True, True)
    """

    def __init__(self, rate: Rate, limit: int) -> None:
        self._rate = rate
        self._levels: lru_table.LruTable[Key, tuple[float, float]] = lru_table.LruTable(limit)

    def __len__(self) -> int:
        return len(self._levels)

    def tokens_left(self, key: Key, now: float) -> float:
        """Return the tokens of a key; negative after a penalty."""
        level, since = self._levels.get(key, (self._rate.burst, now))
        return min(self._rate.burst, level + max(0.0, now - since) * self._rate.per_s)

    def charge_tokens(self, key: Key, amount: float, now: float) -> None:
        """Take tokens, or a penalty, from a key; at most ``burst`` is owed."""
        level = max(self.tokens_left(key, now) - amount, -self._rate.burst)
        _, since = self._levels.get(key, (0.0, now))
        self._levels[key] = level, max(now, since)

    def try_take(self, key: Key, amount: float, now: float) -> bool:
        """Take tokens if there are enough; return whether there were."""
        has_enough = self.tokens_left(key, now) >= amount
        if has_enough:
            self.charge_tokens(key, amount, now)
        return has_enough
