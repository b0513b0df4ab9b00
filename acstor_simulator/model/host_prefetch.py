# SPDX-License-Identifier: Apache-2.0
"""Prefetch of one image on one host, because neighbours announced its chunks."""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from acstor_agent.core.images import chunk_state
from acstor_agent.core.images import prefetcher
from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_simulator.model import virtual_host

MAX_PREFETCHES = 32  # limit of an image's concurrent prefetches, as in an agent

_E = chunk_state.ChunkEvent


class HostPrefetch:
    """The prefetch of one image on one host; of chunks with equal content one counts."""

    def __init__(
        self,
        host: virtual_host.VirtualHost,
        chunks: Sequence[chunk_ref.ChunkRef],
        cached: Collection[ids.Cid],
        *trust: Any,
    ) -> None:
        self.states = chunk_state.ChunkStates(len(chunks))
        self.prefetcher = prefetcher.Prefetcher(self.states, *trust)
        self.asked: set[int] = set()  # numbers of requested chunks
        self.prefetched = 0  # arrived chunks
        self._host, self._chunks, self._cached = host, chunks, cached
        self._index = {chunk.oid: number for number, chunk in reversed([*enumerate(chunks)])}
        self._segments: dict[ids.Oid, list[chunk_ref.ChunkRef]] = {}
        for chunk in chunks:
            self._segments.setdefault(chunk.ring_position, []).append(chunk)

    def announcement_received(self, announced: Iterable[segments.Chunks]) -> None:
        """Record announcements, and fetch useful chunks."""
        for segment, bits in announced:
            for chunk in self._segments.get(segment, ()):
                if chunk.bit & bits and chunk.cid not in self._cached:
                    self.prefetcher.chunk_advertised(self._index[chunk.oid])
        self._fetch_some()

    def on_demand_fetch(self, chunk: chunk_ref.ChunkRef) -> None:
        """Record that a guest waits for a chunk."""
        self.prefetcher.fetched_on_demand(self._index[chunk.oid])

    def on_evicted(self, chunk: chunk_ref.ChunkRef) -> None:
        """Record an eviction."""
        self.states.apply_event(self._index[chunk.oid], _E.EVICTED)

    def on_read(self, chunks: Iterable[chunk_ref.ChunkRef]) -> None:
        """Record guests' reads, which may confirm prefetches."""
        if not (self.states.unmatched or self.states.in_flight):
            return
        matched = self.states.matched
        for chunk in chunks:
            self.states.apply_event(self._index[chunk.oid], _E.DEMAND_ARRIVED)
        if self.states.matched != matched:
            self._fetch_some()

    def _fetch_some(self) -> None:
        for number in self.prefetcher.take_candidates(MAX_PREFETCHES - self.states.in_flight):
            if self._chunks[number].cid in self._cached:
                self.states.apply_event(number, _E.PREFETCH_ARRIVED)
                continue

            def done(answer: actions.CompleteRead, number: int = number) -> None:
                self._host.call_later(self._done, number, answer.failure is None)

            self.asked.add(number)
            self._host.read([self._chunks[number]], priority.Priority.ADVERTISED, done)

    def _done(self, number: int, is_here: bool) -> None:
        self.prefetched += is_here
        self.states.apply_event(number, _E.PREFETCH_ARRIVED if is_here else _E.PREFETCH_FAILED)
        self._fetch_some()
