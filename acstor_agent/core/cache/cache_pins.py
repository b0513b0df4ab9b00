# SPDX-License-Identifier: Apache-2.0
"""What shall stay in the public cache, counted by content: images share chunks.

A pin says that a chunk shall be here, whether it is here or not.  So a pin does not
go when its chunk is lost, and whoever brings a pinned chunk need not know of it.
"""

import collections
import math
from collections.abc import Mapping

from acstor_agent.core.cache import cache_slab
from acstor_common.model import ids

SPARED = 10
"""One part of so many of the limit is left to what is not pinned."""


class Pins:
    """The pinned contents.

    ``beyond_bytes`` is how far the cache may grow beyond its limit for them; with ``may_grow`` that
    is as far as it takes for each to find room.

    >>> pins, cid = Pins(), ids.Cid(bytes([1]) * 32)
    >>> pins.add(cid, 65536), pins.add(cid, 65536)
    (True, False)
    >>> pins.remove(cid, 65536), cid in pins, pins.remove(cid, 65536), cid in pins
    (False, True, True, False)
    """

    def __init__(self) -> None:
        self.beyond_bytes, self.may_grow = 0, False
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
    def slots(self) -> Mapping[int, int]:
        """Return how many slots of each size the pinned chunks take, missing ones too."""
        return self._slots

    @property
    def slot_bytes(self) -> int:
        """Return how many bytes these slots take."""
        return sum(size * count for size, count in self._slots.copy().items())

    def add(self, cid: ids.Cid, length: int) -> bool:
        """Pin a content once more; say whether it was not pinned before."""
        count = self._counts.get(cid, 0)
        self._counts[cid] = count + 1
        if not count:
            self._slots[cache_slab.slot_bytes_for(length)] += 1
        return not count

    def remove(self, cid: ids.Cid, length: int) -> bool:
        """Take one pin of a content back; say whether that was the last.

        :raises KeyError: it is not pinned
        """
        self._counts[cid] -= 1
        if self._counts[cid]:
            return False
        del self._counts[cid]
        self._slots[cache_slab.slot_bytes_for(length)] -= 1
        return True


def lacking_bytes(slots: Mapping[int, int], limit_bytes: int, slab_bytes: int) -> int:
    """Return how many bytes a cache lacks to keep so many slots of each size; 0 if it has room.

    Each size has slabs of its own as long as there is room for them; what is left over then, as the
    last chunks of images, finds room in larger slots.  Chunks that come in an unlucky order may
    lack more: small ones that came first have slabs that larger ones need, and others' chunks
    spread the pinned ones over more slabs than they fill.

    >>> lacking_bytes({65536: 100}, limit_bytes=8 << 20, slab_bytes=1 << 20)
    0
    >>> lacking_bytes({65536: 1000}, limit_bytes=8 << 20, slab_bytes=1 << 20) > 50 << 20
    True
    """
    file_bytes, used_bytes, left_bytes = 0, 0.0, limit_bytes
    free = homeless = 0  # slots of larger sizes, and chunks for which there are none
    for slot_bytes in sorted((size for size, count in slots.items() if count), reverse=True):
        layout, count = (
            cache_slab.SlabLayout.largest_within(slab_bytes, slot_bytes),
            slots[slot_bytes],
        )
        if not layout.slot_count:
            return slot_bytes * count  # no slab can have such a slot
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
