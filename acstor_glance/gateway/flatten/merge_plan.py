# SPDX-License-Identifier: Apache-2.0
"""Of what an image is made that has a base and changes: which bytes of it come from where.

What a change covers is the change's, and the rest is the base's; behind the base's end, and
where the base has nothing, it is zeros.  Clusters that the base has compressed, and that no
change touches, are carried as they are stored.

All here is looked at piece by piece, in the order of the disk, and nothing is kept.  No I/O.
"""

import enum
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common.formats import disk_delta
from acstor_common.formats import layout
from acstor_common.formats import qcow2_writer

MOST_PIECES = 1024
"""In one batch: they are kept until its bytes are there."""
GAP_BYTES = 256 << 10
"""Two places in the base's file that lie no further apart are one read: the bytes between cost less
than a request."""


class Origin(enum.Enum):
    """Where bytes come from."""

    ZERO = enum.auto()
    CHANGED = enum.auto()
    BASE = enum.auto()
    PACKED = enum.auto()
    """A compressed cluster of the base, as it is stored."""


class Piece(NamedTuple):
    """Bytes of the disk that come from one place.

    :param at: where they are on the disk
    :param extent: of the base, which has them; None if the base does not give them
    """

    at: int
    length: int
    origin: Origin
    extent: layout.Extent | None = None

    @property
    def stop(self) -> int:
        """Where they end on the disk."""
        return self.at + self.length

    def slice_between(self, start: int, stop: int) -> "Piece":
        """Return what it has between two places of the disk."""
        return self._replace(at=start, length=stop - start)


class ClusterRun(NamedTuple):
    """Clusters of the composed file, and of what they are made."""

    run: qcow2_writer.Run
    pieces: list[Piece]


class Batch(NamedTuple):
    """Pieces in the order of the disk, and the one read of the base's file that they take.

    :param length: of the read; 0: none of them is the base's
    """

    offset: int
    length: int
    pieces: list[Piece]


def pieces(
    table: Iterable[disk_delta.Extent], extents: Iterable[layout.Extent], virtual_size: int
) -> Iterator[Piece]:
    """Yield all of the disk.

    :param extents: where the base's file has the base's disk; the rest of that is zeros
    """
    below, at = _Below(extents), 0
    for change in table:
        yield from below.between(at, change.at)
        is_zero = change.kind is disk_delta.Kind.ZERO
        yield Piece(change.at, change.length, Origin.ZERO if is_zero else Origin.CHANGED)
        at = change.stop
    yield from below.between(at, virtual_size)


class _Below:
    """The base's extents, those of the file that follow each other joined."""

    def __init__(self, extents: Iterable[layout.Extent]) -> None:
        self._rest = layout.runs(extents)
        self._next = next(self._rest, None)

    def between(self, at: int, stop: int) -> Iterator[Piece]:
        """Yield what the base has from ``at`` to ``stop``; ask in the order of the disk."""
        while at < stop:
            extent = self._next
            if extent is None or extent.at >= stop:
                yield Piece(at, stop - at, Origin.ZERO)
                return
            if extent.at > at:
                yield Piece(at, extent.at - at, Origin.ZERO)
                at = extent.at
            end = min(extent.at + extent.length, stop)
            if end > at:
                yield Piece(at, end - at, Origin.BASE, extent)
                at = end
            if extent.at + extent.length <= at:
                self._next = next(self._rest, None)


# A qcow2 file


def cluster_runs(disk: Iterable[Piece], cluster_bytes: int) -> Iterator[ClusterRun]:
    """Yield the clusters of the disk that are not all zeros, in its order.

    :param cluster_bytes: of the composed file; compressed clusters of this length are carried
    """
    for parts in _clusters(disk, cluster_bytes):
        at, stop = parts[0].at, parts[-1].stop
        if all(part.origin is Origin.ZERO for part in parts):
            continue
        if packed := _packed(parts, cluster_bytes):
            run = qcow2_writer.Run(at, cluster_bytes, packed.stored_bytes)
            yield ClusterRun(run, [parts[0]._replace(origin=Origin.PACKED)])
            continue
        if behind := -stop % cluster_bytes:  # the disk ends within its last cluster
            parts.append(Piece(stop, behind, Origin.ZERO))
        yield ClusterRun(qcow2_writer.Run(at, stop + behind - at), parts)


def _packed(parts: list[Piece], cluster_bytes: int) -> layout.Extent | None:
    """Return the compressed cluster that these pieces are, if they are one, whole and untouched."""
    extent = parts[0].extent
    if extent is None or extent.codec is layout.Codec.STORED or len(parts) > 1:
        return None
    is_whole = parts[0].length == extent.length == cluster_bytes
    return extent if is_whole and extent.stored_bytes <= cluster_bytes else None


def _clusters(disk: Iterable[Piece], cluster_bytes: int) -> Iterator[list[Piece]]:
    """Yield the pieces of one cluster, or one piece of several whole ones."""
    held: list[Piece] = []
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


# Reads of the base


def stored_range(piece: Piece) -> tuple[int, int]:
    """Return where in the base's file a piece is, from where to where.

    :raises ValueError: it is not the base's
    """
    extent = piece.extent
    if extent is None:
        raise ValueError(f"{piece} is not the base's")
    if extent.codec is not layout.Codec.STORED:
        return extent.offset, extent.offset + extent.stored_bytes
    start = extent.offset + piece.at - extent.at
    return start, start + piece.length


def batches(parts: Iterable[Piece], most_bytes: int) -> Iterator[Batch]:
    """Yield pieces together whose bytes lie near each other in the base's file.

    :param most_bytes: of one read; no compressed cluster is longer
    """
    held: list[Piece] = []
    low = high = 0
    for piece in _short(parts, most_bytes):
        if piece.extent is not None:
            start, stop = stored_range(piece)
            is_near = start <= high + GAP_BYTES and stop >= low - GAP_BYTES
            if high and not (is_near and max(high, stop) - min(low, start) <= most_bytes):
                yield Batch(low, high - low, held)
                held, high = [], 0
            low, high = (min(low, start), max(high, stop)) if high else (start, stop)
        held.append(piece)
        if len(held) == MOST_PIECES:
            yield Batch(low, high - low, held)
            held, low, high = [], 0, 0
    if held:
        yield Batch(low, high - low, held)


def _short(parts: Iterable[Piece], most_bytes: int) -> Iterator[Piece]:
    """Yield pieces, those that the base stores as they are cut to ``most_bytes``."""
    for piece in parts:
        if piece.extent is None or piece.extent.codec is not layout.Codec.STORED:
            yield piece
            continue
        for at in range(piece.at, piece.stop, most_bytes):
            yield piece.slice_between(at, min(at + most_bytes, piece.stop))
