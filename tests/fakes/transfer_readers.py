# SPDX-License-Identifier: Apache-2.0
"""Guests of ``transfer_hosts`` that read chunks of an image through a mirror.

The kernel keeps two requests of 128 KiB open: it sends the next one when the guest reaches the
previous one.  The cores of an agent's mirror decide on read-ahead and on prefetching by
neighbours' announcements (``acstor_simulator.model.host_prefetch``), called as a mirror does.
"""

import collections
import random
from collections.abc import Sequence

from acstor_agent.core.images import chunk_state
from acstor_agent.core.images import prefetcher
from acstor_agent.core.images import readahead
from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_common.model import ids
from acstor_simulator.model import host_prefetch
from tests.fakes import transfer_world

Broken = transfer_world.Broken
S = chunk_state.ChunkState
P = priority.Priority
CHUNK = transfer_world.CHUNK

REQUEST_CHUNKS = 2
"""The kernel reads 128 KiB ahead, and requests no more at once."""
OPEN = 2
"""Open requests: the one that the guest waits for, and the next."""
READ_AHEAD_BYTES = 8 << 20
"""The default of agents."""
FOLLOWED = 0.5
"""Share of runs with followers."""


class Reader:
    """Reads chunks once.

    :param chunk_nos: chunks of ``world.chunks`` in read order.  For a range, the kernel requests
        more than the guest reads; otherwise one chunk at a time
    :param limit: see :class:`prefetcher.Prefetcher`; ``first`` and ``gain`` as well
    :param think_s: the guest's time per request
    :ivar waits_s: the time that each of its requests took
    """

    def __init__(
        self,
        world: transfer_world.World,
        host: transfer_world.Host,
        chunk_nos: Sequence[int],
        *,
        limit: int | None = prefetcher.UNMATCHED_LIMIT,
        first: int | None = prefetcher.INITIAL_ALLOWANCE,
        gain: int = prefetcher.ALLOWANCE_GAIN,
        think_s: float = 0.0005,
    ) -> None:
        self.world, self.host, self.chunk_nos = world, host, chunk_nos
        self._limit, self._trust = limit, (first, gain)
        self._is_on = limit != 0
        self._think_s = think_s
        self.began_s = self.ended_s = 0.0
        self.waits_s: list[float] = []
        self._requests, self._last = _requests(chunk_nos, len(world.chunks))
        self._at = 0
        self._chunks = {chunk.cid: chunk for chunk in world.chunks}
        self._asked: set[int] = set()
        self._lives: list[host_prefetch.HostPrefetch] = []
        self._forget()
        host.on_announcement, host.let_go = self._on_announcement, self._evict

    def _forget(self) -> None:
        """Reset the state of chunks: an agent starts."""
        what = self.host, self.world.chunks, self.host.cache
        self._prefetching = host_prefetch.HostPrefetch(*what, self._limit, *self._trust)
        self._lives.append(self._prefetching)
        self._ahead = readahead.ReadAhead(READ_AHEAD_BYTES)
        self._came: set[int] = set()
        self._next = self._at

    @property
    def is_done(self) -> bool:
        """Whether all chunks are read."""
        return self._at == self._last

    @property
    def wasted(self) -> int:
        """The number of prefetched chunks without a read."""
        return sum(state is S.LOCAL for state in self._prefetching.states)

    @property
    def prefetched(self) -> int:
        """The number of chunks prefetched because neighbours have them."""
        return sum(life.prefetched for life in self._lives)

    @property
    def unread(self) -> int:
        """The number of chunks fetched for this guest and never read."""
        asked = self._asked.union(*(life.asked for life in self._lives))
        others = asked.difference(self.chunk_nos)
        return sum(self.world.chunks[number].cid in self.host.cache for number in others)

    def start(self) -> None:
        """Start reading."""
        self.began_s = self.world.now
        self._ask_to(1)  # without an earlier request, nothing to predict the next one from

    def begin_anew(self) -> None:
        """Continue after a restart of the host."""
        self._forget()
        if not self.is_done:
            self._ask_to(self._at + 1)

    def check(self) -> None:
        """Check the prefetch counters.

        :raises Broken: counters differ from the states, or exceed the limit
        """
        states, prefetcher = self._prefetching.states, self._prefetching.prefetcher
        counts = collections.Counter(states)
        local, in_flight = counts[S.LOCAL], counts[S.PREFETCH]
        is_right = states.unmatched == local
        if prefetcher.reactivations:  # these forgive chunks that stay LOCAL
            is_right = states.unmatched <= local
        if not is_right or states.in_flight != in_flight:
            what = f"{states.unmatched} and {states.in_flight} where there are"
            raise Broken(f"{self.host.name}: {what} {local} and {in_flight} chunks")
        if self._limit is not None and states.unmatched + states.in_flight > self._limit:
            raise Broken(f"{self.host.name}: {states.unmatched} chunks are prefetched in vain")

    # The kernel

    def _ask_to(self, stop: int) -> None:
        """Send all requests before ``stop``."""
        stop = min(stop, len(self._requests))
        while self._next < stop:
            self._next += 1
            self._ask(self._next - 1)

    def _go_on(self) -> None:
        """Complete the current request and go on to the next."""
        self._at += 1
        if self.is_done:
            self.ended_s = self.world.now
            return
        is_here = self._at in self._came  # later arrivals start the thinking themselves
        self._ask_to(self._at + OPEN)
        if is_here:
            self._think()

    def _think(self) -> None:
        self.world.call_later(self.host, self._think_s, self._go_on)

    # The mirror

    def _ask(self, at: int) -> None:
        """Read the chunks of one kernel request."""
        numbers, asked_s = self._requests[at], self.world.now
        self._read_ahead(numbers)
        missing = self._missing(numbers)
        if self._is_on:
            for chunk in self._wants(missing):
                self._prefetching.on_demand_fetch(chunk)

        def done(answer: actions.CompleteRead) -> None:
            if answer.chunks != [self.world.data[number] for number in numbers]:
                raise Broken(f"{self.host.name}: a read gives {answer}")
            self._prefetching.on_read(self._wants(numbers))
            self._came.add(at)
            self.waits_s.append(self.world.now - asked_s)
            if at == self._at and not self.is_done:
                self._think()

        self._asked.update(missing)
        self.host.read(self._wants(numbers), P.GUEST, done)

    def _missing(self, numbers: Sequence[int]) -> list[int]:
        cache, chunks = self.host.cache, self.world.chunks
        return [number for number in numbers if chunks[number].cid not in cache]

    def _read_ahead(self, numbers: range) -> None:
        """Read ahead."""
        length = len(numbers) * CHUNK
        start, stop = self._ahead.predict_range(numbers.start * CHUNK, length, self.world.now)
        last = min(-(-stop // CHUNK), len(self.world.chunks))
        ahead = self._missing(range(start // CHUNK, last))
        if ahead:
            self._asked.update(ahead)
            self.host.read(self._wants(ahead), P.READAHEAD, lambda answer: None)

    def _wants(self, numbers: Sequence[int]) -> list[chunk_ref.ChunkRef]:
        return [self.world.chunks[number] for number in numbers]

    def _on_announcement(self, announcement: actions.ForwardAnnouncement) -> None:
        if self._is_on:
            self._prefetching.announcement_received(announcement.held)

    def _evict(self, cids: Sequence[ids.Cid]) -> None:
        for cid in cids:
            if cid in self._chunks:
                self._prefetching.on_evicted(self._chunks[cid])


def _requests(chunk_nos: Sequence[int], chunks: int) -> tuple[list[range], int]:
    """Return the kernel's requests, and the number that a guest reads.

    >>> _requests(range(4), 8)
    ([range(0, 2), range(2, 4), range(4, 6)], 2)
    >>> _requests([3, 1], 8)
    ([range(3, 4), range(1, 2)], 2)
    """
    if not isinstance(chunk_nos, range):
        return [range(number, number + 1) for number in chunk_nos], len(chunk_nos)
    # The kernel reads ahead one request beyond the guest's last.
    stop = min(chunk_nos.stop + REQUEST_CHUNKS, chunks)
    starts = range(chunk_nos.start, stop, REQUEST_CHUNKS)
    requests = [range(at, min(at + REQUEST_CHUNKS, stop)) for at in starts]
    return requests, -(-len(chunk_nos) // REQUEST_CHUNKS)


def followers(world: transfer_world.World, rng: random.Random) -> list[Reader]:
    """Give some hosts, in some runs, a guest with prefetching."""
    readers = []
    for host in world.hosts.values() if rng.random() < FOLLOWED else ():
        numbers: Sequence[int] = range(len(world.chunks))
        if rng.random() < 0.3:
            numbers = rng.sample(numbers, len(numbers))
        limit, first = rng.choice((0, 4, 64, None)), rng.choice((None, 2, 8))
        readers.append(Reader(world, host, numbers, limit=limit, first=first))
        world.call_later(host, rng.random() * 2, readers[-1].start)
    return readers
