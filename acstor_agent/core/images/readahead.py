# SPDX-License-Identifier: Apache-2.0
"""Read-ahead: which readers are sequential, and how far ahead of each to fetch.

A reader that goes on where it stopped, twice in a row, is sequential: from then on its window
doubles with each read. Anyone else gets nothing, so random readers cost no byte, not even where two
of their reads touch by chance. What a reader leaves unread when it stops is its window, so beyond
FREE_WINDOW_BYTES, or COPY_READS reads of a program that copies, a window may be a WORTH-th of what
was read in order, up to the limit: then it is at most 1.1 % of that. A window is a multiple of the
reader's last read, so that the next read finds what it asks for in one piece; that of a program
that copies is filled again when half of it was read, so that reads share requests. What all readers
together have left unread, those too who stopped long ago, is at most a SHARE-th of what was read of
the image: a guest that boots begins and leaves many short runs, which cost a fifth of its boot
otherwise. Many guests read one image, so several readers are told apart by where each one stopped;
the one that has been silent for the longest is forgotten.
"""

import collections
import dataclasses
from typing import Protocol

from acstor_common.model import geometry

SEQUENTIAL_READS = 3
"""Reads in a row that make a reader sequential."""
FIRST_WINDOW_BYTES = 256 * 1024
FREE_WINDOW_BYTES = 384 * 1024
"""Enough for a link of 100 Mbit/s and 30 ms, or of 10 Gbit/s and 0.3 ms.  With the 128 KiB that
the kernel reads ahead it is less than 2 % of 32 MiB."""
COPY_READ_BYTES = 512 * 1024
"""Reads this long are of a program that copies: a guest's kernel reads ahead 128 KiB."""
COPY_READS = 4
"""With 1 MiB each, enough for a link of 10 Gbit/s and 3 ms, or of 100 Mbit/s and 300 ms."""
COPIED_READS = 8
"""So many reads in a row make a program that copies: a guest that boots stops before."""
WORTH = 90
SHARE = 15
"""At a 33rd, who reads files of 1 MiB one after the other is not read ahead for; at an 8th, a boot
fetches 3.6 % more than it asks for, not 1.8 %."""
BLOCK_BYTES = geometry.DEFAULT_CHUNK_BYTES
"""What is fetched ahead is counted in blocks, and no window is narrower: chunks are fetched
whole."""
READERS = 32
"""Readers of one image that are told apart at a time."""


class Predictor(Protocol):
    """Says what of an image to fetch before a guest asks for it."""

    def read(self, offset: int, length: int, now_s: float) -> tuple[int, int]:
        """Take note of a read and return the range (start, stop) to fetch now; empty if none."""


@dataclasses.dataclass(slots=True)
class _Reader:
    began: int
    window_bytes: int
    fetched_to: int
    reads: int = 1


class ReadAhead:
    """The read-ahead of one image.

    :param limit_bytes: the widest window; 0 turns read-ahead off

    >>> ahead = ReadAhead(limit_bytes=1 << 20)
    >>> ahead.read(0, 131072, now_s=0.0)
    (0, 0)
    >>> ahead.read(131072, 131072, now_s=0.0)
    (0, 0)
    >>> ahead.read(262144, 131072, now_s=0.0)
    (393216, 655360)
    >>> ahead.read(393216, 131072, now_s=0.0)
    (655360, 917504)
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._readers: collections.OrderedDict[int, _Reader] = collections.OrderedDict()
        self._read_bytes = 0
        self._unread: set[int] = set()
        """Blocks that were fetched ahead and that nobody has read."""

    def read(self, offset: int, length: int, now_s: float) -> tuple[int, int]:
        """Take note of a read and return the range (start, stop) to fetch now; empty if none.

        Ranges of one reader never overlap, so nothing is asked for twice.  When a read comes does
        not matter here.
        """
        if not self._limit_bytes:
            return (0, 0)
        stop = offset + length
        self._read_bytes += length
        self._unread.difference_update(_blocks(offset, stop))
        reader = self._readers.pop(offset, None)
        if reader is None:
            self._remember(stop, _Reader(offset, 0, stop))
            return (0, 0)
        reader.reads += 1
        if reader.reads < SEQUENTIAL_READS:
            self._remember(stop, reader)
            return (0, 0)
        start = max(reader.fetched_to, stop)
        if length >= COPY_READ_BYTES and start - stop > reader.window_bytes // 2:
            self._remember(stop, reader)
            return (0, 0)
        reader.window_bytes = self._window_bytes(reader, stop, start - stop, length)
        reader.fetched_to = max(start, stop + reader.window_bytes)
        self._unread.update(_blocks(start, reader.fetched_to))
        self._remember(stop, reader)
        return (start, reader.fetched_to)

    def _window_bytes(self, reader: _Reader, stop: int, own_bytes: int, length: int) -> int:
        """Return how far ahead of a reader to fetch.

        :param own_bytes: what was fetched ahead for it already
        :param length: of its last read
        """
        read_bytes = stop - reader.began
        is_copy = length >= COPY_READ_BYTES and read_bytes >= COPIED_READS * length
        free = COPY_READS * length if is_copy else max(FREE_WINDOW_BYTES, length)
        doubled = max(FIRST_WINDOW_BYTES, length, reader.window_bytes * 2)
        worth = max(free, read_bytes // WORTH)
        others_bytes = max(0, len(self._unread) * BLOCK_BYTES - own_bytes)
        left = max(free, self._read_bytes // SHARE) - others_bytes
        window = min(self._limit_bytes, doubled, worth, left)
        if window > length:
            window -= window % length
        return window if window >= min(BLOCK_BYTES, self._limit_bytes) else 0

    def _remember(self, stop: int, reader: _Reader) -> None:
        self._readers[stop] = reader
        if len(self._readers) > READERS:
            self._readers.popitem(last=False)


def _blocks(start: int, stop: int) -> range:
    return range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES))
