# SPDX-License-Identifier: Apache-2.0
"""Gets chunks that are not here, each one once, whoever asks and however often.

Two tables keep the promise.  ``_flights`` holds the chunks that this host wants
for itself: readers of a chunk in flight wait for that flight.  ``_source_reads``
holds the reads of the source under way, for this host and for peers alike.  A
peer's request joins only the latter: it never waits for a flight that may wait
for another peer, so no two hosts can wait for each other.

Bytes from anywhere are checked against their CID before they are stored,
answered or passed on; this is the one place where chunks enter a host.
"""

import logging
import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

import trio

from acstor_agent import cache_files
from acstor_agent.core import counters
from acstor_agent.core import peer_health
from acstor_agent.core import places
from acstor_agent.core import public_cache
from acstor_agent.sources import base
from acstor_agent.sources import verify
from acstor_common import errors
from acstor_common import ids
from acstor_common import peer_wire
from acstor_common import ring

LOG = logging.getLogger(__name__)

Bytes = bytes | bytearray | memoryview


class Ask(NamedTuple):
    """A question to one peer.

    :param address: where the agent of ``host`` listens
    :param may_read_source: the host may read the chunk through
    :param may_refer: it may name others to ask instead
    """

    host: ids.HostId
    address: str
    klass: peer_wire.Klass
    may_read_source: bool
    may_refer: bool


AskPeer = Callable[[Ask, "Want"], Awaitable[Bytes | peer_wire.Refer]]
"""Asks one peer for one chunk."""

RETRY_FIRST_S = 0.1
RETRY_LONGEST_S = 2.0
REFERRED_WAIT_S = 2.0
OWNERS_ASKED = places.ACTING_HOMES + places.LAST_RESORTS + 4
"""Owners that are looked at for one chunk: those asked, and some to spare for hosts out of use."""

T = TypeVar("T")


class Want(NamedTuple):
    """One chunk that is to be had: by place (to find it) and by content (to check it)."""

    image_id: ids.ImageId
    segment_no: int
    offset: int
    length: int
    cid: ids.Cid

    def __str__(self) -> str:
        return f"chunk {self.cid.hex()[:12]} (image {self.image_id}, byte {self.offset})"


class Fetched(NamedTuple):
    """A chunk that has arrived, checked, and where it came from."""

    data: Bytes
    origin: counters.Origin


class _Flights(Generic[T]):
    """Work under way by CID: who wants what is under way waits for it."""

    def __init__(self) -> None:
        self._under_way: dict[ids.Cid, tuple[trio.Event, list[T | errors.AcstorError]]] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    async def join(
        self, nursery: trio.Nursery, cid: ids.Cid, work: Callable[[], Awaitable[T]]
    ) -> T:
        """Return what ``work`` returns; it runs once for all that ask while it runs.

        It goes on when those who wait are cancelled: what it fetches is stored.
        """
        if cid not in self._under_way:
            self._under_way[cid] = (trio.Event(), [])
            nursery.start_soon(self._run, cid, work)
        done, result = self._under_way[cid]
        await done.wait()
        if not result:  # this process is ending; an answer is the business of the next one
            await trio.sleep_forever()
        if isinstance(result[0], errors.AcstorError):
            raise result[0]
        return result[0]

    async def wait(self, cid: ids.Cid) -> T | None:
        """Return the result of work under way; None if there is none, or it failed."""
        if cid not in self._under_way:
            return None
        done, result = self._under_way[cid]
        await done.wait()
        return None if not result or isinstance(result[0], errors.AcstorError) else result[0]

    async def _run(self, cid: ids.Cid, work: Callable[[], Awaitable[T]]) -> None:
        done, result = self._under_way[cid]
        try:
            result.append(await work())
        except errors.AcstorError as e:
            result.append(e)
        finally:
            del self._under_way[cid]
            done.set()


class Fetcher:
    """The way of chunks into this host.

    :param here: id of this host
    :param nursery: where fetches run, so that they outlive the readers who asked
    :param ring: returns the v-node table in force
    :param ask_peer: asks one peer for one chunk
    """

    def __init__(
        self,
        here: ids.HostId,
        nursery: trio.Nursery,
        *,
        cache: cache_files.CacheFiles,
        source: base.Source,
        ring: Callable[[], ring.Ring],
        ask_peer: AskPeer,
        health: peer_health.PeerHealth,
        background_limit: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = counters.ExchangeCounters()
        self._here = here
        self._nursery = nursery
        self._cache = cache
        self._source = source
        self._ring = ring
        self._ask_peer = ask_peer
        self._health = health
        self._clock = clock
        self.background_limit = background_limit
        self._background = trio.CapacityLimiter(background_limit)
        self._flights: _Flights[Fetched] = _Flights()
        self._source_reads: _Flights[Bytes] = _Flights()

    @property
    def in_flight(self) -> int:
        """Chunks that are on their way to this host."""
        return len(self._flights)

    async def fetch(self, want: Want, klass: peer_wire.Klass, deadline_s: float) -> Fetched:
        """Return a chunk that a guest waits for, from whoever gives it first.

        Passing faults are waited out until the deadline.

        :raises errors.ChunkMissing: every place says that it has not got it
        :raises errors.DeadlineExceeded: nobody gave it in ``deadline_s`` seconds
        """
        why = ""
        delay_s = RETRY_FIRST_S
        with trio.move_on_after(deadline_s):
            while True:
                try:
                    return await self._fetch_once(want, klass)
                except errors.ChunkMissing:
                    raise
                except (errors.ChunkUnavailable, errors.RemoteProtocolError) as e:
                    why = str(e)
                await trio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_LONGEST_S)
        raise errors.DeadlineExceeded(str(want), deadline_s, why)

    async def fetch_ahead(self, want: Want) -> Fetched | None:
        """Have a chunk that nobody waits for yet; return None if it was here already.

        At most ``background_limit`` of these run at a time, behind what guests wait for.

        :raises errors.AcstorError: it could not be had; nobody has tried again
        """
        async with self._background:
            if want.cid in self._cache:
                return None
            fetched = await self._fetch_once(want, peer_wire.Klass.BULK)
            await self._cache.wait_for_room()
            return fetched

    async def serve(self, want: Want, may_read_source: bool) -> Bytes:
        """Return a chunk to a peer that asks for it.

        :param may_read_source: this host is the chunk's home for the peer, and reads it through
        :raises errors.ChunkUnavailable: it is not here, and may not or cannot be read
        """
        data: Bytes | None = await self._cache.read_chunk(want.cid)
        if data is None and may_read_source:
            data = await self._read_source(want, public_cache.KeepClass.HOME)
        elif data is None:
            data = await self._flight_of(want)
        self.counters.served_chunks += 1
        self.counters.served_bytes += len(data)
        return data

    async def _flight_of(self, want: Want) -> Bytes:
        """Wait for a chunk that is on its way here, for a peer that was referred to this host.

        Not for long: where rings differ, that peer may be the one that this host waits for.
        """
        fetched: Fetched | None = None
        with trio.move_on_after(REFERRED_WAIT_S):
            fetched = await self._flights.wait(want.cid)
        if fetched is None:
            raise errors.ChunkMissing(str(want), self._here)
        return fetched.data

    async def _fetch_once(self, want: Want, klass: peer_wire.Klass) -> Fetched:
        return await self._flights.join(
            self._nursery, want.cid, lambda: self._ask_around(want, klass)
        )

    async def _ask_around(self, want: Want, klass: peer_wire.Klass) -> Fetched:
        """Ask one place after the other; raise what tells most when none has it.

        Where this host is the home nothing is awaited between the look in the cache and the entry
        in ``_source_reads``, so a peer's request cannot make the source be read twice.
        """
        data = await self._cache.read_chunk(want.cid)
        if data is not None:  # it came since the caller looked
            return Fetched(data, counters.Origin.CACHE)
        table = self._ring()
        owners = table.owners(want.image_id, want.segment_no, OWNERS_ASKED)
        failures: list[errors.AcstorError] = []
        for place in places.places(owners, self._here, self._is_usable):
            try:
                fetched = await self._ask(place, table, want, klass)
            except (errors.ChunkUnavailable, errors.RemoteProtocolError) as e:
                LOG.debug("%s", e)
                failures.append(e)
                self.counters.fallbacks += 1
            else:
                self.counters.fetched[want.image_id].add(fetched.origin, want.length)
                return fetched
        raise next((e for e in failures if not isinstance(e, errors.ChunkMissing)), failures[0])

    def _is_usable(self, host: ids.HostId) -> bool:
        return self._health.is_usable(host, self._clock())

    async def _ask(
        self, place: places.Place, table: ring.Ring, want: Want, klass: peer_wire.Klass
    ) -> Fetched:
        if place.host is None:
            is_home = table.home(want.image_id, want.segment_no) == self._here
            keep = public_cache.KeepClass.HOME if is_home else public_cache.KeepClass.BORROWED
            return Fetched(await self._read_source(want, keep), counters.Origin.SOURCE)
        ask = Ask(place.host, table.address_of(place.host), klass, place.may_read_source, True)
        answer = await self._ask_one(ask, want)
        if isinstance(answer, peer_wire.Refer):
            fetched = await self._ask_referred(answer.hosts, table, want, klass)
            if fetched is not None:
                return fetched
            answer = await self._ask_one(ask._replace(may_refer=False), want)
        return self._keep(answer, want, place.may_read_source)

    async def _ask_referred(
        self,
        hosts: Sequence[ids.HostId],
        table: ring.Ring,
        want: Want,
        klass: peer_wire.Klass,
    ) -> Fetched | None:
        """Ask those that a busy home named; None if none of them gives the chunk."""
        for host in hosts:
            if host in table and host != self._here and self._is_usable(host):
                try:
                    ask = Ask(host, table.address_of(host), klass, False, False)
                    return self._keep(await self._ask_one(ask, want), want, False)
                except (errors.ChunkUnavailable, errors.RemoteProtocolError) as e:
                    LOG.debug("%s", e)
        return None

    def _keep(self, data: Bytes | peer_wire.Refer, want: Want, from_home: bool) -> Fetched:
        """Store a checked chunk that a peer gave."""
        if isinstance(data, peer_wire.Refer):
            raise errors.LocalProtocolError("a referral that nobody allowed")
        self._cache.store(want.cid, data, public_cache.KeepClass.BORROWED)
        return Fetched(data, counters.Origin.HOME if from_home else counters.Origin.PEER)

    async def _ask_one(self, ask: Ask, want: Want) -> Bytes | peer_wire.Refer:
        """Ask one peer, check its answer, and remember how it behaved."""
        host = ask.host
        try:
            answer = await self._ask_peer(ask, want)
            if not isinstance(answer, peer_wire.Refer):
                verify.check_chunk(answer, want.cid, str(want), host)
        except (errors.ChunkInvalid, errors.RemoteProtocolError) as e:
            self.counters.invalid_chunks += 1
            self._failed(host, peer_health.FailureKind.LYING, e)
            raise
        except errors.SourceUnreachable as e:
            self._failed(host, peer_health.FailureKind.UNREACHABLE, e)
            raise
        except errors.ChunkMissing:  # an honest no
            self._health.succeeded(host, self._clock())
            raise
        self._health.succeeded(host, self._clock())
        return answer

    def _failed(
        self, host: ids.HostId, kind: peer_health.FailureKind, error: errors.AcstorError
    ) -> None:
        now = self._clock()
        was_quarantined = host in self.quarantined()
        self._health.failed(host, now, kind)
        if not was_quarantined and host in self.quarantined():
            LOG.warning("%s is left alone for %.1f s: %s", host, self.quarantined()[host], error)

    def quarantined(self) -> dict[ids.HostId, float]:
        """Return the hosts that are left alone now, and for how many seconds more.

        May be called from any thread.
        """
        return self._health.quarantined(self._clock())

    async def _read_source(self, want: Want, keep: public_cache.KeepClass) -> Bytes:
        async def read() -> Bytes:
            blob = base.Blob(want.image_id, base.BlobKind.IMAGE)
            data = await self._source.read(blob, want.offset, want.length, want.cid)
            self.counters.source_bytes += len(data)
            self._cache.store(want.cid, data, keep)
            return data

        return await self._source_reads.join(self._nursery, want.cid, read)
