# SPDX-License-Identifier: Apache-2.0
"""Identifiers of images and hosts, and of content (CID and OID).

A plain CID reveals to all with the same bytes that another tenant has them (Harnik et al. 2010,
"Side channels in cloud services: deduplication in cloud storage").  A keyed CID (BLAKE3's keyed
hash) is meaningful only within its scope.
"""

import re
import struct
import uuid
from collections.abc import Iterable
from typing import NamedTuple
from typing import NewType

import blake3

ImageId = NewType("ImageId", str)  # a Glance image ID: a UUID, lower case, with dashes

HostId = NewType("HostId", str)
"""A host as Nova names it: letters, digits, ``.``, ``_``, ``-``; at most 255."""

Cid = NewType("Cid", bytes)
"""Content ID: BLAKE3-256 of the chunk.

The lowest bit of the last byte is 0 if the hash is plain, 1 if keyed."""

ScopeKey = NewType("ScopeKey", bytes)
"""Secret key of a deduplication scope, 32 bytes, shared by readers of its images."""

ProfileKey = NewType("ProfileKey", bytes)
"""Key of a boot profile, 16 bytes of the BLAKE3 of its name; empty: no profile."""

Oid = NewType("Oid", int)  # object ID: the first 64 bits of a CID; its ring position, not unique

CID_BYTES = 32
SCOPE_KEY_BYTES = 32
PROFILE_KEY_BYTES = 16
NO_PROFILE = ProfileKey(b"")
OID_BYTES = 8
_OID = struct.Struct(">Q24x")  # of a CID
ZERO_CID = Cid(bytes(CID_BYTES))
"""CID of a chunk of zeros of any length; never stored, sent or requested."""

_PLAIN_ENDS = [bytes([byte & 0xFE]) for byte in range(256)]
_KEYED_ENDS = [bytes([byte | 1]) for byte in range(256)]

HOST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


def parse_image_id(text: str) -> ImageId:
    """Return ``text`` as an image ID; ValueError if it is no UUID with dashes.

    >>> parse_image_id("7D2C1F9E-5D6B-4A5C-9C61-1E1B5B1F0A11")
    '7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11'
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
    """Return the 16 bytes of an image ID for files and messages."""
    return uuid.UUID(image_id).bytes


def image_id_from_bytes(raw: bytes) -> ImageId:
    """Return the image ID of 16 bytes."""
    return ImageId(str(uuid.UUID(bytes=bytes(raw))))


def parse_host_id(text: str) -> HostId:
    """Return ``text`` as a host ID, or raise ValueError."""
    if not HOST_ID.fullmatch(text):
        raise ValueError(f"not a host id: {text[:300]!r}")
    return HostId(text)


class Content(NamedTuple):
    """Expected content of a chunk: its CID, and the keys it may be keyed with.

    >>> key = ScopeKey(bytes(range(32)))
    >>> Content(cid_of(b"bytes", key), (key,)).matches_data(b"bytes")
    True
    >>> Content(cid_of(b"bytes", key)).matches_data(b"bytes")
    False
    """

    cid: Cid
    keys: tuple[ScopeKey, ...] = ()

    def matches_data(self, data: bytes | bytearray | memoryview) -> bool:
        """Return whether ``data`` has this CID, plain or under one of the keys."""
        cid, keys = self
        if not is_keyed(cid):
            return cid_of(data) == cid
        return any(cid_of(data, key) == cid for key in keys)


def cid_of(data: bytes | bytearray | memoryview, key: ScopeKey | None = None) -> Cid:
    """Return a chunk's CID, plain without ``key``; zeros are hashed, too (see ZERO_CID)."""
    if key is None:
        digest = blake3.blake3(data).digest()
        return Cid(digest[:-1] + _PLAIN_ENDS[digest[-1]])
    digest = blake3.blake3(data, key=key).digest()
    return Cid(digest[:-1] + _KEYED_ENDS[digest[-1]])


def cids_of(pieces: Iterable[bytes | bytearray | memoryview]) -> list[Cid]:
    """Return the plain CIDs of chunks."""
    digests = [blake3.blake3(piece).digest() for piece in pieces]
    return [Cid(digest[:-1] + _PLAIN_ENDS[digest[-1]]) for digest in digests]


def profile_key_of(name: str) -> ProfileKey:
    """Return the key of the boot profile with this name; without a name NO_PROFILE.

    >>> profile_key_of("database").hex(), profile_key_of("")
    ('6de2442d877a378e9459ed39e54f746c', b'')
    """
    digest = blake3.blake3(name.encode()).digest(length=PROFILE_KEY_BYTES)
    return ProfileKey(digest) if name else NO_PROFILE


def is_keyed(cid: Cid) -> bool:
    """Return whether a CID is keyed."""
    return bool(cid[-1] & 1)


def oid_of(cid: Cid) -> Oid:
    """Return the OID of a CID."""
    return Oid(int.from_bytes(cid[:OID_BYTES], "big"))


def oids_of(cids: Iterable[Cid]) -> list[Oid]:
    """Return the OIDs of CIDs."""
    return [Oid(oid) for (oid,) in _OID.iter_unpack(b"".join(cids))]


def parse_fingerprint(text: str) -> str:
    """Return a SHA-256 as lower-case hex without colons; "" as "".  ValueError if bad.

    >>> parse_fingerprint("AB:" * 31 + "ab") == "ab" * 32
    True
    """
    found = text.replace(":", "").lower()
    if not re.fullmatch("([0-9a-f]{64})?", found):
        raise ValueError(f"{text!r} is not a SHA-256 in hex, of 64 digits")
    return found
