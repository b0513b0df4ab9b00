# SPDX-License-Identifier: Apache-2.0
"""Images that notifications name, checked against Glance before they wait for a worker.

Anybody who reaches the message bus may name images, and nobody signs it.  So a hint costs one look
at a time, in a thread of its own, and an id that Glance does not know takes no place in the queue.
What is left out is found by the next reconcile.
"""

import collections
import logging
import threading
from collections.abc import Callable

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import log_once

LOG = logging.getLogger(__name__)

MOST_HINTS = 1000


class HintQueue:
    """The hints that were not checked yet.

    :param look: says whether there is an image, and removes what is left of one that is gone
    :param found: is told of an image that there is
    :param failed: is told that Glance did not say it
    """

    def __init__(
        self,
        look: Callable[[ids.ImageId], bool],
        found: Callable[[ids.ImageId], None],
        failed: Callable[[], None],
    ) -> None:
        self._look, self._found, self._failed = look, found, failed
        self._waiting: collections.OrderedDict[ids.ImageId, None] = collections.OrderedDict()
        self._changed = threading.Condition()
        self._is_closed = False
        self._fault = log_once.LogOnce(LOG)

    def put(self, image_id: ids.ImageId) -> None:
        """Let a hint wait, if there is room; may be called from any thread."""
        with self._changed:
            if len(self._waiting) < MOST_HINTS:
                self._waiting[image_id] = None
                self._changed.notify()

    def run(self) -> None:
        """Check one after the other until :meth:`close` is called."""
        while (image_id := self._next()) is not None:
            try:
                if self._look(image_id):
                    self._found(image_id)
                self._fault.log_warning("")
            except errors.AcstorError as exc:
                self._fault.log_warning(f"images that notifications name are not looked at: {exc}")
                self._failed()

    def close(self) -> None:
        """Let :meth:`run` end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _next(self) -> ids.ImageId | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            return None if self._is_closed else self._waiting.popitem(last=False)[0]
