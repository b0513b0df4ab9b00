# SPDX-License-Identifier: Apache-2.0
"""Hosts that read an image in lockstep fetch from their predecessor on a ring.

Where links have queues, a distribution tree meets a queue at each hop.  So hosts that read the same
chunks at about the same time form a ring, ordered by the hashes of their names: each link carries a
chunk once.  A host that gets a request names the recent requester nearest before the sender: its
*predecessor* until a nearer one is named or three requests in a row fail.  A host asks the home if
the home lies between them.  So each hop brings a request nearer to the home, and two hosts that
agree on the home never wait for each other.
"""

import functools
from typing import NamedTuple

import blake3

from acstor_agent.engine import upload_scheduler
from acstor_common.model import ids
from acstor_common.util import lru_table

IN_STEP_S = 0.5  # a host that requested nothing of an image for longer does not count as reading it
IN_STEP_BYTES = 512 * 1024
"""Distance of readers in step at most. With 320 KiB rings break up; with 2 MiB hosts that start one
after the other wait for each other."""
LEASE_S = 2.0  # time after which a predecessor that has given nothing is dropped
MAX_MISSES = 3  # failed requests in a row after which a predecessor is dropped
AVOIDED_S = 1.0  # time for which it is not accepted as predecessor again; doubles each time
MOST_AVOIDED = 5
IMAGES, HOSTS = 256, 64  # images with known readers, and readers of each; the oldest are dropped

_BITS = 64


@functools.lru_cache(maxsize=4096)
def _position(host: ids.HostId) -> int:
    return int.from_bytes(blake3.blake3(host.encode()).digest(length=_BITS // 8))


def distance(host: ids.HostId, other: ids.HostId) -> int:
    """Return how far one host is before another on the ring; 0 for itself."""
    return (_position(other) - _position(host)) % (1 << _BITS)


class _Step(NamedTuple):
    offset: int
    at_s: float


_Readers = lru_table.LruTable[ids.HostId, _Step]


class ReadPositions:
    """Positions of readers of images, from requests of peers and local reads.

    >>> steps, image, other = ReadPositions(), ids.ImageId("i"), ids.HostId("h2")
    >>> steps.note_offset(image, ids.HostId("h1"), 0, now=1.0)
    >>> steps.in_step(image, other, 65536, 1.1), steps.in_step(image, other, 1 << 30, 1.1)
    (['h1'], [])
    """

    def __init__(self) -> None:
        self._images: lru_table.LruTable[ids.ImageId, _Readers] = lru_table.LruTable(IMAGES)

    def note_offset(self, image_id: ids.ImageId, host: ids.HostId, offset: int, now: float) -> None:
        """Record the position of a host."""
        hosts = self._images.get(image_id)
        if hosts is None:
            hosts = _Readers(HOSTS)
        self._images[image_id] = hosts
        before = hosts.get(host)
        if before is not None and _is_near(before, offset, now):
            offset = max(offset, before.offset)  # readahead is ahead of the guest
        hosts[host] = _Step(offset, now)

    def is_near(self, image_id: ids.ImageId, host: ids.HostId, offset: int, now: float) -> bool:
        """Return whether a host reads near an offset."""
        steps = self._images.get(image_id)
        step = steps.get(host) if steps is not None else None
        return step is not None and _is_near(step, offset, now)

    def in_step(
        self, image_id: ids.ImageId, host: ids.HostId, offset: int, now: float
    ) -> list[ids.HostId]:
        """Return the other hosts that read near an offset."""
        steps = self._images.get(image_id, _Readers(0))
        return [
            other for other, step in steps.items() if other != host and _is_near(step, offset, now)
        ]


def _is_near(step: _Step, offset: int, now: float) -> bool:
    return now - step.at_s <= IN_STEP_S and abs(step.offset - offset) <= IN_STEP_BYTES


class _Predecessor:
    """The predecessor for an image; ``until_s`` is the end of its lease."""

    __slots__ = ("host", "misses", "until_s")

    def __init__(self, host: ids.HostId, until_s: float) -> None:
        self.host, self.until_s = host, until_s
        self.misses = 0


class Predecessors:
    """The predecessors of this host, by image; only while links have queues."""

    def __init__(self, own_host: ids.HostId, uploads: upload_scheduler.UploadScheduler) -> None:
        self._own_host, self._uploads = own_host, uploads
        self._predecessors: lru_table.LruTable[ids.ImageId, _Predecessor] = lru_table.LruTable(
            IMAGES
        )
        self._avoided: lru_table.LruTable[ids.HostId, tuple[float, int]]
        self._avoided = lru_table.LruTable(HOSTS)

    def __len__(self) -> int:
        return len(self._predecessors)

    def predecessor_of(
        self, image_id: ids.ImageId, home: ids.HostId, now: float
    ) -> ids.HostId | None:
        """Return the host to ask instead of the home, or the home if it is the predecessor."""
        predecessor = self._predecessors.get(image_id)
        if predecessor is None:
            return None
        if now > predecessor.until_s:
            del self._predecessors[image_id]
            return None
        if not self._uploads.has_met_queue(now):
            return None
        is_behind = distance(home, self._own_host) >= distance(predecessor.host, self._own_host)
        return predecessor.host if is_behind else None

    def propose_predecessor(self, image_id: ids.ImageId, host: ids.HostId, now: float) -> None:
        """Make a host the predecessor if it is nearer than the current one."""
        own_host, predecessor = self._own_host, self._predecessors.get(image_id)
        if host == own_host or self._is_avoided(host, now) or not self._uploads.has_met_queue(now):
            return
        if predecessor is not None and now > predecessor.until_s:
            predecessor = None
        if predecessor is None or distance(host, own_host) < distance(predecessor.host, own_host):
            self._predecessors[image_id] = _Predecessor(host, now + LEASE_S)

    def record_success(self, image_id: ids.ImageId, host: ids.HostId, now: float) -> None:
        """Record that a host served a chunk of an image."""
        predecessor = self._predecessors.get(image_id)
        if predecessor is not None and predecessor.host == host:
            predecessor.misses, predecessor.until_s = 0, now + LEASE_S

    def record_failure(self, image_id: ids.ImageId, host: ids.HostId, now: float) -> None:
        """Record that a host did not serve a chunk of an image."""
        predecessor = self._predecessors.get(image_id)
        if predecessor is None or predecessor.host != host:
            return
        predecessor.misses += 1
        if predecessor.misses >= MAX_MISSES:
            del self._predecessors[image_id]
            _, times = self._avoided.get(host, (0.0, 0))
            self._avoided[host] = now + AVOIDED_S * 2**times, min(times + 1, MOST_AVOIDED)

    def _is_avoided(self, host: ids.HostId, now: float) -> bool:
        until_s, _ = self._avoided.get(host, (0.0, 0))
        return now < until_s
