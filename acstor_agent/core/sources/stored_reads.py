# SPDX-License-Identifier: Apache-2.0
"""Maps pieces of an image to ranges of its stored file.

A piece needs fragments of extents; adjacent ones form a run, read as one. Runs of several pieces
may overlap, as in a cluster larger than a chunk, so they are cut into tiles, each read once.
"""

import bisect
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from acstor_common.formats import layout


class Fragment(NamedTuple):
    """A part of an extent that a piece needs."""

    to: int  # offset in the piece
    skip: int  # guest bytes of the extent before it
    length: int
    extent: layout.Extent

    @property
    def is_part(self) -> bool:
        """Return whether the extent has more than this fragment."""
        return self.length < self.extent.length

    @property
    def span(self) -> tuple[int, int]:
        """Start and stop of the bytes to read from the stored file."""
        extent = self.extent
        if extent.codec is layout.Codec.STORED:
            return extent.offset + self.skip, extent.offset + self.skip + self.length
        return extent.offset, extent.offset + extent.stored_bytes


def fragments(offset: int, length: int, extents: Iterable[layout.Extent]) -> list[Fragment]:
    """Return the fragments of extents that a piece needs.

    >>> [extent] = [layout.Extent(0, 8192, layout.Codec.STORED, 700, 8192)]
    >>> fragments(4096, 512, [extent])[0].span
    (4796, 5308)
    """
    found = []
    for extent in extents:
        start = max(offset, extent.at)
        stop = min(offset + length, extent.at + extent.length)
        if start < stop:
            found.append(Fragment(start - offset, start - extent.at, stop - start, extent))
    return found


def runs(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return adjacent or overlapping spans joined, in file order.

    >>> runs([(10, 20), (0, 5), (18, 30), (5, 8)])
    [(0, 8), (10, 30)]
    """
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return found


class Tiles:
    """Ranges of the stored file that do not overlap, in order, with their bytes.

    >>> tiles = Tiles([(0, 100), (10, 20), (0, 30), (200, 210)])
    >>> tiles.ranges, tiles.tiles_of_run((0, 30)), tiles.tiles_of_run((10, 20))
    ([(0, 10), (10, 100), (200, 210)], range(0, 2), range(1, 2))
    """

    def __init__(self, all_runs: Iterable[tuple[int, int]]) -> None:
        self.ranges: list[tuple[int, int]] = []
        for start, stop in sorted(all_runs):
            if not self.ranges or start >= self.ranges[-1][1]:
                self.ranges.append((start, stop))
                continue
            last, reach = self.ranges[-1]
            if start > last:
                self.ranges[-1] = last, start
                self.ranges.append((start, max(reach, stop)))
            else:
                self.ranges[-1] = last, max(reach, stop)
        self._starts = [start for start, _ in self.ranges]
        self._data: dict[int, memoryview] = {}

    def tiles_of_run(self, run: tuple[int, int]) -> range:
        """Return the numbers of the tiles that cover a run; the last may reach beyond it."""
        first = bisect.bisect_right(self._starts, run[0]) - 1
        return range(first, bisect.bisect_left(self._starts, run[1]))

    def put(self, number: int, data: bytes | bytearray | memoryview) -> None:
        """Store the bytes of a tile."""
        self._data[number] = memoryview(data)

    def drop(self, number: int) -> None:
        """Drop the bytes of a tile."""
        self._data.pop(number, None)

    def bytes_of(self, span: tuple[int, int]) -> bytes | memoryview:
        """Return the bytes of a span; all of its tiles must be present."""
        parts = []
        for number in self.tiles_of_run(span):
            start, stop = self.ranges[number]
            view = self._data[number]
            parts.append(view[max(0, span[0] - start) : min(stop, span[1]) - start])
        return parts[0] if len(parts) == 1 else b"".join(parts)


def is_one_fragment(length: int, found: Sequence[Fragment]) -> bool:
    """Return whether a piece is one fragment, without zeros around it."""
    return len(found) == 1 and found[0].length == length
