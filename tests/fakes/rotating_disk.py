# SPDX-License-Identifier: Apache-2.0
"""A 7,200 rpm SATA disk as a model: how long a request takes at a given time.

Seek (core/disk_scheduling/seek_cost.py has the curve and its source), then the
turn until the first sector comes by, then the transfer at the rate of its zone:
125 MB/s at the outer edge, and half of that at the inner one.  A request that
begins where the last one ended needs neither seek nor turn, however long the
pause: the drive reads ahead and buffers writes.  That is all that the drive's
cache does here; it has no command queue.
"""

from acstor_agent.core.disk_scheduling import seek_cost

OUTER_BYTES_S = 125e6
INNER_OVER_OUTER = 0.5
COMMAND_S = 0.0001
"""What the controller and the bus need for a request."""


class RotatingDisk:
    """One disk, with the place of its head.

    >>> disk = RotatingDisk()
    >>> first_s, next_s = disk.serve_s(10**9, 65536, 0.0), disk.serve_s(10**9 + 65536, 65536, 1.0)
    >>> first_s > 0.001 > next_s
    True
    """

    def __init__(self, cost: seek_cost.SeekCost | None = None) -> None:
        self.cost = cost or seek_cost.SeekCost()
        self._head = 0

    def rate(self, offset: int) -> float:
        """Return bytes per second at a place."""
        return OUTER_BYTES_S * (1 - (1 - INNER_OVER_OUTER) * offset / self.cost.size_bytes)

    def serve_s(self, offset: int, length: int, now_s: float) -> float:
        """Return how long a request takes that begins at ``now_s``; the head is behind it then."""
        distance, self._head = offset - self._head, offset + length
        rate = self.rate(offset)
        took_s = COMMAND_S + length / rate
        if distance:
            seek_s = self.cost.seek_s(distance)
            track_bytes = rate * self.cost.turn_s
            angle = offset % track_bytes / track_bytes
            there = (now_s + COMMAND_S + seek_s) / self.cost.turn_s % 1.0
            took_s += seek_s + (angle - there) % 1.0 * self.cost.turn_s
        return took_s
