# SPDX-License-Identifier: Apache-2.0
"""What a read needs: which stretches are zeros, in memory, in the cache, or must be fetched.

Neighbouring chunks of one kind form one step, except that each chunk to fetch
is a step of its own: chunks arrive one by one.
"""

import dataclasses
import enum
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Generic
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


@dataclasses.dataclass(slots=True)
class Step(Generic[SlotT]):
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
    last: Step[SlotT] | None = None
    at = 0
    for piece in pieces:
        chunk_no, start, stop = piece
        begin, at = at, at + stop - start
        this = cid(chunk_no)
        if this == ids.ZERO_CID:
            if last is not None and last.kind is StepKind.ZERO:
                last.stop = at
                continue
            last = Step(StepKind.ZERO, begin, at)
        elif in_memory and (data := in_memory.get(this)) is not None:
            last = Step(StepKind.MEMORY, begin, at, data=data[start:stop])
        elif (slot := lookup(this)) is not None:
            if last is not None and last.parts is not None:
                last.parts.append((slot, start, stop))
                last.stop = at
                continue
            last = Step(StepKind.CACHE, begin, at, [(slot, start, stop)])
        else:
            last = Step(StepKind.FETCH, begin, at, piece=piece)
        steps.append(last)
    return steps
