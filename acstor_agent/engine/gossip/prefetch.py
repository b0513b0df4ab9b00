# SPDX-License-Identifier: Apache-2.0
"""Which advertised chunks of one image to fetch before a guest asks (Nicolae 2016, 3.1.4).

What is fetched in vain is bounded.  A chunk is *unmatched* while it was
prefetched and no guest has read it.  Advertisements are acted upon while the
unmatched chunks are fewer than are allowed, else they are held back.

The paper counts a chunk when it has arrived, so a batch of advertisements that
comes at once passes the test as a whole; here those under way count too, and so
do those that a small cache let go before they were read.  Held-back chunks are
not lost: when the guest reads what was prefetched they are fetched in the order
in which they were advertised, which is the order in which a neighbour read them.

Re-activation is the paper's: a held-back chunk that a guest then has to fetch on
demand shows that the patterns have converged again; when there are ``limit`` of
these, the chunks that are LOCAL stop counting.

Trust is an addition: an image whose readers were never right may have ``first``
chunks unmatched, and each that was prefetched and then read allows ``gain`` more, up
to the limit.  Chunks that were held back and fetched on demand earn none: one who
reads at random what a neighbour has read whole meets an advertisement each time, and
still nothing tells what he will read next.  So readers who diverge from the beginning
waste ``first`` chunks instead of ``limit``, and readers who agree reach a limit of 256
after 127 chunks.  FIRST and GAIN were chosen by the swarm simulation: see
doc/source/contributor/exchange_design.rst.
"""

import collections
from typing import Protocol

from acstor_agent.core.images import chunk_state

LIMIT = 256
"""Chunks; with chunks of 64 KiB the paper's 512 chunks of 32 KiB: 16 MiB."""
FIRST = 2
"""Chunks that an image whose readers have nothing in common wastes at most."""
GAIN = 2
"""Trust grows as long as more than one prediction in 1 + GAIN is right."""
HELD_LIMIT = 4096
"""Advertised chunks that are remembered while they are held back; the oldest is forgotten first."""

_E = chunk_state.ChunkEvent


class PrefetchPolicy(Protocol):
    """Decides which advertised chunks of one image to prefetch."""

    @property
    def has_candidates(self) -> bool:
        """Say whether there is any chunk that was advertised and is not prefetched."""

    def advertised(self, chunk_no: int) -> None:
        """Note that a neighbour has a chunk; :meth:`take` says when to fetch it."""

    def fetched_on_demand(self, chunk_no: int) -> None:
        """Note that a guest had to wait for a chunk, because nobody prefetched it."""

    def take(self, room: int) -> list[int]:
        """Return chunks to prefetch now, at most ``room``; they are in state PREFETCH then."""


class Prefetcher:
    """The default policy for one image; see :class:`PrefetchPolicy`.

    :param states: the image's chunk states; PREFETCH_SENT is applied here, all other events by
        the caller
    :param limit: unmatched chunks allowed at most; 0 never prefetches, None always does
    :param first: unmatched chunks allowed before any prediction was right; None turns trust off,
        so that the limit holds from the beginning

    >>> prefetcher = Prefetcher(chunk_state.ChunkStates(100), limit=2)
    >>> for chunk_no in (7, 8, 9):
    ...     prefetcher.advertised(chunk_no)
    >>> prefetcher.take(10)
    [7, 8]
    """

    def __init__(
        self,
        states: chunk_state.ChunkStates,
        limit: int | None = LIMIT,
        first: int | None = FIRST,
        gain: int = GAIN,
    ) -> None:
        self._states = states
        self._limit = limit
        self._first = first
        self._gain = gain
        # Advertised, in this order, and not acted upon yet.
        self._held: collections.OrderedDict[int, None] = collections.OrderedDict()
        self._demanded = 0  # held-back chunks that were fetched on demand, all
        self._demanded_before = 0  # the same at the last re-activation
        self._evicted_before = 0  # evicted_unread at the last re-activation
        self.reactivations = 0
        """How often the patterns converged again."""

    @property
    def allowed(self) -> int | None:
        """Unmatched chunks that are allowed now; None if there is no bound."""
        if self._limit is None or self._first is None:
            return self._limit
        return min(self._limit, self._first + self._gain * self._states.matched)

    @property
    def at_stake(self) -> int:
        """Chunks whose prefetch has not proved right: unmatched, under way, evicted unread."""
        evicted = self._states.evicted_unread - self._evicted_before
        return self._states.unmatched + self._states.under_way + evicted

    def chunk_advertised(self, chunk_no: int) -> None:
        """Note that a neighbour has a chunk; :meth:`take` says when to fetch it."""
        if self._limit == 0 or not self._states.can_happen(chunk_no, _E.PREFETCH_SENT):
            return
        self._held.setdefault(chunk_no)
        if len(self._held) > HELD_LIMIT:
            self._held.popitem(last=False)

    @property
    def has_candidates(self) -> bool:
        """Say whether there is any chunk that was advertised and is not prefetched."""
        return bool(self._held)

    def fetched_on_demand(self, chunk_no: int) -> None:
        """Note that a guest had to wait for a chunk, because nobody prefetched it."""
        if chunk_no not in self._held:
            return
        del self._held[chunk_no]
        self._demanded += 1
        if self._limit is not None and self._demanded - self._demanded_before >= self._limit:
            self._reactivate()

    def take_candidates(self, room: int) -> list[int]:
        """Return chunks to prefetch now, at most ``room``; they are in state PREFETCH then.

        To be called after every event that may have made room: an advertisement, a guest's read
        of a prefetched chunk, the end of a prefetch.  A chunk that is on its way on demand may be
        among them: join that fetch.
        """
        allowed = self.allowed
        if allowed is not None:
            room = min(room, allowed - self.at_stake)
        return take(self._states, self._held, room)

    def _reactivate(self) -> None:
        self._states.accept_unmatched()
        self._demanded_before = self._demanded
        self._evicted_before = self._states.evicted_unread
        self.reactivations += 1


def by_trust(states: chunk_state.ChunkStates) -> Prefetcher:
    """Return the default policy for one image, with the limit of the paper."""
    return Prefetcher(states, LIMIT)


def take(
    states: chunk_state.ChunkStates, chunks: collections.OrderedDict[int, None], room: int
) -> list[int]:
    """Take the first ``room`` chunks that can be prefetched still; they are in PREFETCH then."""
    taken: list[int] = []
    while chunks and len(taken) < room:
        chunk_no, _ = chunks.popitem(last=False)
        if states.can_happen(chunk_no, _E.PREFETCH_SENT):  # it may have come since
            states.apply_event(chunk_no, _E.PREFETCH_SENT)
            taken.append(chunk_no)
    return taken
