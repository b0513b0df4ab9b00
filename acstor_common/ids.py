# SPDX-License-Identifier: Apache-2.0
"""Names of things: images, hosts, chunks by place (OID) and by content (CID).

An OID says *where* to ask: it may collide and proves nothing.  A CID says
*what* the bytes are: it crosses tenants, so it is a cryptographic hash.
"""

import re
import uuid
from typing import NewType

import blake3
import xxhash

ImageId = NewType("ImageId", str)
"""A Glance image id: a UUID, lower case, with dashes."""

HostId = NewType("HostId", str)
"""A host of the cloud, as Nova names it: letters, digits, ``.``, ``_``, ``-``; at most 255."""

Cid = NewType("Cid", bytes)
"""Content id: the 32 bytes of the chunk's BLAKE3-256."""

Oid = NewType("Oid", int)
"""Object id, 64 bits: the upper 56 place a segment on the ring, the lower 8 name its chunk."""

CID_BYTES = 32
ZERO_CID = Cid(bytes(CID_BYTES))
"""Reserved: a chunk of zeros only, whatever its length.  It is never stored, sent or asked for."""

OID_SUFFIX_BITS = 8
_HOST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


def parse_image_id(text: str) -> ImageId:
    """Return ``text`` as an image id.

    >>> parse_image_id("7D2C1F9E-5D6B-4A5C-9C61-1E1B5B1F0A11")
    '7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11'

    :raises ValueError: it is not a UUID in its usual form with dashes
    """
    if len(text) != 36:
        raise ValueError(f"not an image id (a UUID is expected): {text[:64]!r}")
    try:
        canonical = str(uuid.UUID(text))
    except ValueError:
        raise ValueError(f"not an image id (a UUID is expected): {text[:64]!r}") from None
    if canonical != text.lower():
        raise ValueError(f"not an image id (a UUID is expected): {text[:64]!r}")
    return ImageId(canonical)


def image_id_bytes(image_id: ImageId) -> bytes:
    """Return the 16 bytes that stand for ``image_id`` in files and on the wire."""
    return uuid.UUID(image_id).bytes


def image_id_from_bytes(raw: bytes) -> ImageId:
    """Return the image id that ``raw`` (16 bytes) stands for."""
    return ImageId(str(uuid.UUID(bytes=bytes(raw))))


def parse_host_id(text: str) -> HostId:
    """Return ``text`` as a host id.

    :raises ValueError: it is empty, too long or has a character that a host name cannot have
    """
    if not _HOST_ID.fullmatch(text):
        raise ValueError(f"not a host id: {text[:300]!r}")
    return HostId(text)


def cid_of(data: bytes | bytearray | memoryview) -> Cid:
    """Return the CID of a chunk's bytes, also for a chunk of zeros (see ZERO_CID for those)."""
    return Cid(blake3.blake3(data).digest())


def segment_position(image_id: ImageId, segment_no: int) -> int:
    """Return where on the ring (0 to 2**64 - 1) a segment lies: the prefix of its chunks' OIDs."""
    key = image_id_bytes(image_id) + segment_no.to_bytes(8, "little")
    position: int = xxhash.xxh3_64_intdigest(key)
    return position >> OID_SUFFIX_BITS << OID_SUFFIX_BITS


def oid_of(image_id: ImageId, segment_no: int, chunk_in_segment: int) -> Oid:
    """Return the OID of a chunk (ACStor 2017, 3.4.1: prefix for the host, suffix for the chunk)."""
    if not 0 <= chunk_in_segment < 1 << OID_SUFFIX_BITS:
        raise ValueError(f"chunk {chunk_in_segment} does not fit in an OID's suffix")
    return Oid(segment_position(image_id, segment_no) | chunk_in_segment)
