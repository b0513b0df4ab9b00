# SPDX-License-Identifier: Apache-2.0
"""Queue of unchecked image IDs: unsigned notifications must not reach the work queue."""

import threading

from acstor_common.model import ids

MAX_HINTS = 1000


class HintQueue:
    """A bounded queue of different image IDs; thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[ids.ImageId, None] = {}  # in the order of arrival
        self._changed = threading.Condition()
        self._is_closed = False

    def queue_image(self, image_id: ids.ImageId) -> None:
        """Queue an image ID if there is room."""
        with self._changed:
            if len(self._waiting) < MAX_HINTS:
                self._waiting[image_id] = None
                self._changed.notify()

    def close(self) -> None:
        """End the queue: :meth:`take_hint` returns None from now on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def take_hint(self) -> ids.ImageId | None:
        """Remove and return the first ID, after waiting for one; None: the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return None
            first = next(iter(self._waiting))
            del self._waiting[first]
            return first
