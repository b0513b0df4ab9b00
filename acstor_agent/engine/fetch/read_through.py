# SPDX-License-Identifier: Apache-2.0
"""Read-through: a home fetches a chunk from the source once, on behalf of all requesters.

Before it reads the source, a home may ask other homes: the former one after a new v-node table, the
new one, the home of a wider group, and the image's home where the source serves no ranges
(``placement``).  It asks them in mode RELAYED, in which a host asks only the source.  So a request
takes one hop more than without, whatever tables the hosts have.  Where a guest waits, a relay that
is late starts a read of the source beside it.
"""

from collections.abc import Callable

from acstor_agent.engine import failure
from acstor_agent.engine import peer_state
from acstor_agent.engine import priority
from acstor_agent.engine import transfer as transfer_
from acstor_agent.engine.fetch import context
from acstor_common.model import ids
from acstor_common.wire import peer_request

Failure = failure.Failure
Priority = priority.Priority
Transfer = transfer_.Transfer

DENIALS_OF_IMAGE = frozenset({Failure.MISSING, Failure.WITHHELD})
"""What says that it is not to be had for one image, and nothing of others."""
_GIVES_UP = frozenset({Failure.UNREACHABLE, Failure.INVALID})


class ReadThrough:
    """The relay and the read of each transfer.

    :param failed: is told when the source did not give a content
    """

    def __init__(
        self, context: context.Context, failed: Callable[[Transfer, Failure], None]
    ) -> None:
        self._context, self._failed = context, failed

    def start_read(
        self,
        transfer: Transfer,
        priority: Priority,
        requester: ids.HostId | None = None,
        is_moved: bool = False,
    ) -> None:
        """Have a content read through; what is under way is joined.

        :param requester: the peer that asks; None for this host itself
        :param is_moved: by the peer's table this host is the home, and was not by the one before
        """
        if transfer.read is not None or transfer.relay is not None:
            self.raise_priority(transfer, priority, requester)
            return
        context = self._context
        found = context.upstreams_of(transfer.want, requester, is_moved)
        transfer.upstreams = [h for h in found if context.is_usable(h)]
        if transfer.upstreams:
            self._relay(transfer, transfer.upstreams.pop(0), transfer.refs)
        else:
            self.read(transfer, priority, requester)

    def read(
        self, transfer: Transfer, priority: Priority, requester: ids.HostId | None = None
    ) -> None:
        """Have a content read from the source; a read that is under way is joined."""
        if transfer.read is not None:
            self.raise_priority(transfer, priority, requester)
            return
        transfer.denied = ()
        self._read(transfer, transfer.refs, priority, requester)

    def _read(
        self,
        transfer: Transfer,
        refs: transfer_.Refs,
        priority: Priority,
        requester: ids.HostId | None = None,
    ) -> None:
        who, now = requester or refs[0].image_id, self._context.now
        opener = None if requester else transfer.opener
        transfer.read = self._context.source_reads.read(refs, priority, who, now, opener)

    def raise_priority(
        self, transfer: Transfer, priority: Priority, requester: ids.HostId | None = None
    ) -> None:
        """Let what is under way be as urgent as one more who waits for it."""
        if transfer.read is not None:
            who = requester or transfer.want.image_id
            opener = None if requester else transfer.opener
            self._context.source_reads.raise_priority(transfer.read, priority, who, opener)
        if transfer.relay is not None:
            self._context.requests_out.raise_priority(transfer.relay, priority)

    def _relay(self, transfer: Transfer, host: ids.HostId, refs: transfer_.Refs) -> None:
        mode, track, now = peer_request.Mode.RELAYED, transfer_.Track.RELAY, self._context.now
        transfer.relay = self._context.requests_out.send_when_credited(
            transfer, host, mode, refs, track, now
        )

    def relay_is_late(self, relay: transfer_.Attempt) -> None:
        """Read the source beside a relay that is late, where a guest waits: in the hedges' budget.

        A first hedge will do: one home reads for all, so a slow source is not read by many for it.
        After a while it needs no budget: who answers others all the time may keep this one back.
        """
        book, now, urgency = self._context.peers, self._context.now, most_urgent(relay.transfer)
        if relay.is_late or not urgency.is_urgent:
            return
        for single in self._context.transfers.split_transfer(relay.transfer)[:-1]:
            if single.relay is not None:
                self.relay_is_late(single.relay)
        if not book.take_hedge(relay.host) and now < relay.at_s + peer_state.LATEST_S:
            return
        relay.is_late = True
        self.read(relay.transfer, urgency)

    def relay_failed(self, attempt: transfer_.Attempt, failure: Failure) -> None:
        """Ask in the next name, or the next host, or the source."""
        transfer = attempt.transfer
        transfer.relay = None
        assert attempt.host is not None
        if failure in _GIVES_UP:
            self._context.ring.drop_departed_host(attempt.host)
        name = transfer.next_name(attempt.want.image_id) if failure in DENIALS_OF_IMAGE else None
        if name is not None:
            self._relay(transfer, attempt.host, name)
        elif transfer.upstreams:
            self._relay(transfer, transfer.upstreams.pop(0), transfer.refs)
        elif attempt.is_late and transfer.read is None:  # it was read beside, in vain
            self._failed(transfer, failure)
        elif transfer.read is None:
            self.read(transfer, most_urgent(transfer))

    def source_failed(self, transfer: Transfer, failure: Failure) -> None:
        """Look for the content in the next image that it is wanted in, or give up."""
        image_id, transfer.read = transfer.read.want.image_id, None
        if failure in DENIALS_OF_IMAGE:
            if failure is Failure.MISSING:
                transfer.denied = (*transfer.denied, image_id)
            name = transfer.next_name(image_id)
            if name is not None:
                self._read(transfer, name, most_urgent(transfer))
                return
        self._failed(transfer, failure)


def most_urgent(transfer: Transfer) -> Priority:
    """Return the most urgent reason why anybody waits for a content, here or elsewhere."""
    urgencies = [asker.priority for asker in transfer.askers]
    if transfer.is_travelling or transfer.waiters:
        urgencies.append(transfer.priority)
    return min(urgencies, default=Priority.LATER)
