# SPDX-License-Identifier: Apache-2.0
"""The chunk map: which content (CID) each chunk of one image has.

A map is a header, one CID a chunk, and a trailer that hashes all of it; the
bytes are described in ``doc/source/format/chunk_map.rst``.  The one rule: a map
is believed only after :meth:`ChunkMap.parse` has checked it, and it is never
unpacked: a map of 1 TiB is 512 MiB long, so it stays the buffer that it came in
(bytes, or a mapped file) and a CID is cut out when it is asked for.

A map with scope keys is a secret: who has it can find out who else in the scope has
which chunks (:mod:`acstor_common.ids`).
"""

import re
import struct
from typing import NamedTuple

import blake3

from acstor_common import errors
from acstor_common import geometry
from acstor_common import ids

MAGIC = b"\x89acmap\r\n"
VERSION = 2
ALGORITHM_BLAKE3_256 = 1
MAX_OS_HASH_VALUE_BYTES = 64
MAX_SCOPE_KEYS = 8

# Magic, version, CID algorithm, chunk bytes, image bytes, chunks, image id, name and value of the
# image's hash, length of that value, number of scope keys, reserved and zero, the keys.
_KEYS_BYTES = MAX_SCOPE_KEYS * ids.SCOPE_KEY_BYTES
_HEADER = struct.Struct(f"<8sHHIQQ16s16s64sHH28x{_KEYS_BYTES}s")
_DIGEST_BYTES = 32
HEADER_BYTES = _HEADER.size + _DIGEST_BYTES
TRAILER_BYTES = _DIGEST_BYTES

# Where the header's fields begin, for messages.
_AT_VERSION, _AT_ALGORITHM, _AT_CHUNK_BYTES, AT_SIZE_BYTES = 8, 10, 12, 16
_AT_CHUNK_COUNT, _AT_IMAGE_ID, AT_OS_HASH_ALGO, _AT_OS_HASH_LENGTH = 24, 32, 48, 128
_AT_KEY_COUNT, _AT_KEYS = 130, 160

_OS_HASH_ALGO = re.compile(r"[A-Za-z0-9_-]{0,16}")

_EVEN_BYTES = bytes(range(0, 256, 2))

_read_cid = struct.Struct(f"{ids.CID_BYTES}s").unpack_from

_Fault = errors.ChunkMapFormatError
Buffer = bytes | memoryview
"""What a map is read from; a mapped file is given as a memoryview of it."""


class OsHash(NamedTuple):
    """Glance's hash of a whole image: ``os_hash_algo`` and ``os_hash_value`` (raw bytes)."""

    algo: str
    value: bytes


UNKNOWN_OS_HASH = OsHash("", b"")

ScopeKeys = tuple[ids.ScopeKey, ...]
"""The scopes that a map's keyed CIDs are of: the image's own first, then those of what it was made
from.  Empty: all its CIDs are plain."""


class Subject(NamedTuple):
    """Which image a map is of."""

    image_id: ids.ImageId
    geometry: geometry.Geometry
    os_hash: OsHash
    scope_keys: ScopeKeys


class _Header(NamedTuple):
    """The fields of _HEADER, in its order."""

    magic: bytes
    version: int
    algorithm: int
    chunk_bytes: int
    size_bytes: int
    chunk_count: int
    image_id: bytes
    os_hash_algo: bytes
    os_hash_value: bytes
    os_hash_value_bytes: int
    key_count: int
    keys: bytes


def length_bytes(cut: geometry.Geometry) -> int:
    """Return how long the map of an image that is cut like this is.

    >>> length_bytes(geometry.Geometry(size_bytes=1 << 40, chunk_bytes=65536)) >> 20
    512
    """
    return HEADER_BYTES + cut.chunk_count * ids.CID_BYTES + TRAILER_BYTES


def header_bytes(
    image_id: ids.ImageId,
    cut: geometry.Geometry,
    os_hash: OsHash = UNKNOWN_OS_HASH,
    scope_keys: ScopeKeys = (),
) -> bytes:
    """Return the header of a map.

    :raises ValueError: ``os_hash`` or ``scope_keys`` do not fit into a header
    """
    why = fault_of_os_hash(os_hash) or _fault_of_keys(scope_keys)
    if why:
        raise ValueError(why)
    fields = _HEADER.pack(
        MAGIC,
        VERSION,
        ALGORITHM_BLAKE3_256,
        cut.chunk_bytes,
        cut.size_bytes,
        cut.chunk_count,
        ids.image_id_bytes(image_id),
        os_hash.algo.encode("ascii"),
        os_hash.value,
        len(os_hash.value),
        len(scope_keys),
        b"".join(scope_keys),
    )
    return fields + blake3.blake3(fields).digest()


class MapBuilder:
    """Makes a map as a stream, in constant memory: the header, CIDs as they come, the trailer.

    >>> cut = geometry.Geometry(size_bytes=65536, chunk_bytes=65536)
    >>> builder = MapBuilder(ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), cut)
    >>> raw = builder.header + builder.feed(ids.ZERO_CID) + builder.trailer()
    >>> ChunkMap.parse(raw, "example").is_zero(0)
    True
    """

    def __init__(
        self,
        image_id: ids.ImageId,
        cut: geometry.Geometry,
        os_hash: OsHash = UNKNOWN_OS_HASH,
        scope_keys: ScopeKeys = (),
    ) -> None:
        self.header = header_bytes(image_id, cut, os_hash, scope_keys)
        self._hasher = blake3.blake3(self.header)
        self._missing_bytes = cut.chunk_count * ids.CID_BYTES

    def feed(self, cids: bytes) -> bytes:
        """Take the CIDs of the next chunks, in the chunks' order, and return them for writing."""
        self._missing_bytes -= len(cids)
        self._hasher.update(cids)
        return cids

    def trailer(self) -> bytes:
        """Return the bytes that end the map.

        :raises errors.LocalProtocolError: not exactly one CID a chunk was fed
        """
        if self._missing_bytes:
            raise errors.LocalProtocolError(
                f"a chunk map was ended with {self._missing_bytes} bytes of CIDs missing"
            )
        return self._hasher.digest()


class ChunkMap:
    """One image's CIDs, read in place from the bytes of its map.

    ``image_id``, ``geometry``, ``os_hash_algo`` and ``os_hash_value`` say which image it is of,
    ``scope_keys`` what its keyed CIDs are checked with.
    The buffer must stay as it is, and open, while the map is used.
    """

    __slots__ = (
        *("_buffer", "_count", "geometry", "image_id"),
        *("os_hash_algo", "os_hash_value", "scope_keys"),
    )

    def __init__(
        self,
        buffer: Buffer,
        image_id: ids.ImageId,
        cut: geometry.Geometry,
        os_hash: OsHash,
        scope_keys: ScopeKeys = (),
    ) -> None:
        self._buffer = buffer
        self._count = cut.chunk_count
        self.image_id = image_id
        self.geometry = cut
        self.os_hash_algo, self.os_hash_value = os_hash
        self.scope_keys = scope_keys

    @classmethod
    def parse(
        cls,
        buffer: Buffer,
        what: str,
        *,
        expected_image_id: ids.ImageId | None = None,
        expected_size_bytes: int | None = None,
        check_trailer: bool = True,
    ) -> "ChunkMap":
        """Check ``buffer`` (bytes, mmap, memoryview of bytes) and return it as a map.

        :param what: the map as its owner knows it (a path, an image id), for errors
        :param check_trailer: hash the whole buffer (1 ms for each 5 MiB), look at each CID; leave
            it out only for bytes that this host has checked before
        :raises errors.ChunkMapFormatError: it is not a chunk map, it is damaged, or it is the map
            of another image than expected
        """
        with memoryview(buffer) as view:
            image_id, cut, os_hash, scope_keys = _parse_header(view, what)
            _check_expected(image_id, cut, expected_image_id, expected_size_bytes, what)
            _check_length(view, cut, what)
            if check_trailer:
                _check_trailer(view, what)
                _check_cids(view, scope_keys, what)
        return cls(buffer, image_id, cut, os_hash, scope_keys)

    def __len__(self) -> int:
        """Return the number of chunks."""
        return self._count

    def cid(self, chunk_no: int) -> ids.Cid:
        """Return the CID of a chunk.

        :raises IndexError: the image has no such chunk
        """
        if not 0 <= chunk_no < self._count:
            raise IndexError(f"image {self.image_id} has no chunk {chunk_no}")
        cid: ids.Cid = _read_cid(self._buffer, HEADER_BYTES + chunk_no * ids.CID_BYTES)[0]
        return cid

    @property
    def checksum(self) -> bytes:
        """The map's trailer: 32 bytes that no other map has."""
        return bytes(self._buffer[-TRAILER_BYTES:])

    def content(self, chunk_no: int) -> ids.Content:
        """Return what the bytes of a chunk must be.

        :raises IndexError: the image has no such chunk
        """
        return ids.Content(self.cid(chunk_no), self.scope_keys)

    def is_zero(self, chunk_no: int) -> bool:
        """Say whether the chunk has only zeros: it is never stored, sent or asked for."""
        return self.cid(chunk_no) == ids.ZERO_CID

    def zeros(self) -> bytes:
        """Return a bit for each chunk, set if it has only zeros; a byte's lowest bit is first.

        Takes about 2 ms for each 10,000 chunks.
        """
        bits = bytearray(-(-self._count // 8))
        for chunk_no in range(self._count):
            if self.is_zero(chunk_no):
                bits[chunk_no // 8] |= 1 << chunk_no % 8
        return bytes(bits)


def subject_of(head: Buffer, what: str, expected_image_id: ids.ImageId) -> Subject:
    """Check the header in the first HEADER_BYTES of a map, and say which image it is of.

    The CIDs follow it, one after the other: for who needs few of them, one by one.

    :raises errors.ChunkMapFormatError: it is not a chunk map's, or that of another image
    """
    with memoryview(head) as view:
        subject = Subject(*_parse_header(view, what))
    _check_expected(subject.image_id, subject.geometry, expected_image_id, None, what)
    return subject


def _parse_header(
    view: memoryview, what: str
) -> tuple[ids.ImageId, geometry.Geometry, OsHash, ScopeKeys]:
    """Check the header by itself: what it is first, then its checksum, then each field."""
    header = _unpack_header(view, what)
    if header.algorithm != ALGORITHM_BLAKE3_256:
        raise _Fault(what, _AT_ALGORITHM, f"CID algorithm {header.algorithm} is not known")
    if not geometry.is_chunk_size(header.chunk_bytes):
        raise _Fault(what, _AT_CHUNK_BYTES, f"chunks of {header.chunk_bytes} bytes are not allowed")
    cut = geometry.Geometry(header.size_bytes, header.chunk_bytes)
    if header.chunk_count != cut.chunk_count:
        why = f"{header.chunk_count} chunks do not fit an image of {cut.size_bytes} bytes"
        raise _Fault(what, _AT_CHUNK_COUNT, why)
    image_id = ids.image_id_from_bytes(header.image_id)
    return image_id, cut, _parse_os_hash(header, what), _parse_keys(header, what)


def _unpack_header(view: memoryview, what: str) -> _Header:
    """Return the fields of a header that is whole and of a known version."""
    if not view.nbytes or view[: len(MAGIC)] != MAGIC[: view.nbytes]:
        raise _Fault(what, 0, "not a chunk map")
    if view.nbytes < HEADER_BYTES:
        raise _Fault(what, view.nbytes, "truncated in the header")
    header = _Header(*_HEADER.unpack_from(view))
    if header.version != VERSION:
        why = f"format version {header.version} is not known (only {VERSION} is)"
        raise _Fault(what, _AT_VERSION, why)
    if blake3.blake3(view[: _HEADER.size]).digest() != view[_HEADER.size : HEADER_BYTES]:
        raise _Fault(what, _HEADER.size, "the header's checksum does not match")
    return header


def _parse_os_hash(header: _Header, what: str) -> OsHash:
    length = header.os_hash_value_bytes
    if length > MAX_OS_HASH_VALUE_BYTES:
        raise _Fault(what, _AT_OS_HASH_LENGTH, f"an image hash of {length} bytes is too long")
    algo = header.os_hash_algo.rstrip(b"\0").decode("ascii", "replace")
    os_hash = OsHash(algo, header.os_hash_value[:length])
    why = fault_of_os_hash(os_hash)
    if why:
        raise _Fault(what, AT_OS_HASH_ALGO, why)
    return os_hash


def _parse_keys(header: _Header, what: str) -> ScopeKeys:
    count, size = header.key_count, ids.SCOPE_KEY_BYTES
    if count > MAX_SCOPE_KEYS:
        raise _Fault(what, _AT_KEY_COUNT, f"{count} scope keys are too many")
    keys = tuple(ids.ScopeKey(header.keys[size * n : size * (n + 1)]) for n in range(count))
    why = _fault_of_keys(keys)
    if any(header.keys[size * count :]):
        why = "there are bytes behind the last scope key"
    if why:
        raise _Fault(what, _AT_KEYS, why)
    return keys


def _fault_of_keys(keys: ScopeKeys) -> str:
    """Say why ``keys`` cannot stand in the header of a map; empty if they can."""
    if len(keys) > MAX_SCOPE_KEYS:
        return f"{len(keys)} scope keys are too many"
    if any(len(key) != ids.SCOPE_KEY_BYTES or not any(key) for key in keys):
        return "a scope key is no key"
    return "a scope key is there twice" if len(set(keys)) != len(keys) else ""


def fault_of_os_hash(os_hash: OsHash) -> str:
    """Say why ``os_hash`` cannot stand in the header of a map; empty if it can."""
    algo, value = os_hash
    if not _OS_HASH_ALGO.fullmatch(algo):
        return f"not the name of a hash algorithm: {algo!r}"
    if len(value) > MAX_OS_HASH_VALUE_BYTES:
        return f"an image hash of {len(value)} bytes is too long"
    if bool(algo) != bool(value):
        return "an image hash needs both an algorithm and a value, or neither"
    return ""


def _check_expected(
    image_id: ids.ImageId,
    cut: geometry.Geometry,
    expected_image_id: ids.ImageId | None,
    expected_size_bytes: int | None,
    what: str,
) -> None:
    if expected_image_id is not None and image_id != expected_image_id:
        raise _Fault(what, _AT_IMAGE_ID, f"map of image {image_id}, not of {expected_image_id}")
    if expected_size_bytes is not None and cut.size_bytes != expected_size_bytes:
        why = f"map of an image of {cut.size_bytes} bytes, not of {expected_size_bytes}"
        raise _Fault(what, AT_SIZE_BYTES, why)


def _check_length(view: memoryview, cut: geometry.Geometry, what: str) -> None:
    expected_bytes = length_bytes(cut)
    if view.nbytes < expected_bytes:
        raise _Fault(what, view.nbytes, f"truncated: {view.nbytes} of {expected_bytes} bytes")
    if view.nbytes > expected_bytes:
        why = f"too long: {view.nbytes} bytes instead of {expected_bytes}"
        raise _Fault(what, expected_bytes, why)


def _check_trailer(view: memoryview, what: str) -> None:
    body_bytes = view.nbytes - TRAILER_BYTES
    if blake3.blake3(view[:body_bytes]).digest() != view[body_bytes:]:
        raise _Fault(what, body_bytes, "the map's checksum does not match")


def _check_cids(view: memoryview, scope_keys: ScopeKeys, what: str) -> None:
    """Refuse keyed CIDs in a map without keys: nobody could ever check their chunks."""
    if scope_keys:
        return
    ends = bytes(view[HEADER_BYTES + ids.CID_BYTES - 1 : -TRAILER_BYTES : ids.CID_BYTES])
    if odd := ends.translate(None, _EVEN_BYTES):
        offset = HEADER_BYTES + ends.index(odd[0]) * ids.CID_BYTES
        raise _Fault(what, offset, "a keyed CID, and the map has no scope key")
