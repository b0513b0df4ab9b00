# SPDX-License-Identifier: Apache-2.0
"""Looks up chunks in the maps of attached and other images, for peers' requests."""

from collections.abc import Sequence
from typing import Protocol

from acstor_agent.core.images import replica_placement
from acstor_agent.engine import chunk_ref
from acstor_agent.engine.serve import authorization
from acstor_agent.images.image import mirrors
from acstor_agent.images.maps import detached_maps
from acstor_agent.sources import base
from acstor_agent.sources.wrappers import layout_source
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.ring import hash_ring

TRIES = 3


class PinnedParts(Protocol):
    """Knows the pinned parts of images, with their maps."""

    def pinned_part(self, image_id: ids.ImageId) -> replica_placement.ReplicaPart | None:
        """Return the pinned part of an image, open or not; None: it is not pinned."""


class ChunkLookup(authorization.ChunkMaps):
    """The chunk maps of attached images, and of others that peers request."""

    def __init__(
        self,
        images: mirrors.Mirrors,
        detached: detached_maps.DetachedMaps,
        pins: PinnedParts,
        rings: hash_ring.RingProvider,
    ) -> None:
        self._images, self.detached = images, detached
        self._pins, self._rings = pins, rings

    def is_attached(self, image_id: ids.ImageId) -> bool:
        """Return whether this host mirrors an image."""
        return self._images.get_nowait(image_id) is not None

    def content_at(self, image_id: ids.ImageId, offset: int, length: int) -> ids.Content | None:
        """See :meth:`authorization.ChunkMaps.content_at`."""
        found = self._images.content_at(image_id, offset, length)
        if found is None and self.detached.is_known(image_id, offset):
            return self.detached.content_at(image_id, offset, length)
        return found

    def contents_of(self, request: chunk_ref.Request) -> Sequence[ids.Content] | None:
        """See :meth:`authorization.ChunkMaps.contents_of`."""
        if (image := self._images.get_nowait(request.image_id)) is not None:
            return image.contents_of(request)
        return super().contents_of(request)

    def segments_of(self, request: chunk_ref.Request) -> authorization.Segments | None:
        """See :meth:`authorization.ChunkMaps.segments_of`."""
        length = self._rings.current_ring().segment_chunks
        if length == 1 or request.offset >= base.AT_BOOT_IMAGE:
            return None
        image = self._images.get_nowait(request.image_id)
        cut = image.map.geometry if image else self.detached.geometry_of(request.image_id)
        if cut is None:
            return None
        asked = request.offset // cut.chunk_bytes
        stop = asked + request.chunk_count
        first, stop = segments.covering(asked, stop, length, cut.chunk_count)
        if image is not None:
            cids: list[ids.Cid] | None = image.map.cids_between(first, stop)
        else:
            cids = self.detached.cids_of(request.image_id, first, stop)
        if cids is None:
            return None
        return authorization.Segments(cids, asked - first, cut.chunk_bytes, length)

    def layout_of(self, image_id: ids.ImageId) -> layout_source.Layout | None:
        """Return the layout of an image's stored file; None if unknown here."""
        if (image := self._images.get_nowait(image_id)) is not None:
            return image.map.layout
        if (part := self._pins.pinned_part(image_id)) is not None:
            return part.map.layout
        return self.detached.layout_of(image_id)

    async def read_map_for_peer(
        self, host: ids.HostId, image_id: ids.ImageId, offset: int, length: int
    ) -> ids.Content:
        """Return the content at a range; raises as :meth:`.DetachedMaps.read_from_source`."""
        for _ in range(TRIES):  # other requests may evict the page at once
            if (found := self.content_at(image_id, offset, length)) is not None:
                return found
            if not await self._images.open_attached(image_id):
                await self.detached.read_from_source(host, image_id, offset)
        if (found := self.content_at(image_id, offset, length)) is None:
            what = f"image {image_id}"
            raise errors.SourceUnreachable(what, "this host", "too many images are requested")
        return found
