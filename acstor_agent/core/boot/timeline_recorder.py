# SPDX-License-Identifier: Apache-2.0
"""Records the reads of one boot for its timeline of waits.

At each moment the oldest outstanding read counts as the one waited for, so the times by cause add
up to the time with outstanding reads. When all time slices are used, pairs are merged and slices
become twice as long.
"""

import collections
import heapq
import itertools
from collections.abc import Mapping
from typing import Any

import msgspec

from acstor_common.model import boot_timeline

SLICES = boot_timeline.MAX_SLICES
FIRST_SLICE_S = 0.25
LONGEST_READS = 10
_RANK = {via: rank for rank, via in enumerate(boot_timeline.Via)}

Via = boot_timeline.Via


class Read:
    """An outstanding read."""

    __slots__ = ("began_s", "bytes", "is_failed", "length", "offset", "waited_s", "why")

    def __init__(self, offset: int, length: int, began_s: float) -> None:
        self.offset, self.length, self.began_s = offset, length, began_s
        self.bytes: dict[Via, int] = {}
        self.waited_s = 0.0
        self.is_failed = False
        self.why = ""  # what delays it, in words

    def add(self, via: Via, length: int, why: str = "") -> None:
        """Record received bytes."""
        self.bytes[via] = self.bytes.get(via, 0) + length
        self.why = why or self.why

    @property
    def waited_for(self) -> str:
        """Return the origin that it waited for last."""
        if self.is_failed or not self.bytes:
            return boot_timeline.FAILED
        if len(self.bytes) == 1:
            return next(iter(self.bytes))
        return max(self.bytes, key=_RANK.__getitem__)


class _TimeSlice:
    __slots__ = ("bytes", "reads", "waited_s")

    def __init__(self) -> None:
        self.reads, self.waited_s = 0, 0.0
        self.bytes: dict[str, int] = {}

    def join(self, other: "_TimeSlice") -> "_TimeSlice":
        self.reads += other.reads
        self.waited_s += other.waited_s
        _add(self.bytes, other.bytes)
        return self


class TimelineRecorder:
    """Records the reads of one opener of an image.

    >>> recorder = TimelineRecorder(opened_s=100.0)
    >>> first, second = recorder.begin_read(0, 10, 101.0), recorder.begin_read(50, 10, 101.5)
    >>> first.add(Via.SOURCE, 10)
    >>> second.add(Via.BOOT, 10)
    >>> recorder.end_read(first, 103.0)
    >>> recorder.end_read(second, 103.5)
    >>> recorder.waited_s(now_s=104.0)
    {'source': 2.0, 'boot': 0.5}
    """

    def __init__(self, opened_s: float) -> None:
        self.opened_s = self.last_s = opened_s  # of one monotonic clock
        self.reads = 0
        self.bytes: dict[str, int] = {}
        self._waited_s: collections.defaultdict[str, float] = collections.defaultdict(float)
        self.slice_s = FIRST_SLICE_S
        self._slices = [_TimeSlice()]
        self._in_flight: dict[Read, None] = {}
        self._noted_s = opened_s
        self._longest: list[tuple[float, int, boot_timeline.LongRead]] = []
        self._number = itertools.count()

    @property
    def read_bytes(self) -> int:
        """Bytes read."""
        return sum(self.bytes.values())

    def is_over(self, now_s: float, idle_s: float, longest_s: float) -> bool:
        """Return whether it is idle for ``idle_s``, or open for ``longest_s``."""
        is_idle = not self._in_flight and now_s - self.last_s >= idle_s
        return is_idle or now_s - self.opened_s >= longest_s

    def begin_read(self, offset: int, length: int, now_s: float) -> Read:
        """Record the start of a read."""
        self._go_on(now_s)
        read = Read(offset, length, now_s)
        self._in_flight[read] = None
        self._slices[-1].reads += 1
        self.reads += 1
        return read

    def end_read(self, read: Read, now_s: float) -> None:
        """Record the end of a read, successful or failed."""
        self._go_on(now_s)
        self._in_flight.pop(read, None)
        self._waited_s[read.waited_for] += read.waited_s
        _add(self.bytes, read.bytes)
        _add(self._slices[-1].bytes, read.bytes)
        self.last_s = self._noted_s
        took_s = now_s - read.began_s
        if len(self._longest) < LONGEST_READS or took_s > self._longest[0][0]:
            self._note_long(read, took_s)

    def waited_s(self, now_s: float) -> dict[str, float]:
        """Return the seconds with outstanding reads, by cause."""
        if self._in_flight:  # else empty slices would make all slices longer
            self._go_on(now_s)
        pending_s = sum(read.waited_s for read in self._in_flight)
        pending = {boot_timeline.PENDING: pending_s} if self._in_flight else {}
        return {str(what): seconds for what, seconds in self._waited_s.items()} | pending

    def time_slices(self) -> tuple[boot_timeline.Slice, ...]:
        """Return the time slices since the open."""
        return tuple(
            boot_timeline.Slice(piece.reads, piece.waited_s, _plain(piece.bytes))
            for piece in self._slices
        )

    def longest_reads(self, zero_s: float) -> tuple[boot_timeline.LongRead, ...]:
        """Return the longest reads, ordered by time."""
        found = sorted((read for _, _, read in self._longest), key=lambda read: read.at_s)
        return tuple(_moved(read, self.opened_s - zero_s) for read in found)

    def _note_long(self, read: Read, took_s: float) -> None:
        at_s, why = read.began_s - self.opened_s, read.why[: boot_timeline.MAX_WHY]
        long_read = boot_timeline.LongRead(
            at_s, took_s, read.offset, read.length, _plain(read.bytes), why
        )
        put = heapq.heappush if len(self._longest) < LONGEST_READS else heapq.heapreplace
        put(self._longest, (took_s, next(self._number), long_read))

    def _go_on(self, now_s: float) -> None:
        since_s, now_s = self._noted_s, max(self._noted_s, now_s)
        if now_s >= self.opened_s + len(self._slices) * self.slice_s:
            self._add_slices(now_s)
        self._noted_s = now_s
        for oldest in self._in_flight:
            oldest.waited_s += now_s - since_s
            self._wait(since_s - self.opened_s, now_s - self.opened_s)
            break

    def _wait(self, from_s: float, to_s: float) -> None:
        each_s, slices = self.slice_s, self._slices
        if from_s >= (len(slices) - 1) * each_s:
            slices[-1].waited_s += to_s - from_s
            return
        for place in range(int(from_s // each_s), len(slices)):
            part_s = min(to_s, (place + 1) * each_s) - max(from_s, place * each_s)
            slices[place].waited_s += max(0.0, part_s)

    def _add_slices(self, now_s: float) -> None:
        while (place := int((now_s - self.opened_s) // self.slice_s)) >= SLICES:
            firsts, seconds = self._slices[::2], self._slices[1::2]
            pairs = itertools.zip_longest(firsts, seconds)
            self._slices = [first.join(other) if other else first for first, other in pairs]
            self.slice_s *= 2
        self._slices += (_TimeSlice() for _ in range(place + 1 - len(self._slices)))


def _add(to: dict[str, int], counts: Mapping[Any, int]) -> None:
    for via, count in counts.items():
        to[via] = to.get(via, 0) + count


def _plain(counted: Mapping[Any, int]) -> dict[str, int]:
    return {str(via): count for via, count in counted.items()}


def _moved(read: boot_timeline.LongRead, by_s: float) -> boot_timeline.LongRead:
    return msgspec.structs.replace(read, at_s=read.at_s + by_s)
