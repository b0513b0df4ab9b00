# SPDX-License-Identifier: Apache-2.0
"""Images that wait for a worker, each at most once."""

import collections
import threading

from acstor_common import ids

MOST_WAITING = 100_000


class WorkQueue:
    """First come, first served; an image that waits already is not put a second time.

    MOST_WAITING wait at most, since anybody on the message bus may name images; those that are
    left out are found by the next reconcile.

    An image that is put while a worker has it waits again: what the worker saw may be old.
    """

    def __init__(self) -> None:
        self._waiting: collections.OrderedDict[ids.ImageId, None] = collections.OrderedDict()
        self._working: set[ids.ImageId] = set()
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, image_id: ids.ImageId) -> None:
        """Let the image wait for a worker."""
        with self._changed:
            if len(self._waiting) < MOST_WAITING:
                self._waiting.setdefault(image_id)
            self._changed.notify()

    def take(self) -> ids.ImageId | None:
        """Wait for an image that no other worker has; None when the queue is closed."""
        with self._changed:
            while not self._is_closed:
                for image_id in self._waiting:
                    if image_id not in self._working:
                        del self._waiting[image_id]
                        self._working.add(image_id)
                        return image_id
                self._changed.wait()
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
            return len(self._waiting), len(self._working)
