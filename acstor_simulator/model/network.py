# SPDX-License-Identifier: Apache-2.0
"""Virtual time, links, and chunks that queue for them.

A link carries one chunk after the other, in the order in which they reach it,
at the speed that the traffic of others leaves.  A chunk moves on to the next
link of its way as soon as its first packet has passed (switches forward packets,
not chunks), so a way is as fast as its slowest link, and chunks of several
senders share a link chunk by chunk.

The one rule: no link carries more than its capacity.  The traffic of others is
not elastic: it takes what it takes, but never the last ``LEFT`` of a link, since
TCP always gets something.
"""

import dataclasses
import heapq
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

LEFT = 0.05
"""Share of a link that chunks get however much traffic of others there is."""
PACKET_BYTES = 1500


class EventQueue:
    """What happens when: one thing after the other, of one moment in the order of their coming.

    The standard library's ``sched`` is no shorter here, for it knows no end, and does 0.4 times as
    many events a second (0.43 instead of 1.05 million with 1,000 that wait).

    :ivar now: the time, in seconds

    >>> agenda, seen = EventQueue(), []
    >>> agenda.after(2.0, seen.append, "b"); agenda.after(1.0, seen.append, "a")
    >>> agenda.run(until_s=1.5), seen, agenda.now
    (None, ['a'], 1.5)
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._is_over = False

    def schedule_after(self, after_s: float, call: Callable[..., None], *what: Any) -> None:
        """Call something so many seconds from now."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + after_s, self._count, call, what))

    def run(self, until_s: float) -> None:
        """Let things happen until it is ``until_s``, or one of them is a :meth:`stop`."""
        heap, self._is_over = self._heap, False
        while heap and heap[0][0] <= until_s and not self._is_over:
            self.now, _, call, what = heapq.heappop(heap)
            call(*what)
        if not self._is_over:
            self.now = until_s

    def stop(self) -> None:
        """Let nothing more happen."""
        self._is_over = True


@dataclasses.dataclass(slots=True)
class Link:
    """One direction of one cable.

    :param capacity: bytes per second
    :param others: bytes per second that traffic other than chunks takes
    """

    name: str
    capacity: float
    others: float = 0.0
    free_at_s: float = 0.0
    chunk_bytes: int = 0

    @property
    def rate(self) -> float:
        """Bytes per second that are left for chunks."""
        return max(self.capacity - self.others, LEFT * self.capacity)

    def bytes_sent(self, now_s: float) -> float:
        """Return the bytes of chunks that it has carried until now; what queues is not counted."""
        return self.chunk_bytes - max(0.0, self.free_at_s - now_s) * self.rate

    def queue_chunk(self, size: int, now_s: float) -> tuple[float, float]:
        """Queue a chunk that reaches the link now.

        :return: when its first packet has left, and its last
        """
        begin_s, rate = max(now_s, self.free_at_s), self.rate
        self.free_at_s = begin_s + size / rate
        self.chunk_bytes += size
        return begin_s + min(size, PACKET_BYTES) / rate, self.free_at_s


def send(
    agenda: EventQueue,
    way: Sequence[Link],
    size: int,
    latency_s: float,
    arrive: Callable[..., None],
    *what: Any,
) -> None:
    """Carry ``size`` bytes along the links of a way.

    :param latency_s: seconds that the way needs however empty it is
    :param arrive: is called with ``what`` when the last byte is there
    """
    _pass(agenda, way, 0, size, agenda.now, latency_s, arrive, what)


def _pass(
    agenda: EventQueue,
    way: Sequence[Link],
    at: int,
    size: int,
    last_s: float,
    latency_s: float,
    arrive: Callable[..., None],
    what: tuple[Any, ...],
) -> None:
    """Queue a chunk for one link of its way; it goes on to the next when its first packet does."""
    first_s, end_s = way[at].queue_chunk(size, agenda.now)
    last_s = max(last_s, end_s)
    if at + 1 < len(way):
        after_s = first_s - agenda.now
        agenda.schedule_after(
            after_s, _pass, agenda, way, at + 1, size, last_s, latency_s, arrive, what
        )
    else:
        agenda.schedule_after(last_s - agenda.now + latency_s, arrive, *what)
