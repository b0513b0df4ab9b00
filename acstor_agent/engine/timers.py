# SPDX-License-Identifier: Apache-2.0
"""Timers: one heap for all deadlines.

An entry stays in the heap after its purpose is gone; the receiver checks whether it still matters.
So entries are made for batches, not for chunks, and their number is bounded by the batches of the
longest timeout.  An empty batch is dropped without a wake-up.
"""

import enum
import heapq
from typing import Any


class Due(enum.IntEnum):
    """What an entry is for."""

    ATTEMPTS = 0  # a batch of attempts: late, then without an answer
    WAITER = 1  # the deadline of who wants a batch
    RETRY = 2  # a transfer that nobody could give has its turn again
    REQUESTS = 3  # peers that wait: their time is over
    PATIENCE = 4  # an answer keeps its place on the uplink too long
    SEARCH = 5  # a search in vain gives its place back
    NEWS = 6  # what neighbours are to be told
    HINTS = 7  # copies that hosts may let go
    TELL_AGAIN = 8  # a neighbour did not get what it was told


class Timers:
    """The heap.  Times are seconds of the clock that the events carry.

    >>> deadlines = Timers()
    >>> deadlines.put(2.0, Due.RETRY, "b"); deadlines.put(1.0, Due.NEWS, None)
    >>> deadlines.next_s, deadlines.take(1.5), deadlines.take(1.5)
    (1.0, (<Due.NEWS: 6>, None), None)
    """

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Due, Any]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_s(self) -> float | None:
        """When something is due; None if nothing is."""
        return self._heap[0][0] if self._heap else None

    def put(self, at_s: float, due: Due, what: Any) -> None:
        """Let :meth:`pop_due` give something out when it is time; what is put first comes first."""
        self._count += 1
        heapq.heappush(self._heap, (at_s, self._count, due, what))

    def drop_empty(self) -> None:
        """Let no batch of which nothing is left be what is due next."""
        heap = self._heap
        while heap and heap[0][2] is Due.ATTEMPTS and not heap[0][3]:
            heapq.heappop(heap)

    def count_entries(self, due: Due) -> int:
        """Return how many entries are for one thing; looks at all of them."""
        return sum(entry[2] is due for entry in self._heap)

    def pop_due(self, now: float) -> tuple[Due, Any] | None:
        """Return one thing that is due, the oldest; None if nothing is."""
        if not self._heap or self._heap[0][0] > now:
            return None
        _, _, due, what = heapq.heappop(self._heap)
        return due, what
