# SPDX-License-Identifier: Apache-2.0
"""State that the parts of the engine share, and the time of the current event."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Container
from typing import Protocol

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure
from acstor_agent.engine import peer_state
from acstor_agent.engine import settings
from acstor_agent.engine import transfer
from acstor_agent.engine import upload_scheduler
from acstor_agent.engine.data_structures import host_interning
from acstor_agent.engine.data_structures import timers
from acstor_agent.engine.fetch import prefetch_limits
from acstor_agent.engine.fetch import requests_out
from acstor_agent.engine.fetch import source_preference
from acstor_agent.engine.fetch import source_reads
from acstor_agent.engine.fetch import transfers
from acstor_agent.engine.fetch import upstream_delays
from acstor_agent.engine.gossip import announcements
from acstor_agent.engine.gossip import location_index
from acstor_agent.engine.ring import placement
from acstor_agent.engine.ring import ring_view
from acstor_common.model import ids

SourceAccessOf = Callable[[ids.ImageId, int], placement.SourceAccess]
"""Returns how the source serves an offset of an image."""


class FetchFailures(Protocol):
    """Takes the failures of fetches and lookups: the pending reads of this host."""

    def providers_failed(self, transfer: transfer.Transfer, failure: failure.Failure) -> None:
        """Continue after all providers of a transfer failed."""

    def lookup_failed(
        self,
        transfer: transfer.Transfer,
        ref: chunk_ref.ChunkRef,
        failure: failure.Failure,
        why: str,
        lost_in_s: float,
    ) -> None:
        """Continue after no host had a chunk; ``lost_in_s``: until it counts as lost, or 0."""


class Context:
    """The shared state; ``attached``: a live view of the attached images."""

    def __init__(
        self,
        view: ring_view.RingView,
        rng: peer_state.Random,
        cache: Container[ids.Cid],
        settings: settings.Settings,
        attached: Collection[ids.ImageId],
        source_access: SourceAccessOf,
    ) -> None:
        self.now = 0.0
        self._source_access = source_access
        self.cache = cache
        self.settings = settings
        self.ring = view
        self.kept: dict[chunk_ref.Key, transfer.Bytes] = {}  # until the cache has them
        self.out = actions.ActionQueue()
        self.timers = timers.Timers()
        self.peers = peer_state.PeerStates(rng, may_hedge=settings.may_hedge)
        self.host_keys = host_interning.HostInterning()
        self.locations = location_index.LocationIndex(self.host_keys)
        self.requests_out = requests_out.RequestsOut(
            self.out, self.timers, self.peers, settings.timeout_s
        )
        self.source_reads = source_reads.SourceReads(self.out, settings.max_source_reads)
        self.prefetch_limits = prefetch_limits.PrefetchLimits(settings.background_limit)
        self.transfers = transfers.Transfers(
            self.requests_out, self.source_reads, self.prefetch_limits
        )
        self.uploads, self.far_uploads = (
            upload_scheduler.UploadScheduler(self.out, self.timers, settings.learns_ring)
            for _ in range(2)  # a full WAN must not delay answers to near hosts
        )
        self.lockstep = settings.lockstep(self)
        self.overlap = source_preference.ReadOverlap()
        self.upstream_delays = upstream_delays.UpstreamDelays()
        self.announcements = announcements.Announcements(
            *(self.out, self.timers, view, self.peers, self.locations, settings.topology), attached
        )

    def try_acquire(self, host: ids.HostId) -> bool:
        """Return whether to ask a host now; after a backoff, take its one trial."""
        return self.ring.is_reachable(host) and self.peers.try_acquire(host, self.now)

    def upstreams_of(
        self, transfer: transfer.Transfer, requester: ids.HostId | None, is_moved: bool
    ) -> list[ids.HostId]:
        """Return the hosts that this host, acting as home, asks before the source."""
        ref = transfer.first_ref
        access = self._source_access(ref.image_id, ref.offset)
        if access is placement.SourceAccess.WHOLE_HERE:
            return []
        ring = self.ring
        found = ring.upstreams_of(ref.ring_position, requester, is_moved)
        if access is placement.SourceAccess.WHOLE:
            return ring.with_image_homes(found, ref.image_id)
        nearer = [(host, self.nearer_upstream(transfer, host)) for host in found]
        no_others = (None, ring.own_host, requester)
        return list(dict.fromkeys(by for host, by in nearer if by == host or by not in no_others))

    def record_round_trip(self, host: ids.HostId, round_trip_s: float) -> None:
        """Record the round-trip time of a new connection to a host."""
        if not self.ring.is_near(host):
            group = self.ring.group_location(host)
            self.upstream_delays.record_round_trip(group, round_trip_s, self.now)

    def nearer_upstream(self, transfer: transfer.Transfer, host: ids.HostId) -> ids.HostId | None:
        """Return an upstream, or if it is too far to relay parts, the nearer home, or None."""
        ring, ref = self.ring, transfer.first_ref
        if ring.is_near(host) or not self.settings.may_ask_source_first:
            return host
        access = self._source_access(ref.image_id, ref.offset)
        if access is not placement.SourceAccess.IN_PARTS:
            return host
        group, own_group = (ring.group_location(which) for which in (host, ring.own_host))
        chunks = transfer.chunk_count
        if self.upstream_delays.may_ask(group, ref.image_id, chunks, self.now, own_group):
            return host
        return ring.nearer_home(ref.ring_position, host)

    def is_left_to_new_home(self, ref: chunk_ref.ChunkRef, requester: ids.HostId) -> bool:
        """Return whether this host, a former home, leaves a chunk to the new home."""
        if not self.ring.is_left_to_new_home(ref.ring_position, requester):
            return False
        access = self._source_access(ref.image_id, ref.offset)
        return access is not placement.SourceAccess.WHOLE_HERE

    def reachable_holders(self, ref: chunk_ref.ChunkRef) -> list[ids.HostId]:
        """Return the holders of a chunk that may be asked instead of its home."""
        return self._eligible_holders(ref.ring_position, self.locations.holders_of_chunk(ref))

    def _eligible_holders(self, place: ids.Oid, holders: list[ids.HostId]) -> list[ids.HostId]:
        if not holders:
            return holders
        ring = self.ring
        excluded = ring.own_host, ring.home(place)
        return [
            host
            for host in holders
            if host not in excluded
            and ring.may_serve(host)
            and not self.peers.is_in_backoff(host, self.now)
        ]

    def holders_bitmap(self, segment: ids.Oid) -> int:
        """Return the bitmap of the chunks in a segment with such holders."""
        bits_of = dict(self.locations.holders_of_segment(segment))
        bits = 0
        for host in self._eligible_holders(segment, [*bits_of]):
            bits |= bits_of[host]
        return bits
