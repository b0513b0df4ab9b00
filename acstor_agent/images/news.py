# SPDX-License-Identifier: Apache-2.0
"""What concerns all images that are open: news of peers, and chunks that leave the cache.

The one rule: none of it is trusted; it says whom to ask, what to fetch ahead and what to let go
first, never what a guest reads.
"""

from collections.abc import Callable

from acstor_agent.cache import cache_files
from acstor_agent.chunks import exchange
from acstor_agent.chunks import fetcher
from acstor_agent.images import mirrors
from acstor_agent.images import sharing as sharing_
from acstor_common import ids
from acstor_common import peer_wire


class News:
    """Hands on what is heard to the exchange, and to the images that it concerns.

    :param sharing: hears what concerns images that stay whole in the cloud
    :param is_for_others: says whether no instance of this host uses an image
    """

    def __init__(
        self,
        peers: exchange.Exchange,
        images: mirrors.Mirrors,
        chunks: fetcher.Fetcher,
        cache: cache_files.CacheFiles,
        sharing: sharing_.Sharing | None = None,
        is_for_others: Callable[[ids.ImageId], bool] = lambda image_id: False,
    ) -> None:
        self._sharing, self._is_for_others = sharing, is_for_others
        self._peers, self._images = peers, images
        self._chunks, self._cache = chunks, cache

    def heard(self, host: ids.HostId, news: peer_wire.News) -> None:
        """Take what a peer tells without being asked."""
        images = self._images.open()
        match news:
            case peer_wire.Advertise(prefixes):
                listened_to = self._peers.heard(host, prefixes, 1 + len(images))
                for image in images:
                    if not self._is_for_others(image.map.image_id):
                        image.prefetch.advertised(listened_to)
            case peer_wire.Gone(prefixes):
                self._peers.heard_gone(host, prefixes)
            case peer_wire.LetGo(prefixes):
                named = self._peers.heard_let_go(host, prefixes, 2 + len(images))
                for image in images:
                    for cid in filter(None, map(image.prefetch.cid_of, named)):
                        self._chunks.counters.let_go += self._cache.let_go(cid)
            case peer_wire.Keep() | peer_wire.Kept():
                if self._sharing is not None:
                    self._sharing.heard(host, news)

    def gone(self, cid: ids.Cid) -> None:
        """Note that a chunk has left the cache."""
        names = self._peers.gone(cid)
        for image in self._images.open():
            image.prefetch.gone(names)
