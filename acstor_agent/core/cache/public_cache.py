# SPDX-License-Identifier: Apache-2.0
"""Index of the public cache: the slot of each chunk, and evictions.

A slot that is held (its bytes are being read or written) or pinned is never reused. A victim comes
from the lowest class that has one, by policy within the class. Operations take constant time, but
the creation of a slab examines all slabs. A held victim is *parked* outside its order until its
release, so no search passes it twice; a pinned slot is parked while it is pinned.
"""

import operator
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import KeysView
from collections.abc import Mapping
from collections.abc import Sequence

from acstor_agent.core.cache import cache_actions
from acstor_agent.core.cache import cache_pins
from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import cache_slot
from acstor_agent.core.cache import class_usage
from acstor_agent.core.cache import slabs
from acstor_common import errors
from acstor_common.model import ids

KeepClass = cache_slot.KeepClass

BOOT_SHARES = {KeepClass.BOOT: 4, KeepClass.PREFETCHED: 8}
"""Each class gets at most this fraction (1/n) of the limit. A boot image has 2 to 3 % of its
image's bytes."""


class PublicCache:
    """Index of one public cache."""

    def __init__(
        self,
        limit_bytes: int,  # of all slab files together
        slab_bytes: int,  # of one slab file
        order: type[cache_slot.Order] = cache_slot.LruOrder,  # of evictions within a class
        pins: cache_pins.Pins | None = None,  # from then on only this cache changes them
    ) -> None:
        self.limit_bytes = limit_bytes
        self.pins = cache_pins.Pins() if pins is None else pins
        self.usage = class_usage.ClassUsage()
        self.pinned_lost = 0  # number of losses of pinned chunks; never decreases
        self.evictions = 0
        self.gone: Callable[[ids.Cid], object] = lambda cid: None
        self._index: dict[ids.Cid, cache_slot.Slot] = {}
        self._slabs = slabs.Slabs(limit_bytes, slab_bytes, order, self.pins)
        self._tick = 0

    def __contains__(self, cid: object) -> bool:
        return cid in self._index

    def __len__(self) -> int:
        return len(self._index)

    @property
    def disk_bytes(self) -> int:
        """Length of all slab files."""
        return self._slabs.disk_bytes

    @property
    def slab_count(self) -> int:
        """Number of slab files."""
        return len(self._slabs)

    @property
    def contents(self) -> KeysView[ids.Cid]:
        """A live view of the CIDs of all chunks."""
        return self._index.keys()

    def cids(self) -> list[ids.Cid]:
        """Return the CIDs of all chunks, in no particular order."""
        return list(self._index)

    def lookup(self, cid: ids.Cid) -> cache_slot.Slot | None:
        """Return the slot of ``cid``; counts as a use."""
        slot = self._index.get(cid)
        if slot is not None:
            self._tick = slot.used_at = slot.slab.used_at = self._tick + 1
            slot.order.note_use(slot)
        return slot

    def lookup_all(self, cids: Sequence[ids.Cid]) -> list[cache_slot.Slot | None]:
        """Return the slots of CIDs; counts as a use of each."""
        found = [*map(self._index.get, cids)]
        order: cache_slot.Order | None = None
        used: list[cache_slot.Slot] = []
        for slot in found:
            if slot is None:
                continue
            self._tick = slot.used_at = slot.slab.used_at = self._tick + 1
            if slot.order is not order:
                if order is not None:
                    order.touch_all(used)
                order, used = slot.order, []
            used.append(slot)
        if order is not None:
            order.touch_all(used)
        return found

    def slot_of(self, cid: ids.Cid) -> cache_slot.Slot | None:
        """Return the slot of ``cid``, without counting a use."""
        return self._index.get(cid)

    def allocate_slot(
        self, cid: ids.Cid, length: int, keep_class: KeepClass
    ) -> cache_actions.Placement:
        """Allocate a slot for a chunk that is not in the cache, evicting if needed.

        :raises errors.CacheFull: all possible victims are held
        :raises ValueError: no chunk has this length, or the chunk is in the cache
        """
        if cid in self._index:
            raise ValueError(f"chunk {cid.hex()} has a slot already")
        slot_bytes = cache_slab.slot_bytes_for(length)
        if cid in self.pins:
            group, actions = self._room_for_pinned(slot_bytes)
        else:
            group = self._slabs.size_group(slot_bytes)
            actions = [] if group.with_free else self._make_room(group, keep_class)
        slab, [slot_no] = group.take_free(1)
        slot = cache_slot.Slot(cid, length, keep_class, slab, slot_no)
        self._tick = slot.sequence = slot.used_at = slab.used_at = self._tick + 1
        self._list(slot)
        return cache_actions.Placement(slot, actions)

    def allocate_adjacent(
        self, cids: Sequence[ids.Cid], length: int, keep_class: KeepClass
    ) -> list[cache_slot.Slot]:
        """Allocate adjacent free slots of one slab to as many of the first chunks as it has.

        :return: their slots; empty if any chunk is cached, pinned or repeated
        """
        group = self._slabs.size_group(cache_slab.slot_bytes_for(length))
        if not group.with_free or len(set(cids)) < len(cids):
            return []
        if not self._index.keys().isdisjoint(cids):
            return []
        if len(self.pins) and any(map(self.pins.__contains__, cids)):
            return []
        if ids.ZERO_CID in cids:
            return []
        slab, numbers = group.take_free(len(cids))
        slots = [
            cache_slot.Slot(cid, length, keep_class, slab, slot_no)
            for cid, slot_no in zip(cids, numbers, strict=False)
        ]
        for tick, slot in enumerate(slots, self._tick + 1):
            slot.sequence = slot.used_at = tick
            slab.slots[slot.slot_no] = self._index[slot.cid] = slot
        slots[0].order.add_all(slots)
        self._tick = slab.used_at = self._tick + len(slots)
        self.usage.count(slots[0], len(slots))
        return slots

    def can_store_pinned(self, length: int) -> bool:
        """Return whether a pinned chunk of this length would get a slot now."""
        return self._slabs.can_store_pinned(cache_slab.slot_bytes_for(length))

    def _room_for_pinned(
        self, slot_bytes: int
    ) -> tuple[cache_slot.SizeGroup, list[cache_actions.SlabAction]]:
        for group in self._slabs.groups_from(slot_bytes):
            try:
                return group, [] if group.with_free else self._make_room(group, cache_slot.PINNED)
            except errors.CacheFull as e:
                full = e
        raise full

    def pin_chunk(self, cid: ids.Cid, length: int) -> None:
        """Pin a chunk, present or not."""
        slot = self._index.get(cid)
        if slot is not None and cid not in self.pins:
            self._leave_class(slot)
            self.pins.add(cid, length)
            self._enter_class(slot)
        else:
            self.pins.add(cid, length)

    def unpin_chunk(self, cid: ids.Cid, length: int) -> None:
        """Undo one :meth:`pin_chunk`."""
        slot = self._index.get(cid)
        if slot is not None:
            self._leave_class(slot)
            self.pins.remove(cid, length)
            self._enter_class(slot)
        else:
            self.pins.remove(cid, length)

    def lacking_bytes(self, added_slots: Mapping[int, int]) -> int:
        """Return the bytes that the limit lacks for all pins and added slots by size."""
        sizes = self.pins.slot_counts.keys() | added_slots.keys()
        slots = {
            size: self.pins.slot_counts.get(size, 0) + added_slots.get(size, 0) for size in sizes
        }
        return cache_pins.lacking_bytes(slots, self.limit_bytes, self._slabs.slab_bytes)

    def shrink_to_limit(self) -> list[cache_actions.SlabAction]:
        """Evict slabs, cheapest first, until the limit is met."""
        actions: list[cache_actions.SlabAction] = []
        for slab in self._slabs.victims_over_limit():
            self.evictions += self._give_up(slab)
            actions.append(cache_actions.RemoveSlab(slab))
        return actions

    def promote_chunk(self, slot: cache_slot.Slot, keep_class: KeepClass) -> bool:
        """Raise the slot's class to ``keep_class``; return whether it was lower."""
        if slot.is_gone or slot.keep_class >= keep_class:
            return False
        self._change_class(slot, keep_class)
        return True

    def bound_boot(self) -> None:
        """Demote the least recent chunks of boot classes beyond BOOT_SHARES, until a restart."""
        for keep_class, part in BOOT_SHARES.items():
            while self.usage.class_bytes[keep_class] > self.limit_bytes // part:
                orders = (group.orders[keep_class] for group in self._slabs.groups.values())
                first = min(
                    filter(None, (order.next_victim() for order in orders)),
                    key=operator.attrgetter("used_at"),
                    default=None,
                )
                if first is None:
                    break  # the others are pinned or held
                self._change_class(first, KeepClass.BORROWED)

    def demote_chunk(self, slot: cache_slot.Slot) -> bool:
        """Make a BORROWED chunk the next victim, until it is used."""
        if slot.is_gone or slot.keep_class is not KeepClass.BORROWED:
            return False
        if not slot.is_parked:
            slot.order.demote(slot)
        return True

    def hold_slot(self, slot: cache_slot.Slot) -> None:
        """Hold a slot, so it is not reused; calls are counted."""
        self.hold_all((slot,))

    def hold_all(self, slots: Iterable[cache_slot.Slot]) -> None:
        """Hold each slot."""
        for slot in slots:
            slot.holds += 1
            if slot.holds == 1:
                slot.slab.held += 1

    def release_all(self, slots: Iterable[cache_slot.Slot]) -> None:
        """Undo one :meth:`hold_slot` of each slot."""
        for slot in slots:
            if slot.holds > 1 or slot.is_gone or slot.is_parked:
                self.release(slot)
            else:
                slot.holds = 0
                slot.slab.held -= 1

    def release(self, slot: cache_slot.Slot) -> None:
        """Undo one :meth:`hold_slot`."""
        slot.holds -= 1
        if slot.holds:
            return
        slot.slab.held -= 1
        if slot.is_gone:
            self._free(slot)
        elif slot.is_parked and not slot.is_pinned:
            slot.is_parked = False
            slot.order.put_back(slot)

    def drop_chunk(self, slot: cache_slot.Slot, is_bad_block: bool = False) -> None:
        """Remove a chunk; its slot is free once it is not held, or never if ``is_bad_block``."""
        slot.is_bad_block = slot.is_bad_block or is_bad_block
        if slot.is_gone:
            return
        self._unlist(slot)
        if not slot.holds:
            self._free(slot)

    def lose_slab(self, slab: cache_slot.Slab) -> None:
        """Forget a slab whose file could not be created, and stop growing."""
        self._give_up(slab)
        self._slabs.stop_growing()

    def forget_slab(self, slab: cache_slot.Slab) -> None:
        """Forget a slab whose file is gone, with all its chunks; no slot of it is held."""
        self._give_up(slab)

    def slab_by_number(self, number: int) -> cache_slot.Slab | None:
        """Return a slab by its number."""
        return self._slabs.get(number)

    def grow_again(self) -> None:
        """Allow growth up to the limit again, after :meth:`lose_slab`."""
        self._slabs.grow_again()

    def replace_contents(self, other: "PublicCache") -> None:
        """Replace the contents of this empty cache by those of ``other``; keep ``gone``."""
        gone, lost = self.gone, self.pinned_lost
        self.__dict__.update(other.__dict__)
        self.gone, self.pinned_lost = gone, lost + 1  # chunks of the former contents may be missing

    def restore_slabs(
        self, found: Iterable[cache_actions.FoundSlab]
    ) -> list[cache_actions.SlabAction]:
        """Load slabs of a former run, once, when empty; return removals of those over the limit."""
        taken, left = self._slabs.restore_slabs(found)
        entries = [(record, slab) for slab, records in taken for record in records]
        entries.sort(key=lambda entry: entry[0].sequence)  # of two with one CID the newer counts
        for record, slab in entries:
            self._restore_slot(record, slab)
        self._slabs.restore_free_lists()
        return [cache_actions.RemoveSlab(slab) for slab in left]

    def _restore_slot(self, record: cache_slab.SlotRecord, slab: cache_slot.Slab) -> None:
        slot_no, cid, sequence, length, keep_class = record
        older = self._index.get(cid)
        if older is not None:
            self._unlist(older)
        slot = cache_slot.Slot(cid, length, cache_slot.CLASSES[keep_class], slab, slot_no)
        slot.sequence = slot.used_at = slab.used_at = self._tick = sequence
        self._list(slot)

    def _enter_class(self, slot: cache_slot.Slot) -> None:
        slot.is_parked = slot.is_pinned = slot.cid in self.pins
        if not slot.is_parked:
            slot.order.add(slot)
        self.usage.count(slot, 1)

    def _change_class(self, slot: cache_slot.Slot, keep_class: KeepClass) -> None:
        self._leave_class(slot)
        slot.keep_class = keep_class
        slot.order = slot.slab.group.orders[keep_class]
        self._enter_class(slot)

    def _leave_class(self, slot: cache_slot.Slot) -> None:
        if not slot.is_parked:
            slot.order.remove(slot)
        self.usage.count(slot, -1)

    def _list(self, slot: cache_slot.Slot) -> None:
        self._index[slot.cid] = slot
        slot.slab.slots[slot.slot_no] = slot
        self._enter_class(slot)

    def _unlist(self, slot: cache_slot.Slot) -> None:
        self._leave_class(slot)
        self.pinned_lost += slot.is_pinned
        del self._index[slot.cid]
        slot.slab.slots[slot.slot_no] = None
        slot.is_gone = True
        self.gone(slot.cid)

    def _free(self, slot: cache_slot.Slot) -> None:
        slab = slot.slab
        if slab in self._slabs and not slot.is_bad_block:
            slab.group.put_free(slab, slot.slot_no)

    def _make_room(
        self, group: cache_slot.SizeGroup, newcomer_rank: int
    ) -> list[cache_actions.SlabAction]:
        layout = group.layout
        if not layout.slot_count:
            raise errors.CacheFull(
                layout.slot_bytes, self.limit_bytes, "slabs are too small for it"
            )
        if self._slabs.surplus_bytes(layout) <= 0:
            return self._add_slab(group, [])
        victim = group.next_victim(newcomer_rank)
        if victim is None or self._is_time_to_compare(group):
            victims = self._slabs.victims_for(layout)
            if victims and victims[-1].eviction_rank < group.rank_bound(newcomer_rank, victim):
                return self._add_slab(group, victims)
        if victim is None:
            raise errors.CacheFull(layout.slot_bytes, self.limit_bytes, "everything is in use")
        group.evictions += 1
        self.evictions += 1
        self.drop_chunk(victim)
        return []

    def _is_time_to_compare(self, group: cache_slot.SizeGroup) -> bool:
        return len(self._slabs.groups) > 1 and group.evictions % group.layout.slot_count == 0

    def _add_slab(
        self, group: cache_slot.SizeGroup, victims: list[cache_slot.Slab]
    ) -> list[cache_actions.SlabAction]:
        actions: list[cache_actions.SlabAction] = []
        for slab in victims:
            self.evictions += self._give_up(slab)
            actions.append(cache_actions.RemoveSlab(slab))
        return [*actions, cache_actions.MakeSlab(self._slabs.add(group))]

    def _give_up(self, slab: cache_slot.Slab) -> int:
        self._slabs.remove(slab)
        slots = [slot for slot in slab.slots if slot is not None]
        for slot in slots:
            self.drop_chunk(slot)
        return len(slots)
