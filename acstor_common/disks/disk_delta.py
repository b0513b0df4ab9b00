# SPDX-License-Identifier: Apache-2.0
"""Disk deltas: a disk's differences from its base (``doc/source/format/delta.rst``).

Outside of extents the disk reads as the base, or as zeros past its end.  Only the trailer validates
the data: discard everything if :meth:`Reader.verify_trailer` fails.
"""

import enum
import struct
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

import blake3

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.formats import file_header
from acstor_common.model import geometry
from acstor_common.model import ids

MAGIC = b"\x89achgs\r\n"
VERSION = 1
SECTOR_BYTES = 512  # unit of disk sizes and extents
MAX_EXTENT_BYTES = 1024 * geometry.MIB  # limit of one extent; longer runs are split
MAX_EXTENTS = 1 << 21  # a table of 32 MiB, for 256 GiB with every second 64 KiB cluster changed
MAX_VIRTUAL_BYTES = 64 << 40

# Hash value's length, extents, disk size, bytes of data; base's image ID, hash algorithm, value.
_FIELDS = "HIQQ16s16s64s"
_HEADER = file_header.FileHeader(
    "a disk delta", MAGIC, VERSION, _FIELDS, errors.DiskDeltaFormatError, has_checksum=False
)
_EXTENT = struct.Struct("<QII")  # offset, length, kind
HEADER_BYTES = _HEADER.size_bytes
EXTENT_BYTES = _EXTENT.size
TRAILER_BYTES = 32

_AT_OS_HASH_LENGTH, _AT_COUNT, _AT_SIZE, _AT_DATA = 10, 12, 16, 24  # offsets, for errors
_AT_OS_HASH = 48

Buffer = bytes | bytearray | memoryview
_Fault = errors.DiskDeltaFormatError


class ExtentKind(enum.IntEnum):
    """Content of an extent: data in the stream, or zeros."""

    DATA = 1
    ZERO = 2


_KINDS = {kind.value: kind for kind in ExtentKind}  # ten times faster than Kind(kind)


class Extent(NamedTuple):
    """A range of the disk that differs from the base, in whole sectors."""

    at: int
    length: int
    kind: ExtentKind

    @property
    def stop(self) -> int:
        """Offset of its end on the disk."""
        return self.at + self.length


class Head(NamedTuple):
    """The header."""

    virtual_size: int
    base: ids.ImageId
    os_hash: chunk_map.OsHash  # of the base; may be unknown
    change_count: int
    data_bytes: int  # data of all extents

    @property
    def table_bytes(self) -> int:
        """Length of the table, which follows the header."""
        return self.change_count * EXTENT_BYTES

    @property
    def stream_bytes(self) -> int:
        """Length of the stream: header, table, data, trailer."""
        return HEADER_BYTES + self.table_bytes + self.data_bytes + TRAILER_BYTES


class TooManyExtents(ValueError):
    """A disk has more extents than a table may have: use another way."""


class ExtentTable:
    """Validated extents in order, 16 bytes each."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    @classmethod
    def from_runs(
        cls, changes: Iterable[Extent], virtual_size: int, max_extents: int = MAX_EXTENTS
    ) -> "ExtentTable":
        """Return the table of a disk's extents, merged, or raise TooManyExtents.

        :raises ValueError: an extent is outside of the disk or out of order
        """
        raw, before = bytearray(), 0
        for change in merge_adjacent(changes):
            if why := _fault_of(change, before, virtual_size):
                raise ValueError(why)
            if len(raw) == max_extents * EXTENT_BYTES:
                raise TooManyExtents(f"a table holds at most {max_extents} changes")
            raw += _EXTENT.pack(*change)
            before = change.stop
        return cls(bytes(raw))

    def __len__(self) -> int:
        return len(self._raw) // EXTENT_BYTES

    def __iter__(self) -> Iterator[Extent]:
        for at, length, kind in _EXTENT.iter_unpack(self._raw):
            yield Extent(at, length, _KINDS[kind])

    def __bytes__(self) -> bytes:
        return self._raw

    @property
    def data_bytes(self) -> int:
        """Bytes of data of all extents."""
        return sum(change.length for change in self if change.kind is ExtentKind.DATA)


def merge_adjacent(changes: Iterable[Extent]) -> Iterator[Extent]:
    """Merge adjacent extents of one kind, up to MAX_EXTENT_BYTES each.

    >>> parts = [Extent(0, 512, ExtentKind.DATA), Extent(512, 512, ExtentKind.DATA)]
    >>> list(merge_adjacent(parts)) == [Extent(0, 1024, ExtentKind.DATA)]
    True
    """
    run: Extent | None = None
    for change in changes:
        if run is not None and run.stop == change.at and run.kind is change.kind:
            run = run._replace(length=run.length + change.length)
        else:
            if run is not None:
                yield from _cut(run)
            run = change
    if run is not None:
        yield from _cut(run)


def _cut(run: Extent) -> Iterator[Extent]:
    if not run.length:
        yield run  # rejected by the caller's check
    for at in range(run.at, run.stop, MAX_EXTENT_BYTES):
        yield Extent(at, min(MAX_EXTENT_BYTES, run.stop - at), run.kind)


def overlay(upper: Iterable[Extent], lower: Iterable[Extent]) -> Iterator[Extent]:
    """Overlay ordered extents ``upper`` on ``lower``.

    >>> zeros = [Extent(0, 4096, ExtentKind.ZERO)]
    >>> list(overlay([Extent(512, 512, ExtentKind.DATA)], zeros)) == [
    ...     Extent(0, 512, ExtentKind.ZERO),
    ...     Extent(512, 512, ExtentKind.DATA),
    ...     Extent(1024, 3072, ExtentKind.ZERO)]
    True
    """
    rest = iter(lower)
    below = next(rest, None)
    for above in upper:
        while below is not None and below.at < above.at:
            yield below._replace(length=min(below.stop, above.at) - below.at)
            below = _behind(below, above.at) or next(rest, None)
        yield above
        while below is not None and below.at < above.stop:
            below = _behind(below, above.stop) or next(rest, None)
    if below is not None:
        yield below
        yield from rest


def _behind(change: Extent, offset: int) -> Extent | None:
    return Extent(offset, change.stop - offset, change.kind) if change.stop > offset else None


class Writer:
    """Creates the stream: :attr:`front`, the data, :meth:`make_trailer`.

    >>> base = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> table = ExtentTable.from_runs([Extent(512, 512, ExtentKind.DATA)], virtual_size=4096)
    >>> writer = Writer(4096, base, chunk_map.UNKNOWN_OS_HASH, table)
    >>> writer.hash_data(bytes(512))
    >>> len(writer.front + bytes(512) + writer.make_trailer()) == writer.head.stream_bytes
    True

    :raises ValueError: a field does not fit into a header
    """

    def __init__(
        self, virtual_size: int, base: ids.ImageId, os_hash: chunk_map.OsHash, table: ExtentTable
    ) -> None:
        self.table = table
        self.head = Head(virtual_size, base, os_hash, len(table), table.data_bytes)
        self.front = _header_bytes(self.head) + bytes(table)  # the header and the table
        self._hash = blake3.blake3(self.front)
        self._left_bytes = self.head.data_bytes

    def hash_data(self, data: Buffer) -> None:
        """Hash the next data; ValueError if it is more than the table's."""
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise ValueError(f"{-self._left_bytes} bytes more than in the table")
        self._hash.update(data)

    def make_trailer(self) -> bytes:
        """Return the trailer; ValueError if data is missing."""
        if self._left_bytes:
            raise ValueError(f"{self._left_bytes} bytes less than in the table")
        return self._hash.digest()


def _header_bytes(head: Head) -> bytes:
    if why := chunk_map_header.fault_of_os_hash(head.os_hash) or _fault_of_size(head.virtual_size):
        raise ValueError(why)
    return _HEADER.pack(
        len(head.os_hash.value),
        head.change_count,
        head.virtual_size,
        head.data_bytes,
        ids.image_id_bytes(head.base),
        head.os_hash.algo.encode("ascii"),
        head.os_hash.value,
    )


class Reader:
    """Validates the stream in order: head, table, data, end; raises DiskDeltaFormatError."""

    def __init__(self, what: str, max_virtual_bytes: int = MAX_VIRTUAL_BYTES) -> None:
        self._what, self._max_virtual_bytes = what, max_virtual_bytes
        self._hash = blake3.blake3()
        self._head = Head(0, ids.ImageId(""), chunk_map.UNKNOWN_OS_HASH, 0, 0)
        self._done_bytes = 0

    def read_head(self, raw: Buffer) -> Head:
        """Parse the first HEADER_BYTES."""
        self._head = _parse_head(raw, self._max_virtual_bytes, self._what)
        self._hash.update(raw)
        return self._head

    def read_table(self, raw: Buffer) -> ExtentTable:
        """Parse the table, ``table_bytes`` of the head."""
        head, before, data_bytes = self._head, 0, 0
        if len(raw) != head.table_bytes:
            raise _Fault(self._what, HEADER_BYTES + len(raw), "truncated in the table")
        for number, (at, length, kind) in enumerate(_EXTENT.iter_unpack(raw)):
            if why := _fault_of((at, length, kind), before, head.virtual_size):
                raise _Fault(self._what, HEADER_BYTES + number * EXTENT_BYTES, why)
            before = at + length
            data_bytes += length if kind == ExtentKind.DATA else 0
        if data_bytes != head.data_bytes:
            why = f"{head.data_bytes} bytes of data are announced, but {data_bytes} have changed"
            raise _Fault(self._what, _AT_DATA, why)
        self._hash.update(raw)
        return ExtentTable(bytes(raw))

    def hash_data(self, data: Buffer) -> None:
        """Hash the next data."""
        self._done_bytes += len(data)
        if self._done_bytes > self._head.data_bytes:
            raise _Fault(self._what, self._at, "more bytes than in the table")
        self._hash.update(data)

    def verify_trailer(self, raw: Buffer) -> None:
        """Verify the trailer, the last TRAILER_BYTES; then the delta is valid."""
        if self._done_bytes != self._head.data_bytes:
            raise _Fault(self._what, self._at, "truncated in the data")
        if len(raw) != TRAILER_BYTES:
            raise _Fault(self._what, self._at + len(raw), "truncated in the trailer")
        if self._hash.digest() != bytes(raw):
            raise _Fault(self._what, self._at, "the trailer does not match")

    @property
    def _at(self) -> int:
        return HEADER_BYTES + self._head.table_bytes + self._done_bytes


def _parse_head(raw: Buffer, max_virtual_bytes: int, what: str) -> Head:
    value_bytes, count, size, data_bytes, base, algo, value = _HEADER.unpack(raw, what)
    if why := _fault_of_size(size, max_virtual_bytes):
        raise _Fault(what, _AT_SIZE, why)
    if count > MAX_EXTENTS:
        raise _Fault(what, _AT_COUNT, f"{count} changes are too many")
    if data_bytes > size:
        raise _Fault(what, _AT_DATA, f"{data_bytes} bytes do not fit on the disk")
    os_hash = _parse_os_hash(algo, value, value_bytes, what)
    return Head(size, ids.image_id_from_bytes(base), os_hash, count, data_bytes)


def _parse_os_hash(algo: bytes, value: bytes, value_bytes: int, what: str) -> chunk_map.OsHash:
    if value_bytes > chunk_map_header.MAX_OS_HASH_VALUE_BYTES or any(value[value_bytes:]):
        raise _Fault(what, _AT_OS_HASH_LENGTH, f"an image hash of {value_bytes} bytes")
    try:
        return chunk_map.OsHash.unpack(algo, value, value_bytes)
    except ValueError as e:
        raise _Fault(what, _AT_OS_HASH, str(e)) from None


def _fault_of_size(virtual_size: int, max_virtual_bytes: int = MAX_VIRTUAL_BYTES) -> str:
    if virtual_size % SECTOR_BYTES or virtual_size < 0:
        return f"a disk of {virtual_size} bytes, not of whole sectors"
    if virtual_size > max_virtual_bytes:
        return f"a disk of {virtual_size} bytes, and {max_virtual_bytes} are allowed"
    return ""


def _fault_of(change: tuple[int, int, int], before: int, virtual_size: int) -> str:
    at, length, kind = change
    if kind not in (ExtentKind.DATA, ExtentKind.ZERO):
        return f"a change of the kind {kind}"
    if at % SECTOR_BYTES or length % SECTOR_BYTES:
        return f"a change of {length} bytes at {at}, not of whole sectors"
    if not 0 < length <= MAX_EXTENT_BYTES:
        return f"a change of {length} bytes"
    if at < before:
        return f"the change at {at} is not after the one before it"
    if at + length > virtual_size:
        return f"the change at {at} is not on the disk"
    return ""
