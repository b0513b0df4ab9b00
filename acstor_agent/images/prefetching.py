# SPDX-License-Identifier: Apache-2.0
"""Fetches what neighbours advertise of one image, as far as that has proved right.

What to fetch is decided by the cores (chunk states, prefetch, content index);
here it is done, behind everything that guests wait for.  Everything is about
parents: the first chunk of the image with a content stands for all of them.
"""

import logging
from collections.abc import Callable
from collections.abc import Iterable

import trio

from acstor_agent.chunks import fetcher
from acstor_agent.chunks import want as want_
from acstor_agent.core.exchange import content_index
from acstor_agent.core.exchange import gossip
from acstor_agent.core.exchange import prefetch
from acstor_agent.core.images import chunk_state
from acstor_common import chunk_map
from acstor_common import errors
from acstor_common import ids

LOG = logging.getLogger(__name__)

UNDER_WAY = 32
"""Chunks of one image that are being prefetched at a time."""

_E = chunk_state.ChunkEvent


def want_of(image_map: chunk_map.ChunkMap, chunk_no: int) -> want_.Want:
    """Return what to ask for to have a chunk of an image."""
    cut = image_map.geometry
    return want_.Want(
        image_map.image_id,
        cut.chunk_offset(chunk_no),
        cut.chunk_length(chunk_no),
        image_map.cid(chunk_no),
        image_map.scope_keys,
    )


class Prefetching:
    """The prefetch of one image.

    :param is_covered: says whether a chunk comes by another way, with the boot image
    :param limit: chunks prefetched and not read that are allowed; 0 turns it off, None sets no
        bound
    """

    def __init__(
        self,
        image_map: chunk_map.ChunkMap,
        index: content_index.ContentIndex,
        chunks: fetcher.Fetcher,
        nursery: trio.Nursery,
        limit: int | None,
        is_covered: Callable[[ids.Cid], bool],
    ) -> None:
        self.states = chunk_state.ChunkStates(len(image_map))
        self.prefetcher = prefetch.Prefetcher(self.states, limit)
        self._is_on = limit != 0
        self._map = image_map
        self._index = index
        self._chunks = chunks
        self._nursery = nursery
        self._is_covered = is_covered

    def advertised(self, prefixes: Iterable[gossip.Prefix]) -> None:
        """Note what neighbours have; fetch what is of use here."""
        if not self._is_on:
            return
        for prefix in prefixes:
            chunk_no = self._index.find(prefix)
            if chunk_no is not None and not self._is_here(self._map.cid(chunk_no)):
                self.prefetcher.advertised(chunk_no)
        self._fetch_some()

    def _is_here(self, cid: ids.Cid) -> bool:
        return self._chunks.has(cid) or self._is_covered(cid)

    def cid_of(self, prefix: gossip.Prefix) -> ids.Cid | None:
        """Return the CID that a prefix stands for in this image; None if it names no such chunk."""
        chunk_no = self._index.find(prefix)
        return None if chunk_no is None else self._map.cid(chunk_no)

    def gone(self, names: Iterable[ids.Oid]) -> None:
        """Note that the cache has let a chunk go."""
        for oid in names:
            chunk_no = self._index.find(gossip.Prefix(oid))
            if chunk_no is not None:
                self.states.apply(chunk_no, _E.EVICTED)

    def waited_for(self, chunk_no: int) -> None:
        """Note that a guest has to wait for a chunk."""
        if self._is_on:
            self.prefetcher.fetched_on_demand(self._index.parent(chunk_no))

    def read(self, offset: int, length: int) -> None:
        """Note that a guest was given a range: prefetches of it have proved right.

        Where nothing waits to be proved this costs nothing: it is on the path of every read.
        """
        if not (self.states.unmatched or self.states.under_way) or not length:
            return
        first = offset // self._map.geometry.chunk_bytes
        last = (offset + length - 1) // self._map.geometry.chunk_bytes
        matched = self.states.matched
        for chunk_no in range(first, last + 1):
            if not self._map.is_zero(chunk_no):
                self.states.apply(self._index.parent(chunk_no), _E.DEMAND_ARRIVED)
        if self.states.matched != matched:
            self._fetch_some()

    def _fetch_some(self) -> None:
        for chunk_no in self.prefetcher.take(UNDER_WAY - self.states.under_way):
            self._nursery.start_soon(self._fetch, chunk_no)

    async def _fetch(self, chunk_no: int) -> None:
        event = _E.PREFETCH_FAILED
        try:
            await self._chunks.fetch_ahead(want_of(self._map, chunk_no), fetcher.Errand.ADVERTISED)
            event = _E.PREFETCH_ARRIVED
        except errors.AcstorError as e:  # a guest that needs it will ask again and be told
            LOG.debug("prefetch: %s", e)
        finally:
            self.states.apply(chunk_no, event)
        self._fetch_some()
