# SPDX-License-Identifier: Apache-2.0
"""What a read needs: which stretches are zeros, in memory, in the cache, or must be fetched.

Neighbouring chunks of one kind form one step, except that each chunk to fetch
is a step of its own: chunks arrive one by one.
"""

import enum
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

from acstor_common import geometry
from acstor_common import ids

SlotT = TypeVar("SlotT")


class StepKind(enum.Enum):
    """How the bytes of a step are had."""

    ZERO = enum.auto()
    MEMORY = enum.auto()
    CACHE = enum.auto()
    FETCH = enum.auto()


class Step(NamedTuple, Generic[SlotT]):
    """One stretch of a read.

    ``start`` and ``stop`` count from the first byte of the read.  A CACHE step
    has ``parts``: (slot, start, stop) of each chunk; a FETCH step has ``piece``;
    a MEMORY step, one for each chunk, has ``data``: the very bytes.
    """

    kind: StepKind
    start: int
    stop: int
    parts: list[tuple[SlotT, int, int]] | None = None
    piece: geometry.Piece | None = None
    data: memoryview | None = None


def plan(
    pieces: Iterable[geometry.Piece],
    cid: Callable[[int], ids.Cid],
    lookup: Callable[[ids.Cid], SlotT | None],
    in_memory: Mapping[ids.Cid, memoryview],
) -> list[Step[SlotT]]:
    """Return the steps of a read, in order; together they cover it.

    :param pieces: the read, cut into its chunks
    :param cid: the chunk map's answer for a chunk number
    :param lookup: the cache's answer for a CID
    :param in_memory: chunks that need no look-up, by CID; most often there are none
    """
    steps: list[Step[SlotT]] = []
    at = 0
    for piece in pieces:
        chunk_no, start, stop = piece
        end = at + stop - start
        this = cid(chunk_no)
        if this == ids.ZERO_CID:
            _extend(steps, StepKind.ZERO, at, end, None)
        elif in_memory and (data := in_memory.get(this)) is not None:
            steps.append(Step(StepKind.MEMORY, at, end, data=data[start:stop]))
        elif (slot := lookup(this)) is not None:
            _extend(steps, StepKind.CACHE, at, end, (slot, start, stop))
        else:
            steps.append(Step(StepKind.FETCH, at, end, None, piece))
        at = end
    return steps


def _extend(
    steps: list[Step[SlotT]],
    kind: StepKind,
    start: int,
    stop: int,
    part: tuple[SlotT, int, int] | None,
) -> None:
    """Let the last step reach to ``stop`` if it is of this kind, else begin a new one."""
    if steps and steps[-1].kind is kind:
        last = steps.pop()
        start, parts = last.start, last.parts
    else:
        parts = None if part is None else []
    if parts is not None and part is not None:
        parts.append(part)
    steps.append(Step(kind, start, stop, parts))
