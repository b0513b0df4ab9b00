# SPDX-License-Identifier: Apache-2.0
"""A bounded set of waiters: when it is full, the longest queue loses its newest.

Longest queue drop (Suter et al., IEEE INFOCOM 1998): a heavy user never crowds out a light one.
"""

import collections
from typing import Generic
from typing import TypeVar

Owner = TypeVar("Owner")
Token = TypeVar("Token")


class LongestQueueDrop(Generic[Owner, Token]):
    """Weighted waiters, by owner; ``limit``: of all weights together.

    >>> waiting = LongestQueueDrop(limit=3)
    >>> [waiting.add_waiter("flood", token, 1) for token in "abc"]
    [[], [], []]
    >>> waiting.add_waiter("other", "d", 1)
    ['c']
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._weights: collections.Counter[Owner] = collections.Counter()
        self._tokens: dict[Owner, dict[Token, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._tokens.values()))

    def add_waiter(self, owner: Owner, token: Token, weight: int) -> list[Token]:
        """Add a waiter; return the waiters dropped for it, possibly several."""
        self._tokens.setdefault(owner, {})[token] = weight
        self._add(owner, weight)
        dropped = []
        while self.total > self.limit:
            most = max(self._weights, key=self._weights.__getitem__)
            newest = next(reversed(self._tokens[most]))
            self.remove_waiter(most, newest)
            dropped.append(newest)
        return dropped

    def remove_waiter(self, owner: Owner, token: Token) -> None:
        """Remove a waiter, if it is there."""
        tokens = self._tokens.get(owner, {})
        weight = tokens.pop(token, None)
        if weight is not None:
            self._add(owner, -weight)
        if not tokens:
            self._tokens.pop(owner, None)
            self._weights.pop(owner, None)

    def _add(self, owner: Owner, weight: int) -> None:
        self._weights[owner] += weight
        self.total += weight
