# SPDX-License-Identifier: Apache-2.0
"""Says whether a new trace differs enough from that of a boot image to replace it."""

from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.model import ids

CHANGED_SHARE = 0.05  # a boot image is replaced if at least this share of its chunks changes
NEW_PROFILE_CHUNKS = 16  # or if so many chunks of a new profile come


def without_repeats(
    trace: boot_image.ProfiledTrace, image_map: chunk_map.ChunkMap
) -> boot_image.ProfiledTrace:
    """Return the trace without what a boot image omits: zeros, and data that a part repeats."""
    common: dict[ids.Cid, int] = {ids.ZERO_CID: -1}
    parts: dict[ids.ProfileKey, tuple[int, ...]] = {}
    for key, chunk_nos in trace.parts().items():
        seen = common if key == ids.NO_PROFILE else common.copy()
        for chunk_no in chunk_nos:
            seen.setdefault(image_map.cid_of(chunk_no), chunk_no)
        parts[key] = tuple(n for n in chunk_nos if seen[image_map.cid_of(n)] == n)
    kept = parts.pop(ids.NO_PROFILE)
    return boot_image.ProfiledTrace(kept, {key: part for key, part in parts.items() if part})


def is_worth_rebuilding(new: boot_image.ProfiledTrace, old: boot_image.ProfiledTrace) -> bool:
    """Return whether two traces differ enough to replace a boot image.

    >>> old = boot_image.ProfiledTrace(tuple(range(100)))
    >>> is_worth_rebuilding(boot_image.ProfiledTrace(tuple(range(99))), old)
    False
    >>> is_worth_rebuilding(boot_image.ProfiledTrace(tuple(range(90))), old)
    True
    """
    ours, theirs = new.parts(), old.parts()
    changed = [len({*ours.get(key, ())} ^ {*theirs.get(key, ())}) for key in ours | theirs]
    is_profile_new = any(len(ours[key]) >= NEW_PROFILE_CHUNKS for key in ours if key not in theirs)
    total = sum(map(len, theirs.values()))
    return is_profile_new or sum(changed) > CHANGED_SHARE * max(1, total)
