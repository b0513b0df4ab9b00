# SPDX-License-Identifier: Apache-2.0
"""A cache with two generations, an approximation of LRU without links.

Used entries move to the young generation. When that holds half of the allowed weight, it becomes
the old one, and the old one is dropped.
"""

from collections.abc import Callable
from collections.abc import Hashable
from typing import Generic
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class GenerationalCache(Generic[K, V]):
    """A mapping that evicts the least recently used entries.

    :param limit: weight of all entries at most
    :param weigh: returns the constant weight of a value; None: each weighs 1

    >>> table = GenerationalCache(limit=4)
    >>> for key in "abc":
    ...     table.put(key, key.upper())
    >>> table.get("a"), table.keys()
    ('A', ['b', 'c', 'a'])
    >>> table.put("d", "D"), table.put("e", "E"), table.get("b")
    (None, None, None)
    """

    __slots__ = ("_half", "_old", "_weigh", "_weight", "_young")

    def __init__(self, limit: int, weigh: Callable[[V], int] | None = None) -> None:
        self._half, self._weigh = limit // 2, weigh
        self._weight = 0
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __contains__(self, key: K) -> bool:
        return key in self._young or key in self._old

    def get(self, key: K) -> V | None:
        """Return a value and count it as used; None if there is none."""
        value = self._young.get(key)
        if value is None and (value := self._old.pop(key, None)) is not None:
            self.add(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Set a value."""
        if key in self._young or key in self._old:
            self.pop(key)
        self.add(key, value)

    def add(self, key: K, value: V) -> None:
        """Set the value of a key that has none."""
        weight = 1 if self._weigh is None else self._weigh(value)
        self._weight += weight
        if self._weight > self._half and self._young:
            self._old, self._young, self._weight = self._young, {}, weight
        self._young[key] = value

    def pop(self, key: K) -> V | None:
        """Remove an entry; return its value, None if there is none."""
        value = self._young.pop(key, None)
        if value is None:
            return self._old.pop(key, None)
        self._weight -= 1 if self._weigh is None else self._weigh(value)
        return value

    def keys(self) -> list[K]:
        """Return all keys, the least recently used ones first."""
        return [*self._old, *self._young]

    def items(self) -> list[tuple[K, V]]:
        """Return all entries, the least recently used ones first; does not count as use."""
        return [*self._old.items(), *self._young.items()]

    def clear(self) -> None:
        """Remove all entries."""
        self._young, self._old, self._weight = {}, {}, 0
