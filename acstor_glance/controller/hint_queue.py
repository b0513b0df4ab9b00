# SPDX-License-Identifier: Apache-2.0
"""Queue of image IDs from notifications, each checked in Glance by one thread.

Anyone on the message bus can send unsigned notifications, so unknown IDs must not reach the work
queue.
"""

import logging
import threading
from collections.abc import Callable

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import log_once

LOG = logging.getLogger(__name__)

MAX_HINTS = 1000


class HintQueue:
    """Image IDs that are not checked yet; thread-safe.

    :param exists: returns whether the image exists; then ``on_found`` is called
    :param on_failure: called when Glance did not answer
    """

    def __init__(
        self,
        exists: Callable[[ids.ImageId], bool],
        on_found: Callable[[ids.ImageId], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._exists, self._on_found, self._on_failure = exists, on_found, on_failure
        self._waiting: dict[ids.ImageId, None] = {}  # in the order of arrival
        self._changed = threading.Condition()
        self._is_closed = False
        self._fault = log_once.LogOnce(LOG)

    def put(self, image_id: ids.ImageId) -> None:
        """Queue an image ID if there is room."""
        with self._changed:
            if len(self._waiting) < MAX_HINTS:
                self._waiting[image_id] = None
                self._changed.notify()

    def run(self) -> None:
        """Check the IDs in order until :meth:`close` is called."""
        while (image_id := self._next()) is not None:
            try:
                if self._exists(image_id):
                    self._on_found(image_id)
                self._fault.log_warning("")
            except errors.AcstorError as exc:
                self._fault.log_warning(f"images that notifications name cannot be read: {exc}")
                self._on_failure()

    def close(self) -> None:
        """Make :meth:`run` return."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _next(self) -> ids.ImageId | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return None
            first = next(iter(self._waiting))
            del self._waiting[first]
            return first
