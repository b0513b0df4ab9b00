# SPDX-License-Identifier: Apache-2.0
"""What a read needs: which stretches are zeros, in memory, in the cache, or must be fetched.

Neighbouring chunks of one kind form one step, except that each chunk in memory is a step of its
own: its bytes are answered without a copy where a read needs no others.
"""

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
    """How the bytes of a step are had."""

    ZERO = enum.auto()
    MEMORY = enum.auto()
    CACHE = enum.auto()
    FETCH = enum.auto()


@dataclasses.dataclass(slots=True)
class Step(Generic[SlotT]):
    """One stretch of a read.

    ``start`` and ``stop`` count from the first byte of the read.  A CACHE step
    has ``parts``: (slot, start, stop) of each chunk.  A FETCH step has the number of its first
    chunk, ``chunk_no``, and the ``cids`` of its chunks.  A MEMORY step has ``data``: its bytes.
    """

    kind: StepKind
    start: int
    stop: int
    parts: list[tuple[SlotT, int, int]] | None = None
    chunk_no: int = 0
    cids: list[ids.Cid] | None = None
    data: memoryview | None = None

    def fetches(self) -> Iterator[tuple[int, ids.Cid]]:
        """Yield number and CID of each chunk that must be fetched; none of another kind of step."""
        return enumerate(self.cids or (), self.chunk_no)


def plan(
    offset: int,
    length: int,
    chunk_bytes: int,
    cids: Sequence[ids.Cid],
    slots: Sequence[SlotT | None],
    in_memory: Mapping[ids.Cid, memoryview],
) -> list[Step[SlotT]]:
    """Return the steps of a read, in order; together they cover it.

    :param offset: of the read in the image
    :param length: of the read, which does not reach beyond the image
    :param cids: of the chunks that the read touches
    :param slots: of these chunks in the cache; None: it is not there
    :param in_memory: chunks that come before those of the cache, by CID; most often there are none
    """
    steps: list[Step[SlotT]] = []
    last: Step[SlotT] | None = None
    first = offset // chunk_bytes
    begin, origin = 0, first * chunk_bytes - offset  # of the chunk, as the read counts
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
