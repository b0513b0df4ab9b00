# SPDX-License-Identifier: Apache-2.0
"""Readahead: detects sequential readers and says how far ahead of each to fetch.

A reader that continues where it stopped, twice in a row, is sequential; its window then doubles
with each read. Unread bytes are bounded in two ways:

* the window of a reader: FREE_WINDOW_BYTES, or COPY_READS reads of a copying program, or where data
  comes from afar what the reader reads in DELAYS delays, and half of what it read in order at most;
  beyond that, 1/WORTH of what it read in order, up to the limit;
* all windows of the image: 1/SHARE of what was read of it, because a booting guest begins and
  leaves many short runs.

A window is a multiple of the reader's last read, and is refilled when half of it was read. Readers
are identified by the offset where they stopped.

The delay is the shortest time from a refill to its first byte, as a reader that waited for it saw
it; so a full link does not widen the window, like the round-trip time of BBR (Cardwell 2016).
"""

import collections
import dataclasses
import math
from typing import NamedTuple
from typing import Protocol

from acstor_common.model import geometry
from acstor_common.util import lru_table

SEQUENTIAL_READS = 3
FIRST_WINDOW_BYTES = 256 * 1024
FREE_WINDOW_BYTES = 384 * 1024
"""Enough for a link of 100 Mbit/s and 30 ms, or 10 Gbit/s and 0.3 ms; with the kernel's own
readahead of 128 KiB, less than 2 % of 32 MiB."""
DELAYS = 2.0
NEAR_BYTES = FREE_WINDOW_BYTES * 3 // 2
"""Up to here the reader's own reads on a full link explain the delay."""
RATE_DECAY = 0.99  # of a reader's rate with each refill, so that a stall hardly narrows its window
REFILLS = 4  # of a reader that are remembered: the last two windows
COPY_READ_BYTES = 512 * 1024
"""Reads this long come from a copying program: a guest's kernel reads ahead 128 KiB."""
COPY_READS = 4  # of 1 MiB each: enough for a link of 10 Gbit/s and 3 ms, or 100 Mbit/s and 300 ms
COPIED_READS = 8  # consecutive reads that identify a copying program; a booting guest stops before
WORTH = 90
SHARE = 15
"""At a 33rd, who reads files of 1 MiB one after the other is not read ahead for; at an 8th, a boot
fetches 3.6 % more than it asks for, not 1.8 %."""
BLOCK_BYTES = geometry.DEFAULT_CHUNK_BYTES
"""Unit of accounting and least window, because chunks are fetched whole."""
READERS = 32


class Predictor(Protocol):
    """Predicts which range of an image to fetch before a guest requests it."""

    def record_read(self, offset: int, length: int, now_s: float) -> tuple[int, int]:
        """Record a read; return the range (start, stop) to fetch now, empty if none."""

    def record_wait(self, offset: int, length: int, now_s: float) -> None:
        """Record that the data of a read, which had to be waited for, is here now."""


class _Refill(NamedTuple):
    """A fetch from ``start`` at ``at_s``, when the reader had read to ``read_to``."""

    start: int
    read_to: int
    at_s: float


@dataclasses.dataclass(slots=True)
class _Reader:
    began: int
    window_bytes: int
    fetched_to: int
    reads: int = 1
    delay_s: float = math.inf
    bytes_s: float = 0.0
    refills: collections.deque[_Refill] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=REFILLS)
    )

    def note_refill(self, start: int, read_to: int, now_s: float) -> None:
        """Note a fetch from ``start``, and the rate of the reads up to ``read_to``."""
        first = self.refills[0] if self.refills else None
        if first is not None and now_s > first.at_s:
            rate_bytes_s = (read_to - first.read_to) / (now_s - first.at_s)
            self.bytes_s = max(rate_bytes_s, RATE_DECAY * self.bytes_s)
        self.refills.append(_Refill(start, read_to, now_s))

    @property
    def delay_bytes(self) -> int:
        """What it reads in DELAYS delays; 0 if that is not known, or the source is near."""
        if self.delay_s == math.inf:
            return 0
        wanted = int(DELAYS * self.delay_s * self.bytes_s)
        return wanted if wanted > NEAR_BYTES else 0

    def note_wait(self, offset: int, stop: int, now_s: float) -> None:
        """Note that data at ``offset`` to ``stop``, which it waited for, came at ``now_s``."""
        for refill in self.refills:
            if offset <= refill.start < stop:
                self.delay_s = min(self.delay_s, now_s - refill.at_s)


class ReadAhead:
    """The readahead of one image.

    :param limit_bytes: widest window; 0 disables readahead

    >>> ahead = ReadAhead(limit_bytes=1 << 20)
    >>> ahead.record_read(0, 131072, now_s=0.0)
    (0, 0)
    >>> ahead.record_read(131072, 131072, now_s=0.0)
    (0, 0)
    >>> ahead.record_read(262144, 131072, now_s=0.0)
    (393216, 655360)
    >>> ahead.record_read(393216, 131072, now_s=0.0)
    (655360, 917504)
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._readers = lru_table.LruTable[int, _Reader](READERS)
        self._read_bytes = 0
        self._unread: set[int] = set()

    def record_read(self, offset: int, length: int, now_s: float) -> tuple[int, int]:
        """Record a read; return the range (start, stop) to fetch now, empty if none."""
        if not self._limit_bytes:
            return (0, 0)
        stop = offset + length
        self._read_bytes += length
        self._unread.difference_update(_blocks(offset, stop))
        reader = self._readers.pop(offset, None)
        if reader is None:
            self._readers[stop] = _Reader(offset, 0, stop)
            return (0, 0)
        reader.reads += 1
        if reader.reads < SEQUENTIAL_READS:
            self._readers[stop] = reader
            return (0, 0)
        start = max(reader.fetched_to, stop)
        if start - stop > reader.window_bytes // 2:
            self._readers[stop] = reader
            return (0, 0)
        reader.note_refill(start, stop, now_s)
        reader.window_bytes = self._window_bytes(reader, stop, start - stop, length)
        reader.fetched_to = max(start, stop + reader.window_bytes)
        self._unread.update(_blocks(start, reader.fetched_to))
        self._readers[stop] = reader
        return (start, reader.fetched_to)

    def record_wait(self, offset: int, length: int, now_s: float) -> None:
        """Record that the data of a read, which had to be waited for, is here now."""
        for reader in self._readers.values():
            reader.note_wait(offset, offset + length, now_s)

    def _window_bytes(self, reader: _Reader, stop: int, own_bytes: int, length: int) -> int:
        read_bytes = stop - reader.began
        is_copy = length >= COPY_READ_BYTES and read_bytes >= COPIED_READS * length
        free = COPY_READS * length if is_copy else max(FREE_WINDOW_BYTES, length)
        free = max(free, min(reader.delay_bytes, read_bytes // 2))
        doubled = max(FIRST_WINDOW_BYTES, length, reader.window_bytes * 2)
        worth = max(free, read_bytes // WORTH)
        others_bytes = max(0, len(self._unread) * BLOCK_BYTES - own_bytes)
        left = max(free, self._read_bytes // SHARE) - others_bytes
        window = min(self._limit_bytes, doubled, worth, left)
        if window > length:
            window -= window % length
        return window if window >= min(BLOCK_BYTES, self._limit_bytes) else 0


def _blocks(start: int, stop: int) -> range:
    return range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES))
