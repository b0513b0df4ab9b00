# SPDX-License-Identifier: Apache-2.0
"""The slab files of the public cache: their total size and eviction order."""

import operator
from collections.abc import Iterable
from collections.abc import Iterator

from acstor_agent.core.cache import cache_actions
from acstor_agent.core.cache import cache_pins
from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import cache_slot


class Slabs:
    """The slabs by number, and grouped by slot size."""

    def __init__(
        self,
        limit_bytes: int,
        slab_bytes: int,
        policy: type[cache_slot.Order],
        pins: cache_pins.Pins,
    ) -> None:
        self.limit_bytes, self.slab_bytes = limit_bytes, min(slab_bytes, limit_bytes)
        self.disk_bytes = 0
        self.groups: dict[int, cache_slot.SizeGroup] = {}
        self._policy, self._pins = policy, pins
        self._ceiling_bytes = limit_bytes
        self._slabs: dict[int, cache_slot.Slab] = {}

    def __len__(self) -> int:
        return len(self._slabs)

    def __iter__(self) -> Iterator[cache_slot.Slab]:
        return iter(self._slabs.values())

    def __contains__(self, slab: cache_slot.Slab) -> bool:
        """Return whether this very object is stored, not another slab with its number."""
        return self._slabs.get(slab.number) is slab

    def get(self, number: int) -> cache_slot.Slab | None:
        """Return a slab by its number."""
        return self._slabs.get(number)

    def size_group(self, slot_bytes: int) -> cache_slot.SizeGroup:
        """Return the group of slots of one size; create it if needed."""
        group = self.groups.get(slot_bytes)
        if group is None:
            layout = cache_slab.SlabLayout.largest_within(self.slab_bytes, slot_bytes)
            group = self.groups[slot_bytes] = cache_slot.SizeGroup(layout, self._policy)
        return group

    def groups_from(self, slot_bytes: int) -> list[cache_slot.SizeGroup]:
        """Return the groups of slots of this size and larger ones, the smallest first."""
        larger = sorted(size for size in self.groups if size > slot_bytes)
        return [self.size_group(size) for size in (slot_bytes, *larger)]

    def can_store_pinned(self, slot_bytes: int) -> bool:
        """Return whether a slot of this size or a larger one is free or can be freed for a pin."""
        return any(map(self._can_free_slot, self.groups_from(slot_bytes)))

    def _can_free_slot(self, group: cache_slot.SizeGroup) -> bool:
        if group.with_free or not group.layout.slot_count:
            return bool(group.with_free)
        if self.surplus_bytes(group.layout) <= 0:
            return True
        return bool(group.next_victim(cache_slot.PINNED) or self.victims_for(group.layout))

    def add(self, group: cache_slot.SizeGroup) -> cache_slot.Slab:
        """Create a slab with free slots."""
        number = next(n for n in range(len(self._slabs) + 1) if n not in self._slabs)
        slab = cache_slot.Slab(number, group.layout, group)
        self._enter(slab)
        group.with_free[slab] = None
        return slab

    def _enter(self, slab: cache_slot.Slab) -> None:
        self._slabs[slab.number] = slab
        self.disk_bytes += slab.layout.file_bytes

    def remove(self, slab: cache_slot.Slab) -> None:
        """Forget a slab; the caller handles its chunks."""
        del self._slabs[slab.number]
        slab.group.with_free.pop(slab, None)
        self.disk_bytes -= slab.layout.file_bytes

    def surplus_bytes(self, layout: cache_slab.SlabLayout) -> int:
        """Return how far one more slab would exceed the limit; at most 0 if it fits."""
        return self.disk_bytes + layout.file_bytes - self._ceiling_bytes

    def stop_growing(self) -> None:
        """Set the limit to the present size until :meth:`grow_again`."""
        self._ceiling_bytes = self.disk_bytes

    def grow_again(self) -> None:
        """Restore the configured limit."""
        self._ceiling_bytes = self.limit_bytes

    def victims_for(self, layout: cache_slab.SlabLayout) -> list[cache_slot.Slab]:
        """Return slabs of other slot sizes to evict for a ``layout``, cheapest first, or none."""
        others = (s for s in self if s.layout.slot_bytes != layout.slot_bytes)
        victims = []
        surplus = self.surplus_bytes(layout)
        for slab in _evictable(others):
            victims.append(slab)
            surplus -= slab.layout.file_bytes
            if surplus <= 0:
                return victims
        return []

    def victims_over_limit(self) -> list[cache_slot.Slab]:
        """Return the slabs to evict to meet the limit, cheapest first."""
        surplus, victims = self.disk_bytes - self.limit_bytes, []
        for slab in _evictable(self):
            if surplus <= 0:
                break
            surplus -= slab.layout.file_bytes
            victims.append(slab)
        return victims

    def restore_slabs(
        self, found: Iterable[cache_actions.FoundSlab]
    ) -> tuple[list[tuple[cache_slot.Slab, list[cache_slab.SlotRecord]]], list[cache_slot.Slab]]:
        """Add slabs of a former run once, when empty, the most valuable first.

        :return: added slabs with their records, and slabs over the limit, without pinned chunks
        """
        found = list(found)
        pinned = {found_slab.number for found_slab in found if self._has_pinned(found_slab)}
        free_bytes, kept, excess = self.limit_bytes, [], []
        by_value = sorted(
            found,
            key=lambda found_slab: (found_slab.number in pinned, *_value(found_slab)),
            reverse=True,
        )
        for found_slab in by_value:
            slab = cache_slot.Slab(
                found_slab.number, found_slab.layout, self.size_group(found_slab.layout.slot_bytes)
            )
            if found_slab.layout.file_bytes > free_bytes and found_slab.number not in pinned:
                excess.append(slab)
                continue
            free_bytes -= found_slab.layout.file_bytes
            self._enter(slab)
            kept.append((slab, found_slab.records))
        return kept, excess

    def restore_free_lists(self) -> None:
        """Rebuild the free lists; call it when the slots of restored slabs are set."""
        for slab in self:
            slab.free = [slot_no for slot_no in slab.free if slab.slots[slot_no] is None]
            if slab.free:
                slab.group.with_free[slab] = None

    def _has_pinned(self, slab: cache_actions.FoundSlab) -> bool:
        return bool(self._pins) and any(record.cid in self._pins for record in slab.records)


def _value(slab: cache_actions.FoundSlab) -> tuple[int, int]:
    classes = (record.keep_class for record in slab.records)
    sequences = (record.sequence for record in slab.records)
    return max(classes, default=-1), max(sequences, default=0)


def _evictable(slabs: Iterable[cache_slot.Slab]) -> list[cache_slot.Slab]:
    evictable = (s for s in slabs if not s.held and not s.class_counts[cache_slot.PINNED])
    return sorted(evictable, key=operator.attrgetter("eviction_rank"))
