# SPDX-License-Identifier: Apache-2.0
"""Has boot images made: of images that were just prepared, and of boots that agents recorded.

The one rule: a sender of traces costs a look at its message and no more.  What
follows is done by one thread of ours, an image at a time, and images that wait are
each in the queue once.
"""

import logging
import threading
from collections.abc import Iterable

from oslo_config import cfg

from acstor_common import errors
from acstor_common import ids
from acstor_common import trace_message
from acstor_glance import boot_images
from acstor_glance import work_queue

LOG = logging.getLogger(__name__)


class BootService:
    """The thread that makes boot images, and what it is told."""

    def __init__(self, conf: cfg.ConfigOpts, made: boot_images.BootImages) -> None:
        self.hears_traces = conf.acstor_glance.boot_images in ("recorded", "both")
        self._made = made
        self._queue = work_queue.WorkQueue()
        self._owed: set[ids.ImageId] = set()

    def start(self) -> None:
        """Begin to make what is missing; waits for nothing."""
        if self.hears_traces:
            for image_id in self._made.recorded():
                self._queue.put(image_id)
        threading.Thread(target=self._work, name="acstor-boot-images", daemon=True).start()

    def stop(self) -> None:
        """Begin with no other image."""
        self._queue.close()

    def put(self, image_id: ids.ImageId) -> None:
        """Note that an image may need a boot image: its chunk map is new, or its build is due."""
        self._queue.put(image_id)

    def look_again(self, image_ids: Iterable[ids.ImageId]) -> None:
        """Make the boot images that are due, and those that something kept us from."""
        for image_id in image_ids:
            self._queue.put(image_id)
        while self._owed:
            self._queue.put(self._owed.pop())

    def heard(self, trace: trace_message.BootTrace) -> None:
        """Take in the trace of one boot."""
        image_id = self._made.traced(trace)
        if image_id is not None:
            self._queue.put(image_id)

    def _work(self) -> None:
        while (image_id := self._queue.take()) is not None:
            try:
                self._made.make(image_id)
            except errors.AcstorError as exc:
                LOG.warning("image %s: no boot image yet: %s", image_id, exc)
                self._owed.add(image_id)
            except Exception:
                LOG.exception("image %s: unexpected", image_id)
            finally:
                self._queue.done(image_id)
