# SPDX-License-Identifier: Apache-2.0
"""Queued requests, ordered by offset and by deadline."""

import bisect
import heapq
import itertools
from collections.abc import Iterator

from acstor_agent.core.disk_scheduling import request as requests

_Place = tuple[int, int, requests.DiskRequest]


class RequestQueue:
    """A sorted queue and an earliest-deadline queue over the same requests.

    >>> queue = RequestQueue()
    >>> stream = requests.Stream(requests.Klass.GUEST, "a")
    >>> for offset in (30, 10, 20):
    ...     queue.add(requests.DiskRequest(stream, offset, 5), deadline_s=100 - offset)
    >>> queue.at_or_after(11).offset, next(queue.iter_nearest(12)).offset
    (20, 10)
    >>> queue.earliest_deadline().offset
    30
    """

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._deadlines: list[tuple[float, int, requests.DiskRequest]] = []
        self._waiting: dict[requests.DiskRequest, tuple[int, float]] = {}
        self._sequence = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: requests.DiskRequest) -> bool:
        return request in self._waiting

    def __iter__(self) -> Iterator[requests.DiskRequest]:
        return iter(self._waiting)

    def add(self, request: requests.DiskRequest, deadline_s: float) -> None:
        """Queue a request that is not queued."""
        number = next(self._sequence)
        self._waiting[request] = number, deadline_s
        bisect.insort(self._places, (request.offset, number, request))
        heapq.heappush(self._deadlines, (deadline_s, number, request))

    def remove(self, request: requests.DiskRequest) -> None:
        """Remove a queued request."""
        number, _ = self._waiting.pop(request)
        del self._places[bisect.bisect_left(self._places, (request.offset, number))]
        while self._deadlines and self._deadlines[0][2] not in self._waiting:
            heapq.heappop(self._deadlines)
        if len(self._deadlines) > 2 * len(self._waiting) + 8:  # many left from the middle
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._waiting]
            heapq.heapify(self._deadlines)

    def deadline_of(self, request: requests.DiskRequest) -> float:
        """Return the deadline of a queued request."""
        return self._waiting[request][1]

    def earliest_deadline(self) -> requests.DiskRequest | None:
        """Return the request with the earliest deadline."""
        return self._deadlines[0][2] if self._deadlines else None

    def first_overdue(self, now_s: float) -> requests.DiskRequest | None:
        """Return the request with the earliest deadline if that has passed."""
        if self._deadlines and self._deadlines[0][0] <= now_s:
            return self._deadlines[0][2]
        return None

    def at_or_after(self, offset: int) -> requests.DiskRequest | None:
        """Return the first request that begins at ``offset`` or behind it."""
        at = bisect.bisect_left(self._places, (offset, -1))
        return self._places[at][2] if at < len(self._places) else None

    def last_before(self, offset: int) -> requests.DiskRequest | None:
        """Return the last request that begins before ``offset``."""
        at = bisect.bisect_left(self._places, (offset, -1))
        return self._places[at - 1][2] if at else None

    def iter_ascending(self, offset: int) -> Iterator[requests.DiskRequest]:
        """Yield all requests from ``offset`` on, then from the start; nothing may change."""
        middle = bisect.bisect_left(self._places, (offset, -1))
        for at in itertools.chain(range(middle, len(self._places)), range(middle)):
            yield self._places[at][2]

    def iter_nearest(self, offset: int) -> Iterator[requests.DiskRequest]:
        """Yield all requests, the nearest to ``offset`` first; nothing may change meanwhile."""
        right = bisect.bisect_left(self._places, (offset, -1))
        left = right - 1
        while left >= 0 or right < len(self._places):
            is_right = left < 0 or (
                right < len(self._places)
                and self._places[right][0] - offset <= offset - self._places[left][0]
            )
            if is_right:
                yield self._places[right][2]
                right += 1
            else:
                yield self._places[left][2]
                left -= 1
