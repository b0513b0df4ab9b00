# SPDX-License-Identifier: Apache-2.0
"""Gets chunks that are not here, each one once, whoever asks and however often.

``_flights`` holds the chunks that this host wants for itself: readers of a chunk
in flight wait for that flight.  What is read through, for this host and for peers
alike, is the business of ``home``; what peers ask for, that of ``serving``.

Bytes from anywhere are checked against their CID before they are stored,
answered or passed on; this is the one place where chunks enter a host.
"""

import itertools
import logging
import math
import time
from collections.abc import Callable
from collections.abc import Iterable
from typing import NamedTuple

import trio

from acstor_agent import disk_io
from acstor_agent.cache import cache_files
from acstor_agent.chunks import exchange
from acstor_agent.chunks import flights
from acstor_agent.chunks import home as home_
from acstor_agent.chunks import journey as journey_
from acstor_agent.chunks import last_search
from acstor_agent.chunks import retries
from acstor_agent.chunks import want as want_
from acstor_agent.core import counters
from acstor_agent.core.cache import public_cache
from acstor_agent.core.exchange import errand as errand_
from acstor_agent.core.exchange import hedge
from acstor_agent.core.exchange import homes
from acstor_agent.core.exchange import places
from acstor_agent.core.exchange import preference
from acstor_common import errors
from acstor_common import ids
from acstor_common import ring

LOG = logging.getLogger(__name__)

Want = want_.Want
Errand = errand_.Errand

RACE_TICK_S = 0.1
ADVERTISED_AT_A_TIME = 4
"""Prefetches of what neighbours advertised: enough to fill a link, few enough that what is asked
last is not asked of hosts that were free a moment ago."""
OWNERS_ASKED = places.ACTING_HOMES + places.LAST_RESORTS + 4
"""Owners that are looked at for one chunk: those asked, and some to spare for hosts out of use."""


class _NoHolder(errors.ChunkUnavailable):
    """None of those who advertised a chunk gave it, and nobody else was to be asked."""


class Fetched(NamedTuple):
    """A chunk that has arrived, checked, and where it came from."""

    data: want_.Bytes
    origin: counters.Origin


class Fetcher:
    """The way of chunks into this host.

    :param here: id of this host
    :param nursery: where fetches run, so that they outlive the readers who asked
    :param current_ring: returns the v-node table in force
    :param background_limit: chunks that are fetched ahead at a time, for each errand
    :param has_others: where there is no v-node table yet one is to come
    :param lost_after_s: so long the source must deny an image before anything of it is lost
    """

    def __init__(
        self,
        here: ids.HostId,
        nursery: trio.Nursery,
        *,
        cache: cache_files.CacheFiles,
        home: home_.Home,
        current_ring: Callable[[], ring.Ring],
        peers: exchange.Exchange,
        background_limit: int,
        has_others: bool = False,
        lost_after_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = home.counters
        self.hedge = hedge.Hedge()
        self.preference = preference.Preference()
        self.background_limit = background_limit
        self._here = here
        self._has_others = has_others
        self._nursery = nursery
        self._cache = cache
        self._current_ring = current_ring
        self._peers = peers
        self._clock = clock
        self._limiters = {
            Errand.PRE_SEED: trio.CapacityLimiter(background_limit),
            Errand.HYDRATE: trio.CapacityLimiter(background_limit),
            Errand.ADVERTISED: trio.CapacityLimiter(min(background_limit, ADVERTISED_AT_A_TIME)),
            Errand.WHOLE: trio.CapacityLimiter(background_limit),
        }
        self._flights: flights.Flights[Fetched] = flights.Flights(nursery)
        self._ahead = flights.Queue(self._begin_ahead, background_limit, lambda: cache.has_room)
        self._journeys: dict[flights.Flight[Fetched], journey_.Journey] = {}
        self._home = home
        self._retries = retries.Retries()
        self._last_search: last_search.LastSearch[Fetched] = last_search.LastSearch(
            nursery,
            hosts=self._other_hosts,
            left_alone=peers.quarantined,
            ask=self._ask_holder,
            clock=clock,
            lost_after_s=lost_after_s,
        )

    def has(self, cid: ids.Cid) -> bool:
        """Say whether a chunk is here already."""
        return cid in self._cache

    def is_home_of(self, want: Want) -> bool:
        """Say whether this host is the home of a chunk, as it sees the ring."""
        return self._home.is_home_of(want)

    @property
    def in_flight(self) -> int:
        """Chunks that are on their way to this host."""
        return len(self._flights)

    async def fetch(
        self,
        want: Want,
        deadline_s: float = math.inf,
        flight: flights.Flight[Fetched] | None = None,
        told: Callable[[str], None] = lambda why: None,
    ) -> Fetched:
        """Return a chunk that a guest waits for, from whoever gives it first.

        What may pass is waited out, until the deadline if there is one.

        :param flight: what :meth:`begin` returned, if it was called before
        :param told: is told what is waited for, after each time that nobody gave it
        :raises errors.ChunkLost: the source says that it has not got it, and so does every host
        :raises errors.DeadlineExceeded: nobody gave it in ``deadline_s`` seconds
        """
        why = ""
        with trio.move_on_after(deadline_s):
            for tries in itertools.count():
                try:
                    fetched = await self._fetch_or_find(want, flight)
                except errors.ChunkLost:
                    raise
                except exchange.PEER_ERRORS as e:
                    why, flight = str(e), None
                else:
                    if tries:
                        self._retries.came()
                    return fetched
                told(why)
                await self._retries.pause(tries)
        raise errors.DeadlineExceeded(str(want), deadline_s, why)

    async def _fetch_or_find(self, want: Want, flight: flights.Flight[Fetched] | None) -> Fetched:
        """Ask every place once, and every host where the source has not got it any more."""
        try:
            return await self.fetch_once(want, Errand.GUEST_WAITS, flight)
        except exchange.PEER_ERRORS as e:
            if isinstance(e, errors.ChunkMissing) and not isinstance(e, errors.ChunkRefused):
                return await self._last_search.find(want, e)
            if (found := await self._from_left_alone(want)) is None:
                raise
            return found

    async def _from_left_alone(self, want: Want) -> Fetched | None:
        """Ask owners that are left alone whether they have a chunk that nobody else can give.

        A home that cannot read the source is left alone, and may be the one that has the chunk.
        """
        alone = self._peers.quarantined()
        oid = self._peers.oid(want)
        owners = homes.owners(self._current_ring(), self._here, oid, OWNERS_ASKED)
        hosts = [host for host in owners if host in alone]
        with trio.move_on_after(retries.LONGEST_S):
            for host in hosts[: places.ACTING_HOMES]:
                try:
                    return await self._ask_holder(host, want)
                except exchange.PEER_ERRORS as e:
                    LOG.debug("%s", e)
        return None

    def _other_hosts(self) -> list[ids.HostId] | None:
        table = self._current_ring()
        if self._has_others and not table.epoch:
            return None
        hosts = (ids.HostId(host.host) for host in table.hosts)
        return [host for host in hosts if host != self._here]

    async def _ask_holder(self, host: ids.HostId, want: Want) -> Fetched:
        place = places.Place(host, may_read_source=False)
        fetched = await self._ask(place, want, Errand.GUEST_WAITS)
        self.counters.fetched[want.image_id].add(fetched.origin, want.length)
        return fetched

    async def fetch_ahead(self, want: Want, errand: Errand) -> Fetched | None:
        """Have a chunk that nobody waits for yet; return None if it was here already.

        At most ``background_limit`` of these run at a time, ADVERTISED_AT_A_TIME of those that were
        merely advertised.

        :raises errors.AcstorError: it could not be had; nobody has tried again
        """
        async with self._limiters[errand]:
            if want.cid in self._cache:
                return None
            fetched = await self.fetch_once(want, errand)
            await self._cache.wait_for_room()
            return fetched

    def flight_to(self, cid: ids.Cid) -> flights.Flight[Fetched] | None:
        """Return the flight of a chunk that this host wants for itself, if it is under way."""
        return self._flights.get(cid)

    def read_ahead(self, wants: Iterable[Want]) -> None:
        """Begin to have chunks that a guest is about to want, ``background_limit`` at a time.

        What cannot be had now is tried again when the guest asks for it.
        """
        self._ahead.put(wants)

    def _begin_ahead(self, want: Want) -> flights.Flight[Fetched] | None:
        return None if want.cid in self._cache else self.begin(want, Errand.READ_AHEAD)

    def begin(self, want: Want, errand: Errand) -> flights.Flight[Fetched]:
        """Have a chunk brought here; join its flight if it is under way."""
        with disk_io.as_stream(errand.stream):
            flight = self._flights.join(
                want.cid, lambda flight: self._bring(want, errand, flight), want.image_id
            )
        journey = self._journeys.get(flight)
        if journey and errand < journey.errand:
            self._hurry(journey, errand)
        return flight

    async def fetch_once(
        self, want: Want, errand: Errand, flight: flights.Flight[Fetched] | None = None
    ) -> Fetched:
        """Return a chunk from whoever gives it first, asking every place once.

        A flight that was begun for another image with the same content may fail because that image
        is gone, which its owner can bring about at any time: then this image's is begun.

        :param flight: what :meth:`begin` returned, if it was called before
        :raises errors.AcstorError: nobody gave it
        """
        while True:
            flight = flight or self.begin(want, errand)
            try:
                return await flight.wait()
            except _NoHolder:
                if errand.asks_holders_only:
                    raise
            except errors.ChunkMissing:
                if flight.of == want.image_id:
                    raise
            flight = None  # it asked too few, or elsewhere; the next one asks everybody

    def _hurry(self, journey: journey_.Journey, errand: Errand) -> None:
        """Go on with a journey for a more urgent reason."""
        asked_too_few = journey.errand.asks_holders_only
        journey.errand = errand
        if asked_too_few:
            asked = {place.host for place in (*journey.left, *journey.asked)}
            journey.left += [
                place for place in self._places(journey.want, errand) if place.host not in asked
            ]

    async def _bring(
        self,
        want: Want,
        errand: Errand,
        flight: flights.Flight[Fetched],
    ) -> Fetched:
        """Ask one place after the other; raise what tells most when none has it.

        Where this host is the home nothing is awaited between the look in the cache and the entry
        of ``home``, so a peer's request cannot make the source be read twice.
        """
        data = await self._cache.read_chunk(want.cid)
        if data is not None:  # it came since the caller looked
            return Fetched(data, counters.Origin.CACHE)
        journey = self._journeys[flight] = journey_.Journey(
            want, errand, self._places(want, errand)
        )
        try:
            if errand is not Errand.GUEST_WAITS:  # raced only if a guest joins: a scope costs 5 us
                return await self._travel(journey)
            with flight.scope:
                return await self._travel(journey)
            return await flight.wait()  # a rival has won
        except exchange.PEER_ERRORS:
            if journey.rival:
                await journey.rival.ended.wait()
            if flight.has_landed:
                return await flight.wait()
            raise
        finally:
            del self._journeys[flight]
            if journey.rival:
                journey.rival.scope.cancel()

    def _places(self, want: Want, errand: Errand) -> list[places.Place]:
        if errand.asks_holders_only:
            holders = self._peers.holders(want)[: places.HOLDERS]
            return [places.Place(host, may_read_source=False) for host in holders]
        oid = self._peers.oid(want)
        owners = homes.owners(self._current_ring(), self._here, oid, OWNERS_ASKED)
        holders = self._peers.holders(want)
        if owners and owners[0] != self._here:
            holders = [h for h in holders if not self._peers.is_busier(h, owners[0])]
        is_guest_at_peers = errand is Errand.GUEST_WAITS and owners[:1] != (self._here,)
        is_source_first = is_guest_at_peers and self.preference.decide(self._clock())
        return places.places(owners, self._here, self._peers.is_usable, holders, is_source_first)

    async def _travel(self, journey: journey_.Journey) -> Fetched:
        while journey.left:
            began_s, errand = self._clock(), journey.errand  # a guest may join meanwhile
            place = journey.next_place(began_s)
            try:
                fetched = await self._ask(place, journey.want, errand)
            except exchange.PEER_ERRORS as e:
                LOG.debug("%s", e)
                journey.failures.append(e)
                self.counters.fallbacks += 1
                self._note_time(errand, place, self._clock() - began_s)
            else:
                self._note_time(errand, place, self._clock() - began_s)
                self.hedge.answered(self._clock() - began_s)
                self.counters.fetched[journey.want.image_id].add(
                    fetched.origin, journey.want.length
                )
                return fetched
        if journey.errand.asks_holders_only:
            raise _NoHolder(str(journey.want), "those who advertised it")
        raise journey.worst()

    def _note_time(self, errand: Errand, place: places.Place, took_s: float) -> None:
        """Note what a place took: what nobody waits for is slow on purpose, but at the source."""
        if place.host is None:
            self.preference.source_answered(took_s, self._clock())
        elif errand is Errand.GUEST_WAITS:
            self.preference.peer_answered(took_s, self._clock())

    async def _ask(self, place: places.Place, want: Want, errand: Errand) -> Fetched:
        if place.host is None:
            is_home = self._home.is_home_of(want)
            keep = public_cache.KeepClass.HOME if is_home else public_cache.KeepClass.BORROWED
            fetched = Fetched(*await self._home.read(want, errand, keep))
            if fetched.origin is counters.Origin.SOURCE:
                self._last_search.source_gave(want.image_id)
            return fetched
        data, giver = await self._peers.ask(place.host, want, errand, place.may_read_source)
        if self._cache.store(want.cid, data, public_cache.KeepClass.BORROWED):
            self._peers.have(want, giver)
        is_from_home = place.may_read_source and giver == place.host
        return Fetched(data, counters.Origin.HOME if is_from_home else counters.Origin.PEER)

    # Racing

    async def race(self) -> None:
        """Look for answers that are late and ask the next place as well, for ever."""
        while True:
            await trio.sleep(RACE_TICK_S)
            late_s = self._clock() - self.hedge.delay_s
            for flight, journey in list(self._journeys.items()):
                is_late = journey.asked_s < late_s and not journey.rival
                if is_late and journey.left and journey.errand is Errand.GUEST_WAITS:
                    is_hopeless = journey.host in self._peers.quarantined()
                    if is_hopeless or self.hedge.may_race():
                        journey.rival = journey_.Rival()
                        self._nursery.start_soon(self._run_rival, journey.rival, flight, journey)

    async def _run_rival(
        self, rival: journey_.Rival, flight: flights.Flight[Fetched], journey: journey_.Journey
    ) -> None:
        """Ask the places that are left; if that is faster, the slow one has failed."""
        slow, asked_s = journey.asked[-1], journey.asked_s
        try:
            with rival.scope:
                fetched = await self._travel(journey)
                self._note_loser(slow, self._clock() - asked_s, journey.want)
                flight.land(fetched)
                flight.scope.cancel()
        except errors.AcstorError as e:
            LOG.debug("%s", e)
        finally:
            rival.ended.set()

    def _note_loser(self, slow: places.Place, took_s: float, want: Want) -> None:
        """Hold it against a peer that another place, asked later, was faster."""
        if slow.host is not None:
            self._peers.too_late(slow.host, want, took_s, slow.may_read_source)
