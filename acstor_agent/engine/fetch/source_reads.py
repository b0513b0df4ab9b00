# SPDX-License-Identifier: Apache-2.0
"""Reads of the source: a bounded number of chunks at a time, the rest queued fairly.

Beyond the rules of ``fair_queue``: guests that share an image share its turns, so many reads of one
guest do not delay another; a part of the chunks at a time is reserved from any single image or
host, and a part from all that is not for a guest.  The I/O shell merges neighbouring chunks into
ranges.
"""

import collections
from collections.abc import Hashable

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import fair_queue
from acstor_agent.engine import priority as priority_
from acstor_common import ids

CHUNKS = 128
"""Read at a time: eight ranges of 1 MiB."""
SPARED = 16

_Kind = tuple[ids.ImageId, priority_.Priority, Hashable]


class SourceRead:
    """A read of one chunk, from its wish until the source has answered.

    :ivar number: of the action, once it is under way; 0: it waits
    :ivar urgency: the most urgent reason of those who have joined since
    """

    __slots__ = (
        *("begun_s", "index", "number", "opener"),
        *("priority", "urgency", "want", "wanted_s", "who"),
    )

    def __init__(
        self,
        want: chunk_ref.ChunkRef,
        priority: priority_.Priority,
        who: Hashable,
        now: float,
        opener: Hashable,
    ) -> None:
        self.want, self.priority, self.who, self.opener = want, priority, who, opener
        self.urgency = priority
        self.number = self.index = 0
        self.wanted_s = self.begun_s = now


class SourceReads:
    """What is read from the source, and what waits for that.

    :param chunks: read at a time
    :param spared: of them, for others
    """

    def __init__(self, out: actions.Out, chunks: int = CHUNKS, spared: int = SPARED) -> None:
        self._out, self._limit, self._most = out, chunks, chunks - spared
        self._turns: fair_queue.FairQueue[SourceRead] = fair_queue.FairQueue()
        self._reads: dict[int, dict[int, SourceRead]] = {}
        self._last_number = 0
        self._held: collections.Counter[Hashable] = collections.Counter()
        self._full: Hashable = None  # who has all that one may have: there is one at most
        self._held_by_others = self.under_way = 0

    def __len__(self) -> int:
        """Return how many are under way, or wait."""
        return self.under_way + len(self._turns)

    @property
    def is_full(self) -> bool:
        """Say whether reads wait because of those that are under way."""
        is_spared = self._full is not None or self._held_by_others >= self._most
        return bool(self._turns) and (is_spared or self.under_way >= self._limit)

    def read(
        self,
        want: chunk_ref.ChunkRef,
        priority: priority_.Priority,
        who: Hashable,
        now: float,
        opener: Hashable = None,
    ) -> SourceRead:
        """Have a chunk read.

        :param who: the image for this host's own wishes, the host for peers: they share turns
        :param opener: who of those that share them
        """
        read = SourceRead(want, priority, who, now, opener)
        self._turns.put(priority, who, read, opener)
        return read

    def hurry(
        self, read: SourceRead, priority: priority_.Priority, who: Hashable, opener: Hashable = None
    ) -> None:
        """Let a read become more urgent; one that is under way counts as what it was begun as."""
        if priority >= read.urgency:
            return
        read.urgency = priority
        if read.number:
            self._out.others.append(actions.HurryRead(read.number, priority, opener or who))
        elif self._turns.remove(read.priority, read.who, read, read.opener):
            read.priority, read.who, read.opener = priority, who, opener
            self._turns.put(priority, who, read, opener)

    def forget(self, read: SourceRead) -> None:
        """Note that nobody wants a read any more."""
        if not read.number:
            self._turns.remove(read.priority, read.who, read, read.opener)
        elif self.answered(read.number, read.index) and read.number not in self._reads:
            self._out.others.append(actions.CancelRead(read.number))

    def start(self, now: float) -> None:
        """Begin what may begin now; what is of one kind is one action."""
        if not self._turns.length:
            return
        begun: dict[_Kind, list[SourceRead]] = {}
        while self._turns.length and self.under_way < self._limit:
            is_urgent = self._held_by_others >= self._most
            read = self._turns.take(is_urgent, self._full)
            if read is None:
                break
            self._hold(read, 1)
            kind = read.want.image_id, read.priority, read.opener or read.who
            begun.setdefault(kind, []).append(read)
        for kind, reads in begun.items():
            self._last_number += 1
            self._reads[self._last_number] = dict(enumerate(reads))
            for index, read in enumerate(reads):
                read.number, read.index, read.begun_s = self._last_number, index, now
            wants = [read.want for read in reads]
            self._out.others.append(actions.ReadSource(self._last_number, *kind, wants))

    def answered(self, number: int, index: int) -> SourceRead | None:
        """Note that the source has told of a chunk; None if nobody reads it there."""
        reads = self._reads.get(number)
        read = reads.pop(index, None) if reads else None
        if read is not None:
            if not reads:
                del self._reads[number]
            self._hold(read, -1)
        return read

    def ended(self, number: int) -> list[SourceRead]:
        """Note that the source tells no more of a read; return what it has not told of."""
        return [r for i in list(self._reads.get(number, ())) if (r := self.answered(number, i))]

    def holds(self, read: SourceRead) -> bool:
        """Say whether the source is still to tell of a read, or to be asked."""
        if read.number:
            return self._reads.get(read.number, {}).get(read.index) is read
        return self._turns.holds(read.priority, read.who, read, read.opener)

    def mend(self) -> None:
        """Count anew what is under way: a fault has left it so."""
        self.under_way = self._held_by_others = 0
        self._held.clear()
        self._full = None
        for reads in self._reads.values():
            for read in reads.values():
                self._hold(read, 1)

    def _hold(self, read: SourceRead, count: int) -> None:
        """Note what is under way, and for whom."""
        self.under_way += count
        self._held[read.who] += count
        if self._held[read.who] >= self._most:
            self._full = read.who
        elif self._full == read.who:
            self._full = None
        if not self._held[read.who]:
            del self._held[read.who]
        self._held_by_others += count * (read.priority is not priority_.Priority.GUEST)
