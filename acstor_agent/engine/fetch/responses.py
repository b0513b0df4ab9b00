# SPDX-License-Identifier: Apache-2.0
"""Handles responses: updates peer health once per event, and starts the next attempt."""

from collections.abc import Iterable
from collections.abc import Sequence

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import peer_state
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_agent.engine.fetch import context
from acstor_agent.engine.fetch import pending_reads
from acstor_agent.engine.fetch import read_through
from acstor_agent.engine.fetch import source_reads
from acstor_agent.engine.gossip import announcements
from acstor_common.model import ids

Attempt = transfer.Attempt
Bytes = transfer.Bytes
Failure = failure.Failure
Track = transfer.Track

_NOT_A_HOLDER = frozenset({Failure.MISSING, Failure.INVALID, Failure.BUSY})
"""Failures after which a peer is not a holder of the chunk any more."""


def _same_failure(failure: Failure) -> Failure:
    return failure


def _failure(what: Bytes | Failure) -> Failure | None:
    return what if isinstance(what, Failure) else None


class Responses:
    """Handles answers of peers and of the source."""

    def __init__(
        self,
        context: context.Context,
        through: read_through.ReadThrough,
        pending: pending_reads.PendingReads,
    ) -> None:
        self._context, self._read_through, self._pending = context, through, pending
        self.false_announcements = 0  # chunks that the announcing host did not have

    def chunks_received(self, host: ids.HostId, chunks: Sequence[tuple[int, Bytes]]) -> None:
        """Take chunks of a peer, by number."""
        context, now = self._context, self._context.now
        given = context.requests_out.end_answered(host, chunks, now)
        if not given:
            return  # unrequested or cancelled
        took_s = context.peers.record_chunks(host, [attempt for attempt, _ in given], now)
        if took_s:
            self._record_failure(host, Failure.UNREACHABLE, f"it took {took_s:.2f} s")
        guests = [a.at_s for a, _ in given if a.priority is priority.Priority.GUEST]
        if guests:
            self._pending.selection.preference.record_peer_wait(now - min(guests), now)
        for attempt, chunks in given:
            if len(context.lockstep):
                context.lockstep.chunk_received(attempt.first_ref.image_id, host)
            if attempt.track is not Track.PROBE:
                self._chunks_arrived(attempt.transfer, chunks, attempt)

    def peer_refused(self, host: ids.HostId, failed: Sequence[tuple[int, Failure]]) -> None:
        """Take refusals of a peer, by number."""
        taken = self._context.requests_out.end_answered(
            host, failed, self._context.now, _same_failure
        )
        self.attempts_failed([(attempt, whys[0]) for attempt, whys in taken])

    def peer_referred(self, host: ids.HostId, number: int, hosts: tuple[ids.HostId, ...]) -> None:
        """Ask the hosts that a peer names, if it may name any."""
        for attempt, named in self._context.requests_out.end_answered(
            host, ((number, hosts),), self._context.now
        ):
            if not attempt.mode.may_refer:
                self.attempts_failed([(attempt, Failure.INVALID)])
                return
            self._context.peers.record_success(host, self._context.now)
            if attempt.track is Track.FETCH:  # for a trial the answer suffices
                self._pending.selection.peer_referred(attempt, named[0])

    def attempts_failed(self, ends: list[tuple[Attempt, Failure]]) -> None:
        """Judge a peer by the worst failure, and continue with each attempt's transfer."""
        if not ends:
            return
        host = ends[0][0].host
        assert host is not None
        worst = min(
            (Failure.MISSING if a.is_excused(why) else why for a, why in ends),
            key=lambda why: (why is not Failure.INVALID, why),
        )
        self._record_failure(host, worst, worst.name.lower())
        for attempt, why in ends:
            self._failed(attempt, why)

    def protocol_violated(self, host: ids.HostId, why: str) -> None:
        """Judge a peer that broke the protocol."""
        self._record_failure(host, Failure.INVALID, why)

    def _failed(self, attempt: Attempt, failure: Failure) -> None:
        context, transfer = self._context, attempt.transfer
        assert attempt.host is not None
        for ref in attempt.refs if failure in _NOT_A_HOLDER else ():
            if context.locations.record_denial(attempt.host, ref) and failure is not Failure.BUSY:
                context.announcements.limits.penalize_peer(
                    attempt.host, announcements.DENIAL_COST, context.now
                )
                self.false_announcements += 1
        if attempt in transfer.attempts:
            self._pending.selection.attempt_failed(attempt, failure)
        elif transfer.relay is attempt:
            if not self._read_through.relay_failed(attempt, failure):
                self._pending.source_failed(transfer, failure)
        elif attempt.track is Track.LOOKUP:
            self._pending.lookups.attempt_failed(attempt, failure)

    def _record_failure(self, host: ids.HostId, failure: Failure, why: str) -> None:
        context = self._context
        for_s = context.peers.record_failure(host, failure, context.now)
        if for_s:
            context.host_keys.forget_host(host)
            context.out.others.append(actions.ReportBackoff(host, for_s, why))
            for attempt in context.requests_out.take_queued(host):
                self._failed(attempt, Failure.UNREACHABLE)

    def source_answered(self, number: int, outcomes: Iterable[tuple[int, Bytes | Failure]]) -> None:
        """Take chunks and failures of a source read, by index."""
        context = self._context
        self._take_source_outcomes(context.source_reads.end_answered(number, outcomes, _failure))

    def source_ended(self, number: int, why: Failure) -> None:
        """Fail the remaining chunks of a source read."""
        self._take_source_outcomes(
            [(read, [why]) for read in self._context.source_reads.end_range(number)]
        )

    def _take_source_outcomes(
        self, outcomes: Sequence[tuple[source_reads.SourceRead, Sequence[Bytes | Failure]]]
    ) -> None:
        context = self._context
        reads = [read for read, what in outcomes if not isinstance(what[0], Failure)]
        if reads:
            self._source_gave(reads)
        for read, what in outcomes:
            transfer = context.transfers.get(read.first_ref.key)
            if transfer is None or transfer.read is not read:
                continue
            if isinstance(what[0], Failure):
                if not self._read_through.source_failed(transfer, what[0]):
                    self._pending.source_failed(transfer, what[0])
            else:
                transfer.read = None
                self._chunks_arrived(transfer, what, None)

    def _source_gave(self, reads: list[source_reads.SourceRead]) -> None:
        context, now = self._context, self._context.now
        for image_id in {read.first_ref.image_id for read in reads}:
            self._pending.lookups.image_denials.clear_denial(image_id)
        oldest = min(reads, key=lambda read: read.begun_s)
        silent_s = now - max(oldest.begun_s, context.peers.last_source_chunk_s)
        context.peers.last_source_chunk_s = now
        context.peers.record_latency(peer_state.SOURCE, None, silent_s)
        context.peers.refill_hedges(sum([len(read.refs) for read in reads]))
        context.upstream_delays.record_source(oldest.begun_s, now)
        self._pending.selection.preference.record_source_wait(now - oldest.wanted_s, now)

    def _chunks_arrived(
        self, transfer: transfer.Transfer, chunks: Sequence[Bytes], winner: Attempt | None
    ) -> None:
        for attempt in transfer.attempts.copy():
            if attempt.is_late and attempt is not winner and attempt.host is not None:
                self._record_slower(attempt)
        if transfer.relay is not None:
            self._record_relay(transfer.relay, winner)
        self._pending.chunks_arrived(transfer, chunks, winner)

    def _record_relay(self, relay: Attempt, winner: Attempt | None) -> None:
        context = self._context
        if relay is not winner:
            if relay.is_late:
                self._record_slower(relay)
            return
        assert relay.host is not None and relay.sent_s is not None
        group = context.ring.group_location(relay.host)
        context.upstream_delays.record_relay(group, relay.sent_s, context.now)

    def _record_slower(self, attempt: Attempt) -> None:
        context, now = self._context, self._context.now
        assert attempt.host is not None
        if not context.requests_out.is_late(attempt, now):  # a trial: measure it further
            if attempt.track is not Track.FETCH:
                return
            attempt.track = Track.PROBE
            attempt.transfer.attempts.remove(attempt)
            context.requests_out.check_again([attempt], now)
            return
        silent_s, kind = context.requests_out.silent_s(attempt, now), peer_state.kind_of(attempt)
        if silent_s >= context.peers.late_after_s(kind):
            context.peers.record_latency(kind, attempt.host, silent_s)
            self._record_failure(attempt.host, Failure.UNREACHABLE, "another one was faster")

    def check_timeouts(self, batch: dict[Attempt, None]) -> None:
        """Hedge late attempts, and end those that timed out."""
        context, now = self._context, self._context.now
        silent: dict[ids.HostId, list[Attempt]] = {}
        for attempt in list(batch):
            if attempt.is_over:
                continue
            is_late = context.requests_out.is_late(attempt, now)
            is_over = attempt.track is Track.PROBE and is_late
            if attempt.host is not None and (
                is_over or context.requests_out.timeout_at_s(attempt) <= now
            ):
                silent.setdefault(attempt.host, []).append(attempt)
            elif is_late and attempt.track is Track.FETCH:
                self._pending.selection.attempt_late(attempt)
            elif is_late and attempt.track is Track.RELAY:
                self._read_through.relay_late(attempt)
        for host, unanswered in silent.items():
            for attempt in unanswered:
                context.requests_out.cancel_attempt(attempt, now)
            self._record_failure(host, Failure.UNREACHABLE, "it does not answer")
            for attempt in unanswered:
                self._failed(attempt, Failure.UNREACHABLE)
        left = [a for a in batch if not (a.is_late and a.host is None)]
        if left:
            context.requests_out.check_again(left, now)
