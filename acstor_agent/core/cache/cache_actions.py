# SPDX-License-Identifier: Apache-2.0
"""What the public cache wants done, what it is given at the start, and what it tells of itself."""

import dataclasses
from typing import NamedTuple

from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import cache_slot


class MakeSlab(NamedTuple):
    """Make this slab's file before anything is written into it."""

    slab: cache_slot.Slab


class RemoveSlab(NamedTuple):
    """Remove this slab's file; nothing in it is held."""

    slab: cache_slot.Slab


SlabAction = MakeSlab | RemoveSlab


class Placement(NamedTuple):
    """Where a new chunk goes; ``actions`` come first, in their order."""

    slot: cache_slot.Slot
    actions: list[SlabAction]


class FoundSlab(NamedTuple):
    """A slab file as it was found at start-up."""

    number: int
    layout: cache_slab.SlabLayout
    records: list[cache_slab.Record]


@dataclasses.dataclass(frozen=True, slots=True)
class Statistics:
    """The cache in numbers; counts since the start, the rest as of now."""

    chunks: int
    stored_bytes: int  # lengths of the chunks
    disk_bytes: int  # lengths of the slab files
    limit_bytes: int
    growth_limit_bytes: int  # how far it may grow beyond its limit for what is pinned
    slabs: int
    evictions: int
    corrupt_chunks: int  # chunks dropped because their bytes proved bad or could not be read
    rejected_chunks: int  # chunks not stored because everything was in use
    write_errors: int
    pending_bytes: int  # in memory, not on disk yet
    pinned_bytes: int  # lengths of the chunks that are here and pinned
    reserved_bytes: int  # lengths of the slots of all that is pinned
    pinned_missing_chunks: int  # chunks that are pinned and not here
    chunks_by_class: dict[str, int]
    bytes_by_class: dict[str, int]
