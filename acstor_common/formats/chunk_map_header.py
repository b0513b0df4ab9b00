# SPDX-License-Identifier: Apache-2.0
"""Header of a chunk map: the image, how it is stored, and the lengths of the map's tables."""

import re
from typing import NamedTuple

from acstor_common import errors
from acstor_common.formats import file_header
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids

MAGIC = b"\x89acmap\r\n"
VERSION = 4
ALGORITHM_BLAKE3_256 = 1
MAX_OS_HASH_VALUE_BYTES = 64
MAX_SCOPE_KEYS = 8

_KEYS_BYTES = MAX_SCOPE_KEYS * ids.SCOPE_KEY_BYTES
_FIELDS = f"HIQQ16s16s64sHHH2xQQII{_KEYS_BYTES}s"  # of _Header
_HEADER = file_header.FileHeader("a chunk map", MAGIC, VERSION, _FIELDS, errors.ChunkMapFormatError)
HEADER_BYTES = _HEADER.size_bytes
TRAILER_BYTES = file_header.DIGEST_BYTES

PAGE_CHUNKS = layout.PAGE_CHUNKS
"""Chunks per page and CIDs per block; the last block is padded with zeros."""
BLOCK_BYTES = PAGE_CHUNKS * ids.CID_BYTES
NUMBER_BYTES = 4  # length of an entry of the directory and of each column of the index
MAX_CHUNKS = (1 << 32) - 1

_AT_ALGORITHM, _AT_CHUNK_BYTES = 10, 12  # offsets, for errors
_AT_CHUNK_COUNT, _AT_IMAGE_ID, AT_OS_HASH_ALGO, _AT_OS_HASH_LENGTH = 24, 32, 48, 128
_AT_KEY_COUNT, _AT_DISK_FORMAT, AT_STORED_BYTES = 130, 132, 136
_AT_BLOCKS, _AT_CONTENTS, _AT_KEYS = 152, 156, 160

_OS_HASH_ALGO = re.compile(r"[A-Za-z0-9_-]{0,16}")

_Fault = errors.ChunkMapFormatError
Buffer = bytes | memoryview  # a mapped file is passed as a memoryview


class OsHash(NamedTuple):
    """Glance's hash of an image: ``os_hash_algo`` and ``os_hash_value`` (raw bytes)."""

    algo: str
    value: bytes

    @classmethod
    def unpack(cls, algo: bytes, value: bytes, length: int) -> "OsHash":
        """Return the hash in a file's header, of ``length`` bytes; ValueError if it is invalid."""
        if length > MAX_OS_HASH_VALUE_BYTES:
            raise ValueError(f"an image hash of {length} bytes is too long")
        found = cls(algo.rstrip(b"\0").decode("ascii", "replace"), value[:length])
        if why := fault_of_os_hash(found):
            raise ValueError(why)
        return found


UNKNOWN_OS_HASH = OsHash("", b"")

ScopeKeys = tuple[ids.ScopeKey, ...]
"""Keys of a map's keyed CIDs: the image's own first, then those of its bases."""


class Subject(NamedTuple):
    """The image of a map, and how it is stored."""

    image_id: ids.ImageId
    geometry: geometry.Geometry
    os_hash: OsHash
    scope_keys: ScopeKeys
    stored: layout.StoredFile


class Tables(NamedTuple):
    """Lengths of a map's tables."""

    blocks: int  # distinct blocks of CIDs; at most one per page
    contents: int  # distinct CIDs without ZERO_CID: entries of the index


class _Header(NamedTuple):
    """The fields of _HEADER, in its order."""

    algorithm: int
    chunk_bytes: int
    size_bytes: int
    chunk_count: int
    image_id: bytes
    os_hash_algo: bytes
    os_hash_value: bytes
    os_hash_value_bytes: int
    key_count: int
    disk_format: int
    stored_bytes: int
    entries: int
    blocks: int
    contents: int
    keys: bytes


class Sections(NamedTuple):
    """Offsets of a map's sections; the directory follows the header."""

    blocks_at: int
    index_at: int  # column of the index: heads of the contents' CIDs, ascending
    firsts_at: int  # column of the index: the contents' first chunks
    entries_at: int
    stop: int


def sections(cut: geometry.Geometry, stored: layout.StoredFile, tables: Tables) -> Sections:
    """Return the offsets of a map's sections.

    >>> cut = geometry.Geometry(1 << 40, 65536)
    >>> sections(cut, layout.raw_file(1 << 40), Tables(1 << 16, 1 << 24)).stop >> 20
    640
    """
    blocks_at = HEADER_BYTES + layout.page_count(cut) * NUMBER_BYTES
    index_at = blocks_at + tables.blocks * BLOCK_BYTES
    firsts_at = index_at + tables.contents * NUMBER_BYTES
    entries_at = firsts_at + tables.contents * NUMBER_BYTES
    stop = entries_at + layout.table_bytes(cut, stored) + TRAILER_BYTES
    return Sections(blocks_at, index_at, firsts_at, entries_at, stop)


def header_bytes(subject: Subject, tables: Tables) -> bytes:
    """Return the header of a map; ValueError if a field is out of range."""
    image_id, cut, os_hash, scope_keys, stored = subject
    why = fault_of_os_hash(os_hash) or _fault_of_keys(scope_keys) or _fault_of_stored(stored, cut)
    why = why or _fault_of_count(cut.chunk_count)
    if why:
        raise ValueError(why)
    return _HEADER.pack(
        ALGORITHM_BLAKE3_256,
        cut.chunk_bytes,
        cut.size_bytes,
        cut.chunk_count,
        ids.image_id_bytes(image_id),
        os_hash.algo.encode("ascii"),
        os_hash.value,
        len(os_hash.value),
        len(scope_keys),
        *stored,
        *tables,
        b"".join(scope_keys),
    )


def parse_head(head: Buffer, what: str, expected_image_id: ids.ImageId) -> tuple[Subject, Tables]:
    """Parse the first HEADER_BYTES of an image's map, or raise ChunkMapFormatError."""
    with memoryview(head) as view:
        subject, tables = parse_header(view, what)
    check_expected(subject, expected_image_id, None, what)
    return subject, tables


def subject_of(head: Buffer, what: str, expected_image_id: ids.ImageId) -> Subject:
    """Return the image of a map; as :func:`parse_head`."""
    return parse_head(head, what, expected_image_id)[0]


def parse_header(view: memoryview, what: str) -> tuple[Subject, Tables]:
    """Validate the header: format, then checksum, then each field."""
    header = _Header(*_HEADER.unpack(view, what))
    if header.algorithm != ALGORITHM_BLAKE3_256:
        raise _Fault(what, _AT_ALGORITHM, f"CID algorithm {header.algorithm} is not known")
    if not geometry.is_chunk_size(header.chunk_bytes):
        raise _Fault(what, _AT_CHUNK_BYTES, f"chunks of {header.chunk_bytes} bytes are not allowed")
    cut = geometry.Geometry(header.size_bytes, header.chunk_bytes)
    if header.chunk_count != cut.chunk_count:
        why = f"{header.chunk_count} chunks do not fit an image of {cut.size_bytes} bytes"
        raise _Fault(what, _AT_CHUNK_COUNT, why)
    if why := _fault_of_count(cut.chunk_count):
        raise _Fault(what, _AT_CHUNK_COUNT, why)
    image_id = ids.image_id_from_bytes(header.image_id)
    os_hash, keys = _parse_os_hash(header, what), _parse_keys(header, what)
    subject = Subject(image_id, cut, os_hash, keys, _parse_stored(header, cut, what))
    return subject, _parse_tables(header, cut, what)


def _parse_os_hash(header: _Header, what: str) -> OsHash:
    length = header.os_hash_value_bytes
    try:
        return OsHash.unpack(header.os_hash_algo, header.os_hash_value, length)
    except ValueError as e:
        at = _AT_OS_HASH_LENGTH if length > MAX_OS_HASH_VALUE_BYTES else AT_OS_HASH_ALGO
        raise _Fault(what, at, str(e)) from None


def _parse_keys(header: _Header, what: str) -> ScopeKeys:
    count, size = header.key_count, ids.SCOPE_KEY_BYTES
    if count > MAX_SCOPE_KEYS:
        raise _Fault(what, _AT_KEY_COUNT, f"{count} scope keys are too many")
    keys = tuple(ids.ScopeKey(header.keys[size * n : size * (n + 1)]) for n in range(count))
    why = _fault_of_keys(keys)
    if any(header.keys[size * count :]):
        why = "there are bytes after the last scope key"
    if why:
        raise _Fault(what, _AT_KEYS, why)
    return keys


def _parse_stored(header: _Header, cut: geometry.Geometry, what: str) -> layout.StoredFile:
    try:
        disk_format = layout.DiskFormat(header.disk_format)
    except ValueError:
        why = f"disk format {header.disk_format} is not known"
        raise _Fault(what, _AT_DISK_FORMAT, why) from None
    stored = layout.StoredFile(disk_format, header.stored_bytes, header.entries)
    if why := _fault_of_stored(stored, cut):
        raise _Fault(what, AT_STORED_BYTES, why)
    return stored


def _parse_tables(header: _Header, cut: geometry.Geometry, what: str) -> Tables:
    pages = layout.page_count(cut)
    if not bool(pages) <= header.blocks <= pages:
        raise _Fault(what, _AT_BLOCKS, f"{header.blocks} blocks do not fit {pages} pages")
    if header.contents > cut.chunk_count:
        why = f"{header.contents} contents do not fit {cut.chunk_count} chunks"
        raise _Fault(what, _AT_CONTENTS, why)
    return Tables(header.blocks, header.contents)


def _fault_of_count(chunk_count: int) -> str:
    if not chunk_count:
        return "the image is empty"
    return f"{chunk_count} chunks are too many" if chunk_count > MAX_CHUNKS else ""


def _fault_of_stored(stored: layout.StoredFile, cut: geometry.Geometry) -> str:
    if stored.is_identity and stored != layout.raw_file(cut.size_bytes):
        return f"{stored.size_bytes} bytes and {stored.entries} extents are not a raw image"
    if not 0 <= stored.size_bytes <= layout.MAX_STORED_BYTES:
        return f"a stored file of {stored.size_bytes} bytes is too long"
    return ""


def _fault_of_keys(keys: ScopeKeys) -> str:
    if len(keys) > MAX_SCOPE_KEYS:
        return f"{len(keys)} scope keys are too many"
    if any(len(key) != ids.SCOPE_KEY_BYTES or not any(key) for key in keys):
        return "a scope key is invalid"
    return "a scope key appears twice" if len(set(keys)) != len(keys) else ""


def fault_of_os_hash(os_hash: OsHash) -> str:
    """Return why ``os_hash`` does not fit into a header; "" if it does."""
    algo, value = os_hash
    if not _OS_HASH_ALGO.fullmatch(algo):
        return f"not the name of a hash algorithm: {algo!r}"
    if len(value) > MAX_OS_HASH_VALUE_BYTES:
        return f"an image hash of {len(value)} bytes is too long"
    if bool(algo) != bool(value):
        return "an image hash needs both an algorithm and a value, or neither"
    return ""


def check_expected(
    subject: Subject,
    expected_image_id: ids.ImageId | None,
    expected_stored_bytes: int | None,
    what: str,
) -> None:
    """Raise ChunkMapFormatError if a map is of another image or stored file; None: any."""
    image_id, stored_bytes = subject.image_id, subject.stored.size_bytes
    if expected_image_id is not None and image_id != expected_image_id:
        raise _Fault(what, _AT_IMAGE_ID, f"map of image {image_id}, not of {expected_image_id}")
    if expected_stored_bytes is not None and stored_bytes != expected_stored_bytes:
        why = f"map of a stored file of {stored_bytes} bytes, not of {expected_stored_bytes}"
        raise _Fault(what, AT_STORED_BYTES, why)
