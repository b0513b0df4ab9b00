# SPDX-License-Identifier: Apache-2.0
"""Whom a host names instead of itself, and for how long peers in step wait for its own guests.

Who is too busy names hosts of a tree (``referrals``).  With the variant ``ring`` hosts in step are
named the next one before them: ``fetching.parents`` says in which order they stand.  No such host
is named that stands behind who asks, or before the chunk's home, as this host's table has it.
"""

from collections.abc import Callable

from acstor_agent.core.transfers import asker as asker_
from acstor_agent.core.transfers import priority as priority_
from acstor_agent.core.transfers import transfer as transfer_
from acstor_agent.core.transfers.fetching import parents
from acstor_agent.core.transfers.fetching import parts as parts_
from acstor_agent.core.transfers.giving import referrals as referrals_
from acstor_common import ids
from acstor_common import peer_request

Asker = asker_.Asker
LATER = priority_.Priority.LATER
RELAYED = peer_request.Mode.RELAYED

AWAITED_S = 0.5
"""So long a request waits for what guests of this host are about to read."""


class InStep:
    """See above."""

    def __init__(self, parts: parts_.Parts, referrals: referrals_.Referrals) -> None:
        self._parts, self._referrals = parts, referrals

    def refer(self, asker: Asker, is_named: Callable[[ids.HostId], bool]) -> tuple[ids.HostId, ...]:
        """Return whom a peer is to ask instead, the best first; empty: nobody.

        :param is_named: says whether others may be sent to a host
        """
        parts, host = self._parts, asker.host
        is_tree = parts.uplink.is_busy and asker.mode.may_refer
        learns_ring = parts.settings.learns_ring and asker.mode is not RELAYED
        if not ((is_tree or learns_ring) and is_named(host)):
            return ()
        hosts = self._before(asker, is_named) if learns_ring else None
        if hosts is None and is_tree:
            hosts = self._referrals.refer(asker.want.oid, host, asker.priority)
            if len(hosts) == 1 and learns_ring:
                hosts += (parts.tables.here,)  # alone it would be the next one in step
        return hosts or ()

    def _before(
        self, asker: Asker, is_named: Callable[[ids.HostId], bool]
    ) -> tuple[ids.HostId, ...] | None:
        """Return who stands nearest before a peer, if nearer than this host, and than the home.

        It is noted where the peer reads.

        :return: None: links have no queues, or nobody is in step with it
        """
        parts, want, host = self._parts, asker.want, asker.host
        if asker.priority is LATER or not parts.is_ring_worth(parts.now):
            return None
        here, home = parts.tables.here, parts.tables.home(want.oid)
        place = want.image_id, host, want.offset, parts.now
        parts.steps.note(*place)
        others = [one for one in parts.steps.in_step(*place) if one != here and is_named(one)]
        if not others:
            return None
        nearest = min(others, key=lambda one: parents.distance(one, host))
        limits = [parents.distance(one, host) for one in (here, home) if one is not None]
        is_nearer = parents.distance(nearest, host) < min(limits)
        return (nearest,) if is_nearer and asker.mode.may_refer else ()

    def wait_s(self, asker: Asker, transfer: transfer_.Transfer | None) -> float:
        """Return how long a peer waits for what is not under way here, in seconds.

        It does where guests here, which are in step with it, are about to read the same.
        """
        parts, want = self._parts, asker.want
        if asker.mode is RELAYED or (transfer is not None and transfer.attempts):
            return 0.0
        is_near = parts.steps.is_near(want.image_id, parts.tables.here, want.offset, parts.now)
        return AWAITED_S if is_near else 0.0
