# SPDX-License-Identifier: Apache-2.0
"""Writes chunk maps (chunk_map.py), as streams and in constant memory.

What is held is 8 bytes for each 256 chunks of an image that is not raw.
"""

from collections.abc import Iterator

import blake3

from acstor_common import chunk_map
from acstor_common import errors
from acstor_common import geometry
from acstor_common import ids
from acstor_common import layout

_COPY_BYTES = 1 * geometry.MIB


class MapBuilder:
    """Makes a map: the header, CIDs as they come, entries of the layout as they come, the end.

    >>> cut = geometry.Geometry(size_bytes=65536, chunk_bytes=65536)
    >>> builder = MapBuilder(ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), cut)
    >>> raw = builder.header + builder.feed(ids.ZERO_CID) + builder.end()
    >>> chunk_map.ChunkMap.parse(raw, "example").is_zero(0)
    True

    :param stored: the stored file; None: it is raw
    :raises ValueError: a field does not fit into a header
    """

    def __init__(
        self,
        image_id: ids.ImageId,
        cut: geometry.Geometry,
        os_hash: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH,
        scope_keys: chunk_map.ScopeKeys = (),
        stored: layout.Stored | None = None,
    ) -> None:
        self._stored = stored or layout.raw(cut.size_bytes)
        subject = chunk_map.Subject(image_id, cut, os_hash, scope_keys, self._stored)
        self.header = chunk_map.header_bytes(subject)
        self._hasher = blake3.blake3(self.header)
        self._missing_bytes = cut.chunk_count * ids.CID_BYTES
        self._missing_entries = self._stored.entries
        self._index = layout.Index(cut)

    def feed(self, cids: bytes) -> bytes:
        """Take the CIDs of the next chunks, in the chunks' order, and return them for writing."""
        self._missing_bytes -= len(cids)
        self._hasher.update(cids)
        return cids

    def feed_entries(self, entries: bytes) -> bytes:
        """Take the next entries of the layout, behind all CIDs, and return them for writing.

        :param entries: whole ones, as :func:`layout.pack` makes them of :func:`layout.joined`
        """
        self._missing_entries -= len(entries) // layout.ENTRY_BYTES
        self._index.feed(entries)
        self._hasher.update(entries)
        return entries

    def end(self) -> bytes:
        """Return the bytes that end the map: the layout's index and the trailer.

        :raises errors.LocalProtocolError: not exactly one CID a chunk was fed, or other entries
            than the header says
        """
        if self._missing_bytes or self._missing_entries:
            raise errors.LocalProtocolError(
                f"a chunk map was ended with {self._missing_bytes} bytes of CIDs and "
                f"{self._missing_entries} entries missing"
            )
        slots = b"" if self._stored.is_identity else self._index.slots()
        self._hasher.update(slots)
        return slots + self._hasher.digest()


def with_os_hash(
    found: chunk_map.ChunkMap, buffer: memoryview, os_hash: chunk_map.OsHash
) -> Iterator[bytes]:
    """Yield the same map, but for the image's hash in its header.

    :param buffer: what ``found`` was read from
    """
    header = chunk_map.header_bytes(found.subject._replace(os_hash=os_hash))
    hasher = blake3.blake3(header)
    yield header
    stop = len(buffer) - chunk_map.TRAILER_BYTES
    for start in range(chunk_map.HEADER_BYTES, stop, _COPY_BYTES):
        piece = bytes(buffer[start : min(start + _COPY_BYTES, stop)])
        hasher.update(piece)
        yield piece
    yield hasher.digest()
