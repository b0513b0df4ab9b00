# SPDX-License-Identifier: Apache-2.0
"""Images that wait for a worker, each at most once, the urgent ones before the others."""

import collections
import enum
import threading

from acstor_common import ids

MOST_WAITING = 100_000


class Rank(enum.IntEnum):
    """How urgent an image is; the lowest goes first."""

    BOOTED = 0  # hosts boot it, or an operator asked for it
    NEW = 1  # something happened to it just now
    OLD = 2  # a reconcile found it


class WorkQueue:
    """By rank, and first come, first served within one; no image waits twice.

    MOST_WAITING wait at most, since anybody on the message bus may name images; a more urgent one
    takes the place of the last of the least urgent.  Those that are left out are found by the next
    reconcile.

    An image that is put while a worker has it waits again: what the worker saw may be old.
    """

    def __init__(self) -> None:
        self._waiting: dict[Rank, collections.OrderedDict[ids.ImageId, None]]
        self._waiting = {rank: collections.OrderedDict() for rank in Rank}
        self._working: set[ids.ImageId] = set()
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, image_id: ids.ImageId, rank: Rank = Rank.NEW) -> None:
        """Let the image wait for a worker, or no longer than by this rank if it waits already."""
        with self._changed:
            before = next((r for r in Rank if image_id in self._waiting[r]), None)
            if before is not None and before <= rank:
                return
            if before is not None:
                del self._waiting[before][image_id]
            if self._has_room_for(rank):
                self._waiting[rank][image_id] = None
            self._changed.notify()

    def _has_room_for(self, rank: Rank) -> bool:
        """Say whether one more may wait, after the last of a less urgent rank gave way if need be.

        One that waited already and moves up takes the place that it has left.
        """
        if self._count() < MOST_WAITING:
            return True
        last = max((other for other in Rank if self._waiting[other]), default=rank)
        if last <= rank:
            return False
        self._waiting[last].popitem()
        return True

    def _count(self) -> int:
        return sum(map(len, self._waiting.values()))

    def take(self) -> ids.ImageId | None:
        """Wait for an image that no other worker has; None when the queue is closed."""
        with self._changed:
            while not self._is_closed:
                image_id = self._next()
                if image_id is not None:
                    self._working.add(image_id)
                    return image_id
                self._changed.wait()
        return None

    def _next(self) -> ids.ImageId | None:
        for waiting in self._waiting.values():
            for image_id in waiting:
                if image_id not in self._working:
                    del waiting[image_id]
                    return image_id
        return None

    def done(self, image_id: ids.ImageId) -> None:
        """Say that the worker who took the image is through with it."""
        with self._changed:
            self._working.discard(image_id)
            self._changed.notify_all()

    def close(self) -> None:
        """Let every worker end when it is through with what it has."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def sizes(self) -> tuple[int, int]:
        """Return how many images wait, and how many workers have one."""
        with self._changed:
            return self._count(), len(self._working)
