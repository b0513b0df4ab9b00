# SPDX-License-Identifier: Apache-2.0
"""The way of what this host wants for itself: one place is asked after the other.

Holders first: they have it, and asking them spares the home; of them the one with the fewest
attempts of ours pending, unless the home has fewer still.  Then the home, which reads it through
once for everybody, and who acts for it when it is out of use; then the source.  Behind that, hosts
that may happen to have it: they are of use while the source is down, and are never made to read it.

The rules: while there are places, a travel has one attempt that is not late, so the next place is
asked when an attempt has failed, and for a guest also when it is late, within a budget; whoever
gives the content first ends the others.  Nobody is asked the same thing twice, but for who referred
us to others, and but for the names: whoever has not got it for one image is asked for the next.
"""

import itertools
from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple

from acstor_agent.core.transfers import failure as failure_
from acstor_agent.core.transfers import priority as priority_
from acstor_agent.core.transfers import transfer as transfer_
from acstor_agent.core.transfers import want as want_
from acstor_agent.core.transfers.fetching import parts as parts_
from acstor_agent.core.transfers.fetching import preference as preference_
from acstor_agent.core.transfers.fetching import through as through_
from acstor_common import ids
from acstor_common import peer_request

Failure = failure_.Failure
Mode = peer_request.Mode
Track = transfer_.Track
Transfer = transfer_.Transfer
GUEST, SOON = priority_.Priority.GUEST, priority_.Priority.SOON

ACTING_HOMES = 2
"""Hosts that are asked to read a chunk through before this host turns to the source itself."""
HOLDERS = 2
"""Hosts that advertised it which are asked before the home."""
LAST_RESORTS = 2
"""Hosts behind the source; of those left alone as many again, for a guest."""
OWNERS_ASKED = ACTING_HOMES + LAST_RESORTS + 4
"""Owners that are looked at: those asked, and some to spare for hosts out of use."""
MOST_REFERRALS = 4
"""Hosts that are asked because one names them."""


class Place(NamedTuple):
    """Somewhere to ask: a peer, or the source (``host`` is None)."""

    host: ids.HostId | None
    mode: peer_request.Mode
    want: want_.Want


class Travels:
    """The travels under way.

    :param in_vain: is told when one has nobody left to ask
    """

    def __init__(
        self,
        parts: parts_.Parts,
        through: through_.Through,
        in_vain: Callable[[Transfer, Failure], None],
    ) -> None:
        self._parts, self._through, self._in_vain = parts, through, in_vain
        self.preference = preference_.Preference()
        self.fallbacks = self.source_firsts = 0

    def begin(self, transfer: Transfer, is_source_first: bool = False) -> None:
        """Ask the first place.

        :param is_source_first: a guest is better off at the source
        """
        parts = self._parts
        transfer.is_travelling, transfer.hope = True, None
        transfer.asked.clear()
        if transfer.priority <= SOON:
            parts.sharing.note(bool(parts.holders.of(transfer.names[0].oid)))
        if is_source_first or transfer.priority.asks_holders_only:
            self._think(transfer, is_source_first)
            self.next(transfer)
            return
        want = transfer.names[0]
        home, mode = parts.tables.home(want.oid), Mode.HOME
        if home == parts.tables.here:
            home = None
        elif home is not None:
            mode = parts.tables.home_mode(home, want.oid)
        holders = parts.holders.of(want.oid)
        if (holders and holders != [home]) or len(parts.parents):
            is_simple = False
        else:
            is_simple = home is None or parts.book.is_usable(home, parts.now)
        if is_simple:  # nearly always: the other places are thought about when they are needed
            transfer.table, transfer.places = None, _NOWHERE
            self._go(transfer, home, mode, want)
        else:
            self._think(transfer)
            self.next(transfer)

    def hurry(self, transfer: Transfer) -> None:
        """Go on for a more urgent reason: all may be asked now, not holders alone."""
        parts = self._parts
        for attempt in transfer.attempts.copy():
            parts.asking.hurry(attempt, transfer.priority)
            if transfer.priority is GUEST:
                self._doubt(attempt)
        if not self._is_active(transfer):
            self.next(transfer)
        self._through.hurry(transfer, transfer.priority)

    def next(self, transfer: Transfer) -> None:
        """Ask the next place, unless nobody is left."""
        place = self._next_place(transfer)
        if place is not None:
            self._go(transfer, *place)
        elif not transfer.attempts:
            transfer.is_travelling = False
            is_holders_only = transfer.priority.asks_holders_only
            nobody = Failure.NO_HOLDER if is_holders_only else Failure.UNREACHABLE
            hope = transfer.hope
            self._in_vain(transfer, nobody if hope is None or is_holders_only else hope)

    def _go(
        self, transfer: Transfer, host: ids.HostId | None, mode: peer_request.Mode, want: want_.Want
    ) -> None:
        parts = self._parts
        transfer.asked.append((host, mode.reads_source))
        if host is None:
            transfer.attempts.append(parts.asking.at_source(transfer, parts.now))
            self._through.begin(transfer, transfer.priority)
            return
        attempt = parts.asking.ask(transfer, host, mode, want, Track.TRAVEL, parts.now)
        transfer.attempts.append(attempt)
        if attempt.priority is GUEST:
            self._doubt(attempt)

    @staticmethod
    def _is_active(transfer: Transfer) -> bool:
        """Say whether the one attempt that may be expected to give it is under way."""
        return any(not attempt.is_late for attempt in transfer.attempts)

    # Whom to ask

    def _think(self, transfer: Transfer, is_source_first: bool = False) -> None:
        """Let the places be thought about, each when it is its turn."""
        transfer.table = self._parts.tables.table
        transfer.places = self._places(transfer, is_source_first)

    def _next_place(self, transfer: Transfer) -> Place | None:
        while True:
            place: Place | None = next(transfer.places, None)
            if place is not None or transfer.table is self._parts.tables.table:
                return place
            self._think(transfer)  # for the first time, or another table came into force

    def _places(self, transfer: Transfer, is_source_first: bool) -> Iterator[Place]:
        """Yield whom to ask, the best first."""
        tables, want, asked = self._parts.tables, transfer.want, transfer.asked
        source, home = Place(None, Mode.HOME, want), tables.home(want.oid)
        is_own = home is None or home == tables.here
        if is_source_first and not is_own:
            self.source_firsts += 1
            yield source
        if not (is_own or transfer.priority.asks_holders_only):
            yield from self._parent(transfer, home)
        for host in self._holders(transfer, home):
            if (host, False) not in asked and self._parts.is_usable(host):
                yield Place(host, Mode.HELD, want)
        if transfer.priority.asks_holders_only:
            return
        if not is_own:
            yield from self._homes(transfer)
        if _SOURCE_ASKED not in asked:
            yield source
        if home is not None:
            yield from self._behind(transfer)

    def _parent(self, transfer: Transfer, home: ids.HostId | None) -> Iterator[Place]:
        """Yield who gives chunks to this host, as the next one in step, if anybody does."""
        parts, want = self._parts, transfer.want
        assert home is not None
        host = parts.parents.of(want.image_id, home, parts.now)
        if host is None or not _is_new(transfer, host) or not parts.is_usable(host):
            return
        is_home = host == home
        yield Place(host, parts.tables.home_mode(host, want.oid) if is_home else Mode.HELD, want)

    def _holders(self, transfer: Transfer, home: ids.HostId | None) -> list[ids.HostId]:
        """Return the hosts that say they have it and are to be asked, the best first."""
        parts, tables = self._parts, self._parts.tables
        hosts = parts.holders.of(transfer.want.oid)
        if not hosts:
            return hosts
        hosts = [
            host
            for host in hosts
            if host not in (tables.here, home)
            and tables.is_giver(host)
            and not parts.book.is_alone(host, parts.now)
        ]
        pending = parts.book.pending
        if home not in (None, tables.here) and not transfer.priority.asks_holders_only:
            assert home is not None
            most = pending(home)
            hosts = [host for host in hosts if pending(host) <= most]
        hosts.sort(key=pending)
        return hosts[: max(0, HOLDERS - sum(not as_home for _, as_home in transfer.asked))]

    def _homes(self, transfer: Transfer) -> Iterator[Place]:
        """Yield who reads it through for everybody, as far as this host does not do so itself."""
        tables, want, asked = self._parts.tables, transfer.want, transfer.asked
        for host in tables.owners(want.oid, OWNERS_ASKED):
            homes = {host for host, as_home in asked if as_home and host is not None}
            if host == tables.here or len(homes) >= ACTING_HOMES:
                return
            if host not in homes and self._parts.is_usable(host):
                yield Place(host, tables.home_mode(host, want.oid), want)

    def _behind(self, transfer: Transfer) -> Iterator[Place]:
        """Yield who may happen to have it."""
        parts, want = self._parts, transfer.want
        owners = parts.tables.owners(want.oid, OWNERS_ASKED)
        others = (h for h in owners if h != parts.tables.here and _is_new(transfer, h))
        for host in itertools.islice(filter(parts.is_usable, others), LAST_RESORTS):
            yield Place(host, Mode.HELD, want)
        if transfer.priority is GUEST:  # who could not read the source may have it
            alone = [host for host in owners if parts.book.is_alone(host, parts.now)]
            for host in alone[:LAST_RESORTS]:
                if (host, False) not in transfer.asked:
                    yield Place(host, Mode.HELD_ONLY, want)

    # What came of it

    def attempt_failed(self, attempt: transfer_.Attempt, failure: Failure) -> None:
        """Go on with the next name, or the next place."""
        transfer, parts = attempt.transfer, self._parts
        transfer.attempts.remove(attempt)
        self.fallbacks += not attempt.is_excused(failure)
        if attempt.host is not None and not attempt.mode.reads_source:
            parts.parents.failed(attempt.want.image_id, attempt.host, parts.now)
        if attempt.priority is GUEST:
            self.preference.peers_took(parts.now - attempt.at_s, parts.now)
        if failure in through_.IS_OF_THE_NAME:
            name = transfer.next_name(attempt.want.image_id)
            if name is not None:
                again = Place(attempt.host, attempt.mode, name)
                transfer.places = itertools.chain((again,), transfer.places)
        self._failed(transfer, failure)

    def source_failed(self, transfer: Transfer, failure: Failure) -> None:
        """Go on after the source, if the travel has come to it."""
        for attempt in transfer.attempts:
            if attempt.host is None:
                attempt.end()
                transfer.attempts.remove(attempt)
                self._failed(transfer, failure)
                return

    def _failed(self, transfer: Transfer, failure: Failure) -> None:
        transfer.failed(failure)
        if not self._is_active(transfer):
            self.next(transfer)

    def referred(self, attempt: transfer_.Attempt, hosts: tuple[ids.HostId, ...]) -> None:
        """Ask those whom a peer names, then the peer again, which may not name others then."""
        transfer, parts = attempt.transfer, self._parts
        transfer.attempts.remove(attempt)
        if len(hosts) == 1:  # the next one in step; a tree has a choice
            parts.parents.named(attempt.want.image_id, hosts[0], parts.now)
        places = [
            Place(host, Mode.HELD_ONLY, attempt.want)
            for host in hosts[:MOST_REFERRALS]
            if host != parts.tables.here and _is_new(transfer, host) and self._parts.is_usable(host)
        ]
        again = Place(attempt.host, attempt.mode.plain, attempt.want)
        transfer.places = itertools.chain((*places, again), transfer.places)
        if not self._is_active(transfer):
            self.next(transfer)

    # Lateness

    def _doubt(self, attempt: transfer_.Attempt) -> None:
        """Ask the next place as well where a host is in backoff or on trial: no guest pays."""
        if not attempt.is_late and self._parts.book.is_doubtful(attempt.host):
            attempt.is_late = True
            if not self._is_active(attempt.transfer):
                self._race(attempt.transfer, True)

    def is_late(self, attempt: transfer_.Attempt) -> None:
        """Ask the next place as well, where a guest waits."""
        transfer = attempt.transfer
        if transfer.priority is not GUEST or attempt.is_late:
            return
        attempt.is_late = True
        if not self._is_active(transfer):
            is_doubtful = self._parts.book.is_doubtful(attempt.host)
            attempt.is_late = self._race(transfer, is_doubtful)  # else it is looked at again

    def _race(self, transfer: Transfer, is_hopeless: bool) -> bool:
        """Ask the next place; say whether the budget allows it."""
        book = self._parts.book
        if not is_hopeless and not book.may_hedge:
            return False
        place = self._next_place(transfer)
        if place is None:
            return True
        if not is_hopeless and not book.take_hedge(place.host):
            transfer.table, transfer.places = None, _NOWHERE  # it is thought about again
            return False
        self._go(transfer, *place)
        return True


_SOURCE_ASKED = (None, True)
_NOWHERE: Iterator[Place] = iter(())


def _is_new(transfer: Transfer, host: ids.HostId) -> bool:
    """Say whether a host has not been asked in this travel, in no way."""
    return all(host != asked for asked, _ in transfer.asked)
