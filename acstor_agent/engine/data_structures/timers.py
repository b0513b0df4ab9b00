# SPDX-License-Identifier: Apache-2.0
"""Timers: one heap of deadlines; each stays until it is due, even if its purpose is gone."""

import enum
import heapq
from typing import Any


class Due(enum.IntEnum):
    """What a timer is for."""

    ATTEMPTS = 0  # a batch of attempts to check for lateness and timeout
    READ_DEADLINE = 1  # the deadline of a local reader
    RETRY = 2  # the next try of a transfer
    REQUEST_DEADLINES = 3  # deadlines of peers' requests
    SLOT_TIMEOUT = 4  # an answer holds its upload slot too long
    LOOKUP_SLOT = 5  # a failed broadcast lookup frees its slot
    ANNOUNCEMENTS = 6  # gathered announcements
    HINTS = 7  # eviction hints
    REPEAT_ANNOUNCEMENTS = 8  # announcements that a neighbour may have missed


class Timers:
    """A heap of timers. Times are seconds of the clock of the events.

    >>> deadlines = Timers()
    >>> deadlines.set_timer(2.0, Due.RETRY, "b")
    >>> deadlines.set_timer(1.0, Due.ANNOUNCEMENTS, None)
    >>> deadlines.next_s, deadlines.pop_due(1.5), deadlines.pop_due(1.5)
    (1.0, (<Due.ANNOUNCEMENTS: 6>, None), None)
    """

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Due, Any]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_s(self) -> float | None:
        """Time of the first timer; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def set_timer(self, at_s: float, due: Due, what: Any) -> None:
        """Set a timer, for a batch rather than a chunk; equal times are due in order of setting."""
        self._count += 1
        heapq.heappush(self._heap, (at_s, self._count, due, what))

    def drop_empty(self) -> None:
        """Drop empty batches of attempts from the top of the heap."""
        heap = self._heap
        while heap and heap[0][2] is Due.ATTEMPTS and not heap[0][3]:
            heapq.heappop(heap)

    def count_entries(self, due: Due) -> int:
        """Count the timers of a kind; scans all."""
        return sum(entry[2] is due for entry in self._heap)

    def pop_due(self, now: float) -> tuple[Due, Any] | None:
        """Remove and return the first timer that is due; None if none is."""
        if not self._heap or self._heap[0][0] > now:
            return None
        _, _, due, what = heapq.heappop(self._heap)
        return due, what
