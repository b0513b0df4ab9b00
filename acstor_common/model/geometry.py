# SPDX-License-Identifier: Apache-2.0
"""How an image is cut into chunks.

An image of ``size_bytes`` has chunks 0 .. chunk_count - 1; the last one may be
short.
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

KIB = 1024
MIB = 1024 * KIB
MIN_CHUNK_BYTES = 16 * KIB
MAX_CHUNK_BYTES = 4 * MIB
DEFAULT_CHUNK_BYTES = 64 * KIB


def is_chunk_size(size: int) -> bool:
    """Say whether ``size`` is a power of two from 16 KiB to 4 MiB.

    >>> is_chunk_size(65536), is_chunk_size(65537), is_chunk_size(8192)
    (True, False, False)
    """
    return MIN_CHUNK_BYTES <= size <= MAX_CHUNK_BYTES and size & (size - 1) == 0


class Piece(NamedTuple):
    """The part of one chunk that a byte range needs.

    ``start`` and ``stop`` count from the beginning of the chunk.
    """

    chunk_no: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """The cut of one image.

    >>> g = Geometry(size_bytes=200_000, chunk_bytes=65536)
    >>> g.chunk_count, g.chunk_length(3)
    (4, 3392)
    >>> list(g.pieces(65000, 1000))
    [Piece(chunk_no=0, start=65000, stop=65536), Piece(chunk_no=1, start=0, stop=464)]
    """

    size_bytes: int
    chunk_bytes: int

    def __post_init__(self) -> None:
        """Refuse a cut that no image can have."""
        if self.size_bytes < 0 or not is_chunk_size(self.chunk_bytes):
            raise ValueError(f"no image is cut like this: {self}")

    @property
    def chunk_count(self) -> int:
        """Number of chunks, the short last one included."""
        return -(-self.size_bytes // self.chunk_bytes)

    def chunk_offset(self, chunk_no: int) -> int:
        """Return the chunk's first byte in the image."""
        return chunk_no * self.chunk_bytes

    def chunk_length(self, chunk_no: int) -> int:
        """Return the chunk's bytes: chunk_bytes, fewer for the last one."""
        return min(self.chunk_bytes, self.size_bytes - chunk_no * self.chunk_bytes)

    def chunk_at(self, offset: int, length: int) -> int | None:
        """Return the chunk that a byte range is, exactly; None if it is none.

        >>> g = Geometry(size_bytes=200_000, chunk_bytes=65536)
        >>> g.chunk_at(196608, 3392), g.chunk_at(65536, 65535), g.chunk_at(1, 65536)
        (3, None, None)
        """
        chunk_no, start = divmod(offset, self.chunk_bytes)
        left = self.size_bytes - offset
        is_whole = not start and 0 <= chunk_no and 0 < left
        return chunk_no if is_whole and length == min(self.chunk_bytes, left) else None

    def split_range(self, offset: int, length: int) -> Iterator[Piece]:
        """Cut a byte range into its chunks; what lies past the end of the image is left out."""
        stop = min(offset + length, self.size_bytes)
        while offset < stop:
            chunk_no, start = divmod(offset, self.chunk_bytes)
            piece_stop = min(self.chunk_bytes, start + stop - offset)
            yield Piece(chunk_no, start, piece_stop)
            offset += piece_stop - start
