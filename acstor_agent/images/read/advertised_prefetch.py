# SPDX-License-Identifier: Apache-2.0
"""Prefetches chunks of one image that neighbours advertise, after all reads of guests."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

import trio

from acstor_agent.core.images import chunk_state
from acstor_agent.core.images import prefetcher
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import content_index
from acstor_agent.engine_io import background_fetch
from acstor_agent.engine_io import exchange
from acstor_agent.images.read import boot_session
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_common.model import segments

MAX_IN_FLIGHT = 32
HIT_LOOKUPS, CHUNK_LOOKUPS = 10, 3
"""Cost of a segment that the image has, and of each of its chunks to handle, in look-ups."""

MakePolicy = Callable[[chunk_state.ChunkStates], prefetcher.PrefetchPolicy]
"""Returns the policy of one image, from the states of its chunks."""

_E = chunk_state.ChunkEvent


class AdvertisedPrefetch:
    """The prefetch of one image; chunks that the boot image covers come with it."""

    def __init__(
        self,
        image_map: chunk_map.ChunkMap,
        index: content_index.Index,
        chunks: exchange.Exchange,
        nursery: trio.Nursery,
        boots: boot_session.BootSession,
        make_policy: MakePolicy | None = prefetcher.default_prefetcher,
    ) -> None:
        self.states = chunk_state.ChunkStates(len(image_map))
        self._is_on = make_policy is not None
        self.prefetcher = (make_policy or prefetcher.default_prefetcher)(self.states)
        self._map = image_map
        self._index = index
        self._chunks = chunks
        self._nursery = nursery
        self._boots = boots
        self._next: list[int] = []
        self._ahead: background_fetch.BackgroundFetch[int] | None = None

    def chunks_advertised(self, announced: Iterable[segments.Chunks]) -> int:
        """Record advertised chunks; fetch useful ones, unless only their home announced them.

        Return the cost of the segments that the image has, in look-ups.
        """
        if not self._is_on:
            return 0
        find, lookups = self._index.find_parent, 0
        for segment, bits in announced:
            if (named := find(segment)) is not None:  # rare when many images are attached
                lookups += self._note(named, segment, bits)
        self._fetch_some()
        return lookups

    def _is_present(self, cid: ids.Cid) -> bool:
        return self._chunks.has_chunk(cid) or self._boots.covers_chunk(cid)

    def _note(self, named: int, segment: ids.Oid, bits: int) -> int:
        first, cids = self._chunks.cids_of_segment(self._map, named)
        missing = [at for at, cid in _named(cids, bits) if not self._is_present(cid)]
        if not missing or self._chunks.segment_name(self._map, first, cids) != segment:
            return lookups_of_hit(0)
        given = self._chunks.holders_bitmap(segment)
        for at in missing:
            if given >> at & 1:
                self.prefetcher.chunk_advertised(self._index.parent_of(first + at))
        return lookups_of_hit(len(missing))

    def chunks_of(self, segment_chunks: segments.Chunks) -> list[tuple[int, ids.Cid]] | None:
        """Return the chunks of a segment, by number; None if this image lacks it.

        The list is empty if the chunk that names the segment occurs earlier in the image.
        """
        segment, bits = segment_chunks
        if (named := self._index.find_parent(segment)) is None:
            return None
        first, cids = self._chunks.cids_of_segment(self._map, named)
        if self._chunks.segment_name(self._map, first, cids) != segment:
            return []
        return [(first + at, cid) for at, cid in _named(cids, bits)]

    def chunk_evicted(self, names: Iterable[ids.Oid]) -> None:
        """Record evictions."""
        for oid in names:
            chunk_no = self._index.find_parent(ids.Oid(oid))
            if chunk_no is not None:
                self.states.apply_event(chunk_no, _E.EVICTED)

    def guest_requested(self, numbers: Iterable[int]) -> None:
        """Record that a guest waits for chunks."""
        if self._is_on and self.prefetcher.has_candidates:
            for chunk_no in numbers:
                self.prefetcher.fetched_on_demand(self._index.parent_of(chunk_no))

    def read_completed(self, offset: int, length: int) -> None:
        """Record a guest's read, which proves prefetches of its range useful."""
        if not (self.states.unmatched or self.states.in_flight) or not length:
            return
        first = offset // self._map.geometry.chunk_bytes
        last = (offset + length - 1) // self._map.geometry.chunk_bytes
        matched = self.states.matched
        for chunk_no in range(first, last + 1):
            if not self._map.is_zero(chunk_no):
                self.states.apply_event(self._index.parent_of(chunk_no), _E.DEMAND_ARRIVED)
        if self.states.matched != matched:
            self._fetch_some()

    def _fetch_some(self) -> None:
        self._next += self.prefetcher.take_candidates(MAX_IN_FLIGHT - self.states.in_flight)
        if not self._next:
            return
        if self._ahead is None:
            self._ahead = self._chunks.background_fetch(exchange.Priority.ADVERTISED)
            self._nursery.start_soon(self._fetch, self._ahead)
        else:
            self._ahead.wake_waiter()  # a hung request delays no other

    async def _fetch(self, ahead: background_fetch.BackgroundFetch[int]) -> None:
        left: set[int] = set()
        try:
            with ahead:
                while self._next or ahead:
                    asked = self._not_here()
                    left.update(chunk_no for chunk_no, _ in asked)
                    ahead.request_items(asked)
                    for chunk_no, outcome in await ahead.wait_for_arrivals() if ahead else ():
                        left.discard(chunk_no)
                        is_here = not isinstance(outcome, errors.AcstorError)
                        event = _E.PREFETCH_ARRIVED if is_here else _E.PREFETCH_FAILED
                        self.states.apply_event(chunk_no, event)
                    self._fetch_some()
        finally:
            self._ahead = None
            for chunk_no in left:
                self.states.apply_event(chunk_no, _E.PREFETCH_FAILED)

    def _not_here(self) -> list[tuple[int, chunk_ref.ChunkRef]]:
        found = []
        for chunk_no in self._next:
            ref = self._chunks.chunk_ref_of(self._map, chunk_no)
            if self._chunks.has_chunk(ref.cid):
                self.states.apply_event(chunk_no, _E.PREFETCH_ARRIVED)
            else:
                found.append((chunk_no, ref))
        self._next = []
        return found


def lookups_of_hit(chunks: int) -> int:
    """Return the cost of a segment that an image has, with so many chunks to handle."""
    return HIT_LOOKUPS + CHUNK_LOOKUPS * chunks


def _named(cids: Sequence[ids.Cid], bits: int) -> list[tuple[int, ids.Cid]]:
    """Return the chunks of a bitmap, without zeros, by their place in the segment."""
    return [(at, cid) for at, cid in enumerate(cids) if bits >> at & 1 and cid != ids.ZERO_CID]
