# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of the public cache: slab actions, found slabs, statistics."""

import dataclasses
from typing import NamedTuple

from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import cache_slot


class MakeSlab(NamedTuple):
    """Create this slab's file before anything is written into it."""

    slab: cache_slot.Slab


class RemoveSlab(NamedTuple):
    """Remove this slab's file; no slot of it is held."""

    slab: cache_slot.Slab


SlabAction = MakeSlab | RemoveSlab


class Placement(NamedTuple):
    """The slot of a new chunk; the caller carries out ``actions`` first, in order."""

    slot: cache_slot.Slot
    actions: list[SlabAction]


class FoundSlab(NamedTuple):
    """A slab file as found at the start."""

    number: int
    layout: cache_slab.SlabLayout
    records: list[cache_slab.SlotRecord]


@dataclasses.dataclass(frozen=True, slots=True)
class Statistics:
    """The cache in numbers: counts since the start, other values as of now."""

    chunks: int
    stored_bytes: int  # lengths of the chunks
    disk_bytes: int  # lengths of the slab files
    limit_bytes: int
    slabs: int
    evictions: int
    corrupt_chunks: int  # chunks dropped because their bytes were bad or unreadable
    rejected_chunks: int  # chunks not stored because all slots were in use
    write_errors: int
    pending_bytes: int  # in memory, not on disk yet
    pinned_bytes: int  # lengths of the pinned chunks in the cache
    reserved_bytes: int  # slot sizes of all pinned contents
    pinned_missing_chunks: int  # pinned contents not in the cache
    chunks_by_class: dict[str, int]
    bytes_by_class: dict[str, int]
