# SPDX-License-Identifier: Apache-2.0
"""A network of slow links with realistic queues, in virtual time.

Each host has a token bucket and a FIFO queue in each direction.  Each stream between two hosts is
a TCP connection with TCP small queues, a congestion window that grows and is halved at long
queues, and acknowledgements that wait in the reverse path's queues.  A receiver handles messages
of a stream in order, after a short delay.

Its parameters are the lab's.  Benchmark M1 states the differences between the lab and this network
for the patterns of P1, P2, P3 and P11 (doc/source/contributor/benchmarks.rst).
"""

import collections
import dataclasses
import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

PACKET_BYTES = 4096
SMALL_QUEUE = 2
"""Packets of one stream in the uplink's queue (TCP small queues)."""
SEGMENT_BYTES, ACK_BYTES = 1448, 66
MOST_WINDOW_BYTES = 262_144
HANDLED_S = (0.0003, 0.003)
"""Delay range of handling an arrived message."""
LOOK_S = 0.004
"""Polling interval for acknowledgements: the kernel has no event for them."""
IDLE_S = 0.2
PROPAGATION_S = 0.0001


@dataclasses.dataclass(eq=False, slots=True)
class _Item:
    """A message on a stream."""

    left: int
    unacknowledged: int
    arrive: Callable[[], None]
    acknowledged: Callable[[], None] | None


class _Stream:
    """One direction of one connection."""

    __slots__ = (
        *("handled_s", "in_queue", "marked_s", "rtt_s", "source", "target", "threshold"),
        *("in_flight", "used_s", "waiting", "window"),
    )

    def __init__(self, source: "_Port", target: "_Port") -> None:
        self.source, self.target = source, target
        self.waiting: collections.deque[_Item] = collections.deque()
        self.in_queue = 0
        self.in_flight = 0
        self.window = 10.0 * SEGMENT_BYTES
        self.threshold = float("inf")
        self.used_s = self.marked_s = self.handled_s = 0.0
        self.rtt_s = 0.001


class _Port:
    """A host's link; ``up_s``, ``down_s``: when its buckets have passed all traffic."""

    __slots__ = ("down_s", "is_busy", "queue", "queued_bytes", "rate", "up_s")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.up_s = self.down_s = 0.0
        self.queue: collections.deque[tuple[_Stream, _Item, int, bool]] = collections.deque()
        self.queued_bytes = 0
        self.is_busy = False


class QueueNetwork:
    """Hosts, their links, and the clock.

    :param link_bytes_per_s: of each link, without headers
    :param burst_bytes: depth of the token buckets
    :param queue_s: queue length above which senders slow down
    """

    def __init__(
        self,
        seed: int,
        link_bytes_per_s: float,
        burst_bytes: int,
        queue_s: float = 0.1,
    ) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.sent: collections.Counter[str] = collections.Counter()
        self._rate, self._burst, self._queue_s = link_bytes_per_s, burst_bytes, queue_s
        self._ports: dict[str, _Port] = {}
        self._streams: dict[tuple[str, str, str], _Stream] = {}
        self._numbers = itertools.count()
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def attach(self, host: str) -> None:
        """Connect a host."""
        self._ports[host] = _Port(self._rate)

    def slow_down(self, host: str, times: float) -> None:
        """Divide the rate of a host's link by ``times``."""
        self._ports[host].rate /= times

    def call_at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call; times in the past mean now."""
        when = max(when, self.now)
        heapq.heappush(self._agenda, (when, next(self._numbers), call, arguments))

    def run(self, until_s: float, is_done: Callable[[], bool] = lambda: False) -> None:
        """Run events until none is left, ``until_s``, or ``is_done``."""
        while self._agenda and self._agenda[0][0] <= until_s and not is_done():
            self.now, _, call, arguments = heapq.heappop(self._agenda)
            call(*arguments)

    def send(
        self,
        sender: str,
        to: str,
        name: str,
        size_bytes: int,
        arrive: Callable[[], None],
        acknowledged: Callable[[], None] | None = None,
    ) -> None:
        """Queue a message on a stream.

        :param arrive: called when ``to`` handles it
        :param acknowledged: called when the sender sees its acknowledgement
        """
        self.sent[sender] += 1
        stream = self._streams.get((sender, to, name))
        if stream is None:
            stream = _Stream(self._ports[sender], self._ports[to])
            self._streams[sender, to, name] = stream
        idle_s = self.now - stream.used_s
        if not stream.in_flight and not stream.waiting and idle_s > IDLE_S:
            shrunk = stream.window / 2.0 ** min(20.0, idle_s / IDLE_S)
            stream.window = max(10.0 * SEGMENT_BYTES, shrunk)
        stream.waiting.append(_Item(size_bytes, size_bytes, arrive, acknowledged))
        self._pump(stream)

    def _pump(self, stream: _Stream) -> None:
        port, waiting = stream.source, stream.waiting
        while waiting and stream.in_queue < SMALL_QUEUE and stream.in_flight < stream.window:
            item = waiting[0]
            count = min(item.left, PACKET_BYTES)
            item.left -= count
            is_last = item.left == 0
            if is_last:
                waiting.popleft()
            stream.in_queue += 1
            stream.in_flight += count
            port.queue.append((stream, item, count, is_last))
            port.queued_bytes += count
        self._serve(port)

    def _serve(self, port: _Port) -> None:
        if port.is_busy or not port.queue:
            return
        port.is_busy = True
        packet = port.queue.popleft()
        port.up_s = max(port.up_s, self.now - self._burst / port.rate) + packet[2] / port.rate
        self.call_at(port.up_s, self._left, packet)

    def _left(self, packet: tuple[_Stream, _Item, int, bool]) -> None:
        """Handle a packet that left its uplink: queue it at the receiver's downlink."""
        stream, _, count, _ = packet
        port, target = stream.source, stream.target
        port.queued_bytes -= count
        port.is_busy = False
        stream.in_queue -= 1
        stream.used_s = self.now
        at_s = self.now + PROPAGATION_S
        if target.down_s - at_s > self._queue_s and self.now > stream.marked_s:
            stream.window = stream.threshold = max(2.0 * SEGMENT_BYTES, stream.window / 2)
            stream.marked_s = self.now + stream.rtt_s
        floor_s = at_s - self._burst / target.rate
        target.down_s = max(target.down_s, floor_s) + count / target.rate
        self.call_at(max(at_s, target.down_s), self._arrived, packet, self.now)
        self._pump(stream)
        self._serve(port)

    def _arrived(self, packet: tuple[_Stream, _Item, int, bool], left_s: float) -> None:
        stream, item, _, is_last = packet
        if is_last:
            low_s, high_s = HANDLED_S
            handled_s = self.now + low_s + (high_s - low_s) * self.rng.random()
            stream.handled_s = max(stream.handled_s, handled_s)
            self.call_at(stream.handled_s, item.arrive)
        source, target = stream.source, stream.target
        target.up_s += ACK_BYTES / target.rate
        source.down_s += ACK_BYTES / source.rate
        back_s = self.now + PROPAGATION_S + target.queued_bytes / target.rate
        self.call_at(max(back_s, source.down_s), self._acknowledged, packet, left_s)

    def _acknowledged(self, packet: tuple[_Stream, _Item, int, bool], left_s: float) -> None:
        stream, item, count, _ = packet
        stream.in_flight -= count
        stream.rtt_s = self.now - left_s
        is_slow_start = stream.window < stream.threshold
        stream.window += count if is_slow_start else SEGMENT_BYTES * count / stream.window
        stream.window = min(stream.window, float(MOST_WINDOW_BYTES))
        before, item.unacknowledged = item.unacknowledged, item.unacknowledged - count
        near = 16_384  # almost all of it suffices: the rest is in flight
        if item.acknowledged and item.unacknowledged <= near and (before > near or count == before):
            call, item.acknowledged = item.acknowledged, None
            self.call_at(self.now + self.rng.random() * LOOK_S, call)
        self._pump(stream)
