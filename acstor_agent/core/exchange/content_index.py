# SPDX-License-Identifier: Apache-2.0
"""Which chunk of an image has a content, and which chunks have the same one (Nicolae 2015, III-A).

The first chunk with a CID is the *parent* of all chunks with that CID: states,
requests and advertisements are about parents only, so one fetch serves them all.
Advertisements name contents of any image; the index finds the parent that an
attached image has for one, wherever it lies.

The index of the chunk map is searched where it lies, by bisection: it takes no memory
and a look-up takes some 10 us.  It is believed only as far as the CIDs that it leads to,
so a map with a wrong index has chunks that nobody finds, and that is all.

Parents are made from whole CIDs.  Where two contents of one image share the 8
bytes of a prefix one of them is found: the other is never prefetched by an
advertisement, and that is all.  Chunks of zeros are found by nobody.
"""

import abc
import bisect

from acstor_common import chunk_map
from acstor_common import ids


class Index(abc.ABC):
    """Finds the chunks of one image by the names that hosts exchange."""

    @abc.abstractmethod
    def find(self, oid: ids.Oid) -> int | None:
        """Return the parent that an advertised OID stands for; None if the image has none."""

    @abc.abstractmethod
    def parent(self, chunk_no: int) -> int:
        """Return the first chunk with the same name; it may be ``chunk_no`` itself.

        :raises IndexError: the image has no such chunk
        """


class ContentIndex(Index):
    """The contents of one image.

    :param image_map: its chunk map, which stays open while this is used
    """

    def __init__(self, image_map: chunk_map.ChunkMap) -> None:
        self._map = image_map
        self._numbers = range(image_map.tables.contents)

    def find(self, oid: ids.Oid) -> int | None:
        """Return the parent that a prefix of a CID stands for; None if the image has none."""
        prefix = oid.to_bytes(ids.OID_BYTES, "big")
        at = bisect.bisect_left(self._numbers, prefix, key=self._cid)
        if at == len(self._numbers) or not self._cid(at).startswith(prefix):
            return None
        return self._map.first_chunk(at)

    def parent(self, chunk_no: int) -> int:
        """Return the first chunk with the same content; a chunk of zeros itself."""
        cid = self._map.cid(chunk_no)
        at = bisect.bisect_left(self._numbers, cid, key=self._cid)
        is_found = at < len(self._numbers) and self._cid(at) == cid
        return self._map.first_chunk(at) if is_found else chunk_no

    def _cid(self, content_no: int) -> ids.Cid:
        return self._map.cid(self._map.first_chunk(content_no))
