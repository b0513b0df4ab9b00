# SPDX-License-Identifier: Apache-2.0
"""Image layouts: where Glance's stored file contains the bytes that a guest reads.

A raw image needs no table.  For qcow2, a table in the chunk map maps guest bytes to extents, which
may be compressed; the rest is zeros (``doc/source/format/chunk_map.rst``).  An extent is a hint:
the CIDs verify data.  Extents do not cross pages of PAGE_CHUNKS chunks, and an index has the first
entry of each page, so a host without the map finds a page's extents with two reads.
"""

import bisect
import enum
import itertools
import struct
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common.model import geometry

PAGE_CHUNKS = 256  # 16 MiB in 64 KiB chunks, at least 4 MiB: a compressed cluster is in one page
MAX_CLUSTER_BYTES = 2 * geometry.MIB  # guest bytes of a compressed extent: qcow2's largest cluster
MAX_COMPRESSED_BYTES = 2 * MAX_CLUSTER_BYTES
"""Stored bytes of a compressed extent: the limit of qcow2."""
_OFFSET_BITS = 56
MAX_STORED_BYTES = 1 << _OFFSET_BITS

_ENTRY = struct.Struct("<QQII")  # guest offset, codec and offset, length, stored bytes
_SLOT = struct.Struct("<Q")
_read_at = struct.Struct("<Q").unpack_from
ENTRY_BYTES, SLOT_BYTES = _ENTRY.size, _SLOT.size
_OFFSET_MASK = MAX_STORED_BYTES - 1
_PAUSE_ENTRIES, _PAUSE_PAGES = 1000, 1000  # 0.5 to 1.5 ms of a check

Buffer = bytes | memoryview


Pause = Callable[[], None]  # called regularly by long work in a thread, to release the interpreter


def no_pause() -> None:
    """Do nothing."""


class DiskFormat(enum.IntEnum):
    """Format of the stored file."""

    RAW = 1
    QCOW2 = 2

    @property
    def glance_name(self) -> str:
        """Value of ``disk_format`` in Glance.

        >>> DiskFormat.QCOW2.glance_name
        'qcow2'
        """
        return self.name.lower()


class Codec(enum.IntEnum):
    """Encoding of an extent's bytes."""

    STORED = 0  # as they are
    DEFLATE = 1  # raw deflate, window of at most 2**12 bytes
    ZSTD = 2


class Extent(NamedTuple):
    """A run of guest bytes that is contiguous in the stored file."""

    at: int  # guest offset
    length: int  # guest bytes
    codec: Codec
    offset: int  # in the stored file
    stored_bytes: int  # ``length`` if not compressed; else at most this many


class StoredFile(NamedTuple):
    """The stored file: format, length, and entries of its layout."""

    disk_format: DiskFormat
    size_bytes: int
    entries: int = 0

    @property
    def is_identity(self) -> bool:
        """Whether the stored file equals what the guest reads."""
        return self.disk_format is DiskFormat.RAW


def raw_file(size_bytes: int) -> StoredFile:
    """Return the file of a raw image."""
    return StoredFile(DiskFormat.RAW, size_bytes)


def page_bytes(cut: geometry.Geometry) -> int:
    """Return the length of a page in the image."""
    return PAGE_CHUNKS * cut.chunk_bytes


def page_count(cut: geometry.Geometry) -> int:
    """Return the number of pages; the last one may be short."""
    return -(-cut.chunk_count // PAGE_CHUNKS)


def table_bytes(cut: geometry.Geometry, stored: StoredFile) -> int:
    """Return the length of entries and index in a map.

    >>> table_bytes(geometry.Geometry(1 << 31, 65536), StoredFile(DiskFormat.QCOW2, 1 << 29, 32768))
    787464
    """
    if stored.is_identity:
        return 0
    return stored.entries * ENTRY_BYTES + (page_count(cut) + 1) * SLOT_BYTES


def merge_within_pages(extents: Iterable[Extent], cut: geometry.Geometry) -> Iterator[Extent]:
    """Merge ordered extents into runs, and split them at pages."""
    for run in merge_adjacent(extents):
        yield from _in_pages(run, cut)


def merge_adjacent(extents: Iterable[Extent]) -> Iterator[Extent]:
    """Merge adjacent uncompressed extents."""
    run: Extent | None = None
    for extent in extents:
        if run is not None and _follows(run, extent):
            length = run.length + extent.length
            run = run._replace(length=length, stored_bytes=length)
        else:
            if run is not None:
                yield run
            run = extent
    if run is not None:
        yield run


def _follows(run: Extent, extent: Extent) -> bool:
    return (
        run.codec is extent.codec is Codec.STORED
        and run.at + run.length == extent.at
        and run.offset + run.length == extent.offset
    )


def _in_pages(run: Extent, cut: geometry.Geometry) -> Iterator[Extent]:
    if run.codec is not Codec.STORED:
        yield run
        return
    done = 0
    while done < run.length:
        at = run.at + done
        length = min(run.length - done, page_bytes(cut) - at % page_bytes(cut))
        yield Extent(at, length, Codec.STORED, run.offset + done, length)
        done += length


def pack(extent: Extent) -> bytes:
    """Return an extent as a table entry, or raise ValueError."""
    at, length, codec, offset, stored_bytes = extent
    if not 0 <= offset <= _OFFSET_MASK:
        raise ValueError(f"an entry cannot have the offset {offset}")
    try:
        return _ENTRY.pack(at, codec << _OFFSET_BITS | offset, length, stored_bytes)
    except struct.error as error:
        raise ValueError(f"an entry cannot have these values: {extent}") from error


class IndexBuilder:
    """Builds the index of a table from its entries.

    >>> index = IndexBuilder(geometry.Geometry(1 << 25, 65536))
    >>> index.add_entries(pack(Extent(1 << 24, 512, Codec.STORED, 0, 512)))
    >>> [int.from_bytes(index.index_slots()[n : n + 8], "little") for n in (0, 8, 16)]
    [0, 0, 1]
    """

    def __init__(self, cut: geometry.Geometry) -> None:
        self._page_bytes, self._pages = page_bytes(cut), page_count(cut)
        self._slots = bytearray()
        self._count = 0

    def add_entries(self, entries: Buffer) -> None:
        """Add the next entries."""
        for at, _, _, _ in _ENTRY.iter_unpack(entries):
            self._begin_pages(at // self._page_bytes)
            self._count += 1

    def index_slots(self) -> bytes:
        """Return the index after all entries."""
        self._begin_pages(self._pages)
        return bytes(self._slots)

    def _begin_pages(self, page: int) -> None:
        missing = min(page, self._pages) + 1 - len(self._slots) // SLOT_BYTES
        if missing > 0:
            self._slots += _SLOT.pack(self._count) * missing


def entry_range(slots: Buffer) -> tuple[int, int]:
    """Return the entry range of some slots: first and stop."""
    return _read_at(slots)[0], _read_at(slots, len(slots) - SLOT_BYTES)[0]


class LayoutTable:
    """Ordered extents, read in place from ``offset`` of a buffer, which stays open."""

    __slots__ = ("_buffer", "_offset", "count")

    def __init__(self, buffer: Buffer, offset: int, count: int) -> None:
        self._buffer, self._offset, self.count = buffer, offset, count

    def extents_between(self, start: int, stop: int, low: int, high: int) -> list[Extent]:
        """Return the extents from entries ``low`` to ``high`` that overlap a range, not clipped."""
        numbers = range(self.count)
        first = bisect.bisect_right(numbers, start, low, high, key=self._at)
        if first > low and (before := self._extent(first - 1)).at + before.length > start:
            first -= 1
        last = bisect.bisect_left(numbers, stop, first, high, key=self._at)
        return [self._extent(number) for number in range(first, last)]

    def _at(self, number: int) -> int:
        at: int = _read_at(self._buffer, self._offset + number * ENTRY_BYTES)[0]
        return at

    def _extent(self, number: int) -> Extent:
        place = self._offset + number * ENTRY_BYTES
        at, word, length, stored_bytes = _ENTRY.unpack_from(self._buffer, place)
        return Extent(at, length, Codec(word >> _OFFSET_BITS), word & _OFFSET_MASK, stored_bytes)


class Layout:
    """The layout of one image in its chunk map: entries at ``entries_at``, then the index."""

    __slots__ = ("_buffer", "_index_at", "_page_bytes", "_pages", "_table", "size_bytes", "stored")

    def __init__(
        self, buffer: Buffer, entries_at: int, cut: geometry.Geometry, stored: StoredFile
    ) -> None:
        self.stored, self.size_bytes = stored, cut.size_bytes
        self._buffer = buffer
        self._page_bytes, self._pages = page_bytes(cut), page_count(cut)
        self._table = LayoutTable(buffer, entries_at, stored.entries)
        self._index_at = entries_at + stored.entries * ENTRY_BYTES

    def find(self, start: int, stop: int) -> list[Extent]:
        """Return the extents in a guest range, in order; those of qcow2 are not clipped."""
        if self.stored.is_identity:
            return [Extent(start, stop - start, Codec.STORED, start, stop - start)]
        first, last = start // self._page_bytes, min(-(-stop // self._page_bytes), self._pages)
        if not 0 <= first < last:
            return []
        return self._table.extents_between(start, stop, self._slot(first), self._slot(last))

    def _slot(self, page: int) -> int:
        slot: int = _read_at(self._buffer, self._index_at + page * SLOT_BYTES)[0]
        return slot


def why_invalid(
    entries: Buffer,
    slots: Buffer,
    cut: geometry.Geometry,
    stored: StoredFile,
    first_page: int = 0,
    pause: Pause = no_pause,
) -> tuple[int, str] | None:
    """Return offset and fault of the first invalid entry of some pages, or None.

    Takes 0.6 s per million entries, with a ``pause`` per 1,000 to 2,000.  ``slots`` is the index
    from ``first_page``, and one slot more.
    """
    bad_index = len(entries), "the index of the layout does not fit its entries"
    base, last = entry_range(slots)
    if (base and not first_page) or last - base != len(entries) // ENTRY_BYTES:
        return bad_index
    paused = base
    for page, ((low,), (high,)) in enumerate(
        itertools.pairwise(_SLOT.iter_unpack(slots)), first_page
    ):
        if not base <= low <= high <= last:
            return bad_index
        floor = page * page_bytes(cut)
        stop = min(floor + page_bytes(cut), cut.size_bytes)
        is_long = high - low > _PAUSE_ENTRIES
        for first in range(low, high, _PAUSE_ENTRIES) if is_long else (low,):
            end = min(first + _PAUSE_ENTRIES, high)
            piece = entries[(first - base) * ENTRY_BYTES : (end - base) * ENTRY_BYTES]
            for number, fields in enumerate(_ENTRY.iter_unpack(piece), first - base):
                if why := _fault_of(fields, floor, stop, stored.size_bytes):
                    return number * ENTRY_BYTES, why
                floor = fields[0] + fields[2]
            if end - paused >= _PAUSE_ENTRIES or page % _PAUSE_PAGES == 0:
                paused = end
                pause()
    return None


def _fault_of(fields: tuple[int, int, int, int], floor: int, stop: int, stored_stop: int) -> str:
    at, word, length, stored_bytes = fields
    if not floor <= at < at + length <= stop:
        return f"an extent of bytes {at} to {at + length} is not between {floor} and {stop}"
    codec = word >> _OFFSET_BITS
    if codec > Codec.ZSTD:
        return f"codec {codec} is not known"
    if codec == Codec.STORED:
        if stored_bytes != length:
            return f"an extent of {length} bytes is stored in {stored_bytes}"
    elif length > MAX_CLUSTER_BYTES or not 0 < stored_bytes <= MAX_COMPRESSED_BYTES:
        return f"an extent of {length} bytes is compressed to {stored_bytes}"
    if (word & _OFFSET_MASK) + stored_bytes > stored_stop:
        return "an extent is beyond the end of the stored file"
    return ""
