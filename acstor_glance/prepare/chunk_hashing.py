# SPDX-License-Identifier: Apache-2.0
"""Computes the CIDs of the chunks in a buffer."""

import functools

from acstor_common.image import deduplication
from acstor_common.model import ids


def append_cids(
    buffer: bytearray,
    length: int,
    chunk_bytes: int,
    cids: bytearray,
    naming: deduplication.Naming,
    chunk_no: int,  # the buffer's first
) -> None:
    """Append the CIDs of the first ``length`` bytes; only the image's last chunk may be short."""
    zeros = _zeros(chunk_bytes)
    window = memoryview(buffer)[:length]
    for number, start in enumerate(range(0, length, chunk_bytes), chunk_no):
        chunk = window[start : start + chunk_bytes]
        # startswith compares in place; comparing memoryviews is twenty times slower.
        if buffer.startswith(zeros[: len(chunk)], start):
            cids += ids.ZERO_CID
        else:
            cids += naming.cid_of(number, chunk)


@functools.lru_cache(1)
def _zeros(count: int) -> bytes:
    return bytes(count)
