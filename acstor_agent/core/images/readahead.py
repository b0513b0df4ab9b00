# SPDX-License-Identifier: Apache-2.0
"""Readahead: detects sequential readers and says how far ahead of each to fetch.

A reader that continues where it stopped, twice in a row, is sequential; its window then doubles
with each read. Unread bytes are bounded in two ways:

* the window of a reader is FREE_WINDOW_BYTES, or COPY_READS reads of a copying program. A far
  source widens it to what the reader reads in 3 round trips, but at most to half of what it read
  in order; to 6 round trips, but at most to an eighth. Beyond that, it is 1/WORTH of what it read
  in order, up to the limit;
* all windows of the image: 1/SHARE of what was read of it, because a booting guest begins and
  leaves many short runs.

A window is a multiple of the reader's last read. It is refilled when half of it, or 2 MiB, was
read. Readers are identified by the offset where they stopped. The least round-trip time counts, as
in BBR (Cardwell 2016), so a full link does not widen the window.
"""

import collections
import dataclasses
from typing import NamedTuple
from typing import Protocol

from acstor_common.model import geometry
from acstor_common.util import lru_table

SEQUENTIAL_READS = 3
FIRST_WINDOW_BYTES = 256 * 1024
FREE_WINDOW_BYTES = 384 * 1024
"""Enough for a link of 100 Mbit/s and 30 ms, or 10 Gbit/s and 0.3 ms; with the kernel's own
readahead of 128 KiB, less than 2 % of 32 MiB."""
FAR_WINDOWS = ((3.0, 2), (6.0, 8))
"""Round trips, and the divisor of what was read in order. At 100 Mbit/s and 100 ms, three fill the
link to 78 %, six to 97 %; but with six for all readers, a boot takes 8 % longer."""
REFILL_BYTES = 2 * geometry.MIB  # most that is read of a window before it is refilled
RATE_DECAY = 0.99  # of a reader's rate with each refill, so that a stall hardly narrows its window
REFILLS = 16  # of a reader that are remembered, at most; those of its last window are used
COPY_READ_BYTES = 512 * 1024
"""Reads this long come from a copying program: a guest's kernel reads ahead 128 KiB."""
COPY_READS = 4  # of 1 MiB each: enough for a link of 10 Gbit/s and 3 ms, or 100 Mbit/s and 300 ms
COPIED_READS = 8  # consecutive reads that identify a copying program; a booting guest stops before
WORTH = 90
SHARE = 15
"""At a 33rd, a reader of files of 1 MiB gets no readahead; at an 8th, a boot fetches 3.6 % more
than it reads, not 1.8 %."""
BLOCK_BYTES = geometry.DEFAULT_CHUNK_BYTES
"""Unit of accounting and least window, because chunks are fetched whole."""
READERS = 32


class Predictor(Protocol):
    """Predicts which range of an image to fetch before a guest requests it."""

    def predict_range(self, offset: int, length: int, now_s: float) -> tuple[int, int]:
        """Record a read; return the range (start, stop) to fetch now, empty if none."""


class Source(Protocol):
    """The source of an image, as far as readahead needs it."""

    @property
    def rtt_s(self) -> float:
        """Least round-trip time; 0 if it is local, or unknown."""


class Local:
    """A source on this host."""

    rtt_s = 0.0


LOCAL = Local()


class _Refill(NamedTuple):
    read_to: int
    at_s: float


@dataclasses.dataclass(slots=True)
class _Reader:
    began: int
    window_bytes: int
    fetched_to: int
    reads: int = 1
    bytes_s: float = 0.0
    refills: collections.deque[_Refill] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=REFILLS)
    )

    def note_refill(self, read_to: int, now_s: float) -> None:
        while len(self.refills) > 1 and read_to - self.refills[1].read_to >= self.window_bytes:
            self.refills.popleft()
        first = self.refills[0] if self.refills else None
        if first is not None and now_s > first.at_s:
            rate_bytes_s = (read_to - first.read_to) / (now_s - first.at_s)
            self.bytes_s = max(rate_bytes_s, RATE_DECAY * self.bytes_s)
        self.refills.append(_Refill(read_to, now_s))


class ReadAhead:
    """The readahead of one image; ``limit_bytes`` is the widest window, 0 disables it.

    >>> ahead = ReadAhead(limit_bytes=1 << 20)
    >>> [ahead.predict_range(n * 131072, 131072, now_s=0.0) for n in range(4)]
    [(0, 0), (0, 0), (393216, 655360), (655360, 917504)]
    """

    def __init__(self, limit_bytes: int, source: Source = LOCAL) -> None:
        self._limit_bytes, self._source = limit_bytes, source
        self._readers = lru_table.LruTable[int, _Reader](READERS)
        self._read_bytes = 0
        self._unread: set[int] = set()

    def predict_range(self, offset: int, length: int, now_s: float) -> tuple[int, int]:
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
        window_bytes = reader.window_bytes
        if start - stop > max(window_bytes // 2, window_bytes - REFILL_BYTES):
            self._readers[stop] = reader
            return (0, 0)
        reader.note_refill(stop, now_s)
        reader.window_bytes = self._window_bytes(reader, stop, start - stop, length)
        reader.fetched_to = max(start, stop + reader.window_bytes)
        self._unread.update(_blocks(start, reader.fetched_to))
        self._readers[stop] = reader
        return (start, reader.fetched_to)

    def _window_bytes(self, reader: _Reader, stop: int, own_bytes: int, length: int) -> int:
        read_bytes = stop - reader.began
        is_copy = length >= COPY_READ_BYTES and read_bytes >= COPIED_READS * length
        free = COPY_READS * length if is_copy else max(FREE_WINDOW_BYTES, length)
        for round_trips, divisor in FAR_WINDOWS:
            carried_bytes = int(round_trips * self._source.rtt_s * reader.bytes_s)
            free = max(free, min(carried_bytes, read_bytes // divisor))
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
