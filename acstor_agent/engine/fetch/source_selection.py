# SPDX-License-Identifier: Apache-2.0
"""Source selection: the ordered list of providers to fetch a chunk from.

First come holders, those with the fewest pending attempts, unless the home has fewer. Then come the
home, which reads the source once for all, hosts that act for it while it is in backoff, and the
source. Last come other ring owners, which never read the source for this host. The next provider is
asked when an attempt fails or, for a guest, is late, within the hedge budget. The first answer
cancels the others. None is asked twice, except after a referral or under another image's name.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_agent.engine.fetch import context
from acstor_agent.engine.fetch import read_through
from acstor_agent.engine.fetch import source_preference
from acstor_agent.engine.ring import placement
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request

Failure = failure.Failure
Mode = peer_request.Mode
Track = transfer.Track
Transfer = transfer.Transfer
GUEST, READAHEAD = priority.Priority.GUEST, priority.Priority.READAHEAD

ACTING_HOMES = 2  # hosts that are asked as home before this host reads the source itself
HOLDERS = 2  # holders that are asked before the home
LAST_RESORTS = 2  # other owners after the source; for a guest as many again that are in backoff
MOST_REFERRALS = 4  # hosts of one referral that are asked


class Provider(NamedTuple):
    """A provider of chunks: a peer, or the source (``host`` is None)."""

    host: ids.HostId | None
    mode: peer_request.Mode
    refs: transfer.Refs


class SourceSelection:
    """The fetches under way."""

    def __init__(
        self,
        context: context.Context,
        through: read_through.ReadThrough,
        failures: context.FetchFailures,
    ) -> None:
        self._context, self._read_through, self._failures = context, through, failures
        self.preference = source_preference.SourcePreference()
        self.failovers = self.source_preferred = 0

    def start_fetch(self, transfer: Transfer, is_source_first: bool = False) -> None:
        """Start a fetch."""
        context = self._context
        transfer.is_fetching, transfer.best_failure = True, None
        transfer.asked.clear()
        transfer.next_providers.clear()
        if transfer.priority <= READAHEAD:  # all its chunks have the same holders
            context.overlap.record_overlap(
                bool(context.locations.holders_of_chunk(transfer.first_ref)), transfer.chunk_count
            )
        if is_source_first or transfer.priority.asks_holders_only:
            self._reset_providers(transfer, is_source_first)
            self.ask_next_provider(transfer)
            return
        ref = transfer.first_ref
        home, mode = context.ring.home(ref.ring_position), Mode.HOME
        if home == context.ring.own_host:
            home = None
        elif home is not None:
            mode = context.ring.home_mode(home, ref.ring_position)
        holders = context.locations.holders_of_chunk(ref)
        if (holders and holders != [home]) or len(context.lockstep):
            is_simple = False
        else:
            is_simple = home is None or context.peers.try_acquire(home, context.now)
        if is_simple:  # nearly always; other providers are computed on demand
            transfer.table, transfer.providers = None, _NOWHERE
            self._ask(transfer, home, mode, transfer.refs)
        else:
            self._reset_providers(transfer)
            self.ask_next_provider(transfer)

    def raise_priority(self, transfer: Transfer) -> None:
        """Continue with a more urgent priority, which may allow more providers."""
        context = self._context
        for attempt in transfer.attempts.copy():
            context.requests_out.raise_priority(attempt, transfer.priority, context.now)
            if transfer.priority is GUEST:
                self._hedge_suspect(attempt)
        if not self._has_active_attempt(transfer):
            self.ask_next_provider(transfer)
        self._read_through.raise_priority(transfer, transfer.priority)

    def ask_next_provider(self, transfer: Transfer) -> None:
        """Ask the next provider; fail if none is left and no attempt is under way."""
        provider = self._next_provider(transfer)
        if provider is not None:
            self._ask(transfer, *provider)
        elif not transfer.attempts:
            transfer.is_fetching = False
            is_holders_only = transfer.priority.asks_holders_only
            otherwise = Failure.NO_HOLDER if is_holders_only else Failure.UNREACHABLE
            best = transfer.best_failure
            self._failures.providers_failed(
                transfer, otherwise if best is None or is_holders_only else best
            )

    def _ask(
        self,
        transfer: Transfer,
        host: ids.HostId | None,
        mode: peer_request.Mode,
        refs: transfer.Refs,
    ) -> None:
        context = self._context
        transfer.asked.append((host, mode.reads_source))
        if host is None:
            transfer.attempts.append(context.requests_out.at_source(transfer, context.now))
            self._read_through.start_read(transfer, transfer.priority)
            return
        attempt = context.requests_out.send_or_queue(
            transfer, host, mode, refs, Track.FETCH, context.now
        )
        transfer.attempts.append(attempt)
        if attempt.priority is GUEST:
            self._hedge_suspect(attempt)

    @staticmethod
    def _has_active_attempt(transfer: Transfer) -> bool:
        return any(not attempt.is_late for attempt in transfer.attempts)

    # Order of providers

    def _reset_providers(self, transfer: Transfer, is_source_first: bool = False) -> None:
        transfer.next_providers.clear()
        transfer.table = self._context.ring.table
        transfer.providers = self._providers(transfer, is_source_first)

    def _next_provider(self, transfer: Transfer) -> Provider | None:
        while True:
            if transfer.next_providers:
                first: Provider = transfer.next_providers.pop(0)
                return first
            provider: Provider | None = next(transfer.providers, None)
            if provider is not None or transfer.table is self._context.ring.table:
                return provider
            self._reset_providers(transfer)  # first use, or a new table

    def _providers(self, transfer: Transfer, is_source_first: bool) -> Iterator[Provider]:
        ring, ref, asked = self._context.ring, transfer.first_ref, transfer.asked
        refs = transfer.refs
        source, home = Provider(None, Mode.HOME, refs), ring.home(ref.ring_position)
        is_own = home is None or home == ring.own_host
        if is_source_first and not is_own:
            self.source_preferred += transfer.chunk_count
            yield source
        if not (is_own or transfer.priority.asks_holders_only):
            yield from self._predecessor(transfer, home)
        for host in self._holders(transfer, home):
            if (host, False) not in asked and self._context.try_acquire(host):
                yield Provider(host, Mode.HELD, refs)
        if transfer.priority.asks_holders_only:
            return
        if not is_own:
            yield from self._homes(transfer)
        if _SOURCE_ASKED not in asked:
            yield source
        if home is not None:
            yield from self._other_owners(transfer)

    def _predecessor(self, transfer: Transfer, home: ids.HostId | None) -> Iterator[Provider]:
        context, ref = self._context, transfer.first_ref
        assert home is not None
        host = context.lockstep.predecessor(ref.image_id, home)
        if host is None or not _is_unasked(transfer, host) or not context.try_acquire(host):
            return
        is_home = host == home
        mode = context.ring.home_mode(host, ref.ring_position) if is_home else Mode.HELD
        yield Provider(host, mode, transfer.refs)

    def _holders(self, transfer: Transfer, home: ids.HostId | None) -> list[ids.HostId]:
        context = self._context
        hosts = context.reachable_holders(transfer.first_ref)
        pending = context.peers.pending_attempts
        is_holders_only = transfer.priority.asks_holders_only
        if home is not None and home != context.ring.own_host and not is_holders_only:
            most = pending(home)
            hosts = [host for host in hosts if pending(host) <= most]
        hosts.sort(key=pending)
        return hosts[: max(0, HOLDERS - sum(not as_home for _, as_home in transfer.asked))]

    def _homes(self, transfer: Transfer) -> Iterator[Provider]:
        ring, ref, asked = self._context.ring, transfer.first_ref, transfer.asked
        refs = transfer.refs
        for host in ring.owners_of(ref.ring_position, placement.OWNERS_ASKED):
            homes = {host for host, as_home in asked if as_home and host is not None}
            if host == ring.own_host or len(homes) >= ACTING_HOMES:
                return
            if host not in homes and self._context.try_acquire(host):
                yield Provider(host, ring.home_mode(host, ref.ring_position), refs)

    def _other_owners(self, transfer: Transfer) -> Iterator[Provider]:
        context, ref, refs = self._context, transfer.first_ref, transfer.refs
        owners = context.ring.owners_of(ref.ring_position, placement.OWNERS_ASKED)
        others = (h for h in owners if h != context.ring.own_host and _is_unasked(transfer, h))
        for host in itertools.islice(filter(context.try_acquire, others), LAST_RESORTS):
            yield Provider(host, Mode.HELD, refs)
        if transfer.priority is GUEST:  # a host in backoff may still hold it
            in_backoff = [host for host in owners if context.peers.is_in_backoff(host, context.now)]
            for host in in_backoff[:LAST_RESORTS]:
                if (host, False) not in transfer.asked:
                    yield Provider(host, Mode.HELD_ONLY, refs)

    # Outcomes

    def attempt_failed(self, attempt: transfer.Attempt, failure: Failure) -> None:
        """Ask under the next name, or ask the next provider."""
        transfer, context = attempt.transfer, self._context
        transfer.attempts.remove(attempt)
        self.failovers += 0 if attempt.is_excused(failure) else transfer.chunk_count
        if attempt.host is not None and not attempt.mode.reads_source:
            context.lockstep.peer_failed(attempt.first_ref.image_id, attempt.host)
        if attempt.priority is GUEST:
            self.preference.record_peer_wait(context.now - attempt.at_s, context.now)
        if failure in read_through.DENIALS_OF_IMAGE:
            name = transfer.next_name(attempt.first_ref.image_id)
            if name is not None:
                transfer.next_providers.insert(0, Provider(attempt.host, attempt.mode, name))
        self._failed(transfer, failure)

    def source_failed(self, transfer: Transfer, failure: Failure) -> None:
        """Continue after the source, if the fetch waits for it."""
        for attempt in transfer.attempts:
            if attempt.host is None:
                attempt.end_attempt()
                transfer.attempts.remove(attempt)
                self._failed(transfer, failure)
                return

    def _failed(self, transfer: Transfer, failure: Failure) -> None:
        transfer.record_failure(failure)
        if not self._has_active_attempt(transfer):
            self.ask_next_provider(transfer)

    def peer_referred(self, attempt: transfer.Attempt, hosts: tuple[ids.HostId, ...]) -> None:
        """Ask the named hosts, then the peer again, which must not refer then."""
        transfer, context = attempt.transfer, self._context
        transfer.attempts.remove(attempt)
        if len(hosts) == 1:  # the next one in step; a tree has a choice
            context.lockstep.peer_named(attempt.first_ref.image_id, hosts[0])
        providers = [
            Provider(host, Mode.HELD_ONLY, attempt.refs)
            for host in hosts[:MOST_REFERRALS]
            if host != context.ring.own_host
            and _is_unasked(transfer, host)
            and self._context.try_acquire(host)
        ]
        again = Provider(attempt.host, attempt.mode.plain, attempt.refs)
        transfer.next_providers[:0] = (*providers, again)
        if not self._has_active_attempt(transfer):
            self.ask_next_provider(transfer)

    # Lateness

    def _hedge_suspect(self, attempt: transfer.Attempt) -> None:
        """Hedge at once, without budget, if the asked host is in backoff or on trial."""
        if not attempt.is_late and self._context.peers.is_suspect(attempt.host):
            attempt.is_late = True
            if not self._has_active_attempt(attempt.transfer):
                self._ask_in_parallel(attempt.transfer, True)

    def attempt_late(self, attempt: transfer.Attempt) -> None:
        """Hedge a late attempt if a guest waits; the budget splits a run into chunks."""
        transfer, peers = attempt.transfer, self._context.peers
        if transfer.priority is not GUEST or attempt.is_late:
            return
        at = transfer.attempts.index(attempt)
        while transfer.chunk_count > 1 and not peers.is_suspect(attempt.host) and peers.may_hedge:
            part = self._context.transfers.split(transfer, [0]).attempts[at]
            self._hedge(part)
            if not part.is_late:
                return  # no budget; they are checked again later
        if transfer.chunk_count == 1 or peers.is_suspect(attempt.host):
            self._hedge(attempt)

    def _hedge(self, attempt: transfer.Attempt) -> None:
        attempt.is_late = True
        if not self._has_active_attempt(attempt.transfer):
            is_suspect = self._context.peers.is_suspect(attempt.host)
            attempt.is_late = self._ask_in_parallel(attempt.transfer, is_suspect)  # else recheck

    def _ask_in_parallel(self, transfer: Transfer, is_unbudgeted: bool) -> bool:
        """Ask the next provider; return False if the budget does not allow it."""
        peers = self._context.peers
        if not is_unbudgeted and not peers.may_hedge:
            return False
        provider = self._next_provider(transfer)
        if provider is None:
            return True
        if not is_unbudgeted and not peers.take_hedge(provider.host):
            transfer.next_providers.clear()
            transfer.table, transfer.providers = None, _NOWHERE  # recompute later
            return False
        self._ask(transfer, *provider)
        return True


_SOURCE_ASKED = (None, True)
_NOWHERE: Iterator[Provider] = iter(())


def _is_unasked(transfer: Transfer, host: ids.HostId) -> bool:
    return all(host != asked for asked, _ in transfer.asked)
