# SPDX-License-Identifier: Apache-2.0
"""Reads of the source: a bounded number of chunks at a time, the rest queued fairly.

Beyond the rules of ``fair_queue``: guests that share an image share its turns, so many reads of one
guest do not delay another; a part of the chunks at a time is reserved from any single image or
host, and a part from all that is not for a guest.  The I/O shell merges neighbouring chunks into
ranges.
"""

import collections
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import TypeVar

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import fair_queue
from acstor_agent.engine import priority as priority_
from acstor_agent.engine import transfer as transfer_
from acstor_common import ids

CHUNKS = 128
"""Read at a time: eight ranges of 1 MiB."""
SPARED = 16

T = TypeVar("T")
_Kind = tuple[ids.ImageId, priority_.Priority, Hashable]


class SourceRead:
    """A read of the chunks of a transfer, from its wish until the source has answered.

    :ivar number: of the action, once it is under way; 0: it waits
    :ivar indices: of the chunks in the action
    :ivar urgency: the most urgent reason of those who have joined since
    """

    __slots__ = (
        *("begun_s", "indices", "number", "opener"),
        *("priority", "refs", "urgency", "wanted_s", "who"),
    )

    def __init__(
        self,
        refs: transfer_.Refs,
        priority: priority_.Priority,
        who: Hashable,
        now: float,
        opener: Hashable,
    ) -> None:
        self.refs, self.priority, self.who, self.opener = refs, priority, who, opener
        self.urgency = priority
        self.number = 0
        self.indices: tuple[int, ...] = (0,) * len(refs)
        self.wanted_s = self.begun_s = now

    @property
    def want(self) -> chunk_ref.ChunkRef:
        """The first chunk."""
        return self.refs[0]

    def split(self, some: Sequence[int]) -> "SourceRead":
        """Return a read of some of the chunks; this one keeps the rest."""
        rest = [at for at in range(len(self.refs)) if at not in set(some)]
        refs = transfer_.pick(self.refs, some)
        part = SourceRead(refs, self.priority, self.who, self.wanted_s, self.opener)
        part.urgency, part.number, part.begun_s = self.urgency, self.number, self.begun_s
        part.indices = transfer_.pick(self.indices, some)
        self.refs = transfer_.pick(self.refs, rest)
        self.indices = transfer_.pick(self.indices, rest)
        return part


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
        refs: transfer_.Refs,
        priority: priority_.Priority,
        who: Hashable,
        now: float,
        opener: Hashable = None,
    ) -> SourceRead:
        """Have chunks read.

        :param who: the image for this host's own wishes, the host for peers: they share turns
        :param opener: who of those that share them
        """
        read = SourceRead(refs, priority, who, now, opener)
        self._turns.put(priority, who, read, opener)
        return read

    def split(self, read: SourceRead, some: Sequence[int]) -> SourceRead:
        """Let some chunks of a read, by index, be a read of their own."""
        part = read.split(some)
        if read.number:
            self._reads[read.number].update(dict.fromkeys(part.indices, part))
        else:
            self._turns.put(part.priority, part.who, part, part.opener)
        return part

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
        elif self._over(read) and read.number not in self._reads:
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
            under_way = self._reads[self._last_number] = {}
            wants: list[chunk_ref.ChunkRef] = []
            for read in reads:
                read.number, read.begun_s = self._last_number, now
                read.indices = tuple(range(len(wants), len(wants) + len(read.refs)))
                under_way.update(dict.fromkeys(read.indices, read))
                wants += read.refs
            self._out.others.append(actions.ReadSource(self._last_number, *kind, wants))

    def take(
        self,
        number: int,
        told: Iterable[tuple[int, T]],
        fate: Callable[[T], Hashable],
        split: Callable[[SourceRead, list[int]], SourceRead],
    ) -> list[tuple[SourceRead, list[T]]]:
        """End reads of which the source has told; return them, with what it told of their chunks.

        :param told: by index in the action; chunks that nobody reads there are left out
        :param fate: chunks with different ones do not go on together
        :param split: lets some chunks of a read, by index, be a read of their own
        """
        reads = self._reads.get(number, {})
        found: dict[tuple[SourceRead, Hashable], dict[int, T]] = {}
        seen: set[int] = set()
        for index, what in told:
            if (read := reads.get(index)) is not None and index not in seen:
                seen.add(index)
                found.setdefault((read, fate(what)), {})[index] = what
        taken: list[tuple[SourceRead, list[T]]] = []
        for (read, _), some in found.items():
            left = [at for at, index in enumerate(read.indices) if index in some]
            if len(left) < len(read.indices):
                read = split(read, left)
            self._over(read)
            taken.append((read, [some[index] for index in read.indices]))
        return taken

    def _over(self, read: SourceRead) -> bool:
        """Note that a read is under way no more; say whether it was."""
        reads = self._reads.get(read.number, {})
        was = [reads.pop(index, None) for index in read.indices]
        if read not in was:
            return False
        if not reads:
            del self._reads[read.number]
        self._hold(read, -1)
        return True

    def ended(self, number: int) -> list[SourceRead]:
        """Note that the source tells no more of a read; return what it has not told of."""
        reads = list(dict.fromkeys(self._reads.get(number, {}).values()))
        return [read for read in reads if self._over(read)]

    def holds(self, read: SourceRead) -> bool:
        """Say whether the source is still to tell of a read, or to be asked."""
        if read.number:
            return self._reads.get(read.number, {}).get(read.indices[0]) is read
        return self._turns.holds(read.priority, read.who, read, read.opener)

    def mend(self) -> None:
        """Count anew what is under way: a fault has left it so."""
        self.under_way = self._held_by_others = 0
        self._held.clear()
        self._full = None
        for reads in self._reads.values():
            for read in dict.fromkeys(reads.values()):
                self._hold(read, 1)

    def _hold(self, read: SourceRead, sign: int) -> None:
        """Note what is under way, and for whom."""
        count = sign * len(read.refs)
        self.under_way += count
        self._held[read.who] += count
        if self._held[read.who] >= self._most:
            self._full = read.who
        elif self._full == read.who:
            self._full = None
        if not self._held[read.who]:
            del self._held[read.who]
        self._held_by_others += count * (read.priority is not priority_.Priority.GUEST)
