# SPDX-License-Identifier: Apache-2.0
"""A bounded set of waiters: when it is full, the longest queue loses its newest.

Longest queue drop (Suter et al., "Design considerations for supporting TCP with per-flow queueing",
IEEE INFOCOM 1998): a light user is never refused because of a heavy one, without reserved shares.
"""

import collections
from typing import Generic
from typing import TypeVar

Who = TypeVar("Who")
Token = TypeVar("Token")


class LongestQueueDrop(Generic[Who, Token]):
    """Weighted waiters, by owner.

    :param limit: of all weights together

    >>> waiting = LongestQueueDrop(limit=3)
    >>> [waiting.add_waiter("flood", token, 1) for token in "abc"]
    [[], [], []]
    >>> waiting.add_waiter("other", "d", 1)
    ['c']
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._weights: collections.Counter[Who] = collections.Counter()
        self._tokens: dict[Who, dict[Token, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._tokens.values()))

    def add_waiter(self, who: Who, token: Token, weight: int) -> list[Token]:
        """Add a waiter; return the waiters dropped for it, possibly several."""
        self._tokens.setdefault(who, {})[token] = weight
        self._add(who, weight)
        dropped = []
        while self.total > self.limit:
            most = max(self._weights, key=self._weights.__getitem__)
            newest = next(reversed(self._tokens[most]))
            self.remove_waiter(most, newest)
            dropped.append(newest)
        return dropped

    def remove_waiter(self, who: Who, token: Token) -> None:
        """Remove a waiter, if it is there."""
        tokens = self._tokens.get(who, {})
        weight = tokens.pop(token, None)
        if weight is not None:
            self._add(who, -weight)
        if not tokens:
            self._tokens.pop(who, None)
            self._weights.pop(who, None)

    def reduce_waiter(self, who: Who, token: Token, weight: int) -> None:
        """Reduce the weight of a waiter; remove it at 0."""
        tokens = self._tokens[who]
        if tokens[token] == weight:
            self.remove_waiter(who, token)
        else:
            tokens[token] -= weight
            self._add(who, -weight)

    def _add(self, who: Who, weight: int) -> None:
        self._weights[who] += weight
        self.total += weight
