# SPDX-License-Identifier: Apache-2.0
"""State that the parts of the engine share: ring, transfers, peers, and the time of the event."""

from collections.abc import Callable
from collections.abc import Container
from collections.abc import Sequence

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import host_interning
from acstor_agent.engine import peer_state
from acstor_agent.engine import placement
from acstor_agent.engine import priority as priority_
from acstor_agent.engine import ring_view
from acstor_agent.engine import settings as settings_
from acstor_agent.engine import timers
from acstor_agent.engine import transfer as transfer_
from acstor_agent.engine import upload_scheduler
from acstor_agent.engine.fetch import lockstep
from acstor_agent.engine.fetch import prefetch_limits
from acstor_agent.engine.fetch import read_overlap
from acstor_agent.engine.fetch import requests_out
from acstor_agent.engine.fetch import source_reads
from acstor_agent.engine.gossip import announcements
from acstor_agent.engine.gossip import location_index
from acstor_common import ids

GivenAs = Callable[[ids.ImageId, int], placement.Given]
"""Says how the source gives what lies there."""


class Context:
    """See above.

    :param cache: says which contents are here
    :param lookups: says how many each OID that is told takes on this host
    :param given_as: see :data:`GivenAs`
    :ivar transfers: contents under way; ``kept``: those that came, until the cache has them
    :ivar unwanted: transfers whose read of the source goes on though nobody waits for it
    """

    def __init__(
        self,
        view: ring_view.RingView,
        rng: peer_state.Random,
        cache: Container[ids.Cid],
        settings: settings_.Settings,
        lookups: Callable[[], int],
        given_as: GivenAs,
    ) -> None:
        self.now = 0.0
        self._given_as = given_as
        self.cache = cache
        self.settings = settings
        self.ring = view
        self.transfers: dict[chunk_ref.Key, transfer_.Transfer] = {}
        self.kept: dict[chunk_ref.Key, transfer_.Bytes] = {}
        self.unwanted: dict[transfer_.Transfer, None] = {}
        self.out = actions.Out()
        self.timers = timers.Timers()
        self.peers = peer_state.PeerStates(rng, may_hedge=settings.may_hedge)
        self.host_keys = host_interning.HostInterning()
        self.locations = location_index.LocationIndex(self.host_keys)
        self.requests_out = requests_out.RequestsOut(
            self.out, self.timers, self.peers, settings.timeout_s
        )
        self.requests_out.split = self.split_attempt
        self.source_reads = source_reads.SourceReads(
            self.out, self.split_read, settings.source_places
        )
        self.prefetch_limits = prefetch_limits.PrefetchLimits(settings.background_limit)
        self.uploads = upload_scheduler.UploadScheduler(self.out, self.timers, settings.learns_ring)
        self.predecessors = lockstep.Predecessors(view.here, self.is_ring_worth)
        self.steps = lockstep.Steps()
        self.overlap = read_overlap.ReadOverlap()
        self.announcements = announcements.Announcements(
            *(self.out, self.timers, view, self.peers, self.locations, settings.topology), lookups
        )

    def is_ring_worth(self, now: float) -> bool:
        """Say whether hosts in step are to learn a ring: where links have no queues homes are
        quicker.
        """
        return self.settings.learns_ring and self.uploads.has_met_queue(now)

    def is_usable(self, host: ids.HostId) -> bool:
        """Say whether a host is worth asking now: on a table, and not in backoff.

        After a backoff the answer is the leave for one attempt.
        """
        return self.ring.knows(host) and self.peers.is_usable(host, self.now)

    def upstreams(
        self, want: chunk_ref.ChunkRef, requester: ids.HostId | None, is_moved: bool
    ) -> list[ids.HostId]:
        """Return whom this host asks, acting as the home of a content, before the source."""
        given = self._given_as(want.image_id, want.offset)
        if given is placement.Given.WHOLE_HERE:
            return []
        found = self.ring.upstreams(want.place, requester, is_moved)
        is_whole = given is placement.Given.WHOLE
        return self.ring.with_image_homes(found, want.image_id) if is_whole else found

    def is_left_to(self, want: chunk_ref.ChunkRef, requester: ids.HostId) -> bool:
        """Say whether this host leaves a content to the new home that asks, being the former."""
        if not self.ring.is_left_to(want.place, requester):
            return False
        return self._given_as(want.image_id, want.offset) is not placement.Given.WHOLE_HERE

    def transfer_of(self, refs: transfer_.Refs, priority: priority_.Priority) -> transfer_.Transfer:
        """Return a transfer of these chunks alone; where there is none it begins to be.

        :param refs: of one image, distinct, and all or none of them under way, in one transfer
        """
        keys = chunk_ref.keys_of(refs)
        transfer = self.transfers.get(keys[0])
        if transfer is None:
            transfer = transfer_.Transfer(refs, keys, priority)
            self.transfers.update(dict.fromkeys(keys, transfer))
            return transfer
        if transfer.count > len(keys):
            transfer = self.split(transfer, [transfer.keys.index(key) for key in keys])
        if transfer.refs[0] is not refs[0]:
            by_key = dict(zip(keys, refs, strict=True))
            transfer.join(tuple([by_key[key] for key in transfer.keys]))
        if self.unwanted:
            self.unwanted.pop(transfer, None)
        return transfer

    def givers(self, want: chunk_ref.ChunkRef) -> list[ids.HostId]:
        """Return the hosts that announced a chunk and can be asked for it instead of its home."""
        return self._givers(want.place, self.locations.of(want))

    def _givers(self, place: ids.Oid, holders: list[ids.HostId]) -> list[ids.HostId]:
        if not holders:
            return holders
        ring = self.ring
        spared = ring.here, ring.home(place)
        return [
            host
            for host in holders
            if host not in spared
            and ring.is_giver(host)
            and not self.peers.is_alone(host, self.now)
        ]

    def given(self, want: chunk_ref.ChunkRef) -> int:
        """Return the bitmap of the chunks of a segment that have givers; ``want`` is one of it."""
        bits_of = dict(self.locations.holders(want))
        bits = 0
        for host in self._givers(want.place, [*bits_of]):
            bits |= bits_of[host]
        return bits

    def single(self, key: chunk_ref.Key) -> transfer_.Transfer | None:
        """Return the transfer of one chunk and no others, if the chunk is under way."""
        transfer = self.transfers.get(key)
        if transfer is not None and transfer.count > 1:
            transfer = self.split(transfer, [transfer.keys.index(key)])
        return transfer

    def singles(self, transfer: transfer_.Transfer) -> list[transfer_.Transfer]:
        """Let each chunk of a transfer go on by itself; the last one keeps the transfer."""
        return [*(self.split(transfer, [0]) for _ in range(transfer.count - 1)), transfer]

    def split(self, transfer: transfer_.Transfer, some: Sequence[int]) -> transfer_.Transfer:
        """Let some chunks of a transfer, by index, go on as a transfer of their own."""
        assert not (transfer.retry or transfer.search or transfer.askers or transfer.charged)
        part = transfer.split(some)
        self.transfers.update(dict.fromkeys(part.keys, part))
        for attempt, half in zip(transfer.attempts, part.attempts, strict=True):
            self.requests_out.divide(attempt, half)
        if transfer.relay is not None and part.relay is not None:
            self.requests_out.divide(transfer.relay, part.relay)
        if transfer.read is not None:
            part.read = self.source_reads.split(transfer.read, some)
        self.prefetch_limits.divide(transfer, part)
        if transfer in self.unwanted:
            self.unwanted[part] = None
        return part

    def split_attempt(self, attempt: transfer_.Attempt, some: list[int]) -> transfer_.Attempt:
        """Let some chunks of an attempt, and of its transfer, go on by themselves."""
        transfer = attempt.transfer
        if attempt is transfer.relay:
            relay = self.split(transfer, some).relay
            assert relay is not None
            return relay
        if attempt in transfer.attempts:
            at = transfer.attempts.index(attempt)
            return self.split(transfer, some).attempts[at]
        part = requests_out.divide_alone(attempt, some)
        self.requests_out.divide(attempt, part)
        return part

    def split_read(self, read: source_reads.SourceRead, some: list[int]) -> source_reads.SourceRead:
        """Let some chunks of a read, and of its transfer, go on by themselves."""
        transfer = self.transfers.get(read.want.key)
        if transfer is None or transfer.read is not read:
            return self.source_reads.split(read, some)
        found: source_reads.SourceRead = self.split(transfer, some).read
        return found

    def drop_if_done(self, transfer: transfer_.Transfer) -> None:
        """Forget a transfer of which nothing is under way and for which nobody waits."""
        if transfer.is_wanted:
            return
        if transfer.is_idle:
            self.forget(transfer)
        elif transfer.read is not None:
            self.unwanted[transfer] = None

    def forget(self, transfer: transfer_.Transfer) -> None:
        """Forget a transfer."""
        if self.transfers.get(transfer.key) is transfer:
            for key in transfer.keys:
                del self.transfers[key]
            if self.unwanted:
                self.unwanted.pop(transfer, None)
            self.uncharge(transfer)

    def uncharge(self, transfer: transfer_.Transfer) -> None:
        """Let a transfer count as nobody's: it does not go on because a peer asked."""
        if transfer.charged is not None:
            transfer.charged.begun -= 1
            transfer.charged = None
