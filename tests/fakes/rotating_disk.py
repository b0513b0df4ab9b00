# SPDX-License-Identifier: Apache-2.0
"""A model of a 7,200 rpm SATA disk: the duration of a request at a given time.

Seek (core/disk_scheduling/seek_cost.py has the curve and its source), then the rotational
latency, then the transfer at the rate of the zone: 125 MB/s at the outer edge, half of it at the
inner one.  A sequential request needs neither seek nor rotation, after any pause: the drive
reads ahead and buffers writes.  The model has no other drive cache and no command queue.
"""

from acstor_agent.core.disk_scheduling import seek_cost

OUTER_BYTES_S = 125e6
INNER_OVER_OUTER = 0.5
COMMAND_S = 0.0001
"""Overhead of controller and bus per request."""


class RotatingDisk:
    """A disk with the position of its head.

    >>> disk = RotatingDisk()
    >>> first_s, next_s = disk.serve_s(10**9, 65536, 0.0), disk.serve_s(10**9 + 65536, 65536, 1.0)
    >>> first_s > 0.001 > next_s
    True
    """

    def __init__(self, cost: seek_cost.SeekCost | None = None) -> None:
        self.cost = cost or seek_cost.SeekCost()
        self._head = 0

    def rate(self, offset: int) -> float:
        """Return the transfer rate at an offset, bytes per second."""
        return OUTER_BYTES_S * (1 - (1 - INNER_OVER_OUTER) * offset / self.cost.size_bytes)

    def serve_s(self, offset: int, length: int, now_s: float) -> float:
        """Return a request's duration if it starts at ``now_s``; move the head to its end."""
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
