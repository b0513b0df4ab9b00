# SPDX-License-Identifier: Apache-2.0
"""Distributes announcements of peers and evictions to the open images.

Announcements are not trusted: they influence prefetching and eviction, never what a guest reads.
Images look announced chunks up for about 1 ms in a turn of the loop; the rest waits.
"""

import collections
from collections.abc import Iterator
from collections.abc import Sequence

import trio

from acstor_agent.cache import cache_files
from acstor_agent.engine import actions
from acstor_agent.engine_io import exchange
from acstor_agent.images.image import mirrors
from acstor_agent.images.image import usage
from acstor_agent.images.keep import replication
from acstor_agent.images.read import advertised_prefetch
from acstor_agent.images.read import mirror
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.wire.peer import peer_wire

TURN_LOOKUPS = 1000  # in a turn of the loop, of up to 1 us
PART_SEGMENTS = 16  # that one image looks up at a time


class EventFanout:
    """Distributes announcements and evictions to the exchange and to the images concerned."""

    def __init__(
        self,
        chunks: exchange.Exchange,
        images: mirrors.Mirrors,
        cache: cache_files.CacheFiles,
        uses: usage.ImageUsage,
        replicas: replication.Replication | None = None,
    ) -> None:
        self._uses, self._replicas = uses, replicas
        self._chunks, self._images, self._cache = chunks, images, cache
        self._pending: collections.deque[tuple[ids.HostId, Iterator[int]]] = collections.deque()
        """Accepted announcements with parts left, each with its sender."""
        self._has_task = False  # that processes them in later turns
        chunks.on_action(actions.ForwardAnnouncement, self.announcements_accepted)
        cache.set_evicted_callback(self.chunk_evicted)

    def announcement_received(self, host: ids.HostId, notification: peer_wire.Notification) -> None:
        """Process an unsolicited message of a peer."""
        if isinstance(notification, peer_wire.Announcement):
            self._chunks.announcement_received(host, notification)
        elif self._replicas is not None:
            self._replicas.report_received(host, notification)

    def announcements_accepted(self, action: actions.ForwardAnnouncement) -> None:
        """Process accepted announcements: prefetch candidates and copy hints."""
        self._pending.append((action.host, self._process(action)))
        if not self._has_task:
            self._chunks.nursery.start_soon(self._process_rest)
            self._has_task = True
            self._process_part()

    async def _process_rest(self) -> None:
        try:
            await trio.lowlevel.checkpoint()
            while self._pending:
                self._process_part()
                await trio.lowlevel.checkpoint()
        finally:
            self._has_task = False

    def _process_part(self) -> None:
        """Process announcements for a turn of the loop; drop the rest of a peer over its limit."""
        left = TURN_LOOKUPS
        while self._pending and left > 0:
            host, parts = self._pending[0]
            try:
                lookups = next(parts, None)
            except Exception as error:
                self._chunks.faults.record_fault("an announcement of a peer", error)
                lookups = None
            if lookups is None or (lookups and not self._chunks.charge_lookups(host, lookups)):
                self._pending.popleft()
            left -= PART_SEGMENTS + (lookups or 0)

    def _process(self, action: actions.ForwardAnnouncement) -> Iterator[int]:
        """Process an announcement by parts; yield the look-ups to charge for each."""
        images = self._images.open()
        users = [one for one in images if not self._uses.is_leased_only(one.map.image_id)]
        for held in _parts(action.held):
            for image in users:
                yield image.prefetch.chunks_advertised(held)
        for evictable in _parts(action.evictable):
            for image in images:
                yield self._demote(image, evictable)

    def _demote(self, image: mirror.Mirror, evictable: Sequence[segments.Chunks]) -> int:
        lookups = 0
        for some in evictable:
            if (found := image.prefetch.chunks_of(some)) is not None:
                lookups += advertised_prefetch.lookups_of_hit(len(found))
                for _, cid in found:
                    self._chunks.counters.demoted += self._cache.demote_chunk(cid)
        return lookups

    def chunk_evicted(self, cid: ids.Cid) -> None:
        """Record an eviction from the cache."""
        names = self._chunks.chunk_evicted(cid)
        for image in self._images.open():
            image.prefetch.chunk_evicted(names)


def _parts(chunks: Sequence[segments.Chunks]) -> Iterator[Sequence[segments.Chunks]]:
    """Yield segments, PART_SEGMENTS at a time."""
    for at in range(0, len(chunks), PART_SEGMENTS):
        yield chunks[at : at + PART_SEGMENTS]
