# SPDX-License-Identifier: Apache-2.0
"""Copies that this host served: referrals to their hosts, and hints to evict surplus ones."""

from collections.abc import Container
from collections.abc import Sequence

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_agent.engine import requester
from acstor_agent.engine.fetch import context
from acstor_agent.engine.serve import referrals
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request

RELAYED = peer_request.Mode.RELAYED


class ServedCopies:
    """The hosts that were given chunks, as far as this host may name them."""

    def __init__(self, context: context.Context) -> None:
        self._context = context
        self.referrals = referrals.Referrals(context.host_keys)
        self._segment_chunks = context.ring.table.segment_chunks

    def may_name(self, host: ids.HostId) -> bool:
        """Return whether peers may be referred to a host."""
        context = self._context
        return context.ring.may_serve(host) and not context.peers.is_in_backoff(host, context.now)

    def record_served(
        self, host: ids.HostId, refs: Sequence[chunk_ref.ChunkRef], priority: priority.Priority
    ) -> None:
        """Record that a host is given chunks."""
        if self.may_name(host):
            known = self.referrals.record_served(refs, host, priority)
            self._hint_surplus_copies(host, refs, known)

    def refer(self, pending: requester.PendingRequest) -> tuple[ids.HostId, ...]:
        """Return the hosts that can give a chunk sooner than this one, the best first."""
        hosts = self._referral(pending)
        if hosts:
            self._hint_surplus_copies(pending.host, (pending.ref,), [pending.ref.oid])
        return hosts

    def _referral(self, pending: requester.PendingRequest) -> tuple[ids.HostId, ...]:
        context = self._context
        is_tree = pending.link.uploads.is_busy and pending.mode.may_refer
        learns_ring = context.settings.learns_ring and pending.mode is not RELAYED
        if not ((is_tree or learns_ring) and self.may_name(pending.host)):
            return ()
        hosts = context.lockstep.refer(pending, self.may_name) if learns_ring else None
        if hosts is None and is_tree:
            hosts = self.referrals.referrals_for(pending.ref, pending.host, pending.priority)
            if len(hosts) == 1 and learns_ring:
                hosts += (context.ring.own_host,)  # alone it would be the next one in step
        return hosts or ()

    def _hint_surplus_copies(
        self, host: ids.HostId, refs: Sequence[chunk_ref.ChunkRef], known: Container[ids.Oid]
    ) -> None:
        context, limit = self._context, self._context.settings.copies_limit
        announcements, is_hinted = context.announcements, host in context.announcements.hints
        if not limit or not (known or is_hinted):
            return
        for ref in refs:
            if not context.ring.is_home(ref.ring_position):
                continue
            if is_hinted:
                announcements.withdraw_hint(host, ref)
            if ref.oid in known and (
                (holder := self.referrals.take_surplus(ref, limit)) is not None
            ):
                announcements.hint_eviction(holder, ref)

    def follow_table(self) -> None:
        """Forget hosts that must not be named any more."""
        length = self._context.ring.table.segment_chunks
        if length != self._segment_chunks:
            self._segment_chunks = length
            self.referrals.clear()
        for host in self._context.host_keys.list_hosts():
            if not self.may_name(host):
                self._context.host_keys.forget_host(host)
