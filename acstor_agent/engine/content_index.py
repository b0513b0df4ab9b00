# SPDX-License-Identifier: Apache-2.0
"""Which chunk of an image has a content, and which chunks have the same one (Nicolae 2015, III-A).

The first chunk with a CID is the *parent* of all chunks with that CID: states,
requests and advertisements are about parents only, so one fetch serves them all.
Advertisements name contents of any image; the index finds the parent that an
attached image has for one, wherever it lies.

The index of the chunk map is searched where it lies, by bisection: it takes no memory
and a look-up takes some 2 us.  It is believed only as far as the CIDs that it leads to,
so a map with a wrong index has chunks that nobody finds, and that is all.

Parents are made from whole CIDs.  Where two contents of one image share the 8
bytes of a prefix one of them is found: the other is never prefetched by an
advertisement, and that is all.  Chunks of zeros are found by nobody.
"""

import abc
import bisect
from collections.abc import Iterator

from acstor_common.formats import chunk_map
from acstor_common.model import ids

_SAME_HEADS = 16
"""So many contents with one head are looked at: by chance two of 100,000 have the same."""


class Index(abc.ABC):
    """Finds the chunks of one image by the names that hosts exchange."""

    @abc.abstractmethod
    def find(self, oid: ids.Oid) -> int | None:
        """Return the parent that an advertised OID stands for; None if the image has none."""

    @abc.abstractmethod
    def first_same(self, chunk_no: int) -> int:
        """Return the first chunk with the same name; it may be ``chunk_no`` itself.

        :raises IndexError: the image has no such chunk
        """


class ContentIndex(Index):
    """The contents of one image.

    :param image_map: its chunk map, which stays open while this is used
    """

    def __init__(self, image_map: chunk_map.ChunkMap) -> None:
        self._map, self._heads = image_map, image_map.sorted_heads()

    def find(self, oid: ids.Oid) -> int | None:
        """Return the parent that a prefix of a CID stands for; None if the image has none."""
        head = chunk_map.head_of(oid)
        at = bisect.bisect_left(self._heads, head)
        if at == len(self._heads) or self._heads[at] != head:
            return None  # nearly always, of what others have
        for chunk_no in self._alike(head, at):
            if ids.oid_of(self._map.cid_of(chunk_no)) == oid:
                return chunk_no
        return None

    def first_same(self, chunk_no: int) -> int:
        """Return the first chunk with the same content; a chunk of zeros itself."""
        cid = self._map.cid_of(chunk_no)
        head = chunk_map.head_of(ids.oid_of(cid))
        for candidate in self._alike(head, bisect.bisect_left(self._heads, head)):
            if candidate == chunk_no or self._map.cid_of(candidate) == cid:
                return candidate
        return chunk_no

    def _alike(self, head: int, at: int) -> Iterator[int]:
        """Yield the first chunks of contents that have a head, from the content ``at`` on."""
        for content_no in range(at, min(at + _SAME_HEADS, len(self._heads))):
            if self._heads[content_no] != head:
                return
            yield self._map.first_chunk(content_no)
