# SPDX-License-Identifier: Apache-2.0
"""Plans reads and writes of a copy-on-reference disk (Nicolae 2016, Alg. 1, 2).

A chunk is in the disk's own file as a whole or not at all; else its bytes are the image's, or zeros
after the image's end. A write to a part of such a chunk is widened by the rest of it.
"""

import enum
from collections.abc import Iterator
from typing import NamedTuple

from acstor_agent.core.images import chunk_state
from acstor_common.model import geometry

_E = chunk_state.ChunkEvent


class StretchOrigin(enum.Enum):
    """Where bytes of a disk lie."""

    DISK = enum.auto()
    IMAGE = enum.auto()  # in the base image
    ZERO = enum.auto()  # after the image's end


class Stretch(NamedTuple):
    """A range of the disk with one origin."""

    origin: StretchOrigin
    start: int
    stop: int


class WritePlan(NamedTuple):
    """Ranges and chunks of a write."""

    before: list[Stretch]  # original bytes to write with it, as ``after``
    after: list[Stretch]
    chunks: range  # all that it touches
    fresh: list[int]  # of these, those that were not in the disk's file


def is_on_disk(states: chunk_state.ChunkStates, chunk_no: int) -> bool:
    """Return whether a chunk is in the disk's own file."""
    return states.can_happen(chunk_no, _E.PART_WRITTEN)


def original(image_bytes: int, start: int, stop: int) -> Iterator[Stretch]:
    """Yield the original origins of a range of the disk.

    >>> [stretch.origin.name for stretch in original(10, 5, 15)]
    ['IMAGE', 'ZERO']
    """
    if start < min(stop, image_bytes):
        yield Stretch(StretchOrigin.IMAGE, start, min(stop, image_bytes))
    if max(start, image_bytes) < stop:
        yield Stretch(StretchOrigin.ZERO, max(start, image_bytes), stop)


def plan_read(
    cut: geometry.Geometry,
    image_bytes: int,
    states: chunk_state.ChunkStates,
    offset: int,
    length: int,
) -> list[Stretch]:
    """Return the stretches of a read, in order, up to the disk's end."""
    stretches: list[Stretch] = []
    for chunk_no, start, stop in cut.split_range(offset, length):
        at = cut.chunk_offset(chunk_no)
        if is_on_disk(states, chunk_no):
            _join(stretches, Stretch(StretchOrigin.DISK, at + start, at + stop))
        else:
            for stretch in original(image_bytes, at + start, at + stop):
                _join(stretches, stretch)
    return stretches


def _join(stretches: list[Stretch], this: Stretch) -> None:
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
    """Return the plan of a write of ``length`` bytes (more than 0, inside the disk)."""
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
    """Apply a finished, marked write to the states of its chunks."""
    for chunk_no in plan.fresh:
        if (plan.before and chunk_no == plan.chunks[0]) or (
            plan.after and chunk_no == plan.chunks[-1]
        ):
            states.apply_event(chunk_no, _E.DEMAND_ARRIVED)
            states.apply_event(chunk_no, _E.PART_WRITTEN)
        else:
            states.apply_event(chunk_no, _E.WHOLE_WRITTEN)
