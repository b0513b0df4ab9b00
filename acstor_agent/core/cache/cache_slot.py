# SPDX-License-Identifier: Apache-2.0
"""Slots and slabs of the public cache, and the eviction order of slots."""

import abc
import collections
import enum
from collections.abc import Iterable

from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import checksums
from acstor_common.model import ids


class KeepClass(enum.IntEnum):
    """Priority of a chunk; the numbers are stored in the slab files."""

    BORROWED = 0  # available from other hosts
    HOME = 1  # this host is its home: other hosts read it here
    PREFETCHED = 2  # in a boot image that was prefetched
    BOOT = 3  # a running instance needs it to boot


CLASSES = tuple(KeepClass)
PINNED = len(CLASSES)
"""Rank of a pinned chunk; that of others is their class. Not stored in slab files."""

Data = bytes | bytearray | memoryview  # a chunk's bytes in memory; immutable by convention


class Slab:
    """One slab file: slots of one size."""

    def __init__(self, number: int, layout: cache_slab.SlabLayout, group: "SizeGroup") -> None:
        self.number = number
        self.layout = layout
        self.group = group
        self.data_offset = layout.data_offset
        self.sums_offset = layout.sums_offset
        self.sums_bytes = checksums.table_bytes(layout.slot_bytes)
        self.slots: list[Slot | None] = [None] * layout.slot_count
        self.free = list(range(layout.slot_count - 1, -1, -1))  # pop() returns them in order
        self.held = 0
        self.class_counts = [0] * (PINNED + 1)  # by rank
        self.used_at = 0

    @property
    def eviction_rank(self) -> tuple[int, int]:
        """Highest rank in it, then its last use; the least slab is evicted first."""
        dearest = max((rank for rank in range(PINNED + 1) if self.class_counts[rank]), default=-1)
        return dearest, self.used_at


class Slot:
    """One chunk in the cache, and its position."""

    __slots__ = (
        "cid",
        "data",
        "frequency",
        "holds",
        "is_bad_block",
        "is_gone",
        "is_parked",
        "is_pinned",
        "keep_class",
        "length",
        "offset",
        "order",
        "sequence",
        "slab",
        "slot_no",
        "used_at",
    )

    def __init__(
        self, cid: ids.Cid, length: int, keep_class: KeepClass, slab: Slab, slot_no: int
    ) -> None:
        self.cid = cid
        self.length = length
        self.keep_class = keep_class
        self.slab = slab
        self.slot_no = slot_no
        self.order = slab.group.orders[keep_class]
        self.offset = slab.data_offset + slot_no * slab.layout.slot_bytes  # in the slab file
        self.data: Data | None = None  # until the bytes are in the file
        self.is_gone = False  # no longer in the cache; its holder must look the CID up again
        self.is_parked = False
        self.is_pinned = False
        self.is_bad_block = False
        self.holds = 0
        self.frequency = 1
        self.sequence = 0
        self.used_at = 0


class Order(abc.ABC):
    """Eviction order of the slots of one size and one class, with operations in constant time."""

    @abc.abstractmethod
    def add(self, slot: Slot) -> None:
        """Add a slot that was just stored."""

    def add_all(self, slots: Iterable[Slot]) -> None:
        """Add slots that were just stored, in their order."""
        for slot in slots:
            self.add(slot)

    @abc.abstractmethod
    def note_use(self, slot: Slot) -> None:
        """Record a use; a parked slot, which is not in the order, is allowed."""

    def touch_all(self, slots: Iterable[Slot]) -> None:
        """Record a use of each slot."""
        for slot in slots:
            self.note_use(slot)

    @abc.abstractmethod
    def remove(self, slot: Slot) -> None:
        """Remove a slot that is in the order."""

    @abc.abstractmethod
    def put_back(self, slot: Slot) -> None:
        """Add a slot that was parked."""

    @abc.abstractmethod
    def demote(self, slot: Slot) -> None:
        """Make a slot of the order the next victim, until it is used again."""

    @abc.abstractmethod
    def next_victim(self) -> Slot | None:
        """Return the slot to evict next."""


class LruOrder(Order):
    """Least recently used first."""

    def __init__(self) -> None:
        self._slots: collections.OrderedDict[Slot, None] = collections.OrderedDict()

    def add(self, slot: Slot) -> None:
        """Add the newest slot."""
        self._slots[slot] = None

    def add_all(self, slots: Iterable[Slot]) -> None:
        """Add the newest slots."""
        self._slots.update(dict.fromkeys(slots))

    def note_use(self, slot: Slot) -> None:
        """Make ``slot`` the last to go."""
        if not slot.is_parked:
            self._slots.move_to_end(slot)

    def touch_all(self, slots: Iterable[Slot]) -> None:
        """Make slots the last victims, in their order."""
        move = self._slots.move_to_end
        for slot in slots:
            if not slot.is_parked:
                move(slot)

    def remove(self, slot: Slot) -> None:
        """Forget ``slot``."""
        del self._slots[slot]

    def put_back(self, slot: Slot) -> None:
        """Make ``slot`` the last to go: it was in use until now."""
        self._slots[slot] = None

    def demote(self, slot: Slot) -> None:
        """Make ``slot`` the next victim."""
        self._slots.move_to_end(slot, last=False)

    def next_victim(self) -> Slot | None:
        """Return the slot that was used or stored longest ago."""
        return next(iter(self._slots), None)


class SizeGroup:
    """All slabs with slots of one size."""

    def __init__(self, layout: cache_slab.SlabLayout, policy: type[Order]) -> None:
        self.layout = layout  # of the next slab; older slabs may have other slot counts
        self.orders = tuple(policy() for _ in CLASSES)
        self.chunks = [0] * (PINNED + 1)  # by rank
        self.with_free: dict[Slab, None] = {}
        self.evictions = 0

    def take_free(self, count: int) -> tuple[Slab, list[int]]:
        """Take up to ``count`` adjacent slots of one slab; the group has free slots."""
        slab = next(iter(self.with_free))
        numbers = slab.free[: -count - 1 : -1]
        del slab.free[-len(numbers) :]
        if not slab.free:
            del self.with_free[slab]
        return slab, numbers

    def put_free(self, slab: Slab, slot_no: int) -> None:
        """Return a slot of a slab to the free ones."""
        slab.free.append(slot_no)
        self.with_free[slab] = None

    def next_victim(self, newcomer_rank: int) -> Slot | None:
        """Return the next victim for a newcomer's rank; park held slots on the way."""
        has_cheaper = False
        for keep_class, order in zip(CLASSES, self.orders, strict=True):
            if has_cheaper and keep_class > newcomer_rank:  # even if all of a lower class are held
                return None
            while (slot := order.next_victim()) is not None:
                if not slot.holds:
                    return slot
                order.remove(slot)
                slot.is_parked = True
            has_cheaper = has_cheaper or self.chunks[keep_class] > 0
        return None

    def rank_bound(self, newcomer_rank: int, victim: Slot | None) -> tuple[int, int]:
        """Return the eviction rank below which a slab of another size may be evicted."""
        if victim is not None:
            return victim.keep_class, victim.used_at
        if any(self.chunks):
            return newcomer_rank + 1, 0
        return len(CLASSES), 0
