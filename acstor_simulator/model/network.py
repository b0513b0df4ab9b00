# SPDX-License-Identifier: Apache-2.0
"""Virtual time, links, and transfers that queue for them.

A link transfers one chunk at a time, in order of arrival, at the rate that other traffic leaves, at
least the share MIN_CHUNK_SHARE.  A chunk proceeds to the next link when its first packet has
passed: a path is as fast as its slowest link, and senders share a link chunk by chunk.
"""

import dataclasses
import heapq
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

MIN_CHUNK_SHARE = 0.05  # smallest share of a link that chunks get
PACKET_BYTES = 1500


class EventQueue:
    """Events in the order of time, then of scheduling; twice as fast as Python's ``sched``.

    >>> agenda, seen = EventQueue(), []
    >>> agenda.schedule_after(2.0, seen.append, "b"); agenda.schedule_after(1.0, seen.append, "a")
    >>> agenda.run(until_s=1.5), seen, agenda.now
    (None, ['a'], 1.5)
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._is_over = False

    def schedule_after(self, after_s: float, call: Callable[..., None], *what: Any) -> None:
        """Schedule a call so many seconds from now."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + after_s, self._count, call, what))

    def run(self, until_s: float) -> None:
        """Run events up to a time, or until one calls :meth:`stop`."""
        heap, self._is_over = self._heap, False
        while heap and heap[0][0] <= until_s and not self._is_over:
            self.now, _, call, what = heapq.heappop(heap)
            call(*what)
        if not self._is_over:
            self.now = until_s

    def stop(self) -> None:
        """Stop after the current event."""
        self._is_over = True


@dataclasses.dataclass(slots=True)
class NetworkLink:
    """One direction of a cable."""

    name: str
    capacity: float  # bytes a second
    others: float = 0.0  # bytes a second of traffic besides chunks
    free_at_s: float = 0.0
    chunk_bytes: int = 0

    @property
    def free_bytes_s(self) -> float:
        """Return the bytes a second left for chunks."""
        return max(self.capacity - self.others, MIN_CHUNK_SHARE * self.capacity)

    def bytes_sent(self, now_s: float) -> float:
        """Return the bytes of chunks carried until now, without queued ones."""
        return self.chunk_bytes - max(0.0, self.free_at_s - now_s) * self.free_bytes_s

    def queue_chunk(self, size: int, now_s: float) -> tuple[float, float]:
        """Queue a chunk that arrives now; return when its first packet and its last have left."""
        begin_s, rate = max(now_s, self.free_at_s), self.free_bytes_s
        self.free_at_s = begin_s + size / rate
        self.chunk_bytes += size
        return begin_s + min(size, PACKET_BYTES) / rate, self.free_at_s


def send(
    agenda: EventQueue,
    path: Sequence[NetworkLink],
    size: int,
    latency_s: float,
    arrive: Callable[..., None],
    *what: Any,
) -> None:
    """Transfer bytes along a path of ``latency_s``; call ``arrive`` with ``what`` at the end."""
    _pass(agenda, path, 0, size, agenda.now, latency_s, arrive, what)


def _pass(
    agenda: EventQueue,
    path: Sequence[NetworkLink],
    at: int,
    size: int,
    last_s: float,
    latency_s: float,
    arrive: Callable[..., None],
    what: tuple[Any, ...],
) -> None:
    first_s, end_s = path[at].queue_chunk(size, agenda.now)
    last_s = max(last_s, end_s)
    if at + 1 < len(path):
        after_s = first_s - agenda.now
        agenda.schedule_after(
            after_s, _pass, agenda, path, at + 1, size, last_s, latency_s, arrive, what
        )
    else:
        agenda.schedule_after(last_s - agenda.now + latency_s, arrive, *what)
