# SPDX-License-Identifier: Apache-2.0
"""Division of an image into chunks; the last chunk may be short."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

KIB = 1024
MIB = 1024 * KIB
MIN_CHUNK_BYTES = 16 * KIB
MAX_CHUNK_BYTES = 4 * MIB
DEFAULT_CHUNK_BYTES = 64 * KIB


def is_chunk_size(size: int) -> bool:
    """Return whether ``size`` is a power of two from 16 KiB to 4 MiB.

    >>> is_chunk_size(65536), is_chunk_size(65537), is_chunk_size(8192)
    (True, False, False)
    """
    return MIN_CHUNK_BYTES <= size <= MAX_CHUNK_BYTES and size & (size - 1) == 0


class ChunkPiece(NamedTuple):
    """The part of a byte range that lies in one chunk; offsets within the chunk."""

    chunk_no: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """Image size and chunk size, and the arithmetic between bytes and chunks.

    >>> g = Geometry(size_bytes=200_000, chunk_bytes=65536)
    >>> g.chunk_count, g.chunk_length(3)
    (4, 3392)
    >>> list(g.split_range(65000, 1000))
    [ChunkPiece(chunk_no=0, start=65000, stop=65536), ChunkPiece(chunk_no=1, start=0, stop=464)]
    """

    size_bytes: int
    chunk_bytes: int

    def __post_init__(self) -> None:
        if self.size_bytes < 0 or not is_chunk_size(self.chunk_bytes):
            raise ValueError(f"an image cannot be divided like this: {self}")

    @property
    def chunk_count(self) -> int:
        """Number of chunks, including the short last one."""
        return -(-self.size_bytes // self.chunk_bytes)

    def chunk_offset(self, chunk_no: int) -> int:
        """Return the chunk's first byte in the image."""
        return chunk_no * self.chunk_bytes

    def chunk_length(self, chunk_no: int) -> int:
        """Return the chunk's length in bytes."""
        return min(self.chunk_bytes, self.size_bytes - chunk_no * self.chunk_bytes)

    def chunk_at(self, offset: int, length: int) -> int | None:
        """Return the chunk that equals a byte range; None if none does.

        >>> g = Geometry(size_bytes=200_000, chunk_bytes=65536)
        >>> g.chunk_at(196608, 3392), g.chunk_at(65536, 65535), g.chunk_at(1, 65536)
        (3, None, None)
        """
        chunk_no, start = divmod(offset, self.chunk_bytes)
        left = self.size_bytes - offset
        is_whole = not start and 0 <= chunk_no and 0 < left
        return chunk_no if is_whole and length == min(self.chunk_bytes, left) else None

    def split_range(self, offset: int, length: int) -> Iterator[ChunkPiece]:
        """Split a byte range at chunk boundaries; cut it at the end of the image."""
        stop = min(offset + length, self.size_bytes)
        while offset < stop:
            chunk_no, start = divmod(offset, self.chunk_bytes)
            piece_stop = min(self.chunk_bytes, start + stop - offset)
            yield ChunkPiece(chunk_no, start, piece_stop)
            offset += piece_stop - start
