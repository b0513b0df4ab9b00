# SPDX-License-Identifier: Apache-2.0
"""Slots and slabs of the public cache, and in which order slots make room.

A policy is an :class:`Order`: each operation takes constant time.  An order
knows nothing of classes, limits or files; public_cache.py does.
"""

import abc
import collections
import enum
from collections.abc import Iterable

from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import checksums
from acstor_common.model import ids


class KeepClass(enum.IntEnum):
    """How dear a chunk is; the numbers are stored in the slab files."""

    BORROWED = 0  # anybody else can give it again
    HOME = 1  # this host is its home: others come here for it
    AHEAD = 2  # part of a boot image that was brought before any guest here asked for it
    BOOT = 3  # a running instance needs it to boot


CLASSES = tuple(KeepClass)
PINNED = len(CLASSES)
"""The rank of a chunk that shall stay; the others' is their class.  No slab file knows it."""

Data = bytes | bytearray | memoryview
"""A chunk's bytes in memory; nobody changes them."""


class Slab:
    """One slab file: slots of one size."""

    __slots__ = (
        "class_counts",
        "data_offset",
        "free",
        "group",
        "held",
        "layout",
        "number",
        "slots",
        "sums_bytes",
        "sums_offset",
        "used_at",
    )

    def __init__(self, number: int, layout: cache_slab.SlabLayout, group: "SizeGroup") -> None:
        self.number = number
        self.layout = layout
        self.group = group
        self.data_offset = layout.data_offset
        self.sums_offset = layout.sums_offset
        self.sums_bytes = checksums.table_bytes(layout.slot_bytes)  # of one slot
        self.slots: list[Slot | None] = [None] * layout.slot_count
        self.free = list(range(layout.slot_count - 1, -1, -1))  # pop() gives neighbours in order
        self.held = 0  # slots that are held
        self.class_counts = [0] * (PINNED + 1)  # by rank
        self.used_at = 0

    @property
    def value(self) -> tuple[int, int]:
        """The dearest class in it, then its last use; the least is given up first."""
        dearest = max((rank for rank in range(PINNED + 1) if self.class_counts[rank]), default=-1)
        return dearest, self.used_at


class Slot:
    """One chunk in the cache, and where its bytes lie.

    ``data`` is set as long as the bytes are not in the file yet.  ``offset`` is
    the chunk's first byte in the slab file.  A slot that ``is_gone`` is no
    longer in the cache; whoever still has it must look the CID up again.
    """

    __slots__ = (
        "cid",
        "data",
        "frequency",
        "holds",
        "is_gone",
        "is_parked",
        "is_pinned",
        "is_place_bad",
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
        self,
        cid: ids.Cid,
        length: int,
        keep_class: KeepClass,
        slab: Slab,
        slot_no: int,
    ) -> None:
        self.cid = cid
        self.length = length
        self.keep_class = keep_class
        self.slab = slab
        self.slot_no = slot_no
        self.order = slab.group.orders[keep_class]
        self.offset = slab.data_offset + slot_no * slab.layout.slot_bytes
        self.data: Data | None = None
        self.is_gone = False
        self.is_parked = False
        self.is_pinned = False
        self.is_place_bad = False
        self.holds = 0
        self.frequency = 1
        self.sequence = 0
        self.used_at = 0


class Order(abc.ABC):
    """In which order the slots of one size and one class make room."""

    @abc.abstractmethod
    def add(self, slot: Slot) -> None:
        """Take in a slot that was just stored."""

    def add_all(self, slots: Iterable[Slot]) -> None:
        """Take in slots that were just stored, in their order."""
        for slot in slots:
            self.add(slot)

    @abc.abstractmethod
    def note_use(self, slot: Slot) -> None:
        """Note a use; a parked slot is not in the order and that is no error."""

    def touch_all(self, slots: Iterable[Slot]) -> None:
        """Note a use of each of some slots."""
        for slot in slots:
            self.note_use(slot)

    @abc.abstractmethod
    def remove(self, slot: Slot) -> None:
        """Forget a slot that is in the order."""

    @abc.abstractmethod
    def put_back(self, slot: Slot) -> None:
        """Take back a slot that was parked."""

    @abc.abstractmethod
    def demote(self, slot: Slot) -> None:
        """Make a slot that is in the order the first to go, until it is used again."""

    @abc.abstractmethod
    def next_victim(self) -> Slot | None:
        """Return the slot that makes room first."""


class LruOrder(Order):
    """Least recently used first."""

    def __init__(self) -> None:
        self._slots: collections.OrderedDict[Slot, None] = collections.OrderedDict()

    def add(self, slot: Slot) -> None:
        """Take in the newest slot."""
        self._slots[slot] = None

    def add_all(self, slots: Iterable[Slot]) -> None:
        """Take in the newest slots."""
        self._slots.update(dict.fromkeys(slots))

    def note_use(self, slot: Slot) -> None:
        """Make ``slot`` the last to go."""
        if not slot.is_parked:
            self._slots.move_to_end(slot)

    def touch_all(self, slots: Iterable[Slot]) -> None:
        """Make slots the last to go, in their order."""
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
        self.layout = layout  # of the next slab; older ones may have other slot counts
        self.orders = tuple(policy() for _ in CLASSES)
        self.chunks = [0] * (PINNED + 1)  # by rank
        self.with_free: dict[Slab, None] = {}
        self.evictions = 0

    def next_victim(self, newcomer: int) -> Slot | None:
        """Return the slot that makes room next for a rank, parking held ones on the way.

        Cheaper chunks that are only held just now do not expose those dearer than the newcomer.
        """
        has_cheaper = False
        for keep_class, order in zip(CLASSES, self.orders, strict=True):
            if has_cheaper and keep_class > newcomer:
                return None
            while (slot := order.next_victim()) is not None:
                if not slot.holds:
                    return slot
                order.remove(slot)
                slot.is_parked = True
            has_cheaper = has_cheaper or self.chunks[keep_class] > 0
        return None
