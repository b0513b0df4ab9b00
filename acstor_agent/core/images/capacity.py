# SPDX-License-Identifier: Apache-2.0
"""Cache capacity that images need, and images to evict; shared contents count once."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

from acstor_agent.core.cache import cache_pins
from acstor_agent.core.cache import cache_slab
from acstor_common.model import ids

Contents = Mapping[ids.Cid, int]  # contents of an image, each once, with their lengths
Slots = Mapping[int, int]  # number of cache slots, by their sizes


def slots_of(contents: Contents, pins: cache_pins.Pins) -> dict[int, int]:
    """Return the slots of each size for those contents that are not pinned yet."""
    fresh = (length for cid, length in contents.items() if cid not in pins)
    return dict(collections.Counter(map(cache_slab.slot_bytes_for, fresh)))


def images_to_evict(
    contents: Contents,
    kept: Iterable[tuple[ids.ImageId, Iterable[Contents]]],  # candidates, with pinned contents
    pins: cache_pins.Pins,
    lacking_bytes: Callable[[Slots], int],
) -> list[ids.ImageId]:
    """Return the images to evict, in order, as few as needed; none if all were not enough."""
    slots = collections.Counter(pins.slot_counts)
    slots.update(slots_of(contents, pins))
    taken: collections.Counter[ids.Cid] = collections.Counter()
    freed: set[ids.Cid] = set()
    found: dict[ids.ImageId, set[ids.Cid]] = {}
    for image_id, parts in kept:
        if not lacking_bytes(slots):
            break
        found[image_id] = set()
        for part in parts:
            for cid, length in part.items():
                taken[cid] += 1
                found[image_id].add(cid)
                if taken[cid] == pins.pin_count(cid) and cid not in contents:
                    freed.add(cid)
                    slots[cache_slab.slot_bytes_for(length)] -= 1
    if lacking_bytes(slots):
        return []
    return [image_id for image_id, cids in found.items() if not cids.isdisjoint(freed)]
