# SPDX-License-Identifier: Apache-2.0
"""Recovery after an exception in the engine: ends half-done work, by a scan of all state.

A transfer is *whole* if an event will report its outcome: a pending attempt, a read of the source,
a pause, a lookup, or an entry in the prefetch queue. All others end, with their readers.
"""

from acstor_agent.engine import transfer
from acstor_agent.engine.fetch import context
from acstor_agent.engine.fetch import pending_reads
from acstor_agent.engine.serve import peer_requests

Attempt = transfer.Attempt
Track = transfer.Track
Transfer = transfer.Transfer


class Recovery:
    """Ends half-done transfers; rebuilds counters of bytes in flight, source reads and slots."""

    def __init__(
        self,
        context: context.Context,
        pending: pending_reads.PendingReads,
        requests: peer_requests.PeerRequests,
    ) -> None:
        self._context, self._pending, self._requests = context, pending, requests

    def recover_from_fault(self, why: str) -> None:
        """End half-done work; local readers get ``why``."""
        context = self._context
        context.kept.clear()  # they may never be reported as stored
        context.source_reads.recount_reads()
        for old in dict.fromkeys(context.transfers.values()):
            old.peer_requests = {
                a: None for a in old.peer_requests if self._requests.links.is_waiting(a)
            }
        self._pending.recover_from_fault(self._is_whole, why)
        context.requests_out.recount_in_flight(self._is_awaited, context.now)
        self._requests.recover_from_fault()
        for old in dict.fromkeys(context.transfers.values()):
            context.transfers.drop_if_done(old)

    def _is_whole(self, transfer: Transfer) -> bool:
        attempts, read, relay = transfer.attempts, transfer.read, transfer.relay
        if transfer.awaits_local_read and self._context.settings.learns_ring:
            return True  # the waiting requests time out
        if transfer.is_idle or (transfer.is_fetching and not attempts):
            return False
        if not all(map(self._is_in_flight, attempts if relay is None else (*attempts, relay))):
            return False
        if read is not None and not self._context.source_reads.is_active(read):
            return False
        is_read_through = read is not None or relay is not None
        if transfer.peer_requests and not (is_read_through or transfer.is_fetching):
            return False
        return self._has_outcome(transfer) or (is_read_through and not transfer.waiters)

    def _has_outcome(self, transfer: Transfer) -> bool:
        pending = self._pending
        if transfer.retry is not None:
            return pending.retries.is_waiting(transfer.retry)
        if transfer.lookup is not None:
            return pending.lookups.is_active(transfer.lookup)
        return transfer.is_fetching or pending.prefetch_limits.is_queued(transfer)

    def _is_in_flight(self, attempt: Attempt) -> bool:
        transfer = attempt.transfer
        if attempt.is_over:
            return False
        if attempt.host is None:
            return transfer.read is not None or transfer.relay is not None
        peer = self._context.peers.get(attempt.host)
        return peer is not None and peer.pending.get(attempt.number) is attempt

    def _is_awaited(self, attempt: Attempt) -> bool:
        transfer = attempt.transfer
        if self._context.transfers.get(transfer.key) is not transfer:
            return attempt.track is Track.PROBE
        lookup = transfer.lookup
        return (
            attempt.track is Track.PROBE
            or attempt in transfer.attempts
            or attempt is transfer.relay
            or (lookup is not None and attempt in lookup.attempts)
        )
