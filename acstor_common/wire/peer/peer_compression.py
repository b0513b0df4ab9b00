# SPDX-License-Identifier: Apache-2.0
"""Compression of single chunks between agents: zstd (RFC 8878)."""

import zstandard

LEVEL = 1

Buffer = bytes | bytearray | memoryview


def compress(data: Buffer) -> bytes:
    """Return a chunk's compressed bytes.

    >>> made = compress(bytes(65536))
    >>> len(made) < 50, decompress(made, 65536) == bytes(65536)
    (True, True)
    """
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=False).compress(data)


def decompress(data: Buffer, length: int) -> bytes:
    """Return a chunk's bytes; ValueError unless it is a frame of ``length`` bytes."""
    try:
        if zstandard.frame_content_size(data) != length:  # zstandard allocates this much
            raise ValueError(f"a compressed chunk of another length than {length} bytes")
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"a compressed chunk: {error}") from error
