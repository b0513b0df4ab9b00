# SPDX-License-Identifier: Apache-2.0
"""Read-through: a home fetches a chunk from the source once, for all requesters."""

from acstor_agent.engine import failure
from acstor_agent.engine import peer_state
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_agent.engine.fetch import context
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request

Attempt = transfer.Attempt
Refs = transfer.Refs
Track = transfer.Track

Failure = failure.Failure
Priority = priority.Priority
Transfer = transfer.Transfer

DENIALS_OF_IMAGE = frozenset({Failure.MISSING, Failure.WITHHELD})
"""Failures that hold for one image and say nothing of others."""
_GIVES_UP = frozenset({Failure.UNREACHABLE, Failure.INVALID})


class ReadThrough:
    """The relay and the read of each transfer."""

    def __init__(self, context: context.Context) -> None:
        self._context = context

    def start_read(
        self,
        transfer: Transfer,
        priority: Priority,
        requester: ids.HostId | None = None,
        is_moved: bool = False,  # by the requester's table this host is home, and was not before
    ) -> None:
        """Start a relay or a read, or join the one under way."""
        if transfer.read is not None or transfer.relay is not None:
            self.raise_priority(transfer, priority, requester)
            return
        context = self._context
        found = context.upstreams_of(transfer, requester, is_moved)
        transfer.upstreams = [h for h in found if context.try_acquire(h)]
        if transfer.upstreams:
            self._relay(transfer, transfer.upstreams.pop(0), transfer.refs)
        else:
            self.start_source_read(transfer, priority, requester)

    def start_source_read(
        self, transfer: Transfer, priority: Priority, requester: ids.HostId | None = None
    ) -> None:
        """Start a read of the source, or join the one under way."""
        if transfer.read is not None:
            self.raise_priority(transfer, priority, requester)
            return
        transfer.denied = ()
        self._read(transfer, transfer.refs, priority, requester)

    def _read(
        self,
        transfer: Transfer,
        refs: Refs,
        priority: Priority,
        requester: ids.HostId | None = None,
    ) -> None:
        flow, now = requester or refs[0].image_id, self._context.now
        guest = None if requester else transfer.guest
        transfer.read = self._context.source_reads.queue_read(refs, priority, flow, now, guest)

    def raise_priority(
        self, transfer: Transfer, priority: Priority, requester: ids.HostId | None = None
    ) -> None:
        """Raise the priority of the relay and the read."""
        if transfer.read is not None:
            flow = requester or transfer.first_ref.image_id
            guest = None if requester else transfer.guest
            self._context.source_reads.raise_priority(transfer.read, priority, flow, guest)
        if transfer.relay is not None:
            self._context.requests_out.raise_priority(transfer.relay, priority, self._context.now)

    def _relay(self, transfer: Transfer, host: ids.HostId, refs: Refs) -> None:
        mode, track, now = peer_request.Mode.RELAYED, Track.RELAY, self._context.now
        transfer.relay = self._context.requests_out.send_or_queue(
            transfer, host, mode, refs, track, now
        )

    def relay_late(self, relay: Attempt) -> None:
        """Hedge a late relay with a read of the source, if a guest waits."""
        peers, now, urgency = self._context.peers, self._context.now, most_urgent(relay.transfer)
        if relay.is_late or not urgency.is_urgent:
            return
        for single in self._context.transfers.split_transfer(relay.transfer)[:-1]:
            if single.relay is not None:
                self.relay_late(single.relay)
        if not peers.take_hedge(relay.host) and now < relay.at_s + peer_state.MAX_LATE_S:
            return  # after MAX_LATE_S no budget is needed: the upstream may starve this request
        relay.is_late = True
        self.start_source_read(relay.transfer, urgency)

    def peer_dialled(self, host: ids.HostId, round_trip_s: float) -> None:
        """Record a round-trip time; move relays from a far host to a nearer home or the source."""
        context, peer = self._context, self._context.peers.get(host)
        context.record_round_trip(host, round_trip_s)
        pending = dict.fromkeys(peer.pending.values()) if peer is not None else ()
        for relay in [attempt for attempt in pending if attempt.track is Track.RELAY]:
            transfer = relay.transfer
            if relay.is_late or (nearer := context.nearer_upstream(transfer, host)) == host:
                continue
            context.requests_out.cancel_attempt(relay, context.now)
            transfer.relay = None
            excluded = {context.ring.own_host, *(p.host for p in transfer.peer_requests)}
            if nearer is None or nearer in excluded or not context.try_acquire(nearer):
                self.start_source_read(transfer, most_urgent(transfer))
            else:
                self._relay(transfer, nearer, transfer.refs)

    def relay_failed(self, attempt: Attempt, failure: Failure) -> bool:
        """Ask under the next name, or the next upstream, or the source; False: all failed."""
        transfer = attempt.transfer
        transfer.relay = None
        assert attempt.host is not None
        if failure in _GIVES_UP:
            self._context.ring.drop_departed_host(attempt.host)
        name = (
            transfer.next_name(attempt.first_ref.image_id) if failure in DENIALS_OF_IMAGE else None
        )
        if name is not None:
            self._relay(transfer, attempt.host, name)
        elif transfer.upstreams:
            self._relay(transfer, transfer.upstreams.pop(0), transfer.refs)
        elif attempt.is_late and transfer.read is None:  # the hedge has failed before
            return False
        elif transfer.read is None:
            self.start_source_read(transfer, most_urgent(transfer))
        return True

    def source_failed(self, transfer: Transfer, failure: Failure) -> bool:
        """Read under the next image's name; return False if there is none."""
        image_id, transfer.read = transfer.read.first_ref.image_id, None
        self._context.upstream_delays.record_source_failure(image_id, self._context.now)
        if failure in DENIALS_OF_IMAGE:
            if failure is Failure.MISSING:
                transfer.denied = (*transfer.denied, image_id)
            name = transfer.next_name(image_id)
            if name is not None:
                self._read(transfer, name, most_urgent(transfer))
                return True
        return False


def most_urgent(transfer: Transfer) -> Priority:
    """Return the most urgent priority of all readers of a transfer, local and remote."""
    urgencies = [pending.priority for pending in transfer.peer_requests]
    if transfer.is_fetching or transfer.waiters:
        urgencies.append(transfer.priority)
    return min(urgencies, default=Priority.PREFETCH)
