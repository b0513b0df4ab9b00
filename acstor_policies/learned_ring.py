# SPDX-License-Identifier: Apache-2.0
"""The variant ``ring``: a busy host refers hosts in lockstep to their predecessor.

It names no host behind the requester, or before the chunk's home, by its own table.
"""

from collections.abc import Callable
from typing import ClassVar

from acstor_agent.engine import lockstep as base
from acstor_agent.engine import priority
from acstor_agent.engine import requester
from acstor_agent.engine import transfer
from acstor_agent.engine.fetch import context
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from acstor_policies import lockstep

PendingRequest = requester.PendingRequest
PREFETCH = priority.Priority.PREFETCH
RELAYED = peer_request.Mode.RELAYED

AWAITED_S = 0.5  # longest wait of a request for the next read of this host's guests


class LearnedRing(base.Lockstep):
    """The scheme of the variant; :mod:`lockstep` describes the ring."""

    learns_ring: ClassVar[bool] = True

    def __init__(self, context: context.Context) -> None:
        super().__init__(context)
        self.predecessors = lockstep.Predecessors(context.ring.own_host, context.uploads)
        self.steps = lockstep.ReadPositions()

    def __len__(self) -> int:
        return len(self.predecessors)

    def predecessor(self, image_id: ids.ImageId, home: ids.HostId) -> ids.HostId | None:
        """Return the predecessor, if it is nearer to the home than this host."""
        return self.predecessors.predecessor_of(image_id, home, self._context.now)

    def peer_named(self, image_id: ids.ImageId, host: ids.HostId) -> None:
        """Propose a host that was named alone as the predecessor: a tree has a choice."""
        self.predecessors.propose_predecessor(image_id, host, self._context.now)

    def chunk_received(self, image_id: ids.ImageId, host: ids.HostId) -> None:
        """Keep a predecessor that serves chunks."""
        self.predecessors.record_success(image_id, host, self._context.now)

    def peer_failed(self, image_id: ids.ImageId, host: ids.HostId) -> None:
        """Count the misses of a predecessor."""
        self.predecessors.record_failure(image_id, host, self._context.now)

    def guest_read(self, image_id: ids.ImageId, offset: int) -> None:
        """Note where guests of this host read."""
        self.steps.note_offset(image_id, self._context.ring.own_host, offset, self._context.now)

    def refer(
        self, pending: PendingRequest, is_named: Callable[[ids.HostId], bool]
    ) -> tuple[ids.HostId, ...] | None:
        """Return the nearest host before a peer, if nearer than this host and the home.

        Record the peer's position.  None: links have no queues, or no host is in step with it.
        """
        context, ref, host = self._context, pending.ref, pending.host
        if pending.priority is PREFETCH or not context.uploads.has_met_queue(context.now):
            return None
        own_host, home = context.ring.own_host, context.ring.home(ref.ring_position)
        place = ref.image_id, host, ref.offset, context.now
        self.steps.note_offset(*place)
        others = [
            other for other in self.steps.in_step(*place) if other != own_host and is_named(other)
        ]
        if not others:
            return None
        nearest = min(others, key=lambda other: lockstep.distance(other, host))
        limits = [lockstep.distance(other, host) for other in (own_host, home) if other is not None]
        is_nearer = lockstep.distance(nearest, host) < min(limits)
        return (nearest,) if is_nearer and pending.mode.may_refer else ()

    def wait_s(self, pending: PendingRequest, transfer: transfer.Transfer | None) -> float:
        """Return the seconds that a peer in step with guests here waits for their next read."""
        context, ref = self._context, pending.ref
        if pending.mode is RELAYED or (transfer is not None and transfer.attempts):
            return 0.0
        is_near = self.steps.is_near(ref.image_id, context.ring.own_host, ref.offset, context.now)
        return AWAITED_S if is_near else 0.0
