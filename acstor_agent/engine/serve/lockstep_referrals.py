# SPDX-License-Identifier: Apache-2.0
"""Referrals of hosts in lock-step, and how long peers wait for a read of this host's own guests.

A busy host refers requesters to hosts of a tree (``referrals``).  With the variant ``ring`` it
refers hosts in lock-step to their predecessor (``fetch.lockstep``).  It never names a host that
stands behind the requester, or before the home of the chunk, by its own table.
"""

from collections.abc import Callable

from acstor_agent.engine import priority
from acstor_agent.engine import requester
from acstor_agent.engine import transfer
from acstor_agent.engine.fetch import context
from acstor_agent.engine.fetch import lockstep
from acstor_agent.engine.serve import referrals
from acstor_common.model import ids
from acstor_common.wire import peer_request

PendingRequest = requester.PendingRequest
LATER = priority.Priority.LATER
RELAYED = peer_request.Mode.RELAYED

AWAITED_S = 0.5
"""So long a request waits for what guests of this host are about to read."""


class LockstepReferrals:
    """See above."""

    def __init__(self, context: context.Context, referrals: referrals.Referrals) -> None:
        self._context, self._referrals = context, referrals

    def refer(
        self, asker: PendingRequest, is_named: Callable[[ids.HostId], bool]
    ) -> tuple[ids.HostId, ...]:
        """Return whom a peer is to ask instead, the best first; empty: nobody.

        :param is_named: says whether others may be sent to a host
        """
        context, host = self._context, asker.host
        is_tree = context.uploads.is_busy and asker.mode.may_refer
        learns_ring = context.settings.learns_ring and asker.mode is not RELAYED
        if not ((is_tree or learns_ring) and is_named(host)):
            return ()
        hosts = self._before(asker, is_named) if learns_ring else None
        if hosts is None and is_tree:
            hosts = self._referrals.refer(asker.want, host, asker.priority)
            if len(hosts) == 1 and learns_ring:
                hosts += (context.ring.here,)  # alone it would be the next one in step
        return hosts or ()

    def _before(
        self, asker: PendingRequest, is_named: Callable[[ids.HostId], bool]
    ) -> tuple[ids.HostId, ...] | None:
        """Return who stands nearest before a peer, if nearer than this host, and than the home.

        It is noted where the peer reads.

        :return: None: links have no queues, or nobody is in step with it
        """
        context, want, host = self._context, asker.want, asker.host
        if asker.priority is LATER or not context.is_ring_worth(context.now):
            return None
        here, home = context.ring.here, context.ring.home(want.place)
        place = want.image_id, host, want.offset, context.now
        context.steps.note(*place)
        others = [one for one in context.steps.in_step(*place) if one != here and is_named(one)]
        if not others:
            return None
        nearest = min(others, key=lambda one: lockstep.distance(one, host))
        limits = [lockstep.distance(one, host) for one in (here, home) if one is not None]
        is_nearer = lockstep.distance(nearest, host) < min(limits)
        return (nearest,) if is_nearer and asker.mode.may_refer else ()

    def wait_s(self, asker: PendingRequest, transfer: transfer.Transfer | None) -> float:
        """Return how long a peer waits for what is not under way here, in seconds.

        It does where guests here, which are in step with it, are about to read the same.
        """
        context, want = self._context, asker.want
        if asker.mode is RELAYED or (transfer is not None and transfer.attempts):
            return 0.0
        is_near = context.steps.is_near(want.image_id, context.ring.here, want.offset, context.now)
        return AWAITED_S if is_near else 0.0
