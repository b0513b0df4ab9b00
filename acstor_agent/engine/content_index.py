# SPDX-License-Identifier: Apache-2.0
"""Index of the chunks of an image by content (Nicolae 2015, III-A).

The first chunk with a CID is the *parent* of all chunks with that CID. States, requests and
announcements name parents only, so one fetch serves all equal chunks. Results are compared with
whole CIDs, so a wrong index in the chunk map only hides chunks. Chunks of zeros are never found.
"""

import abc
import bisect
from collections.abc import Iterator

from acstor_common.formats import chunk_map
from acstor_common.model import ids

_SAME_HEADS = 16  # contents with one head that are compared; two of 100,000 share one by chance


class Index(abc.ABC):
    """Finds the chunks of one image by the names that hosts exchange."""

    @abc.abstractmethod
    def find_parent(self, oid: ids.Oid) -> int | None:
        """Return the parent with an announced OID; None if the image has none."""

    @abc.abstractmethod
    def parent_of(self, chunk_no: int) -> int:
        """Return the first chunk with the same name, maybe ``chunk_no``, or raise IndexError."""


class ContentIndex(Index):
    """Index of one image by content; its chunk map must stay open."""

    def __init__(self, image_map: chunk_map.ChunkMap) -> None:
        self._map, self._heads = image_map, image_map.sorted_heads()

    def find_parent(self, oid: ids.Oid) -> int | None:
        """Return the parent with a CID prefix; None if the image has none."""
        head = chunk_map.head_of(oid)
        at = bisect.bisect_left(self._heads, head)
        if at == len(self._heads) or self._heads[at] != head:
            return None  # nearly always
        for chunk_no in self._alike(head, at):
            if ids.oid_of(self._map.cid_of(chunk_no)) == oid:
                return chunk_no
        return None

    def parent_of(self, chunk_no: int) -> int:
        """Return the first chunk with the same content; a chunk of zeros itself."""
        cid = self._map.cid_of(chunk_no)
        head = chunk_map.head_of(ids.oid_of(cid))
        for candidate in self._alike(head, bisect.bisect_left(self._heads, head)):
            if candidate == chunk_no or self._map.cid_of(candidate) == cid:
                return candidate
        return chunk_no

    def _alike(self, head: int, at: int) -> Iterator[int]:
        """Yield the first chunks of the contents with a head, from content ``at`` on."""
        for content_no in range(at, min(at + _SAME_HEADS, len(self._heads))):
            if self._heads[content_no] != head:
                return
            yield self._map.first_chunk(content_no)
