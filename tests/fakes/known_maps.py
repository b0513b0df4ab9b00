# SPDX-License-Identifier: Apache-2.0
"""Chunk maps defined by a function."""

from collections.abc import Callable

from acstor_agent.engine import chunk_ref
from acstor_agent.engine.serve import authorization
from acstor_common.model import ids

Content = Callable[[ids.ImageId, int, int], ids.Content | None]
Segments = Callable[[chunk_ref.Request], authorization.Segments | None]


class KnownMaps(authorization.ChunkMaps):
    """Chunk maps defined by a function; ``find_segments`` may be replaced."""

    def __init__(self, content: Content, find_segments: Segments = lambda request: None) -> None:
        self._content, self.find_segments = content, find_segments

    def content_at(self, image_id: ids.ImageId, offset: int, length: int) -> ids.Content | None:
        """See :meth:`authorization.ChunkMaps.content_at`."""
        return self._content(image_id, offset, length)

    def segments_of(self, request: chunk_ref.Request) -> authorization.Segments | None:
        """See :meth:`authorization.ChunkMaps.segments_of`."""
        return self.find_segments(request)
