# SPDX-License-Identifier: Apache-2.0
"""Prefetch that stops at a limit of unread chunks (Nicolae 2016, Algorithms 1 to 3).

A chunk is *unmatched* from its prefetch until a guest reads it.

* An advertised REMOTE chunk is prefetched at once if fewer than ``limit`` chunks are unmatched.
  Chunks under way do not count, so one batch of advertisements may exceed the limit.
* Else it is held back until a peer advertises it again.
* After guests fetched ``limit`` held-back chunks on demand, their patterns agree again: the LOCAL
  chunks stop counting as unmatched (a reactivation).
"""

from acstor_agent.core.images import chunk_state
from acstor_agent.core.images import prefetcher
from acstor_common.util import lru_table

_E = chunk_state.ChunkEvent


class LimitPrefetcher:
    """Selects chunks as :class:`prefetcher.Prefetcher` does, by the rules of the paper.

    >>> states = chunk_state.ChunkStates(100)
    >>> prefetcher = LimitPrefetcher(states, limit=1)
    >>> for chunk_no in (7, 8):
    ...     prefetcher.chunk_advertised(chunk_no)
    >>> prefetcher.take_candidates(10)
    [7, 8]
    >>> states.apply_event(7, chunk_state.ChunkEvent.PREFETCH_ARRIVED)
    <ChunkState.LOCAL: 3>
    >>> prefetcher.chunk_advertised(9)
    >>> prefetcher.take_candidates(10)
    []
    """

    def __init__(
        self,
        states: chunk_state.ChunkStates,
        limit: int | None = prefetcher.UNMATCHED_LIMIT,
        held_limit: int = prefetcher.HELD_LIMIT,
    ) -> None:
        self._states = states
        self._limit, self._held_limit = limit, held_limit  # unmatched chunks; None: no limit
        self._next: lru_table.LruTable[int, None] = lru_table.LruTable(
            held_limit
        )  # to be requested when there is room
        self._held: lru_table.LruTable[int, None] = lru_table.LruTable(held_limit)
        self._demanded = 0  # held-back chunks fetched on demand since the last reactivation
        self.reactivations = 0

    def chunk_advertised(self, chunk_no: int) -> None:
        """Record that a neighbour announced a chunk, and decide whether to prefetch it."""
        if self._limit == 0 or not self._states.can_happen(chunk_no, _E.PREFETCH_SENT):
            return
        if self._limit is None or self._states.unmatched < self._limit:
            self._held.pop(chunk_no, None)
            if chunk_no not in self._next:
                self._next[chunk_no] = None
        elif chunk_no not in self._next and chunk_no not in self._held:
            self._held[chunk_no] = None

    @property
    def has_candidates(self) -> bool:
        """Whether an announced chunk is not prefetched yet."""
        return bool(self._next or self._held)

    def fetched_on_demand(self, chunk_no: int) -> None:
        """Record that a guest waited for a chunk that was not prefetched."""
        if chunk_no in self._next:
            del self._next[chunk_no]
        elif chunk_no in self._held:
            del self._held[chunk_no]
            self._demanded += 1
            if self._limit is not None and self._demanded >= self._limit:
                self._states.accept_unmatched()
                self._demanded = 0
                self.reactivations += 1

    def take_candidates(self, room: int) -> list[int]:
        """Return at most ``room`` chunks to prefetch now; their state is PREFETCH then."""
        return prefetcher.take_prefetchable(self._states, self._next, room)


def limited(states: chunk_state.ChunkStates) -> LimitPrefetcher:
    """Return the paper's policy for one image, with its limit."""
    return LimitPrefetcher(states, prefetcher.UNMATCHED_LIMIT)


def unbounded(states: chunk_state.ChunkStates) -> prefetcher.Prefetcher:
    """Return a policy for one image that prefetches all that is advertised."""
    return prefetcher.Prefetcher(states, None)
