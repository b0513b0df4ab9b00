# SPDX-License-Identifier: Apache-2.0
"""Bounded mapping with least-recently-used eviction."""

import collections
from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruTable(collections.OrderedDict[K, V]):
    """An ordered dictionary of at most ``limit`` entries, the least recently used first.

    Setting an entry or :meth:`get_as_used` counts as use; ``[]`` and ``get`` do not.

    >>> table = LruTable(limit=2)
    >>> table["a"], table["b"] = 1, 2
    >>> table.get_as_used("a"), table.put("c", 3), list(table)
    (1, ('b', 2), ['a', 'c'])
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def put(self, key: K, value: V) -> tuple[K, V] | None:
        """Set an entry; return the one that it evicted."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        return self.popitem(last=False) if len(self) > self._limit else None

    def get_as_used(self, key: K) -> V | None:
        """Return a value and mark it as most recently used; None if there is none."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def copy(self) -> "LruTable[K, V]":
        """Return a table with the same limit, entries and order.

        >>> table = LruTable(limit=2)
        >>> table["a"] = 1
        >>> table.copy() == table
        True
        """
        made: LruTable[K, V] = LruTable(self._limit)
        made.update(self)
        return made
