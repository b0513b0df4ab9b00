# SPDX-License-Identifier: Apache-2.0
"""Reads chunks through: what a home does for everybody, and any host when nobody else can help.

A home reads the source once for all who ask.  Before it does it may ask one other
host: the former home of the content, after a new v-node table, or the home of a
wider group (``core/exchange/homes.py`` says whom).

Two tables keep the promises.  ``_reads`` holds the reads of the source under way,
``_relays`` the questions to others, each of which ends in a read of the source if
nobody has the chunk.  A question that was relayed joins only the former: so no
home ever waits for a home that waits for it.

The one rule: what one peer makes this host bring is bounded, also what it does not
wait for any more: a flight goes on when those who wait give up.
"""

import collections
import logging
from collections.abc import Awaitable
from collections.abc import Callable
from typing import NamedTuple
from typing import TypeVar

import trio

from acstor_agent.cache import cache_files
from acstor_agent.chunks import exchange
from acstor_agent.chunks import flights
from acstor_agent.chunks import want as want_
from acstor_agent.core import counters
from acstor_agent.core.cache import public_cache
from acstor_agent.core.exchange import errand as errand_
from acstor_agent.core.exchange import homes
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common import ids
from acstor_common import ring

LOG = logging.getLogger(__name__)

KeepClass = public_cache.KeepClass

FLIGHTS_OF_A_PEER = 512
"""Chunks that are on their way because one peer asked: as many as it may ask for at a time."""

_T = TypeVar("_T")


class ReadThrough(NamedTuple):
    """A chunk that was read through, and whether the source or another home gave it."""

    data: want_.Bytes
    origin: counters.Origin


class Home:
    """The way of chunks from the source into this host.

    :param former_ring: returns the table that was in force before, while it is worth asking
    """

    def __init__(
        self,
        here: ids.HostId,
        nursery: trio.Nursery,
        *,
        cache: cache_files.CacheFiles,
        source: base.Source,
        peers: exchange.Exchange,
        current_ring: Callable[[], ring.Ring],
        former_ring: Callable[[], ring.Ring | None],
    ) -> None:
        self._here = here
        self._cache = cache
        self._source = source
        self._peers = peers
        self._current_ring = current_ring
        self._former_ring = former_ring
        self.counters = counters.ExchangeCounters()
        self._reads: flights.Flights[want_.Bytes] = flights.Flights(nursery)
        self._relays: flights.Flights[ReadThrough] = flights.Flights(nursery)
        self._begun_for: collections.Counter[ids.HostId] = collections.Counter()

    def is_home_of(self, want: want_.Want) -> bool:
        """Say whether this host is the home of a chunk, as it sees the ring."""
        return homes.home(self._current_ring(), self._here, self._peers.oid(want)) == self._here

    def is_left_to(self, want: want_.Want, requester: ids.HostId | None) -> bool:
        """Say whether a home that asks for a chunk reads it itself; see ``homes.is_left_to``."""
        return homes.is_left_to(
            self._current_ring(), self._former_ring(), self._here, self._peers.oid(want), requester
        )

    def reading(self, want: want_.Want) -> flights.Flight[want_.Bytes] | None:
        """Return the read of the source that is under way for a chunk."""
        return self._reads.get(want.cid)

    async def read(
        self,
        want: want_.Want,
        errand: errand_.Errand,
        keep: KeepClass,
        requester: ids.HostId | None = None,
        is_moved: bool = False,
    ) -> ReadThrough:
        """Return a chunk that is not here, from an upstream or from the source, and keep it.

        Nothing is awaited before it is in one of the tables.

        :param requester: the peer that asks for it; None for this host itself
        :param is_moved: this host is the home by the peer's table, and was not by the one before
        :raises errors.SourceUnreachable: among others, too much is on its way for the peer
        """
        upstreams = [
            upstream
            for upstream in homes.upstreams(
                self._current_ring(),
                self._former_ring(),
                self._here,
                self._peers.oid(want),
                requester,
                is_moved,
            )
            if self._peers.is_usable(upstream.host)
        ]
        if not upstreams and self._relays.get(want.cid) is None:
            data = await self.read_source(want, keep, requester)
            return ReadThrough(data, counters.Origin.SOURCE)

        async def relay(_: flights.Flight[ReadThrough]) -> ReadThrough:
            return await self._relay(want, errand, keep, upstreams)

        return await self._brought(self._relays, want, relay, requester)

    async def _brought(
        self,
        table: flights.Flights[_T],
        want: want_.Want,
        work: Callable[[flights.Flight[_T]], Awaitable[_T]],
        requester: ids.HostId | None,
    ) -> _T:
        """Return what a flight brings: one that is under way, or one that begins now.

        One of another image with the same content may fail because that image is gone: then this
        image's begins.
        """
        while True:
            is_under_way = table.get(want.cid) is not None
            if not is_under_way and requester is not None:
                self._check_share(want, requester)
            flight = table.join(want.cid, work, want.image_id)
            if not is_under_way and requester is not None:
                self._charge(flight, requester)
            try:
                return await flight.wait()
            except errors.ChunkMissing:
                if flight.of == want.image_id:
                    raise

    def _check_share(self, want: want_.Want, requester: ids.HostId) -> None:
        if self._begun_for[requester] >= FLIGHTS_OF_A_PEER:
            why = f"{FLIGHTS_OF_A_PEER} chunks are on their way for {requester} already"
            raise errors.SourceUnreachable(str(want), self._here, why)

    def _charge(self, flight: flights.Flight[_T], requester: ids.HostId) -> None:
        """Let a flight count as the requester's until it lands."""
        self._begun_for[requester] += 1

        def landed() -> None:
            self._begun_for[requester] -= 1
            if not self._begun_for[requester]:
                del self._begun_for[requester]

        flight.landed.append(landed)

    async def _relay(
        self,
        want: want_.Want,
        errand: errand_.Errand,
        keep: KeepClass,
        upstreams: list[homes.Upstream],
    ) -> ReadThrough:
        for upstream in upstreams:
            try:
                data = await self._peers.ask_upstream(
                    upstream.host, want, errand, upstream.may_read_source
                )
            except exchange.PEER_ERRORS as e:
                LOG.debug("%s", e)
                continue
            self.counters.relayed_bytes += len(data)
            self._take_in(want, data, keep, upstream.host)
            return ReadThrough(data, counters.Origin.HOME)
        here = await self._cache.read_chunk(want.cid)
        if here is not None:  # it was read for a relayed question meanwhile
            return ReadThrough(here, counters.Origin.CACHE)
        return ReadThrough(await self.read_source(want, keep), counters.Origin.SOURCE)

    async def read_source(
        self, want: want_.Want, keep: KeepClass, requester: ids.HostId | None = None
    ) -> want_.Bytes:
        """Return a chunk from the source, read once for all who want it now, and keep it.

        Nothing is awaited before it is in the table.

        :param requester: the peer that asks for it, if that is not counted already
        """

        async def read(_: flights.Flight[want_.Bytes]) -> want_.Bytes:
            blob, offset = base.blob_at(want.image_id, want.offset)
            data = await self._source.read(blob, offset, want.length, want.content)
            self.counters.source_bytes += len(data)
            self._take_in(want, data, keep, None)
            return data

        return await self._brought(self._reads, want, read, requester)

    def _take_in(
        self,
        want: want_.Want,
        data: want_.Bytes,
        keep: KeepClass,
        giver: ids.HostId | None,
    ) -> None:
        if self._cache.store(want.cid, data, keep):
            self._peers.have(want, giver)
