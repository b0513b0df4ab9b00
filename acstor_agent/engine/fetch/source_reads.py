# SPDX-License-Identifier: Apache-2.0
"""Reads of the source: the queue of all ranges that this host reads.

A read is one range of consecutive chunks, RANGE_BYTES at most; when it starts, adjacent queued
reads of at least its urgency join. Openers of an image share its turns, so none delays another. One
slot is never given to a single image or host, and one is reserved for guests.
"""

import collections
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import TypeVar

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_agent.engine.data_structures import fair_queue
from acstor_common.model import geometry
from acstor_common.model import ids

RESERVE_FROM = 4  # places from which on one is reserved
RANGE_BYTES = geometry.MIB

T = TypeVar("T")
_Position = tuple[ids.ImageId, int]


class SourceRead:
    """A read of the chunks of a transfer, from request to answer."""

    __slots__ = (
        *("begun_s", "indices", "number", "guest"),
        *("priority", "refs", "wanted_s", "flow"),
    )

    def __init__(
        self,
        refs: transfer.Refs,
        priority: priority.Priority,
        flow: Hashable,
        now: float,
        guest: Hashable,
    ) -> None:
        self.refs, self.priority, self.flow, self.guest = refs, priority, flow, guest
        self.number = 0  # of its action; 0: queued
        self.indices: tuple[int, ...] = (0,) * len(refs)  # in the action
        self.wanted_s = self.begun_s = now

    @property
    def first_ref(self) -> chunk_ref.ChunkRef:
        """The first chunk."""
        return self.refs[0]

    @property
    def start(self) -> _Position:
        """Image and offset of the first chunk."""
        first = self.refs[0]
        return first.image_id, first.offset

    @property
    def stop(self) -> _Position:
        """Image and end of the last chunk."""
        last = self.refs[-1]
        return last.image_id, last.offset + last.length

    def split(self, some: Sequence[int]) -> "SourceRead":
        """Return a read of some of the chunks; this one keeps the rest."""
        rest = [at for at in range(len(self.refs)) if at not in set(some)]
        refs = transfer.pick(self.refs, some)
        part = SourceRead(refs, self.priority, self.flow, self.wanted_s, self.guest)
        part.number, part.begun_s = self.number, self.begun_s
        part.indices = transfer.pick(self.indices, some)
        self.refs = transfer.pick(self.refs, rest)
        self.indices = transfer.pick(self.indices, rest)
        return part


class _Range:
    __slots__ = ("flow", "is_for_guest", "reads")

    def __init__(self, first: SourceRead) -> None:
        self.flow, self.is_for_guest = first.flow, first.priority is priority.Priority.GUEST
        self.reads: dict[int, SourceRead] = {}


class SourceReads:
    """The queue of reads, and the ranges under way; ``slots``: concurrent ranges."""

    def __init__(
        self, out: actions.ActionQueue, slots: int = 8, range_bytes: int = RANGE_BYTES
    ) -> None:
        self._out, self._slots, self._range_bytes = out, slots, range_bytes
        self.divide: Callable[[SourceRead, list[int]], SourceRead] = self.split
        self._slots_of_flow = slots - 1 if slots >= RESERVE_FROM else slots
        self._queue: fair_queue.FairQueue[SourceRead] = fair_queue.FairQueue()
        self._starts: dict[_Position, SourceRead] = {}  # queued reads by their ends
        self._stops: dict[_Position, SourceRead] = {}
        self._ranges: dict[int, _Range] = {}
        self._last_number = 0
        self._held: collections.Counter[Hashable] = collections.Counter()
        self._full_flow: Hashable = None  # the one flow that has all slots it may have
        self._held_by_background = 0

    def __len__(self) -> int:
        return len(self._ranges) + len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether reads are queued because of those under way."""
        is_limited = self._full_flow is not None or self._held_by_background >= self._slots_of_flow
        return bool(self._queue) and (is_limited or len(self._ranges) >= self._slots)

    def queue_read(
        self,
        refs: transfer.Refs,
        priority: priority.Priority,
        flow: Hashable,
        now: float,
        guest: Hashable = None,
    ) -> SourceRead:
        """Queue a read; ``flow`` and ``guest`` take turns."""
        read = SourceRead(refs, priority, flow, now, guest)
        self._enqueue(read)
        return read

    def split(self, read: SourceRead, some: Sequence[int]) -> SourceRead:
        """Split some chunks, by index, off a read."""
        if read.number:
            part = read.split(some)
            self._ranges[read.number].reads.update(dict.fromkeys(part.indices, part))
        else:
            self._forget_ends(read)
            part = read.split(some)
            self._note_ends(read)
            self._enqueue(part)
        return part

    def raise_priority(
        self, read: SourceRead, priority: priority.Priority, flow: Hashable, guest: Hashable = None
    ) -> None:
        """Raise the priority of a queued read."""
        if priority < read.priority and not read.number and self._dequeue(read):
            read.priority, read.flow, read.guest = priority, flow, guest
            self._enqueue(read)

    def drop_read(self, read: SourceRead) -> None:
        """Drop a read; cancel its range if no other read shares it."""
        if not read.number:
            self._dequeue(read)
        elif self._remove_from_range(read) and read.number not in self._ranges:
            self._out.others.append(actions.CancelSourceRead(read.number))

    def start_queued_reads(self, now: float) -> None:
        """Start queued reads while there are free slots."""
        while self._queue.length and len(self._ranges) < self._slots:
            is_urgent = self._held_by_background >= self._slots_of_flow
            read = self._queue.take_next(is_urgent, self._full_flow)
            if read is None:
                return
            self._forget_ends(read)
            count = _range_length(read.refs, self._range_bytes)
            if count < len(read.refs):
                self.divide(read, list(range(count, len(read.refs))))
                self._forget_ends(read)
            self._begin(read, self._with_neighbours(read), now)

    def _begin(self, first: SourceRead, reads: Sequence[SourceRead], now: float) -> None:
        """Start a range; emit its action first, so that its end is reported if this fails."""
        self._last_number += 1
        number, found = self._last_number, _Range(first)
        refs = [ref for read in reads for ref in read.refs]
        urgency = min(read.priority for read in reads)
        turn = refs[0].image_id, urgency, first.guest or first.flow
        self._out.others.append(actions.ReadSource(number, *turn, refs))
        self._ranges[number], at = found, 0
        for read in reads:
            read.number, read.begun_s = number, now
            read.indices = tuple(range(at, at + len(read.refs)))
            at += len(read.refs)
            found.reads.update(dict.fromkeys(read.indices, read))
        self._count_slot(found, 1)

    def _with_neighbours(self, read: SourceRead) -> Sequence[SourceRead]:
        """Dequeue neighbours that fit in one range with a read; return all, in order."""
        found = collections.deque([read])
        left = self._range_bytes - (read.stop[1] - read.start[1])
        while (neighbour := self._neighbour(self._starts.get(read.stop), read, left)) is not None:
            found.append(neighbour)
            left -= neighbour.stop[1] - neighbour.start[1]
            read = neighbour
        read = found[0]
        while (neighbour := self._neighbour(self._stops.get(read.start), read, left)) is not None:
            found.appendleft(neighbour)
            left -= neighbour.stop[1] - neighbour.start[1]
            read = neighbour
        return found

    def _neighbour(
        self, neighbour: SourceRead | None, read: SourceRead, left_bytes: int
    ) -> SourceRead | None:
        if neighbour is None or neighbour.priority > read.priority:
            return None
        count = _range_length(neighbour.refs, self._range_bytes)
        is_too_long = neighbour.stop[1] - neighbour.start[1] > left_bytes
        if is_too_long or count < len(neighbour.refs) or not self._dequeue(neighbour):
            return None
        return neighbour

    def end_answered(
        self, number: int, outcomes: Iterable[tuple[int, T]], classify: Callable[[T], Hashable]
    ) -> list[tuple[SourceRead, list[T]]]:
        """End answered reads, split by class; return them with the answers for their chunks."""
        read_range = self._ranges.get(number)
        if read_range is None:
            return []
        reads = read_range.reads
        found: dict[tuple[SourceRead, Hashable], dict[int, T]] = {}
        seen: set[int] = set()
        for index, what in outcomes:
            if (read := reads.get(index)) is not None and index not in seen:
                seen.add(index)
                found.setdefault((read, classify(what)), {})[index] = what
        taken: list[tuple[SourceRead, list[T]]] = []
        for (read, _), some in found.items():
            if len(some) < len(read.indices):
                read = self.divide(read, [at for at, i in enumerate(read.indices) if i in some])
            self._remove_from_range(read)
            taken.append((read, [some[index] for index in read.indices]))
        return taken

    def end_range(self, number: int) -> list[SourceRead]:
        """End a range; return its unanswered reads."""
        read_range = self._ranges.get(number)
        reads = list(dict.fromkeys(read_range.reads.values())) if read_range is not None else []
        return [read for read in reads if self._remove_from_range(read)]

    def is_active(self, read: SourceRead) -> bool:
        """Return whether a read is queued or under way."""
        if read.number:
            read_range = self._ranges.get(read.number)
            return read_range is not None and read_range.reads.get(read.indices[0]) is read
        return self._queue.is_queued(read.priority, read.flow, read, read.guest)

    def recount_reads(self) -> None:
        """Rebuild counters and ends after a fault."""
        self._held_by_background = 0
        self._held.clear()
        self._full_flow = None
        for number, read_range in list(self._ranges.items()):
            if read_range.reads:
                self._count_slot(read_range, 1)
            else:
                del self._ranges[number]
        self._starts = {read.start: read for read in self._queue}
        self._stops = {read.stop: read for read in self._queue}

    def _enqueue(self, read: SourceRead) -> None:
        self._queue.put_item(read.priority, read.flow, read, read.guest)
        self._note_ends(read)

    def _dequeue(self, read: SourceRead) -> bool:
        self._forget_ends(read)
        return self._queue.remove(read.priority, read.flow, read, read.guest)

    def _note_ends(self, read: SourceRead) -> None:
        self._starts[read.start] = self._stops[read.stop] = read

    def _forget_ends(self, read: SourceRead) -> None:
        for ends, place in ((self._starts, read.start), (self._stops, read.stop)):
            if ends.get(place) is read:
                del ends[place]

    def _remove_from_range(self, read: SourceRead) -> bool:
        read_range = self._ranges.get(read.number)
        if read_range is None:
            return False
        was = [read_range.reads.pop(index, None) for index in read.indices]
        if not read_range.reads:
            del self._ranges[read.number]
            self._count_slot(read_range, -1)
        return read in was

    def _count_slot(self, read_range: _Range, sign: int) -> None:
        flow = read_range.flow
        self._held[flow] += sign
        if self._held[flow] >= self._slots_of_flow:
            self._full_flow = flow
        elif self._full_flow == flow:
            self._full_flow = None
        if not self._held[flow]:
            del self._held[flow]
        self._held_by_background += sign * (not read_range.is_for_guest)


def _range_length(refs: transfer.Refs, range_bytes: int) -> int:
    """Return how many of the first chunks form one range, at least one.

    >>> one = chunk_ref.ChunkRef(ids.Cid(b""), ids.Oid(0), ids.ImageId("i"), 0, 8)
    >>> _range_length((one, one._replace(offset=8), one._replace(offset=32)), RANGE_BYTES)
    2
    """
    at, limit = refs[0].offset, refs[0].offset + range_bytes
    for count, ref in enumerate(refs):
        if count and (ref.offset != at or at + ref.length > limit):
            return count
        at += ref.length
    return len(refs)
