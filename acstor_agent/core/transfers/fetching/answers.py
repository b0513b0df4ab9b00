# SPDX-License-Identifier: Apache-2.0
"""What comes of attempts and reads: who is judged, and what goes on.

A peer is judged once for all that one event tells of it, and each content goes on for
itself.
"""

from collections.abc import Iterable

from acstor_agent.core.transfers import actions
from acstor_agent.core.transfers import failure as failure_
from acstor_agent.core.transfers import peer_book
from acstor_agent.core.transfers import priority as priority_
from acstor_agent.core.transfers import transfer as transfer_
from acstor_agent.core.transfers.fetching import parts as parts_
from acstor_agent.core.transfers.fetching import sources as sources_
from acstor_agent.core.transfers.fetching import through as through_
from acstor_agent.core.transfers.fetching import waiters as waiters_
from acstor_common import ids

Attempt = transfer_.Attempt
Bytes = transfer_.Bytes
Failure = failure_.Failure
Track = transfer_.Track

_HAS_IT_NOT = frozenset({Failure.MISSING, Failure.INVALID, Failure.BUSY})
"""What makes a peer no holder any more; who is too busy to give it is none to guests either."""


class Answers:
    """Listens to peers and to the source."""

    def __init__(
        self, parts: parts_.Parts, through: through_.Through, waiters: waiters_.Waiters
    ) -> None:
        self._parts, self._through, self._waiters = parts, through, waiters
        self.denied = 0

    # Peers

    def gave(self, host: ids.HostId, chunks: Iterable[tuple[int, Bytes]]) -> None:
        """Take what a peer gave, by the numbers of attempts."""
        parts, now = self._parts, self._parts.now
        given = parts.asking.take(host, chunks, now)
        if not given:
            return  # nobody asked, or nobody waits any more
        took_s = parts.book.gave(host, [attempt for attempt, _ in given], now)
        if took_s:
            self._judge(host, Failure.UNREACHABLE, f"it took {took_s:.2f} s")
        guests = [a.at_s for a, _ in given if a.priority is priority_.Priority.GUEST]
        if guests:
            self._waiters.travels.preference.peers_took(now - min(guests), now)
        for attempt, data in given:
            if len(parts.parents):
                parts.parents.gave(attempt.want.image_id, host, now)
            if attempt.track is not Track.TRIAL:
                self._came(attempt.transfer, data, attempt)

    def refused(self, host: ids.HostId, failed: Iterable[tuple[int, Failure]]) -> None:
        """Take what a peer does not give."""
        self.ended(self._parts.asking.take(host, failed, self._parts.now))

    def referred(self, host: ids.HostId, number: int, hosts: tuple[ids.HostId, ...]) -> None:
        """Ask those whom a peer names, if it may name others."""
        for attempt, named in self._parts.asking.take(host, ((number, hosts),), self._parts.now):
            if not attempt.mode.may_refer:
                self.ended([(attempt, Failure.INVALID)])
                return
            self._parts.book.succeeded(host, self._parts.now)
            if attempt.track is Track.TRAVEL:  # a trial has shown enough with that
                self._waiters.travels.referred(attempt, named)

    def ended(self, ends: list[tuple[Attempt, Failure]]) -> None:
        """Judge a peer by the worst of what it did, and go on with each content."""
        if not ends:
            return
        host = ends[0][0].host
        assert host is not None
        worst = min(
            (Failure.MISSING if a.is_excused(why) else why for a, why in ends),
            key=lambda why: (why is not Failure.INVALID, why),
        )
        self._judge(host, worst, worst.name.lower())
        for attempt, why in ends:
            self._failed(attempt, why)

    def broke_rules(self, host: ids.HostId, why: str) -> None:
        """Judge a peer that broke the protocol, whoever waited for its answers."""
        self._judge(host, Failure.INVALID, why)

    def _failed(self, attempt: Attempt, failure: Failure) -> None:
        """Go on after an attempt that gave nothing."""
        parts, transfer = self._parts, attempt.transfer
        assert attempt.host is not None
        if failure in _HAS_IT_NOT and parts.holders.denied(attempt.host, attempt.want.oid):
            if failure is not Failure.BUSY:
                parts.book.listening.fine(attempt.host, peer_book.DENIAL_COST, parts.now)
                self.denied += 1
        if attempt in transfer.attempts:
            self._waiters.travels.attempt_failed(attempt, failure)
        elif transfer.relay is attempt:
            self._through.relay_failed(attempt, failure)
        elif attempt.track is Track.SEARCH:
            self._waiters.searches.attempt_failed(attempt, failure)

    def _judge(self, host: ids.HostId, failure: Failure, why: str) -> None:
        """Hold a failure against a peer; who is left alone is not asked what waits here for it."""
        parts = self._parts
        for_s = parts.book.failed(host, failure, parts.now)
        if for_s:
            parts.keys.forget(host)
            parts.out.others.append(actions.LeftAlone(host, for_s, why))
            for attempt in parts.asking.take_line(host):
                self._failed(attempt, Failure.UNREACHABLE)

    # The source

    def source_told(self, number: int, told: Iterable[tuple[int, Bytes | Failure]]) -> None:
        """Take what the source tells of a read, by index."""
        sources = self._parts.sources
        found = [(sources.answered(number, index), what) for index, what in told]
        self._source_told([(read, what) for read, what in found if read is not None])

    def source_ended(self, number: int, why: Failure) -> None:
        """Take it that the source tells no more of a read."""
        self._source_told([(read, why) for read in self._parts.sources.ended(number)])

    def _source_told(self, told: list[tuple[sources_.Read, Bytes | Failure]]) -> None:
        parts = self._parts
        reads = [read for read, what in told if not isinstance(what, Failure)]
        if reads:
            self._source_gave(reads)
        for read, what in told:
            transfer = parts.transfers.get(read.want.key)
            if transfer is None or transfer.read is not read:
                continue
            if isinstance(what, Failure):
                self._through.source_failed(transfer, what)
            else:
                transfer.read = None
                self._came(transfer, what, None)

    def _source_gave(self, reads: list[sources_.Read]) -> None:
        """Note how long the source took, by the oldest of what it gave."""
        parts, now = self._parts, self._parts.now
        for image_id in {read.want.image_id for read in reads}:
            self._waiters.searches.absences.given(image_id)
        oldest = min(reads, key=lambda read: read.begun_s)
        silent_s = now - max(oldest.begun_s, parts.book.source_gave_s)
        parts.book.source_gave_s = now
        parts.book.took(peer_book.SOURCE, None, silent_s)
        parts.book.answered(len(reads))
        self._waiters.travels.preference.source_took(now - oldest.wanted_s, now)

    # Both

    def _came(self, transfer: transfer_.Transfer, data: Bytes, winner: Attempt | None) -> None:
        for attempt in transfer.attempts.copy():
            if attempt.is_late and attempt is not winner and attempt.host is not None:
                self._overtaken(attempt)
        relay = transfer.relay
        if relay is not None and relay.is_late and relay is not winner:
            self._overtaken(relay)
        self._waiters.came(transfer, data, winner)

    def _overtaken(self, attempt: Attempt) -> None:
        """Hold it against a peer that another one was faster, unless it had no time yet."""
        parts, now = self._parts, self._parts.now
        assert attempt.host is not None
        if not parts.asking.is_late(attempt, now):  # it was hedged at once, being on trial
            if attempt.track is not Track.TRAVEL:
                return
            attempt.track = Track.TRIAL
            attempt.transfer.attempts.remove(attempt)
            parts.asking.look_again([attempt], now)
            return
        silent_s, kind = parts.asking.silent_s(attempt, now), peer_book.kind_of(attempt)
        if silent_s >= parts.book.late_s(kind):
            parts.book.took(kind, attempt.host, silent_s)
            self._judge(attempt.host, Failure.UNREACHABLE, "another one was faster")

    def look_at(self, batch: dict[Attempt, None]) -> None:
        """See which attempts are late, and which have not been answered in time."""
        parts, now = self._parts, self._parts.now
        silent: dict[ids.HostId, list[Attempt]] = {}
        for attempt in list(batch):
            if attempt.is_over:
                continue
            is_late = parts.asking.is_late(attempt, now)
            is_over = attempt.track is Track.TRIAL and is_late
            if attempt.host is not None and (is_over or parts.asking.over_s(attempt) <= now):
                silent.setdefault(attempt.host, []).append(attempt)
            elif is_late and attempt.track is Track.TRAVEL:
                self._waiters.travels.is_late(attempt)
            elif is_late and attempt.track is Track.RELAY:
                self._through.relay_is_late(attempt)
        for host, unanswered in silent.items():
            for attempt in unanswered:
                parts.asking.cancel(attempt, now)
            self._judge(host, Failure.UNREACHABLE, "it does not answer")
            for attempt in unanswered:
                self._failed(attempt, Failure.UNREACHABLE)
        left = [a for a in batch if not (a.is_late and a.host is None)]
        if left:
            parts.asking.look_again(left, now)
