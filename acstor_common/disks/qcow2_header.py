# SPDX-License-Identifier: Apache-2.0
"""Validation of qcow2 headers, versions 2 and 3 (QEMU, docs/interop/qcow2.txt).

Rejects what QEMU rejects, external data, encryption and corruption; follows no backing file.
"""

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple
from typing import Protocol

from acstor_common import errors
from acstor_common.formats import layout
from acstor_common.model import geometry

MAGIC = b"QFI\xfb"
SECTOR_BYTES = 512
MIN_CLUSTER_BITS, MAX_CLUSTER_BITS = 9, 21
SUBCLUSTERS = 32  # per cluster (extended L2 entries)
MAX_VIRTUAL_BYTES = 16 << 40  # of a disk; the chunk map of 16 TiB has 8 GiB
MAX_L1_BYTES = 32 * geometry.MIB

_MAX_REFCOUNT_TABLE_BYTES = 8 * geometry.MIB
_MAX_SNAPSHOTS = 65536
_MIN_SNAPSHOT_BYTES = 40
_MAX_REFCOUNT_ORDER = 6
_MAX_BACKING_BYTES = 1023
_MIN_EXTENDED_CLUSTER_BITS = 14

_FIELDS_2 = struct.Struct(">4sIQIIQIIQQIIQ")  # the first 13 of _Fields
_FIELDS_3 = struct.Struct(">QQQII")  # the next 5
_FIELDS_3_END = _FIELDS_2.size + _FIELDS_3.size
_EXTENSION = struct.Struct(">II")
_EXTERNAL_IS_RAW = 2  # an autoclear feature of files with external data
_EXTERNAL_DATA_NAME = 0x44415441
_CRYPT_HEADER = 0x0537BE77
_BACKING_FORMAT = 0xE2792ACA
_MAX_BACKING_FORMAT_BYTES = 15
_BITMAPS = 0x23852875
_MAX_OFFSET = (1 << 63) - 1
_HAS_BITMAPS = 1  # an autoclear feature; without it QEMU ignores the bitmaps
_BITMAPS_FIELDS = struct.Struct(">IIQQ")  # entries, reserved, length and offset of the directory
_MAX_BITMAPS = 65535
_MAX_DIRECTORY_BYTES = 1024 * _MAX_BITMAPS


class Feature(enum.IntFlag):
    """Incompatible features: unknown ones make the disk unreadable."""

    DIRTY = 1  # refcounts may be stale; they do not matter to readers
    CORRUPT = 2
    EXTERNAL_DATA = 4
    COMPRESSION = 8
    EXTENDED_L2 = 16


_KNOWN = Feature.DIRTY | Feature.COMPRESSION | Feature.EXTENDED_L2


class RefusalReason(enum.StrEnum):
    """Why a qcow2 file is rejected."""

    FORMAT = "its format differs from Glance's record"
    TRUNCATED = "its file is too short for its header"
    VERSION = "its version of qcow2 is not supported"
    BACKING_FILE = "it has a backing file"
    EXTERNAL_DATA = "it has an external data file"
    ENCRYPTED = "it is encrypted"
    FEATURES = "it has incompatible features that are not known"
    CORRUPT = "it is marked as corrupt"
    HEADER = "its header is invalid"
    TOO_LARGE = "its disk is too large"
    TABLES_OUTSIDE = "its tables point outside of the file"
    TABLES_OVERLAP = "its tables overlap"
    TABLES = "its tables are invalid"
    DATA = "its compressed bytes cannot be read"


REMEDY = "Convert it to one complete file (qemu-img convert), and upload that"


class Refused(errors.NotRaw):
    """A qcow2 file is rejected permanently."""

    def __init__(self, what: str, reason: RefusalReason, detail: str = "") -> None:
        super().__init__(what, f"{reason}: {detail}" if detail else reason.value, REMEDY)
        self.args = (what, reason, detail)  # for copy and pickle
        self.reason = reason


class Source(Protocol):
    """A file for reads by ranges from several threads."""

    name: str

    @property
    def size_bytes(self) -> int:
        """Current length; it may grow."""

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill ``view`` from ``offset``; the range lies in the file."""


class Span(NamedTuple):
    """A named range of the file."""

    start: int
    stop: int
    what: str

    def overlaps(self, other: "Span") -> bool:
        """Return whether two ranges overlap."""
        return self.start < other.stop and other.start < self.stop


class Bitmaps(NamedTuple):
    """The extension of dirty bitmaps: where their directory is."""

    entries: int
    directory_bytes: int
    directory_offset: int


class Header(NamedTuple):
    """Fields needed to read the disk."""

    version: int
    cluster_bits: int
    virtual_size: int
    l1_offset: int
    codec: layout.Codec
    has_subclusters: bool
    has_backing_file: bool
    tables: tuple[Span, ...]  # the header and the tables it points to, without overlap
    snapshots: tuple[int, int]  # offset and number
    bitmaps: Bitmaps | None  # None if QEMU loads none

    @property
    def cluster_bytes(self) -> int:
        """Length of a cluster."""
        return 1 << self.cluster_bits

    @property
    def entry_bytes(self) -> int:
        """Length of an L2 entry."""
        return 16 if self.has_subclusters else 8

    @property
    def l2_guest_bytes(self) -> int:
        """Guest bytes that one L2 table maps."""
        return self.cluster_bytes // self.entry_bytes << self.cluster_bits

    @property
    def l1_entries(self) -> int:
        """L1 entries of the disk; further ones are a snapshot's."""
        return -(-self.virtual_size // self.l2_guest_bytes)


class _Fields(NamedTuple):
    """Fields of both structs and the compression type; version 3's are 0 in version 2."""

    magic: bytes
    version: int
    backing_offset: int
    backing_length: int
    cluster_bits: int
    size: int
    crypt_method: int
    l1_size: int
    l1_offset: int
    refcount_offset: int
    refcount_clusters: int
    snapshot_count: int
    snapshot_offset: int
    incompatible: int
    compatible: int
    autoclear: int
    refcount_order: int
    header_length: int
    compression: int


def parse(
    source: Source, max_virtual_bytes: int = MAX_VIRTUAL_BYTES, *, may_have_backing: bool = False
) -> Header:
    """Read and validate a header; Refused: bad or unsupported, errors.Unusable: unreadable."""
    fields = _read_fields(source)
    if fields.backing_offset and not may_have_backing:
        raise Refused(source.name, RefusalReason.BACKING_FILE)
    _check_kind(fields, source.name)
    _check_numbers(fields, source.name, max_virtual_bytes)
    bitmaps = _read_extensions(fields, source)
    header = Header(
        version=fields.version,
        cluster_bits=fields.cluster_bits,
        virtual_size=fields.size,
        l1_offset=fields.l1_offset,
        codec=_codec(fields, source.name),
        has_subclusters=bool(fields.incompatible & Feature.EXTENDED_L2),
        has_backing_file=bool(fields.backing_offset),
        tables=_tables(fields, source),
        snapshots=(fields.snapshot_offset, fields.snapshot_count),
        bitmaps=bitmaps,
    )
    if fields.l1_size < header.l1_entries:
        raise Refused(source.name, RefusalReason.TABLES, "the L1 table is too short for the disk")
    return header


def _read_fields(source: Source) -> _Fields:
    head = bytearray(min(source.size_bytes, _FIELDS_3_END + 8))
    source.read_into(memoryview(head), 0)
    if head[:4] != MAGIC:
        raise Refused(source.name, RefusalReason.FORMAT, "it is not qcow2")
    if len(head) < _FIELDS_2.size:
        raise Refused(source.name, RefusalReason.TRUNCATED)
    fields_2 = _FIELDS_2.unpack_from(head)
    if fields_2[1] == 2:
        return _Fields._make((*fields_2, 0, 0, 0, 4, _FIELDS_2.size, 0))
    if fields_2[1] != 3:
        raise Refused(source.name, RefusalReason.VERSION, f"version {fields_2[1]}")
    if len(head) < _FIELDS_3_END:
        raise Refused(source.name, RefusalReason.TRUNCATED)
    fields_3 = _FIELDS_3.unpack_from(head, _FIELDS_2.size)
    has_compression = fields_3[-1] > _FIELDS_3_END and len(head) > _FIELDS_3_END
    compression = head[_FIELDS_3_END] if has_compression else 0
    return _Fields._make((*fields_2, *fields_3, compression))


def _check_kind(fields: _Fields, name: str) -> None:
    if fields.incompatible & Feature.EXTERNAL_DATA or fields.autoclear & _EXTERNAL_IS_RAW:
        raise Refused(name, RefusalReason.EXTERNAL_DATA)
    if fields.crypt_method:
        raise Refused(name, RefusalReason.ENCRYPTED, f"method {fields.crypt_method}")
    if fields.incompatible & Feature.CORRUPT:
        raise Refused(name, RefusalReason.CORRUPT)
    if unknown := fields.incompatible & ~int(_KNOWN):
        raise Refused(name, RefusalReason.FEATURES, f"{unknown:#x}")


def _check_numbers(fields: _Fields, name: str, max_virtual_bytes: int) -> None:
    if not MIN_CLUSTER_BITS <= fields.cluster_bits <= MAX_CLUSTER_BITS:
        raise Refused(name, RefusalReason.HEADER, f"clusters of 2**{fields.cluster_bits} bytes")
    has_subclusters = bool(fields.incompatible & Feature.EXTENDED_L2)
    if has_subclusters and fields.cluster_bits < _MIN_EXTENDED_CLUSTER_BITS:
        raise Refused(name, RefusalReason.HEADER, f"subclusters of 2**{fields.cluster_bits} bytes")
    if fields.size > max_virtual_bytes:
        why = f"{fields.size} bytes, and {max_virtual_bytes} are allowed"
        raise Refused(name, RefusalReason.TOO_LARGE, why)
    if fields.size % SECTOR_BYTES:
        raise Refused(
            name, RefusalReason.HEADER, f"a disk of {fields.size} bytes, not of whole sectors"
        )
    if fields.refcount_order > _MAX_REFCOUNT_ORDER:
        raise Refused(name, RefusalReason.HEADER, f"refcounts of 2**{fields.refcount_order} bits")
    if (
        fields.version == 3
        and not _FIELDS_3_END <= fields.header_length <= 1 << fields.cluster_bits
    ):
        raise Refused(name, RefusalReason.HEADER, f"a header of {fields.header_length} bytes")
    name_stop = fields.backing_offset + fields.backing_length
    if fields.backing_offset and (
        fields.backing_length > _MAX_BACKING_BYTES or name_stop > 1 << fields.cluster_bits
    ):
        raise Refused(
            name, RefusalReason.HEADER, "the name of its backing file is not in the header"
        )


def _codec(fields: _Fields, name: str) -> layout.Codec:
    codecs = {0: layout.Codec.DEFLATE, 1: layout.Codec.ZSTD}
    codec = codecs.get(fields.compression)
    if codec is None:
        raise Refused(name, RefusalReason.FEATURES, f"compression type {fields.compression}")
    if bool(fields.incompatible & Feature.COMPRESSION) != bool(fields.compression):
        raise Refused(
            name, RefusalReason.HEADER, "the compression type and its feature do not agree"
        )
    return codec


def _read_extensions(fields: _Fields, source: Source) -> Bitmaps | None:
    """Reject extensions that QEMU rejects, or that change where data is; return the bitmaps."""
    name, found = source.name, None
    if fields.header_length > source.size_bytes:
        raise Refused(name, RefusalReason.TRUNCATED)
    for kind, data in _iter_extensions(fields, source):
        if kind == _EXTERNAL_DATA_NAME:
            raise Refused(name, RefusalReason.EXTERNAL_DATA)
        if kind == _CRYPT_HEADER:
            raise Refused(name, RefusalReason.ENCRYPTED)
        if kind == _BACKING_FORMAT and len(data) > _MAX_BACKING_FORMAT_BYTES:
            raise Refused(name, RefusalReason.HEADER, "a backing format of more than 15 bytes")
        if kind == _BITMAPS:
            found = _parse_bitmaps(data, fields, name)
    return found if fields.autoclear & _HAS_BITMAPS else None


def _iter_extensions(fields: _Fields, source: Source) -> Iterator[tuple[int, bytes]]:
    # The backing file's name follows the extensions.
    end = fields.backing_offset or 1 << fields.cluster_bits
    area = bytearray(max(0, end - fields.header_length))
    inside = max(0, min(len(area), source.size_bytes - fields.header_length))
    source.read_into(memoryview(area)[:inside], fields.header_length)
    at = 0
    while at < len(area):
        start = at + _EXTENSION.size
        kind, length = _EXTENSION.unpack_from(area, at) if start <= len(area) else (0, 0)
        if start + length > len(area):
            raise Refused(
                source.name, RefusalReason.HEADER, "an extension is longer than the header"
            )
        if kind == 0:
            return
        yield kind, bytes(area[start : start + length])
        at = start + -(-length // 8) * 8


def _parse_bitmaps(data: bytes, fields: _Fields, name: str) -> Bitmaps | None:
    if len(data) != _BITMAPS_FIELDS.size:
        raise Refused(name, RefusalReason.HEADER, f"{len(data)} bytes about bitmaps")
    count, reserved, directory_bytes, offset = _BITMAPS_FIELDS.unpack(data)
    if not fields.autoclear & _HAS_BITMAPS:
        return None
    if (
        reserved
        or not 0 < count <= _MAX_BITMAPS
        or not 0 < directory_bytes <= _MAX_DIRECTORY_BYTES
        or offset % (1 << fields.cluster_bits)
    ):
        raise Refused(name, RefusalReason.HEADER, f"{count} bitmaps in {directory_bytes} bytes")
    return Bitmaps(count, directory_bytes, offset)


def _tables(fields: _Fields, source: Source) -> tuple[Span, ...]:
    cluster_bytes, name = 1 << fields.cluster_bits, source.name
    if not fields.refcount_clusters:
        raise Refused(name, RefusalReason.TABLES, "it has no refcount table")
    spans = [Span(0, cluster_bytes, "header")]
    for what, offset, length, limit in (
        ("L1 table", fields.l1_offset, fields.l1_size * 8, MAX_L1_BYTES),
        (
            "refcount table",
            fields.refcount_offset,
            fields.refcount_clusters * cluster_bytes,
            _MAX_REFCOUNT_TABLE_BYTES,
        ),
        (
            "table of snapshots",
            fields.snapshot_offset,
            fields.snapshot_count * _MIN_SNAPSHOT_BYTES,
            _MAX_SNAPSHOTS * _MIN_SNAPSHOT_BYTES,
        ),
    ):
        if length > limit:
            raise Refused(name, RefusalReason.TABLES, f"a {what} of {length} bytes")
        if not length and offset > _MAX_OFFSET:  # QEMU looks at the offset of an empty table, too
            raise Refused(name, RefusalReason.TABLES, f"the {what} is beyond all files")
        if offset % cluster_bytes:
            raise Refused(name, RefusalReason.TABLES, f"the {what} does not begin with a cluster")
        if length:
            spans.append(Span(offset, offset + length, what))
    _check_places(spans, source)
    return tuple(spans)


def _check_places(spans: list[Span], source: Source) -> None:
    """Reject tables outside of the file, and overlaps; the first span is the header."""
    for number, span in enumerate(spans):
        if span.stop > source.size_bytes and number:
            raise Refused(source.name, RefusalReason.TABLES_OUTSIDE, f"the {span.what}")
        for other in spans[:number]:
            if span.overlaps(other):
                words = f"{span.what} and {other.what}"
                raise Refused(source.name, RefusalReason.TABLES_OVERLAP, words)
