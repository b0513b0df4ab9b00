# SPDX-License-Identifier: Apache-2.0
"""Guests of ``transfer_hosts`` that read an image, with prefetching as images do it."""

import collections
import random
from collections.abc import Sequence

from acstor_agent.core.exchange import prefetch
from acstor_agent.core.images import chunk_state
from acstor_agent.core.transfers import actions
from acstor_agent.core.transfers import priority
from acstor_common import ids
from tests.fakes import transfer_world

Broken = transfer_world.Broken
E = chunk_state.ChunkEvent
S = chunk_state.ChunkState
P = priority.Priority

FOLLOWED = 0.5
"""So many runs have followers."""


class Reader:
    """Reads chunks one after the other, with read-ahead; what neighbours have is fetched ahead.

    :param chunk_nos: in the order in which they are read
    :param limit: see :class:`prefetch.Prefetcher`, as for ``first`` and ``gain``
    :param window: chunks that are read or read ahead at a time
    :param think_s: between two reads
    """

    def __init__(
        self,
        world: transfer_world.World,
        host: transfer_world.Host,
        chunk_nos: Sequence[int],
        *,
        limit: int | None = prefetch.LIMIT,
        first: int | None = prefetch.FIRST,
        gain: int = prefetch.GAIN,
        window: int = 8,
        think_s: float = 0.0005,
        at_once: int = 4,
    ) -> None:
        self.world, self.host, self.chunk_nos = world, host, chunk_nos
        self._limits = limit, first, gain
        self.began_s = self.ended_s = 0.0
        self.waits_s: list[float] = []
        self.prefetched = 0
        self._window, self._think_s, self._at_once = window, think_s, at_once
        self._done = 0
        self._index = {chunk.oid: number for number, chunk in enumerate(world.chunks)}
        self._number = {chunk.cid: number for number, chunk in enumerate(world.chunks)}
        self._forget()
        host.heard, host.let_go = self._heard, self._let_go

    def _forget(self) -> None:
        """Know nothing of any chunk: an agent begins."""
        self.states = chunk_state.ChunkStates(len(self.world.chunks))
        self.prefetcher = prefetch.Prefetcher(self.states, *self._limits)
        self._next, self._ahead, self._told = self._done, 0, self._done
        self._under_way: collections.Counter[int] = collections.Counter()

    @property
    def is_done(self) -> bool:
        """Say that all is read."""
        return self._done == len(self.chunk_nos)

    @property
    def wasted(self) -> int:
        """Chunks that were prefetched and never read."""
        return sum(state is chunk_state.ChunkState.LOCAL for state in self.states)

    def start(self) -> None:
        """Begin to read."""
        self.began_s = self.world.now
        self._step()

    def begin_anew(self) -> None:
        """Go on where it was when the host was killed."""
        self._forget()
        self._step()

    def check(self) -> None:
        """Check what is known of chunks.

        :raises Broken: counts are not those of the states, or more is at stake than is allowed
        """
        states, limit = self.states, self._limits[0]
        counts = collections.Counter(states)
        local, under_way = counts[S.LOCAL], counts[S.PREFETCH]
        is_right = states.unmatched == local
        if self.prefetcher.reactivations:  # these forgive chunks that stay LOCAL
            is_right = states.unmatched <= local
        if not is_right or states.under_way != under_way:
            what = f"{states.unmatched} and {states.under_way} where there are"
            raise Broken(f"{self.host.name}: {what} {local} and {under_way} chunks")
        if limit is not None and states.unmatched + states.under_way > limit:
            raise Broken(f"{self.host.name}: {states.unmatched} chunks are prefetched in vain")

    def _step(self) -> None:
        if self._next == len(self.chunk_nos):
            return
        number, self._next = self.chunk_nos[self._next], self._next + 1
        began_s = self.world.now
        self._read_ahead()
        if self.states.can_happen(number, E.GUEST_READ):
            self._read(number, began_s)
        else:
            if not self._under_way[number]:
                self.prefetcher.fetched_on_demand(number)
            self._under_way[number] += 1

            def done(answer: actions.Complete) -> None:
                if answer.chunks != [self.world.data[number]]:
                    raise Broken(f"{self.host.name}: a read gives {answer}")
                self._under_way[number] -= 1
                self.states.apply(number, E.DEMAND_ARRIVED)
                self._read(number, began_s)

            self.host.read([self.world.chunks[number]], P.GUEST, done)
        self._prefetch()

    def _read_ahead(self) -> None:
        """Have what comes next; what the window has in it already is not asked for again."""
        first = max(self._next, self._told)
        self._told = self._next + self._window - 1
        ahead = [
            self.world.chunks[number]
            for number in self.chunk_nos[first : self._told]
            if not self.states.can_happen(number, E.GUEST_READ)
        ]
        if ahead:
            self.host.read(ahead, P.SOON, lambda answer: None)

    def _read(self, number: int, began_s: float) -> None:
        self.states.apply(number, E.GUEST_READ)
        self.waits_s.append(self.world.now - began_s)
        self._done += 1
        self.ended_s = self.world.now
        self.world.later(self.host, self._think_s, self._step)

    def _heard(self, heard: actions.Heard) -> None:
        for oid in heard.here:
            if oid in self._index:
                self.prefetcher.advertised(self._index[oid])
        self._prefetch()

    def _let_go(self, cids: Sequence[ids.Cid]) -> None:
        for cid in cids:
            if cid in self._number:
                self.states.apply(self._number[cid], E.EVICTED)

    def _prefetch(self) -> None:
        for number in self.prefetcher.take(self._at_once - self._ahead):
            self._ahead += 1

            def done(answer: actions.Complete, number: int = number) -> None:
                self._ahead -= 1
                is_here = answer.failure is None
                self.prefetched += is_here
                self.states.apply(number, E.PREFETCH_ARRIVED if is_here else E.PREFETCH_FAILED)
                self.world.later(self.host, 0.0, self._prefetch)

            self.host.read([self.world.chunks[number]], P.ADVERTISED, done)


def followers(world: transfer_world.World, rng: random.Random) -> list[Reader]:
    """Let each host have a guest whose chunks are fetched ahead, in some runs."""
    readers = []
    for host in world.hosts.values() if rng.random() < FOLLOWED else ():
        numbers = list(range(len(world.chunks)))
        if rng.random() < 0.3:
            rng.shuffle(numbers)
        limit, first = rng.choice((0, 4, 64, None)), rng.choice((None, 2, 8))
        readers.append(Reader(world, host, numbers, limit=limit, first=first))
        world.later(host, rng.random() * 2, readers[-1].start)
    return readers
