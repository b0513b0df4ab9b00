# SPDX-License-Identifier: Apache-2.0
"""Selects announced chunks of an image to prefetch (Nicolae 2016, 3.1.4).

A chunk is *unmatched* while it was prefetched and no guest has read it. Announced chunks are
prefetched while the unmatched ones are fewer than the allowance; others are held back. As in the
paper, ``unmatched_limit`` held-back chunks that guests fetch on demand show that access patterns
converged again: the LOCAL chunks stop counting. Unlike in the paper, chunks under way and evicted
unread count too, and each prefetched chunk that a guest read adds ``gain`` to the allowance.
"""

import collections
from typing import Protocol

from acstor_agent.core.images import chunk_state

UNMATCHED_LIMIT = 256  # chunks of 64 KiB: 16 MiB, as the paper's 512 chunks of 32 KiB
INITIAL_ALLOWANCE = 2  # chunks that an image with diverging readers wastes at most
ALLOWANCE_GAIN = 2  # the allowance grows while over one prediction in 1 + 2 is right
HELD_LIMIT = 4096  # held-back chunks that are remembered; the oldest are dropped

_E = chunk_state.ChunkEvent


class PrefetchPolicy(Protocol):
    """Decides which advertised chunks of one image to prefetch."""

    @property
    def has_candidates(self) -> bool:
        """Return whether any announced chunk may still be prefetched."""

    def chunk_advertised(self, chunk_no: int) -> None:
        """Record that a neighbour has a chunk."""

    def fetched_on_demand(self, chunk_no: int) -> None:
        """Record that a guest waited for a chunk that was not prefetched."""

    def take_candidates(self, room: int) -> list[int]:
        """Return at most ``room`` chunks to prefetch now, and set their state to PREFETCH."""


class Prefetcher:
    """The default policy for one image; see :class:`PrefetchPolicy`.

    >>> prefetcher = Prefetcher(chunk_state.ChunkStates(100), unmatched_limit=2)
    >>> for chunk_no in (7, 8, 9):
    ...     prefetcher.chunk_advertised(chunk_no)
    >>> prefetcher.take_candidates(10)
    [7, 8]
    """

    def __init__(
        self,
        states: chunk_state.ChunkStates,  # only PREFETCH_SENT is applied here
        unmatched_limit: int | None = UNMATCHED_LIMIT,  # 0: never prefetch, None: no limit
        initial_allowance: int | None = INITIAL_ALLOWANCE,  # at the start; None: the limit
        gain: int = ALLOWANCE_GAIN,
    ) -> None:
        self._states = states
        self._limit = unmatched_limit
        self._first = initial_allowance
        self._gain = gain
        self._held: collections.OrderedDict[int, None] = collections.OrderedDict()
        self._demanded = 0  # held-back chunks that were fetched on demand
        self._demanded_before = 0  # the same at the last re-activation
        self._evicted_before = 0  # evicted_unread at that time
        self.reactivations = 0

    @property
    def allowance(self) -> int | None:
        """Unmatched chunks that are allowed now; None: no limit."""
        if self._limit is None or self._first is None:
            return self._limit
        return min(self._limit, self._first + self._gain * self._states.matched)

    @property
    def unproven_chunks(self) -> int:
        """Chunks whose prefetch is not proved right: unmatched, under way, evicted unread."""
        evicted = self._states.evicted_unread - self._evicted_before
        return self._states.unmatched + self._states.in_flight + evicted

    def chunk_advertised(self, chunk_no: int) -> None:
        """Record that a neighbour announced a chunk."""
        if self._limit == 0 or not self._states.can_happen(chunk_no, _E.PREFETCH_SENT):
            return
        self._held.setdefault(chunk_no)
        if len(self._held) > HELD_LIMIT:
            self._held.popitem(last=False)

    @property
    def has_candidates(self) -> bool:
        """Whether an announced chunk is not prefetched yet."""
        return bool(self._held)

    def fetched_on_demand(self, chunk_no: int) -> None:
        """Record that a guest waited for a chunk that was not prefetched."""
        if chunk_no not in self._held:
            return
        del self._held[chunk_no]
        self._demanded += 1
        if self._limit is not None and self._demanded - self._demanded_before >= self._limit:
            self._reactivate()

    def take_candidates(self, room: int) -> list[int]:
        """Return at most ``room`` chunks to prefetch now; their state is PREFETCH then.

        A returned chunk may be under way on demand: join that fetch.
        """
        allowed = self.allowance
        if allowed is not None:
            room = min(room, allowed - self.unproven_chunks)
        return take_prefetchable(self._states, self._held, room)

    def _reactivate(self) -> None:
        self._states.accept_unmatched()
        self._demanded_before = self._demanded
        self._evicted_before = self._states.evicted_unread
        self.reactivations += 1


def default_prefetcher(states: chunk_state.ChunkStates) -> Prefetcher:
    """Return the default policy for one image, with the limit of the paper."""
    return Prefetcher(states, UNMATCHED_LIMIT)


def take_prefetchable(
    states: chunk_state.ChunkStates, chunks: collections.OrderedDict[int, None], room: int
) -> list[int]:
    """Remove and return the first ``room`` chunks that can still be prefetched."""
    taken: list[int] = []
    while chunks and len(taken) < room:
        chunk_no, _ = chunks.popitem(last=False)
        if states.can_happen(chunk_no, _E.PREFETCH_SENT):  # it may have arrived since
            states.apply_event(chunk_no, _E.PREFETCH_SENT)
            taken.append(chunk_no)
    return taken
