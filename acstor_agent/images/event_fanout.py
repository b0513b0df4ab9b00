# SPDX-License-Identifier: Apache-2.0
"""Distributes announcements of peers and evictions to the open images.

Announcements are not trusted: they influence prefetching and eviction, never what a guest reads.
"""

from acstor_agent.cache import cache_files
from acstor_agent.engine import actions
from acstor_agent.engine_io import exchange
from acstor_agent.images.image import mirrors
from acstor_agent.images.image import usage
from acstor_agent.images.keep import replication
from acstor_common.model import ids
from acstor_common.wire.peer import peer_wire


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
        for image in self._images.open():
            if action.held and not self._uses.is_leased_only(image.map.image_id):
                image.prefetch.chunks_advertised(action.held)
            for some in action.evictable:
                for _, ref in image.prefetch.chunks_of(some):
                    if self._chunks.home_of(ref) == action.host:
                        self._chunks.counters.demoted += self._cache.demote_chunk(ref.cid)

    def chunk_evicted(self, cid: ids.Cid) -> None:
        """Record an eviction from the cache."""
        names = self._chunks.chunk_evicted(cid)
        for image in self._images.open():
            image.prefetch.chunk_evicted(names)
