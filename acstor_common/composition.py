# SPDX-License-Identifier: Apache-2.0
"""A disk as a file of its own, composed of its base and its changes while both go by.

The one rule: what a guest reads of the file is what it reads of the disk: the changes, between
them the base, and zeros behind the base's end.  The file's length is known before its first
byte, and nothing is kept but the table of changes.  Compressed clusters of the base that no
change touches are carried as they are stored; what changed is stored plain.

The base is looked at several times (:mod:`acstor_common.qcow2_writer`), each time in the order
of the disk, in small parts: a source that is far away should read ahead, and keep tables.
"""

import enum
from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple
from typing import Protocol

from acstor_common import changes
from acstor_common import geometry
from acstor_common import layout
from acstor_common import qcow2_header
from acstor_common import qcow2_writer

PART_BYTES = 1 * geometry.MIB
"""Of the file, at a time, at the most; a compressed cluster may be twice as long."""

Buffer = bytes | bytearray | memoryview


class Base(Protocol):
    """The disk of the base; :class:`acstor_common.qcow2.Qcow2` is one."""

    source: qcow2_header.Source
    virtual_size: int
    cluster_bytes: int
    codec: layout.Codec

    def extents(self) -> Iterator[layout.Extent]:
        """Yield where the disk's bytes lie in the source, in order; the rest is zeros."""

    def read_into(self, view: memoryview, at: int) -> None:
        """Fill ``view`` with the disk's bytes from ``at`` on."""


class RawBase:
    """A base that is stored as a guest reads it; it may be of any length."""

    cluster_bytes = 64 * geometry.KIB
    """Of a qcow2 file that is composed on it; QEMU's default."""
    codec = layout.Codec.STORED

    def __init__(self, source: qcow2_header.Source) -> None:
        self.source, self.virtual_size = source, source.size_bytes

    def extents(self) -> Iterator[layout.Extent]:
        """Yield the whole, as one."""
        if size := self.virtual_size:
            yield layout.Extent(0, size, layout.Codec.STORED, 0, size)

    def read_into(self, view: memoryview, at: int) -> None:
        """Fill ``view`` from ``at`` on."""
        self.source.read_into(view, at)


class Composed(NamedTuple):
    """A file to be: how long it is, and its bytes, which can be had once."""

    file_bytes: int
    parts: Iterator[Buffer]


class Disk(NamedTuple):
    """A disk that was changed.

    :param virtual_size: of the disk
    :param table: the changes
    """

    virtual_size: int
    table: changes.Table
    base: Base


ReadChanged = Callable[[int], Buffer]
"""Returns the next bytes that changed: at least one and at most so many."""


def as_raw(disk: Disk, read_changed: ReadChanged) -> Composed:
    """Return the disk as a raw file."""
    bytes_of = _Bytes(disk, read_changed)
    return Composed(disk.virtual_size, bytes_of.between(0, disk.virtual_size))


def as_qcow2(disk: Disk, read_changed: ReadChanged) -> Composed:
    """Return the disk as a qcow2 file, with the cluster size and codec of its base.

    :raises ValueError: the disk is too large for so small clusters
    :raises acstor_common.qcow2_header.Refused: the base cannot be read
    """
    bytes_of = _Bytes(disk, read_changed)
    plan = qcow2_writer.Plan(
        disk.virtual_size, disk.base.cluster_bytes, disk.base.codec, lambda: _runs(disk)
    )
    return Composed(plan.file_bytes, plan.parts(bytes_of.run))


class _From(enum.Enum):
    BASE = enum.auto()
    CHANGES = enum.auto()
    NOWHERE = enum.auto()  # zeros


class _Segment(NamedTuple):
    """A range of the disk whose bytes come from one place.

    :param packed: the compressed cluster of the base that it is, or is a part of
    """

    at: int
    length: int
    origin: _From
    packed: layout.Extent | None = None

    @property
    def stop(self) -> int:
        return self.at + self.length


def _segments(disk: Disk) -> Iterator[_Segment]:
    """Yield what the disk has, in order; the rest is zeros."""
    for segment in changes.laid_over(_changed(disk.table), _of_base(disk)):
        if segment.origin is not _From.NOWHERE:
            yield segment


def _changed(table: changes.Table) -> Iterator[_Segment]:
    for at, length, kind in table:
        origin = _From.CHANGES if kind is changes.Kind.DATA else _From.NOWHERE
        yield _Segment(at, length, origin)


def _of_base(disk: Disk) -> Iterator[_Segment]:
    """Yield what the base has of the disk; what is not compressed is joined."""
    at = stop = 0
    for extent in disk.base.extents():
        if extent.at >= disk.virtual_size:
            break
        length = min(extent.length, disk.virtual_size - extent.at)
        is_packed = extent.codec is not layout.Codec.STORED
        if stop > at and (is_packed or extent.at != stop):
            yield _Segment(at, stop - at, _From.BASE)
            at = stop
        if is_packed:
            yield _Segment(extent.at, length, _From.BASE, extent)
            at = stop = extent.at + length
        else:
            at, stop = (at if stop > at else extent.at), extent.at + length
    if stop > at:
        yield _Segment(at, stop - at, _From.BASE)


def _runs(disk: Disk) -> Iterator[qcow2_writer.Run]:
    """Yield the clusters that have anything."""
    size = disk.base.cluster_bytes
    start = stop = 0
    for segment in _segments(disk):
        packed = _carried(segment, disk)
        first, last = segment.at // size * size, -(-segment.stop // size) * size
        if stop > start and (packed or first > stop):
            yield qcow2_writer.Run(start, stop - start)
        if packed:
            yield qcow2_writer.Run(first, size, packed.stored_bytes)
            start = stop = last
        else:
            start, stop = (start if first <= stop and stop > start else first), last
    if stop > start:
        yield qcow2_writer.Run(start, stop - start)


def _carried(segment: _Segment, disk: Disk) -> layout.Extent | None:
    """Return the compressed cluster that goes into the file as it is, if a segment is one.

    It is if all that a guest can read of it counts: nothing of it changed, and the base does not
    end within.
    """
    size, packed = disk.base.cluster_bytes, segment.packed
    if packed is None or packed.stored_bytes > size:
        return None
    is_whole = segment.at == packed.at and segment.stop == min(packed.at + size, disk.virtual_size)
    return packed if is_whole else None


class _Bytes:
    """Gives the bytes of the disk, once, in order."""

    def __init__(self, disk: Disk, read_changed: ReadChanged) -> None:
        self._disk, self._read_changed = disk, read_changed
        self._segments = _segments(disk)
        self._next = next(self._segments, None)
        self._unpacked: tuple[int, memoryview] = -1, memoryview(b"")

    def run(self, run: qcow2_writer.Run) -> Iterator[Buffer]:
        """Yield the bytes of a run of clusters, as they stand in the file."""
        if not run.packed_bytes:
            yield from self.between(run.at, run.at + run.length)
            return
        segment = self._take()
        assert segment is not None and segment.packed is not None
        yield _filled(self._disk.base.source.read_into, segment.packed.offset, run.packed_bytes)

    def between(self, start: int, stop: int) -> Iterator[Buffer]:
        """Yield the bytes of a range that no segment crosses the ends of."""
        while self._next is not None and self._next.at < stop:
            segment = self._next
            yield from qcow2_writer.zeros(segment.at - start)
            yield from self._of(segment)
            start = segment.stop
            self._take()
        yield from qcow2_writer.zeros(stop - start)

    def _take(self) -> _Segment | None:
        taken, self._next = self._next, next(self._segments, None)
        return taken

    def _of(self, segment: _Segment) -> Iterator[Buffer]:
        if segment.origin is _From.CHANGES:
            yield from self._of_changes(segment.length)
        elif segment.packed:
            start = segment.at - segment.packed.at
            yield self._cluster(segment.packed)[start : start + segment.length]
        else:
            for at in range(segment.at, segment.stop, PART_BYTES):
                length = min(PART_BYTES, segment.stop - at)
                yield _filled(self._disk.base.read_into, at, length)

    def _of_changes(self, length: int) -> Iterator[Buffer]:
        while length:
            data = self._read_changed(min(length, PART_BYTES))
            if not 0 < len(data) <= length:
                raise ValueError(f"{len(data)} bytes instead of up to {length}")
            length -= len(data)
            yield data

    def _cluster(self, packed: layout.Extent) -> memoryview:
        """Return what a compressed cluster has; changes may have cut it into many segments."""
        if self._unpacked[0] != packed.at:
            data = _filled(self._disk.base.read_into, packed.at, packed.length)
            self._unpacked = packed.at, data
        return self._unpacked[1]


def _filled(read_into: Callable[[memoryview, int], None], offset: int, length: int) -> memoryview:
    view = memoryview(bytearray(length))
    read_into(view, offset)
    return view
