# SPDX-License-Identifier: Apache-2.0
"""Chunks and bytes of the public cache by class, and those that are pinned."""

from acstor_agent.core.cache import cache_slot


class ClassUsage:
    """Totals of the whole cache; the slabs and their size groups count by rank."""

    def __init__(self) -> None:
        self.class_chunks = [0] * len(cache_slot.CLASSES)  # pinned chunks included
        self.class_bytes = [0] * len(cache_slot.CLASSES)
        self.pinned_chunks = self.pinned_bytes = 0

    def count(self, slot: cache_slot.Slot, delta: int) -> None:
        """Add ``delta`` chunks of the slot's length, class and rank."""
        slab, keep_class = slot.slab, slot.keep_class
        rank = cache_slot.PINNED if slot.is_pinned else keep_class
        slab.group.chunks[rank] += delta
        slab.class_counts[rank] += delta
        self.class_chunks[keep_class] += delta
        self.class_bytes[keep_class] += delta * slot.length
        if slot.is_pinned:
            self.pinned_chunks += delta
            self.pinned_bytes += delta * slot.length
