# SPDX-License-Identifier: Apache-2.0
"""Splits a read into steps: runs of adjacent chunks of one kind; in memory single chunks."""

import dataclasses
import enum
import itertools
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Generic
from typing import TypeVar

from acstor_common.model import ids

SlotT = TypeVar("SlotT")


class StepKind(enum.Enum):
    """Where the bytes of a step come from."""

    ZERO = enum.auto()
    MEMORY = enum.auto()  # a single chunk, so a read of one needs no copy
    CACHE = enum.auto()
    FETCH = enum.auto()


@dataclasses.dataclass(slots=True)
class Step(Generic[SlotT]):
    """One step of a read."""

    kind: StepKind
    start: int  # relative to the read, as ``stop``
    stop: int
    parts: list[tuple[SlotT, int, int]] | None = None  # CACHE: slot, start and stop of each chunk
    chunk_no: int = 0  # FETCH: the first chunk
    cids: list[ids.Cid] | None = None  # FETCH: of all chunks
    data: memoryview | None = None  # MEMORY

    def fetches(self) -> Iterator[tuple[int, ids.Cid]]:
        """Yield (chunk_no, CID) of each chunk to fetch."""
        return enumerate(self.cids or (), self.chunk_no)


def plan(
    offset: int,
    length: int,
    chunk_bytes: int,
    cids: Sequence[ids.Cid],
    slots: Sequence[SlotT | None],  # of the cache; None: not cached
    in_memory: Mapping[ids.Cid, memoryview],  # preferred to the cache; usually empty
) -> list[Step[SlotT]]:
    """Return the steps of a read, in order; together they cover it."""
    steps: list[Step[SlotT]] = []
    last: Step[SlotT] | None = None
    first = offset // chunk_bytes
    begin, origin = 0, first * chunk_bytes - offset  # of the chunk, relative to the read
    for chunk_no, cid, slot in zip(itertools.count(first), cids, slots, strict=False):
        end = origin + chunk_bytes
        if end > length:
            end = length
        if cid == ids.ZERO_CID:
            if last is not None and last.kind is StepKind.ZERO:
                last.stop = end
            else:
                steps.append(last := Step(StepKind.ZERO, begin, end))
        elif in_memory and (data := in_memory.get(cid)) is not None:
            data = data[begin - origin : end - origin]
            steps.append(last := Step(StepKind.MEMORY, begin, end, data=data))
        elif slot is not None:
            part = slot, begin - origin, end - origin
            if last is not None and last.parts is not None:
                last.parts.append(part)
                last.stop = end
            else:
                steps.append(last := Step(StepKind.CACHE, begin, end, [part]))
        elif last is not None and last.cids is not None:
            last.cids.append(cid)
            last.stop = end
        else:
            steps.append(last := Step(StepKind.FETCH, begin, end, chunk_no=chunk_no, cids=[cid]))
        origin += chunk_bytes
        begin = end
    return steps
