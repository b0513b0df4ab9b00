# SPDX-License-Identifier: Apache-2.0
"""Eviction orders beside the agent's LRU, for comparison (see ``core/cache/cache_slot``)."""

from collections.abc import Iterable
from collections.abc import Mapping

from acstor_agent.core.cache import cache_slot


class FifoOrder(cache_slot.LruOrder):
    """Oldest first."""

    def note_use(self, slot: cache_slot.Slot) -> None:
        """Do nothing: only age counts."""

    def touch_all(self, slots: Iterable[cache_slot.Slot]) -> None:
        """Do nothing: only age counts."""

    def put_back(self, slot: cache_slot.Slot) -> None:
        """Make ``slot`` the next victim, as it was when it was parked."""
        self.add(slot)
        self.demote(slot)


class LfuOrder(cache_slot.Order):
    """Least frequently used first, by the power of two, then by the last use.

    Each step takes constant time.  With the exact lists of Shah, Mitra, Matani 2010 it does not,
    once slots leave and come back.
    """

    LEVELS = 32

    def __init__(self) -> None:
        self._levels = tuple(cache_slot.LruOrder() for _ in range(self.LEVELS))

    def _level(self, slot: cache_slot.Slot) -> cache_slot.LruOrder:
        return self._levels[min(slot.frequency.bit_length(), self.LEVELS) - 1]

    def add(self, slot: cache_slot.Slot) -> None:
        """Add ``slot`` with the frequency that it brings."""
        self._level(slot).add(slot)

    def note_use(self, slot: cache_slot.Slot) -> None:
        """Count the use."""
        before = self._level(slot)
        slot.frequency += 1
        after = self._level(slot)
        if after is before:
            before.note_use(slot)
        elif not slot.is_parked:
            before.remove(slot)
            after.add(slot)

    def remove(self, slot: cache_slot.Slot) -> None:
        """Remove ``slot``."""
        self._level(slot).remove(slot)

    def put_back(self, slot: cache_slot.Slot) -> None:
        """Return ``slot`` to its frequency."""
        self._level(slot).put_back(slot)

    def demote(self, slot: cache_slot.Slot) -> None:
        """Forget how often ``slot`` was used, and make it the next victim."""
        self._level(slot).remove(slot)
        slot.frequency = 1
        self._level(slot).add(slot)
        self._level(slot).demote(slot)

    def next_victim(self) -> cache_slot.Slot | None:
        """Return the least frequently used slot."""
        return next(filter(None, (level.next_victim() for level in self._levels)), None)


ORDERS: Mapping[str, type[cache_slot.Order]] = {
    "lru": cache_slot.LruOrder,
    "lfu": LfuOrder,
    "fifo": FifoOrder,
}
