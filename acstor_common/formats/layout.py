# SPDX-License-Identifier: Apache-2.0
"""The layout of an image: where in the stored file the bytes are that a guest reads.

The stored file is what Glance has.  Of a raw image it is what the guest reads, and there
is no table (identity).  Of a qcow2 image a table of extents says for each run of guest bytes
where it lies, and whether it is compressed; what no extent covers is zeros.  The table is part of
the chunk map (``doc/source/format/chunk_map.rst``), and is read where it lies.

An extent is only a hint.  What is read by it counts when it hashes to the CID in the map, so a
table that is wrong costs time and gives nothing wrong; but no extent leads out of the stored
file or the image, or to more bytes than the limits here.

Extents never cross the border of a page of PAGE_CHUNKS chunks.  An index says with which entry
each page begins, so a host that has not got the map finds a page's extents with two reads.
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

PAGE_CHUNKS = 256
"""16 MiB of chunks of 64 KiB, and never less than 4 MiB: compressed clusters lie in one page."""
MAX_CLUSTER_BYTES = 2 * geometry.MIB
"""Guest bytes of a compressed extent; qcow2 has no larger clusters."""
MAX_COMPRESSED_BYTES = 2 * MAX_CLUSTER_BYTES
"""Stored bytes of a compressed extent; what qcow2 can say of one at the most."""
_OFFSET_BITS = 56
MAX_STORED_BYTES = 1 << _OFFSET_BITS

_ENTRY = struct.Struct("<QQII")  # at, codec and offset, length, stored bytes
_SLOT = struct.Struct("<Q")
_read_at = struct.Struct("<Q").unpack_from
ENTRY_BYTES, SLOT_BYTES = _ENTRY.size, _SLOT.size
_OFFSET_MASK = MAX_STORED_BYTES - 1
_PAUSE_ENTRIES, _PAUSE_PAGES = 1000, 1000  # some 0.5 ms of a check

Buffer = bytes | memoryview


Pause = Callable[[], None]
"""What long work in a thread calls again and again, so that others get the interpreter."""


def no_pause() -> None:
    """Go on at once."""


class DiskFormat(enum.IntEnum):
    """What the stored file is, as the chunk map says it; ``glance_name`` is Glance's word."""

    RAW = 1
    QCOW2 = 2

    @property
    def glance_name(self) -> str:
        """What stands in ``disk_format`` of the image's record.

        >>> DiskFormat.QCOW2.glance_name
        'qcow2'
        """
        return self.name.lower()


class Codec(enum.IntEnum):
    """How the bytes of an extent are stored."""

    STORED = 0  # as they are
    DEFLATE = 1  # a raw deflate stream, window of at most 2**12 bytes
    ZSTD = 2


class Extent(NamedTuple):
    """A run of guest bytes that lies in one place of the stored file.

    :param at: offset in what the guest reads
    :param length: guest bytes
    :param offset: in the stored file
    :param stored_bytes: there; ``length`` if it is not compressed.  A compressed stream may end
        before, and costs least where it ends just there: then neighbours are one read of the place
    """

    at: int
    length: int
    codec: Codec
    offset: int
    stored_bytes: int


class Stored(NamedTuple):
    """The stored file: what it is, how long it is, and how many entries its layout has."""

    disk_format: DiskFormat
    size_bytes: int
    entries: int = 0

    @property
    def is_identity(self) -> bool:
        """Say whether it is byte for byte what the guest reads."""
        return self.disk_format is DiskFormat.RAW


def raw(size_bytes: int) -> Stored:
    """Return how a raw image is stored: as the guest reads it."""
    return Stored(DiskFormat.RAW, size_bytes)


def page_bytes(cut: geometry.Geometry) -> int:
    """Return how many bytes of the image a page is."""
    return PAGE_CHUNKS * cut.chunk_bytes


def page_count(cut: geometry.Geometry) -> int:
    """Return how many pages an image has; the last one may be short."""
    return -(-cut.chunk_count // PAGE_CHUNKS)


def table_bytes(cut: geometry.Geometry, stored: Stored) -> int:
    """Return the length of entries and index in a map.

    >>> table_bytes(geometry.Geometry(1 << 31, 65536), Stored(DiskFormat.QCOW2, 1 << 29, 32768))
    787464
    """
    if stored.is_identity:
        return 0
    return stored.entries * ENTRY_BYTES + (page_count(cut) + 1) * SLOT_BYTES


def merge_adjacent(extents: Iterable[Extent], cut: geometry.Geometry) -> Iterator[Extent]:
    """Yield extents as a table has them: runs joined, and cut where pages end.

    :param extents: in the order of the guest
    """
    for run in runs(extents):
        yield from _in_pages(run, cut)


def runs(extents: Iterable[Extent]) -> Iterator[Extent]:
    """Yield extents, those that are stored as they are and follow each other joined.

    :param extents: in the order of the guest
    """
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
    """Return an extent as an entry of the table.

    :raises ValueError: it does not fit into one
    """
    at, length, codec, offset, stored_bytes = extent
    if not 0 <= offset <= _OFFSET_MASK:
        raise ValueError(f"no entry has the offset {offset}")
    try:
        return _ENTRY.pack(at, codec << _OFFSET_BITS | offset, length, stored_bytes)
    except struct.error as error:
        raise ValueError(f"no entry is like this: {extent}") from error


class Index:
    """Makes the index of a table while its entries go by.

    >>> index = Index(geometry.Geometry(1 << 25, 65536))
    >>> index.feed(pack(Extent(1 << 24, 512, Codec.STORED, 0, 512)))
    >>> [int.from_bytes(index.slots()[n : n + 8], "little") for n in (0, 8, 16)]
    [0, 0, 1]
    """

    def __init__(self, cut: geometry.Geometry) -> None:
        self._page_bytes, self._pages = page_bytes(cut), page_count(cut)
        self._slots = bytearray()
        self._count = 0

    def feed(self, entries: Buffer) -> None:
        """Take the next entries."""
        for at, _, _, _ in _ENTRY.iter_unpack(entries):
            self._begin_pages(at // self._page_bytes)
            self._count += 1

    def index_slots(self) -> bytes:
        """Return the index, when all entries have gone by."""
        self._begin_pages(self._pages)
        return bytes(self._slots)

    def _begin_pages(self, page: int) -> None:
        missing = min(page, self._pages) + 1 - len(self._slots) // SLOT_BYTES
        if missing > 0:
            self._slots += _SLOT.pack(self._count) * missing


def ends_of(slots: Buffer) -> tuple[int, int]:
    """Return the first and the last number of a part of an index, which it has at least."""
    return _read_at(slots)[0], _read_at(slots, len(slots) - SLOT_BYTES)[0]


class Table:
    """Extents in the order of the guest, read in place.

    :param buffer: entries, from ``offset`` on; stays as it is, and open, while this is used
    """

    __slots__ = ("_buffer", "_offset", "count")

    def __init__(self, buffer: Buffer, offset: int, count: int) -> None:
        self._buffer, self._offset, self.count = buffer, offset, count

    def extents_between(self, start: int, stop: int, low: int, high: int) -> list[Extent]:
        """Return the extents that have bytes from ``start`` to ``stop``, whole.

        :param low: the first entry that may be among them
        :param high: the first one behind that may not
        """
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
    """Where the bytes of one image are.

    :param buffer: the chunk map
    :param entries_at: where the entries begin in it; the index follows them

    ``stored`` is the stored file, ``size_bytes`` the length of what the guest reads.
    """

    __slots__ = ("_buffer", "_index_at", "_page_bytes", "_pages", "_table", "size_bytes", "stored")

    def __init__(
        self, buffer: Buffer, entries_at: int, cut: geometry.Geometry, stored: Stored
    ) -> None:
        self.stored, self.size_bytes = stored, cut.size_bytes
        self._buffer = buffer
        self._page_bytes, self._pages = page_bytes(cut), page_count(cut)
        self._table = Table(buffer, entries_at, stored.entries)
        self._index_at = entries_at + stored.entries * ENTRY_BYTES

    def find(self, start: int, stop: int) -> list[Extent]:
        """Return the extents that have guest bytes from ``start`` to ``stop``, whole, in order.

        What none of them has is zeros.  Takes some microseconds, whatever the image's size.
        """
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
    stored: Stored,
    first_page: int = 0,
    pause: Pause = no_pause,
) -> tuple[int, str] | None:
    """Say what is wrong with the entries of some pages, and at which of their bytes; None: nothing.

    Takes 0.6 s for a million entries, so 10 s for 1 TiB of clusters of 64 KiB.

    :param slots: the index, of the pages from ``first_page`` on, and one more
    :param pause: called after every 1,000 entries or so
    """
    bad_index = len(entries), "the index of the layout does not fit its entries"
    base, last = ends_of(slots)
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
        of_page = entries[(low - base) * ENTRY_BYTES : (high - base) * ENTRY_BYTES]
        for number, fields in enumerate(_ENTRY.iter_unpack(of_page), low - base):
            if why := _fault_of(fields, floor, stop, stored.size_bytes):
                return number * ENTRY_BYTES, why
            floor = fields[0] + fields[2]
        if high - paused >= _PAUSE_ENTRIES or page % _PAUSE_PAGES == 0:
            paused = high
            pause()
    return None


def _fault_of(fields: tuple[int, int, int, int], floor: int, stop: int, stored_stop: int) -> str:
    """Say why there cannot be an extent like this between two places; empty if there can."""
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
        return "an extent lies behind the end of the stored file"
    return ""
