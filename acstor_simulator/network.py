# SPDX-License-Identifier: Apache-2.0
"""Links, and chunks that queue for them.

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
from collections.abc import Generator
from collections.abc import Sequence

import simpy

LEFT = 0.05
"""Share of a link that chunks get however much traffic of others there is."""
PACKET_BYTES = 1500

Waiting = Generator[simpy.Event, None, None]
"""What a process of the simulation is written as."""


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

    def take(self, size: int, now_s: float) -> tuple[float, float]:
        """Queue a chunk that reaches the link now; return when it begins to leave and has left."""
        begin_s = max(now_s, self.free_at_s)
        self.free_at_s = begin_s + size / self.rate
        self.chunk_bytes += size
        return begin_s, self.free_at_s


def send(env: simpy.Environment, way: Sequence[Link], size: int, latency_s: float) -> Waiting:
    """Carry ``size`` bytes along the links of a way, and wait until the last byte is there.

    :param latency_s: seconds that the way needs however empty it is
    """
    last_s = env.now
    for link in way:
        begin_s, end_s = link.take(size, env.now)
        last_s = max(last_s, end_s)
        first_packet_s = begin_s + PACKET_BYTES / link.rate
        yield env.timeout(max(0.0, first_packet_s - env.now))
    yield env.timeout(max(0.0, last_s - env.now) + latency_s)
