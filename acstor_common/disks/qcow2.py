# SPDX-License-Identifier: Apache-2.0
"""Thread-safe reader of qcow2 files in constant memory: it reads what QEMU would, or fails."""

import array
import bisect
import heapq
import itertools
import sys
from collections.abc import Iterable
from collections.abc import Iterator

from acstor_common.disks import disk_delta
from acstor_common.disks import qcow2_header
from acstor_common.disks import qcow2_metadata
from acstor_common.disks.disk_delta import ExtentKind
from acstor_common.disks.qcow2_header import RefusalReason
from acstor_common.disks.qcow2_header import Refused
from acstor_common.formats import codecs
from acstor_common.formats import layout
from acstor_common.model import geometry

_OFFSET_MASK = 0x00FFFFFFFFFFFE00
_IS_ZERO = 1
_IS_COMPRESSED = 1 << 62
_SECTOR = qcow2_header.SECTOR_BYTES
_SUBCLUSTERS = qcow2_header.SUBCLUSTERS
_L1_PIECE_BYTES = 1 << 18  # part of the L1 table that is read, or sorted, at a time
_TABLE_PIECE_BYTES = 1 << 16

_ZEROS = memoryview(bytes(1 << 20))


class Qcow2:
    """An open qcow2 file; in an overlay, unallocated clusters read as zeros.

    All methods raise Refused (malformed, unsupported) or errors.Unusable (unreadable).
    """

    def __init__(
        self,
        source: qcow2_header.Source,
        max_virtual_bytes: int = qcow2_header.MAX_VIRTUAL_BYTES,
        *,
        may_have_backing: bool = False,
    ) -> None:
        self.source, self.name = source, source.name
        self._header = header = qcow2_header.parse(
            source, max_virtual_bytes, may_have_backing=may_have_backing
        )
        self.virtual_size, self.cluster_bytes = header.virtual_size, header.cluster_bytes
        self.codec = header.codec
        self._last = _Last()
        self._check_l2_places()
        if not may_have_backing:  # an overlay is a host's own, which QEMU has opened
            qcow2_metadata.check_metadata(source, header)

    def iter_extents(self, start: int = 0, stop: int | None = None) -> Iterator[layout.Extent]:
        """Yield the stored extents of a disk range in order; the rest is zeros.

        One per cluster or subcluster, clipped to ``stop`` and the end of the file.  ``start`` must
        begin a cluster (ValueError).
        """
        if start % self.cluster_bytes:
            raise ValueError(f"no cluster begins at {start}")
        stop = self.virtual_size if stop is None else min(stop, self.virtual_size)
        return _apart(self._in_file(start, stop))

    def iter_changes(self) -> Iterator[disk_delta.Extent]:
        """Yield the delta to the backing file in order; without one, the whole disk."""
        found = (
            disk_delta.Extent(
                extent.at, extent.length, ExtentKind.ZERO if _is_zeros(extent) else ExtentKind.DATA
            )
            for extent in self._clipped(0, self.virtual_size)
        )
        if self._header.has_backing_file:
            return disk_delta.merge_adjacent(found)
        zeros = disk_delta.Extent(0, self.virtual_size, ExtentKind.ZERO)
        return disk_delta.merge_adjacent(
            disk_delta.overlay(found, [zeros] if self.virtual_size else [])
        )

    def read_into(self, view: memoryview, at: int) -> None:
        """Fill ``view`` with the disk's bytes from ``at``."""
        start = at - at % self.cluster_bytes
        uncut = geometry.Geometry(self.virtual_size, geometry.MAX_CHUNK_BYTES)
        if not self.part_reader(start, at + len(view), uncut).fill_buffer(view, at):
            _clear(view)

    def part_reader(self, start: int, stop: int, cut: geometry.Geometry) -> "DiskPart":
        """Return a reader of a part of the disk, with extents of the chunk map's layout."""
        extents = list(layout.merge_within_pages(self.iter_extents(start, stop), cut))
        return DiskPart(self.source, self.cluster_bytes, extents, self._last)

    def _in_file(self, start: int, stop: int) -> Iterator[layout.Extent]:
        file_bytes = self.source.size_bytes
        for extent in self._clipped(start, stop):
            at, length, codec, offset, stored_bytes = extent
            if _is_zeros(extent):
                continue
            if codec is layout.Codec.STORED:
                length = stored_bytes = min(length, file_bytes - offset)
            else:
                stored_bytes = min(stored_bytes, file_bytes - offset)
            yield layout.Extent(at, length, codec, offset, stored_bytes)

    def _clipped(self, start: int, stop: int) -> Iterator[layout.Extent]:
        """Yield extents of the tables, clipped; zeros have no stored bytes."""
        for extent in self._mapped(start, stop):
            if extent.at >= stop:
                return
            if extent.offset >= self.source.size_bytes:
                why = f"the cluster at {extent.at} of the disk"
                raise Refused(self.name, RefusalReason.TRUNCATED, why)
            if extent.at + extent.length > stop:
                extent = extent._replace(length=stop - extent.at)
            yield extent

    def _mapped(self, start: int, stop: int) -> Iterator[layout.Extent]:
        header = self._header
        read = self._subclusters if header.has_subclusters else self._clusters
        entry_bytes, cluster_bits = header.entry_bytes, header.cluster_bits
        for l2_at, l2_offset in self._l2_tables(start, stop):
            low, high = max(start, l2_at), min(stop, l2_at + header.l2_guest_bytes)
            first = (low - l2_at >> cluster_bits) * entry_bytes
            last = -(-(high - l2_at) >> cluster_bits) * entry_bytes
            for piece in range(first, last, _TABLE_PIECE_BYTES):
                length = min(_TABLE_PIECE_BYTES, last - piece)
                words = self._words(l2_offset + piece, length)
                at = l2_at + (piece // entry_bytes << cluster_bits)
                yield from read(words, at)

    def _l2_tables(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the L2 tables of a range: disk offset and file offset."""
        l2_guest_bytes = self._header.l2_guest_bytes
        first, last = start // l2_guest_bytes, -(-stop // l2_guest_bytes)
        for number, entries in self._l1_pieces(first, last):
            if any(entries):
                for index, entry in enumerate(entries, number):
                    if offset := entry & _OFFSET_MASK:
                        yield index * l2_guest_bytes, offset

    def _l1_pieces(self, first: int, last: int) -> Iterator[tuple[int, "array.array[int]"]]:
        """Yield parts of the L1 table, each with the index of its first entry."""
        step = _L1_PIECE_BYTES // 8
        for number in range(first, last, step):
            count = min(step, last - number)
            yield number, self._words(self._header.l1_offset + number * 8, count * 8)

    def _clusters(self, words: "array.array[int]", at: int) -> Iterator[layout.Extent]:
        """Yield the extents of L2 entries, the first at disk offset ``at``."""
        if not any(words):
            return
        cluster_bytes, stored = self.cluster_bytes, layout.Codec.STORED
        for word in words:
            if word & _IS_COMPRESSED:
                yield self._compressed(word, at)
            else:
                offset = word & _OFFSET_MASK
                if offset % cluster_bytes:
                    raise self._misplaced(at)
                if word & _IS_ZERO:
                    self._check_has_zeros()
                    yield layout.Extent(at, cluster_bytes, stored, 0, 0)
                elif offset:
                    yield layout.Extent(at, cluster_bytes, stored, offset, cluster_bytes)
            at += cluster_bytes

    def _subclusters(self, words: "array.array[int]", at: int) -> Iterator[layout.Extent]:
        if not any(words):
            return
        for word, bitmap in zip(words[::2], words[1::2], strict=True):
            if word & _IS_COMPRESSED:
                yield self._compressed(word, at)
            else:
                yield from self._stored_parts(word & _OFFSET_MASK, bitmap, at)
            at += self.cluster_bytes

    def _stored_parts(self, offset: int, bitmap: int, at: int) -> Iterator[layout.Extent]:
        is_stored, is_zero = bitmap & 0xFFFFFFFF, bitmap >> 32
        if is_stored & is_zero or (is_stored and not offset):
            why = f"the bitmap {bitmap:#x} of the cluster at {at} of the disk"
            raise Refused(self.name, RefusalReason.TABLES, why)
        if offset % self.cluster_bytes:
            raise self._misplaced(at)
        size = self.cluster_bytes // _SUBCLUSTERS
        for part in range(0, _SUBCLUSTERS * size, size):
            if is_stored & 1:
                yield layout.Extent(at + part, size, layout.Codec.STORED, offset + part, size)
            elif is_zero & 1:
                yield layout.Extent(at + part, size, layout.Codec.STORED, 0, 0)
            is_stored, is_zero = is_stored >> 1, is_zero >> 1

    def _compressed(self, word: int, at: int) -> layout.Extent:
        """Return the extent of a compressed cluster: it ends at or before a sector end."""
        count_at = 62 - (self._header.cluster_bits - 8)
        offset = word & (1 << count_at) - 1
        more_sectors = (word & _IS_COMPRESSED - 1) >> count_at
        stored_bytes = (more_sectors + 1) * _SECTOR - offset % _SECTOR
        return layout.Extent(at, self.cluster_bytes, self._header.codec, offset, stored_bytes)

    def _check_has_zeros(self) -> None:
        if self._header.version < 3:
            raise Refused(
                self.name, RefusalReason.TABLES, "there are no zero clusters in version 2"
            )

    def _misplaced(self, at: int) -> Refused:
        why = f"the cluster at {at} of the disk does not begin with one of the file"
        return Refused(self.name, RefusalReason.TABLES, why)

    def _words(self, offset: int, length: int) -> "array.array[int]":
        words = array.array("Q", bytes(length))
        with memoryview(words) as view:
            self.source.read_into(view.cast("B"), offset)
        if sys.byteorder == "little":
            words.byteswap()
        return words

    def _check_l2_places(self) -> None:
        """Reject L2 tables outside of the file, or overlapping other tables; takes up to 3 s.

        Shared L2 tables would let a small file expand without limit.
        """
        before, cluster_bytes = 0, self.cluster_bytes
        for offset in self._l2_offsets():
            span = qcow2_header.Span(offset, offset + cluster_bytes, "an L2 table")
            if offset % cluster_bytes:
                why = f"the L2 table at {offset} does not begin with a cluster"
                raise Refused(self.name, RefusalReason.TABLES, why)
            if span.stop > self.source.size_bytes:
                raise Refused(self.name, RefusalReason.TABLES_OUTSIDE, f"the L2 table at {offset}")
            if offset == before:
                raise Refused(self.name, RefusalReason.TABLES_OVERLAP, f"two L2 tables at {offset}")
            for table in self._header.tables:
                if span.overlaps(table):
                    why = f"the L2 table at {offset} and the {table.what}"
                    raise Refused(self.name, RefusalReason.TABLES_OVERLAP, why)
            before = offset

    def _l2_offsets(self) -> Iterable[int]:
        pieces = []
        for _, entries in self._l1_pieces(0, self._header.l1_entries):
            if any(entries):
                found = sorted(entry & _OFFSET_MASK for entry in entries if entry & _OFFSET_MASK)
                pieces.append(array.array("Q", found))
        return heapq.merge(*pieces)


class _Last:
    """The compressed cluster decoded last; threads may race.  Caching eight was 3 % slower."""

    cluster: tuple[tuple[object, ...], codecs.Buffer] = (), b""


class DiskPart:
    """A part of a disk whose tables have been read; not thread-safe."""

    def __init__(
        self,
        source: qcow2_header.Source,
        cluster_bytes: int,
        extents: list[layout.Extent],
        last: _Last,
    ) -> None:
        self._source, self._cluster_bytes, self.extents = source, cluster_bytes, extents
        self._last, self._buffer = last, bytearray()

    @property
    def is_hole(self) -> bool:
        """Whether the tables declare all of it zeros."""
        return not self.extents

    def fill_buffer(self, view: memoryview, start: int) -> int:
        """Fill ``view`` from ``start``; return the number of stored bytes (0: zeros, unchanged)."""
        stop, done, count = start + len(view), start, 0
        first = bisect.bisect_right(self.extents, start, key=_end_of)
        for extent in itertools.islice(self.extents, first, None):
            if extent.at >= stop:
                break
            low, high = max(extent.at, start), min(extent.at + extent.length, stop)
            if done < low:
                _clear(view[done - start : low - start])
            self._read(view[low - start : high - start], extent, low - extent.at)
            done, count = high, count + high - low
        if count:
            _clear(view[done - start :])
        return count

    def _read(self, view: memoryview, extent: layout.Extent, skip: int) -> None:
        if extent.codec is layout.Codec.STORED:
            self._source.read_into(view, extent.offset + skip)
            return
        decoded = self._decoded(extent)
        is_whole = len(decoded) == len(view)
        view[:] = decoded if is_whole else memoryview(decoded)[skip : skip + len(view)]

    def _decoded(self, extent: layout.Extent) -> codecs.Buffer:
        place = extent[2:]
        last, decoded = self._last.cluster
        if last != place:
            decoded = self._decode(extent)
            self._last.cluster = place, decoded
        return decoded

    def _decode(self, extent: layout.Extent) -> codecs.Buffer:
        if len(self._buffer) < extent.stored_bytes:
            self._buffer = bytearray(extent.stored_bytes)
        stored = memoryview(self._buffer)[: extent.stored_bytes]
        self._source.read_into(stored, extent.offset)
        try:
            # A short cluster is an error, as for QEMU.
            return codecs.decode_whole(extent.codec, stored, self._cluster_bytes)
        except codecs.CodecError as exc:
            why = f"the cluster at {extent.at} of the disk: {exc}"
            raise Refused(self._source.name, RefusalReason.DATA, why) from exc


def _is_zeros(extent: layout.Extent) -> bool:
    return not extent.stored_bytes


def _end_of(extent: layout.Extent) -> int:
    return extent.at + extent.length


def _apart(extents: Iterable[layout.Extent]) -> Iterator[layout.Extent]:
    """Clip the stored bytes of compressed extents to the next extent."""
    for extent, after in itertools.pairwise(itertools.chain(extents, [None])):
        assert extent is not None
        if after is not None and extent.codec is not layout.Codec.STORED:
            gap = after.offset - extent.offset
            if 0 < gap < extent.stored_bytes:
                extent = extent._replace(stored_bytes=gap)
        yield extent


def _clear(view: memoryview) -> None:
    for start in range(0, len(view), len(_ZEROS)):
        part = view[start : start + len(_ZEROS)]
        part[:] = _ZEROS[: len(part)]
