# SPDX-License-Identifier: Apache-2.0
"""Who waits, and who must go when it is too much: the newest of the one that has most waiting.

Longest queue drop (Suter et al., "Design considerations for supporting TCP with per-flow
queueing", IEEE INFOCOM 1998): who asks for little is never refused because of one that asks for
much, and no share has to be set aside for anybody.
"""

import collections
from typing import Generic
from typing import TypeVar

Who = TypeVar("Who")
Token = TypeVar("Token")


class LongestQueueDrop(Generic[Who, Token]):
    """What waits, by whom it is for, each with a weight.

    :param limit: of all weights together

    >>> waiting = LongestQueueDrop(limit=3)
    >>> [waiting.enter("flood", token, 1) for token in "abc"]
    [[], [], []]
    >>> waiting.enter("other", "d", 1)  # somebody must go, but not this one
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
        """Let one more wait; return those that must go, which do not wait any more.

        They are several where the newcomer weighs more than the newest of the one with most.
        """
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
        """Let one wait no more; nothing happens if it does not."""
        tokens = self._tokens.get(who, {})
        weight = tokens.pop(token, None)
        if weight is not None:
            self._add(who, -weight)
        if not tokens:
            self._tokens.pop(who, None)
            self._weights.pop(who, None)

    def reduce_waiter(self, who: Who, token: Token, weight: int) -> None:
        """Let a part of one that waits do so no more.

        :param weight: of that part; one of which nothing is left has left
        """
        tokens = self._tokens[who]
        if tokens[token] == weight:
            self.remove_waiter(who, token)
        else:
            tokens[token] -= weight
            self._add(who, -weight)

    def _add(self, who: Who, weight: int) -> None:
        self._weights[who] += weight
        self.total += weight
