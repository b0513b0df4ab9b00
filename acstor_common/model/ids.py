# SPDX-License-Identifier: Apache-2.0
"""Names of things: images, hosts, and the two names of a content (CID and OID).

A CID says *what* the bytes are: it crosses tenants, so it is a cryptographic
hash.  An OID, its first 64 bits, says *where* to ask: two contents may share
one, so it proves nothing.

A plain CID tells everybody who has the same bytes that somebody else has them, too
(Harnik et al. 2010, "Side channels in cloud services: deduplication in cloud
storage").  A keyed one tells it only within its scope: it is BLAKE3's keyed hash, and
who has not the key can neither make nor check it.  The one rule: what kind a CID is
stands in the CID itself, and :meth:`Content.matches_data` is the one place that compares
bytes with either.
"""

import re
import struct
import uuid
from collections.abc import Iterable
from typing import NamedTuple
from typing import NewType

import blake3

ImageId = NewType("ImageId", str)
"""A Glance image id: a UUID, lower case, with dashes."""

HostId = NewType("HostId", str)
"""A host of the cloud, as Nova names it: letters, digits, ``.``, ``_``, ``-``; at most 255."""

Cid = NewType("Cid", bytes)
"""Content id: the 32 bytes of the chunk's BLAKE3-256, but for the lowest bit of the last one: it is
0 if the hash is plain and 1 if it is keyed with the key of a scope."""

ScopeKey = NewType("ScopeKey", bytes)
"""Key of a scope of deduplication, 32 bytes; a secret of those who may read its images."""

Oid = NewType("Oid", int)
"""Object id: the first 64 bits of a CID, its position on the ring.  Locates, never identifies."""

CID_BYTES = 32
SCOPE_KEY_BYTES = 32
OID_BYTES = 8
_OID = struct.Struct(">Q24x")  # in a CID
ZERO_CID = Cid(bytes(CID_BYTES))
"""Reserved: a chunk of zeros only, whatever its length.  It is never stored, sent or asked for."""

_PLAIN_ENDS = [bytes([byte & 0xFE]) for byte in range(256)]
_KEYED_ENDS = [bytes([byte | 1]) for byte in range(256)]

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


class Content(NamedTuple):
    """What the bytes of a chunk must be: their CID, and the keys that it may have been made with.

    >>> key = ScopeKey(bytes(range(32)))
    >>> Content(cid_of(b"bytes", key), (key,)).matches(b"bytes")
    True
    >>> Content(cid_of(b"bytes", key)).matches(b"bytes")
    False
    """

    cid: Cid
    keys: tuple[ScopeKey, ...] = ()

    def matches_data(self, data: bytes | bytearray | memoryview) -> bool:
        """Say whether ``data`` is this content; a keyed one matches nothing without its key."""
        cid, keys = self
        if not is_keyed(cid):
            return cid_of(data) == cid
        return any(cid_of(data, key) == cid for key in keys)


def cid_of(data: bytes | bytearray | memoryview, key: ScopeKey | None = None) -> Cid:
    """Return the CID of a chunk's bytes, also for a chunk of zeros (see ZERO_CID for those).

    :param key: of the scope in which the name is to mean something; None: everywhere
    """
    if key is None:
        digest = blake3.blake3(data).digest()
        return Cid(digest[:-1] + _PLAIN_ENDS[digest[-1]])
    digest = blake3.blake3(data, key=key).digest()
    return Cid(digest[:-1] + _KEYED_ENDS[digest[-1]])


def cids_of(pieces: Iterable[bytes | bytearray | memoryview]) -> list[Cid]:
    """Return what :func:`cid_of` returns for each chunk, without a key.

    >>> cids_of([b"one", b"two"]) == [cid_of(b"one"), cid_of(b"two")]
    True
    """
    digests = [blake3.blake3(piece).digest() for piece in pieces]
    return [Cid(digest[:-1] + _PLAIN_ENDS[digest[-1]]) for digest in digests]


def is_keyed(cid: Cid) -> bool:
    """Say whether a CID means something only in a scope.

    >>> is_keyed(cid_of(b"bytes")), is_keyed(cid_of(b"bytes", ScopeKey(bytes(range(32)))))
    (False, True)
    """
    return bool(cid[-1] & 1)


def oid_of(cid: Cid) -> Oid:
    """Return the OID of a content.

    >>> oid_of(Cid(bytes([1, 2]) + bytes(30))) == 0x0102_0000_0000_0000
    True
    """
    return Oid(int.from_bytes(cid[:OID_BYTES], "big"))


def oids_of(cids: Iterable[Cid]) -> list[Oid]:
    """Return the OIDs of contents.

    >>> oids_of([Cid(bytes(7) + bytes([n]) + bytes(24)) for n in (3, 7)])
    [3, 7]
    """
    return [Oid(oid) for (oid,) in _OID.iter_unpack(b"".join(cids))]


def parse_fingerprint(text: str) -> str:
    """Return the SHA-256 of a key in hex, however it is spelt; "" of none.

    >>> parse_fingerprint("AB:" * 31 + "ab") == "ab" * 32
    True

    :raises ValueError: it is none
    """
    found = text.replace(":", "").lower()
    if not re.fullmatch("([0-9a-f]{64})?", found):
        raise ValueError(f"{text!r} is not a SHA-256 in hex, of 64 digits")
    return found
