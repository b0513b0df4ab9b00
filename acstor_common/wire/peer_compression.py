# SPDX-License-Identifier: Apache-2.0
"""Compression of chunks between agents: zstd (RFC 8878), each chunk by itself.

So a chunk is of use as soon as it is there, and takes no more memory than was asked for.
"""

import zstandard

LEVEL = 1

Buffer = bytes | bytearray | memoryview


def compress(data: Buffer) -> bytes:
    """Return a chunk's bytes, compressed.

    >>> made = compress(bytes(65536))
    >>> len(made) < 50, decompress(made, 65536) == bytes(65536)
    (True, True)
    """
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=False).compress(data)


def decompress(data: Buffer, length: int) -> bytes:
    """Return the bytes of a chunk, of which there are ``length``.

    :raises ValueError: there are not, or the bytes are no zstd frame
    """
    try:
        if zstandard.frame_content_size(data) != length:  # memory is made for as many as it says
            raise ValueError(f"a compressed chunk of another length than {length} bytes")
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"a compressed chunk: {error}") from error
