# SPDX-License-Identifier: Apache-2.0
"""What a read or a write of a copy-on-reference disk needs (Nicolae 2016, Algorithms 1 and 2).

The states are those of the disk's own file: a chunk of which a part may be
written is one whose bytes are all in that file.  Until then the bytes are the
image's, and zeros behind the image's end.  The rule: a chunk enters the file
as a whole or not at all, so a write that covers only a part of one is widened
by the bytes that are missing, and a write that covers all of it by none.
"""

import enum
from collections.abc import Iterator
from typing import NamedTuple

from acstor_agent.core.images import chunk_state
from acstor_common.model import geometry

_E = chunk_state.ChunkEvent


class Origin(enum.Enum):
    """Where bytes of a disk lie."""

    DISK = enum.auto()  # in the disk's own file
    IMAGE = enum.auto()  # in the image that it began as
    ZERO = enum.auto()  # nowhere: behind the image's end


class Stretch(NamedTuple):
    """Bytes of the disk, from ``start`` to ``stop``, that lie in one place."""

    origin: Origin
    start: int
    stop: int


class WritePlan(NamedTuple):
    """What becomes of a write.

    ``before`` and ``after`` are stretches of the original content that must be
    written with it; ``chunks`` are those that the whole then covers, or that
    lie in the disk's file already; ``fresh`` are those of them that do not.
    """

    before: list[Stretch]
    after: list[Stretch]
    chunks: range
    fresh: list[int]


def is_on_disk(states: chunk_state.ChunkStates, chunk_no: int) -> bool:
    """Say whether all of a chunk's bytes are in the disk's own file."""
    return states.can_happen(chunk_no, _E.PART_WRITTEN)


def original(image_bytes: int, start: int, stop: int) -> Iterator[Stretch]:
    """Yield where a range of the disk lay when the disk was made.

    >>> [stretch.origin.name for stretch in original(10, 5, 15)]
    ['IMAGE', 'ZERO']
    """
    if start < min(stop, image_bytes):
        yield Stretch(Origin.IMAGE, start, min(stop, image_bytes))
    if max(start, image_bytes) < stop:
        yield Stretch(Origin.ZERO, max(start, image_bytes), stop)


def plan_read(
    cut: geometry.Geometry,
    image_bytes: int,
    states: chunk_state.ChunkStates,
    offset: int,
    length: int,
) -> list[Stretch]:
    """Return where the bytes of a read lie, in order; what is past the disk's end is left out."""
    stretches: list[Stretch] = []
    for chunk_no, start, stop in cut.split_range(offset, length):
        at = cut.chunk_offset(chunk_no)
        if is_on_disk(states, chunk_no):
            _join(stretches, Stretch(Origin.DISK, at + start, at + stop))
        else:
            for stretch in original(image_bytes, at + start, at + stop):
                _join(stretches, stretch)
    return stretches


def _join(stretches: list[Stretch], this: Stretch) -> None:
    """Let the last stretch reach to the end of this one if both lie in one place."""
    if stretches and stretches[-1].origin is this.origin:
        this = Stretch(this.origin, stretches.pop().start, this.stop)
    stretches.append(this)


def chunks_of(cut: geometry.Geometry, offset: int, length: int) -> range:
    """Return the chunks that a range of the disk touches."""
    stop = min(offset + length, cut.size_bytes)
    if stop <= offset:
        return range(0)
    return range(offset // cut.chunk_bytes, (stop - 1) // cut.chunk_bytes + 1)


def plan_write(
    cut: geometry.Geometry,
    image_bytes: int,
    states: chunk_state.ChunkStates,
    offset: int,
    length: int,
) -> WritePlan:
    """Return what must be written with a write of ``length`` bytes (more than 0, inside the disk).

    Only its first and its last chunk can be covered in part.
    """
    chunks = chunks_of(cut, offset, length)
    first_byte, stop = cut.chunk_offset(chunks[0]), offset + length
    last_stop = cut.chunk_offset(chunks[-1]) + cut.chunk_length(chunks[-1])
    fresh = [chunk_no for chunk_no in chunks if not is_on_disk(states, chunk_no)]
    before = chunks[0] in fresh[:1]
    after = chunks[-1] in fresh[-1:]
    return WritePlan(
        list(original(image_bytes, first_byte, offset)) if before else [],
        list(original(image_bytes, stop, last_stop)) if after else [],
        chunks,
        fresh,
    )


def note_written(states: chunk_state.ChunkStates, plan: WritePlan) -> None:
    """Let a write that was done, and marked, change the states of its chunks."""
    for chunk_no in plan.fresh:
        if (plan.before and chunk_no == plan.chunks[0]) or (
            plan.after and chunk_no == plan.chunks[-1]
        ):
            states.apply_event(chunk_no, _E.DEMAND_ARRIVED)
            states.apply_event(chunk_no, _E.PART_WRITTEN)
        else:
            states.apply_event(chunk_no, _E.WHOLE_WRITTEN)
