# SPDX-License-Identifier: Apache-2.0
"""Plans which bytes of an image come from the delta and which from the base, else zeros."""

import enum
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common.disks import disk_delta
from acstor_common.disks import qcow2_writer
from acstor_common.formats import layout

MAX_PIECES = 1024
GAP_BYTES = 256 << 10  # ranges no further apart are read at once: the gap costs less than a request


class PieceOrigin(enum.Enum):
    """Origin of the bytes of a piece."""

    ZERO = enum.auto()
    DELTA = enum.auto()
    BASE = enum.auto()
    COMPRESSED = enum.auto()


class DiskPiece(NamedTuple):
    """A range of the disk from offset ``at``, and the base's extent if it has it."""

    at: int
    length: int
    origin: PieceOrigin
    extent: layout.Extent | None = None

    @property
    def stop(self) -> int:
        """End offset on the disk."""
        return self.at + self.length

    def slice_between(self, start: int, stop: int) -> "DiskPiece":
        """Return the part between two offsets of the disk."""
        return self._replace(at=start, length=stop - start)


class ClusterRun(NamedTuple):
    """Clusters of the resulting file, and the pieces that they are made of."""

    run: qcow2_writer.DiskRun
    pieces: list[DiskPiece]


class Batch(NamedTuple):
    """Pieces in disk order, and one read of the base's file (0 bytes: none)."""

    offset: int
    length: int
    pieces: list[DiskPiece]


def pieces(
    table: Iterable[disk_delta.Extent], extents: Iterable[layout.Extent], virtual_size: int
) -> Iterator[DiskPiece]:
    """Yield the pieces of the whole disk; ``extents`` are the base's."""
    below, at = _BaseExtents(extents), 0
    for change in table:
        yield from below.between(at, change.at)
        is_zero = change.kind is disk_delta.ExtentKind.ZERO
        yield DiskPiece(
            change.at, change.length, PieceOrigin.ZERO if is_zero else PieceOrigin.DELTA
        )
        at = change.stop
    yield from below.between(at, virtual_size)


class _BaseExtents:
    """The base's extents, joined where they are contiguous in the file."""

    def __init__(self, extents: Iterable[layout.Extent]) -> None:
        self._rest = layout.merge_adjacent(extents)
        self._next = next(self._rest, None)

    def between(self, at: int, stop: int) -> Iterator[DiskPiece]:
        """Yield the base's pieces from ``at`` to ``stop``; calls must be in disk order."""
        while at < stop:
            extent = self._next
            if extent is None or extent.at >= stop:
                yield DiskPiece(at, stop - at, PieceOrigin.ZERO)
                return
            if extent.at > at:
                yield DiskPiece(at, extent.at - at, PieceOrigin.ZERO)
                at = extent.at
            end = min(extent.at + extent.length, stop)
            if end > at:
                yield DiskPiece(at, end - at, PieceOrigin.BASE, extent)
                at = end
            if extent.at + extent.length <= at:
                self._next = next(self._rest, None)


def cluster_runs(disk: Iterable[DiskPiece], cluster_bytes: int) -> Iterator[ClusterRun]:
    """Yield the clusters that are not zeros, in disk order; copy compressed ones."""
    for parts in _clusters(disk, cluster_bytes):
        at, stop = parts[0].at, parts[-1].stop
        if all(part.origin is PieceOrigin.ZERO for part in parts):
            continue
        if packed := _packed(parts, cluster_bytes):
            run = qcow2_writer.DiskRun(at, cluster_bytes, packed.stored_bytes)
            yield ClusterRun(run, [parts[0]._replace(origin=PieceOrigin.COMPRESSED)])
            continue
        if behind := -stop % cluster_bytes:  # the disk ends within its last cluster
            parts.append(DiskPiece(stop, behind, PieceOrigin.ZERO))
        yield ClusterRun(qcow2_writer.DiskRun(at, stop + behind - at), parts)


def _packed(parts: list[DiskPiece], cluster_bytes: int) -> layout.Extent | None:
    extent = parts[0].extent
    if extent is None or extent.codec is layout.Codec.STORED or len(parts) > 1:
        return None
    is_whole = parts[0].length == extent.length == cluster_bytes
    return extent if is_whole and extent.stored_bytes <= cluster_bytes else None


def _clusters(disk: Iterable[DiskPiece], cluster_bytes: int) -> Iterator[list[DiskPiece]]:
    """Yield the pieces of one cluster, or one piece of several complete clusters."""
    held: list[DiskPiece] = []
    for piece in disk:
        at = piece.at
        if held:
            at = min(piece.stop, held[0].at + cluster_bytes)
            held.append(piece.slice_between(piece.at, at))
            if at < held[0].at + cluster_bytes:
                continue
            yield held
        stop = piece.stop - (piece.stop - at) % cluster_bytes
        if stop > at:
            yield [piece.slice_between(at, stop)]
        held = [piece.slice_between(stop, piece.stop)] if piece.stop > stop else []
    if held:
        yield held


def stored_range(piece: DiskPiece) -> tuple[int, int]:
    """Return start and end in the base's file; ValueError if it is not the base's."""
    extent = piece.extent
    if extent is None:
        raise ValueError(f"{piece} is not part of the base")
    if extent.codec is not layout.Codec.STORED:
        return extent.offset, extent.offset + extent.stored_bytes
    start = extent.offset + piece.at - extent.at
    return start, start + piece.length


def batches(parts: Iterable[DiskPiece], max_bytes: int) -> Iterator[Batch]:
    """Yield pieces by reads of the base's file: up to ``max_bytes``, or one cluster."""
    held: list[DiskPiece] = []
    low = high = 0
    for piece in _short(parts, max_bytes):
        if piece.extent is not None:
            start, stop = stored_range(piece)
            is_near = start <= high + GAP_BYTES and stop >= low - GAP_BYTES
            if high and not (is_near and max(high, stop) - min(low, start) <= max_bytes):
                yield Batch(low, high - low, held)
                held, high = [], 0
            low, high = (min(low, start), max(high, stop)) if high else (start, stop)
        held.append(piece)
        if len(held) == MAX_PIECES:
            yield Batch(low, high - low, held)
            held, low, high = [], 0, 0
    if held:
        yield Batch(low, high - low, held)


def _short(parts: Iterable[DiskPiece], max_bytes: int) -> Iterator[DiskPiece]:
    for piece in parts:
        if piece.extent is None or piece.extent.codec is not layout.Codec.STORED:
            yield piece
            continue
        for at in range(piece.at, piece.stop, max_bytes):
            yield piece.slice_between(at, min(at + max_bytes, piece.stop))
