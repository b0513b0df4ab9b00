# SPDX-License-Identifier: Apache-2.0
"""Validation of qcow2 metadata that QEMU loads on opening: snapshots and dirty bitmaps.

Rejects what QEMU rejects (``block/qcow2-snapshot.c``, ``block/qcow2-bitmap.c``), and tables outside
of the file, which QEMU reads as zeros.
"""

import array
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple
from typing import NoReturn

from acstor_common.disks import qcow2_header
from acstor_common.disks.qcow2_header import RefusalReason
from acstor_common.disks.qcow2_header import Refused
from acstor_common.disks.qcow2_header import Span
from acstor_common.model import geometry

MAX_BITMAP_TABLE_BYTES = 32 * geometry.MIB  # of all bitmaps; QEMU has no limit for all

_PIECE_BYTES = 1 << 16
_ALIGNMENT = 8
_SNAPSHOT = struct.Struct(">QIHH20xI")  # L1 offset, entries; lengths of ID, name, extra data
_MAX_EXTRA_BYTES = 1024
_MAX_SNAPSHOT_TABLE_BYTES = 64 * geometry.MIB
_BITMAP = struct.Struct(">QIIBBHI")  # the fields of _Bitmap
_IN_USE, _KNOWN_FLAGS = 1, 3
_DIRTY_TRACKING = 1
_MIN_GRANULARITY_BITS, _MAX_GRANULARITY_BITS = 9, 31
_MAX_BITMAP_BYTES = 512 * geometry.MIB
_MAX_NAME_BYTES = 1023
_WORD_BITS = 64  # a stored bitmap consists of such words
_RESERVED = 0xFF000000000001FE
_OFFSET_MASK = 0x00FFFFFFFFFFFE00
_ALL_ONES = 1


class _Bitmap(NamedTuple):
    table_offset: int
    table_entries: int
    flags: int
    kind: int
    granularity_bits: int
    name_length: int
    extra_length: int

    @property
    def length(self) -> int:
        """Bytes of the directory's entry, with padding."""
        return _aligned(_BITMAP.size + self.name_length + self.extra_length)

    @property
    def is_in_use(self) -> bool:
        """Whether QEMU did not save it, so that its table is not read."""
        return bool(self.flags & _IN_USE)


def check_metadata(source: qcow2_header.Source, header: qcow2_header.Header) -> None:
    """Raise Refused if QEMU would reject the snapshots or bitmaps; takes up to 1.2 s."""
    _check_snapshots(_Reader(source), header)
    if header.bitmaps is not None:
        _check_bitmaps(_Reader(source), header, header.bitmaps)


def _check_snapshots(reader: "_Reader", header: qcow2_header.Header) -> None:
    start, count = header.snapshots
    at = start
    for number in range(count):
        what = f"entry {number} of the table of snapshots"
        at = _aligned(at)
        *_, id_length, name_length, extra_length = _SNAPSHOT.unpack(
            reader.read(Span(at, at + _SNAPSHOT.size, what))
        )
        if extra_length > _MAX_EXTRA_BYTES:
            reader.refuse(f"{what} has {extra_length} bytes of extra data")
        end = at + _SNAPSHOT.size + extra_length + id_length + name_length
        if end - start > _MAX_SNAPSHOT_TABLE_BYTES:
            reader.refuse(f"a table of snapshots of more than {_MAX_SNAPSHOT_TABLE_BYTES} bytes")
        reader.check_inside(Span(at, end, what))
        at = end


def _check_bitmaps(
    reader: "_Reader", header: qcow2_header.Header, found: qcow2_header.Bitmaps
) -> None:
    names: set[bytes] = set()
    tables: set[Span] = set()
    table_bytes = 0
    for bitmap, name in _iter_directory(reader, found):
        _check_bitmap(reader, bitmap, header)
        if name in names and not bitmap.is_in_use:
            reader.refuse("two bitmaps of one name")
        names.add(name)
        if bitmap.is_in_use:
            continue
        table_bytes += bitmap.table_entries * 8
        if table_bytes > MAX_BITMAP_TABLE_BYTES:
            reader.refuse(f"tables of bitmaps of more than {MAX_BITMAP_TABLE_BYTES} bytes")
        start, stop = bitmap.table_offset, bitmap.table_offset + bitmap.table_entries * 8
        tables.add(table := Span(start, stop, "a bitmap's table"))
        reader.check_inside(table)
    done = 0
    for table in sorted(tables):  # bitmaps may share a table, or parts of one
        unread = table._replace(start=max(done, table.start))
        _check_bitmap_table(reader, unread, header.cluster_bytes)
        done = max(done, table.stop)


def _iter_directory(
    reader: "_Reader", found: qcow2_header.Bitmaps
) -> Iterator[tuple[_Bitmap, bytes]]:
    at, stop = found.directory_offset, found.directory_offset + found.directory_bytes
    what = "the directory of bitmaps"
    reader.check_inside(Span(at, stop, what))
    for _ in range(found.entries):
        if at + _BITMAP.size > stop:
            reader.refuse(f"{what} has fewer than {found.entries} entries")
        bitmap = _Bitmap(*_BITMAP.unpack(reader.read(Span(at, at + _BITMAP.size, what))))
        if bitmap.extra_length or at + bitmap.length > stop:
            reader.refuse(f"{what} has an entry of {bitmap.length} bytes")
        name_at = at + _BITMAP.size
        name = reader.read(Span(name_at, name_at + bitmap.name_length, what))
        yield bitmap, name.partition(b"\0")[0]  # QEMU's names are C strings
        at += bitmap.length
    if at != stop:
        reader.refuse(f"{what} has {found.directory_bytes} bytes")


def _check_bitmap(reader: "_Reader", bitmap: _Bitmap, header: qcow2_header.Header) -> None:
    is_sound = (
        bitmap.kind == _DIRTY_TRACKING
        and not bitmap.flags & ~_KNOWN_FLAGS
        and bitmap.name_length <= _MAX_NAME_BYTES
        and _MIN_GRANULARITY_BITS <= bitmap.granularity_bits <= _MAX_GRANULARITY_BITS
        and bitmap.table_offset > 0
        and not bitmap.table_offset % header.cluster_bytes
        and 0 < bitmap.table_entries * header.cluster_bytes <= _MAX_BITMAP_BYTES
    )
    if is_sound and not bitmap.is_in_use:
        bits = -(-header.virtual_size >> bitmap.granularity_bits)
        stored_bytes = -(-bits // _WORD_BITS) * _WORD_BITS // 8
        is_sound = bitmap.table_entries == -(-stored_bytes // header.cluster_bytes)
    if not is_sound:
        reader.refuse("a bitmap's entry in the directory")


def _check_bitmap_table(reader: "_Reader", table: Span, cluster_bytes: int) -> None:
    for at in range(table.start, table.stop, _PIECE_BYTES):
        for word in reader.read_words(at, min(at + _PIECE_BYTES, table.stop)):
            offset = word & _OFFSET_MASK
            if word & _RESERVED or (offset and (word & _ALL_ONES or offset % cluster_bytes)):
                reader.refuse(f"{table.what} has the entry {word:#x}")


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


class _Reader:
    """Reads short ranges; one read of the file serves adjacent ascending ones."""

    def __init__(self, source: qcow2_header.Source) -> None:
        self._source = source
        self._at, self._piece = 0, b""

    def read(self, span: Span) -> bytes:
        """Return a range of at most 64 KiB."""
        self.check_inside(span)
        if not self._at <= span.start <= span.stop <= self._at + len(self._piece):
            stop = min(span.start + _PIECE_BYTES, self._source.size_bytes)
            piece = bytearray(stop - span.start)
            self._source.read_into(memoryview(piece), span.start)
            self._at, self._piece = span.start, bytes(piece)
        return self._piece[span.start - self._at : span.stop - self._at]

    def read_words(self, start: int, stop: int) -> "array.array[int]":
        words = array.array("Q", bytes(stop - start))
        with memoryview(words) as view:
            self._source.read_into(view.cast("B"), start)
        if sys.byteorder == "little":
            words.byteswap()
        return words

    def check_inside(self, span: Span) -> None:
        if span.stop > self._source.size_bytes:
            raise Refused(self._source.name, RefusalReason.TABLES_OUTSIDE, span.what)

    def refuse(self, why: str) -> NoReturn:
        raise Refused(self._source.name, RefusalReason.TABLES, why)
