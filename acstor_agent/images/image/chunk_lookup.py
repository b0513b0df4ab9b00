# SPDX-License-Identifier: Apache-2.0
"""The chunk maps that requests of peers are checked against: of attached images and of others."""

from collections.abc import Callable
from collections.abc import Sequence

from acstor_agent.core.images import replica_placement
from acstor_agent.engine import chunk_ref
from acstor_agent.engine.serve import authorization
from acstor_agent.images.image import mirrors
from acstor_agent.images.maps import detached_maps
from acstor_agent.sources import base
from acstor_agent.sources import layout_source
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.model import segments

TRIES = 3


class ChunkLookup(authorization.ChunkMaps):
    """The chunk maps of attached images, and of others that peers have asked for.

    :param images: attached images
    :param others: all other images
    :param kept: returns what is kept of an image, with its map: it may be filled, and not be open
    :param segment_chunks: returns the length of segments, by the table in force
    """

    def __init__(
        self,
        images: mirrors.Mirrors,
        others: detached_maps.DetachedMaps,
        kept: Callable[[ids.ImageId], replica_placement.Part | None],
        segment_chunks: Callable[[], int] = lambda: 1,
    ) -> None:
        self._images, self.others, self._kept = images, others, kept
        self._segment_chunks = segment_chunks

    def is_attached(self, image_id: ids.ImageId) -> bool:
        """Say whether this host mirrors an image."""
        return self._images.get_nowait(image_id) is not None

    def content_at(self, image_id: ids.ImageId, offset: int, length: int) -> ids.Content | None:
        """See :meth:`authorization.ChunkMaps.content_at`."""
        found = self._images.content_at(image_id, offset, length)
        if found is None and self.others.is_known(image_id, offset):
            return self.others.content_at(image_id, offset, length)
        return found

    def contents_of(self, request: chunk_ref.Request) -> Sequence[ids.Content] | None:
        """See :meth:`authorization.ChunkMaps.contents_of`."""
        if (image := self._images.get_nowait(request.image_id)) is not None:
            return image.contents_of(request)
        return super().contents_of(request)

    def segments_of(self, request: chunk_ref.Request) -> authorization.Segments | None:
        """See :meth:`authorization.ChunkMaps.segments_of`."""
        length = self._segment_chunks()
        if length == 1 or request.offset >= base.AT_BOOT_IMAGE:
            return None
        image = self._images.get_nowait(request.image_id)
        cut = image.map.geometry if image else self.others.geometry_of(request.image_id)
        if cut is None:
            return None
        asked = request.offset // cut.chunk_bytes
        stop = asked + request.chunks
        first, stop = segments.covering(asked, stop, length, cut.chunk_count)
        if image is not None:
            cids: list[ids.Cid] | None = image.map.cids_between(first, stop)
        else:
            cids = self.others.cids_of(request.image_id, first, stop)
        if cids is None:
            return None
        return authorization.Segments(cids, asked - first, cut.chunk_bytes, length)

    def layout_of(self, image_id: ids.ImageId) -> layout_source.Layout | None:
        """Return where the bytes of an image are; None if that is not known here."""
        if (image := self._images.get_nowait(image_id)) is not None:
            return image.map.layout
        if (part := self._kept(image_id)) is not None:
            return part.map.layout
        return self.others.layout_of(image_id)

    async def read_map_for_peer(
        self, host: ids.HostId, image_id: ids.ImageId, offset: int, length: int
    ) -> ids.Content:
        """Return what lies there; read the map from the source for a peer if need be.

        :raises errors.ChunkMissing: there is no such image
        :raises errors.ChunkRefused: this host may not read it
        :raises errors.SourceUnreachable: the source does not answer, or peers ask for too much
        """
        for _ in range(TRIES):  # requests of others may evict the page at once
            if (found := self.content_at(image_id, offset, length)) is not None:
                return found
            if not await self._images.open_attached(image_id):
                await self.others.read_from_source(host, image_id, offset)
        if (found := self.content_at(image_id, offset, length)) is None:
            what = f"image {image_id}"
            raise errors.SourceUnreachable(what, "this host", "too many are asked for")
        return found
