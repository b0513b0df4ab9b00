# SPDX-License-Identifier: Apache-2.0
"""Pins of the public cache, counted by content, cached or not, because images share chunks."""

import collections
import math
from collections.abc import Mapping

from acstor_agent.core.cache import cache_slab
from acstor_common.model import ids

SPARED = 10  # 1/SPARED of the limit is reserved for chunks that are not pinned


class Pins:
    """The pinned contents.

    >>> pins, cid = Pins(), ids.Cid(bytes([1]) * 32)
    >>> pins.add(cid, 65536), pins.add(cid, 65536)
    (True, False)
    >>> pins.remove(cid, 65536), cid in pins, pins.remove(cid, 65536), cid in pins
    (False, True, True, False)
    """

    def __init__(self) -> None:
        self._counts: dict[ids.Cid, int] = {}
        self._slots: collections.Counter[int] = collections.Counter()

    def __contains__(self, cid: object) -> bool:
        return cid in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    def pin_count(self, cid: ids.Cid) -> int:
        """Return how often a content is pinned."""
        return self._counts.get(cid, 0)

    @property
    def slot_counts(self) -> Mapping[int, int]:
        """Number of slots of each size for the pinned contents, missing ones included."""
        return self._slots

    @property
    def slot_bytes(self) -> int:
        """Bytes of these slots."""
        return sum(size * count for size, count in self._slots.copy().items())

    def add(self, cid: ids.Cid, length: int) -> bool:
        """Pin a content once more; return whether this is its first pin."""
        count = self._counts.get(cid, 0)
        self._counts[cid] = count + 1
        if not count:
            self._slots[cache_slab.slot_bytes_for(length)] += 1
        return not count

    def remove(self, cid: ids.Cid, length: int) -> bool:
        """Remove one pin of a content; return whether that was its last."""
        self._counts[cid] -= 1
        if self._counts[cid]:
            return False
        del self._counts[cid]
        self._slots[cache_slab.slot_bytes_for(length)] -= 1
        return True


def lacking_bytes(slots: Mapping[int, int], limit_bytes: int, slab_bytes: int) -> int:
    """Return the bytes that a cache lacks to keep these slots; 0 if it has capacity.

    Each size gets slabs of its own while the limit allows; the remainder goes into larger slots.
    A lower bound: arrivals and other chunks can spread pinned ones over more slabs.

    >>> lacking_bytes({65536: 100}, limit_bytes=8 << 20, slab_bytes=1 << 20)
    0
    >>> lacking_bytes({65536: 1000}, limit_bytes=8 << 20, slab_bytes=1 << 20) > 50 << 20
    True
    """
    file_bytes, used_bytes, left_bytes = 0, 0.0, limit_bytes
    free = homeless = 0  # slots of larger sizes, and chunks without a slot
    for slot_bytes in sorted((size for size, count in slots.items() if count), reverse=True):
        layout, count = (
            cache_slab.SlabLayout.largest_within(slab_bytes, slot_bytes),
            slots[slot_bytes],
        )
        if not layout.slot_count:
            return slot_bytes * count
        wanted = -(-count // layout.slot_count)
        made = min(wanted, left_bytes // layout.file_bytes)
        left_bytes -= made * layout.file_bytes
        free += made * layout.slot_count - count
        homeless, free = homeless + max(0, -free), max(0, free)
        file_bytes += wanted * layout.file_bytes
        used_bytes += count * layout.file_bytes / layout.slot_count
    may_use_bytes = limit_bytes - limit_bytes // SPARED
    lacking = file_bytes - limit_bytes if homeless else 0
    return max(0, lacking, math.ceil(used_bytes) - may_use_bytes)
