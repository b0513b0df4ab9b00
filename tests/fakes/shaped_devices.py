# SPDX-License-Identifier: Apache-2.0
"""Models of storage devices: a rotating disk, an SSD, disks behind a network.

Each delays requests in trio's time, by its model and the pending requests.  A device has a clock
of its own: a queued request starts when the previous one ends, however late the machine wakes
its task, so lateness does not accumulate.
"""

from typing import Protocol

import trio

from acstor_common.model import geometry
from tests.fakes import rotating_disk

SSD_BYTES_S = 346e6
"""Toshiba PX02SS, measured by Nguyen 2019."""
SSD_COMMAND_S = 0.0001
NETWORK_BYTES_S = 1.25e9
"""10 Gbit/s."""
ROUND_TRIP_S = 0.0005
DATA_NODES = 4
OBJECT_BYTES = 4 * geometry.MIB
"""Ceph's default object size of a block device."""


class Device(Protocol):
    """A device with a delay for each request."""

    async def use(self, offset: int, length: int) -> None:
        """Wait for a request's duration."""


class RotatingDisk:
    """A rotating disk that serves queued requests in offset order (an elevator)."""

    def __init__(self) -> None:
        self._disk = rotating_disk.RotatingDisk()
        self._waiting: list[tuple[int, int, trio.Event]] = []
        self._head = 0
        self._free_s = 0.0
        self._is_busy = False

    async def use(self, offset: int, length: int) -> None:
        """Wait in the queue, then for the request."""
        if self._is_busy:
            turn = trio.Event()
            self._waiting.append((offset, length, turn))
            await turn.wait()  # the previous request left the disk busy for this one
        else:
            self._is_busy = True
            self._free_s = max(self._free_s, trio.current_time())
        self._free_s += self._disk.serve_s(offset, length, self._free_s)
        self._head = offset + length
        await _sleep_until(self._free_s)
        self._wake_next()

    def _wake_next(self) -> None:
        """Wake the next request: upwards from the head, then from the lowest offset."""
        self._is_busy = bool(self._waiting)
        if self._waiting:
            chosen = min(self._waiting, key=lambda one: (one[0] < self._head, one[0]))
            self._waiting.remove(chosen)
            chosen[2].set()


class Ssd:
    """Reads and writes share a rate; the command latency of requests overlaps."""

    def __init__(self, bytes_s: float = SSD_BYTES_S, command_s: float = SSD_COMMAND_S) -> None:
        self._bytes_s, self._command_s = bytes_s, command_s
        self._free_s = 0.0

    async def use(self, offset: int, length: int) -> None:
        """Wait for the transfer and the command latency."""
        self._free_s = max(self._free_s, trio.current_time()) + length / self._bytes_s
        await _sleep_until(self._free_s + self._command_s)


class Cluster:
    """Objects spread over the rotating disks of data nodes, behind a network."""

    def __init__(self, nodes: int = DATA_NODES) -> None:
        self._network = Ssd(NETWORK_BYTES_S, ROUND_TRIP_S)
        self._disks = [RotatingDisk() for _ in range(nodes)]

    async def use(self, offset: int, length: int) -> None:
        """Wait for the object's node, and for the network."""
        number = offset // OBJECT_BYTES
        # A node stores its objects contiguously, so all disks are filled equally.
        place = number // len(self._disks) * OBJECT_BYTES + offset % OBJECT_BYTES
        await self._disks[number % len(self._disks)].use(place, length)
        await self._network.use(offset, length)


KINDS = {"hdd": RotatingDisk, "ssd": Ssd, "network": Cluster}


async def _sleep_until(moment_s: float) -> None:
    left_s = moment_s - trio.current_time()
    await trio.sleep(max(0.0, left_s))
