# SPDX-License-Identifier: Apache-2.0
"""Makes boot images of prepared images and from recorded boots; reconciles refill the queue."""

import functools
import logging
from collections.abc import Collection
from collections.abc import Mapping

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import supervision
from acstor_common.wire import trace_message
from acstor_glance import metrics
from acstor_glance import work_queue
from acstor_glance.boot import boot_image_announcer
from acstor_glance.boot import boot_image_maker
from acstor_glance.boot import build_modes

LOG = logging.getLogger(__name__)

Rank = work_queue.Rank
WORKERS = 2  # boot images made at a time; a guest for one takes 1.3 GiB of memory


class BootImageService:
    """Threads that make boot images."""

    def __init__(
        self,
        maker: boot_image_maker.BootImageMaker,
        modes: build_modes.BuildModes,
        counters: metrics.ListenerMetrics,
        announcer: boot_image_announcer.BootImageAnnouncer,
    ) -> None:
        self.uses_traces = modes.records
        self._maker, self._counters, self._announcer = maker, counters, announcer
        self._queue = work_queue.WorkQueue(WORKERS)
        self._owed: set[ids.ImageId] = set()

    def start(self) -> None:
        """Start the threads, and queue images with recorded boots."""
        if self.uses_traces:
            for image_id in self._maker.list_recorded():
                self._add(image_id, Rank.BOOTED)
        for number in range(WORKERS):
            supervision.start(f"acstor-boot-images-{number}", self._work)

    def stop(self) -> None:
        """Start no further boot image."""
        self._queue.close()

    def queue_image(
        self, image_id: ids.ImageId, project: str, *, is_requested: bool = False
    ) -> None:
        """Queue an image that may need a boot image; ``is_requested``: by an operator."""
        self._add(image_id, Rank.BOOTED if is_requested else Rank.NEW, project)

    def requeue(self, projects: Mapping[ids.ImageId, str], used: Collection[str] = ()) -> None:
        """Queue images whose boot image is due, or failed earlier; ``used`` ones go first."""
        self._announcer.announce_pending()
        booted = {*used, *self._maker.list_recorded()}
        while self._owed:
            self._add(self._owed.pop(), Rank.BOOTED)
        for image_id, project in projects.items():
            self._add(image_id, Rank.BOOTED if image_id in booted else Rank.OLD, project)

    def add_trace(self, trace: trace_message.BootTrace) -> None:
        """Store the trace of one boot, and queue its image."""
        self._add(self._maker.add_trace(trace), Rank.BOOTED)

    def _add(
        self, image_id: ids.ImageId, rank: Rank, project: str = work_queue.UNKNOWN_PROJECT
    ) -> None:
        self._queue.add_image(image_id, rank, project)
        self._show()

    def _show(self) -> None:
        waiting, _ = self._queue.queue_sizes()
        self._counters.queued_boot_images.set(waiting)

    def _work(self) -> None:
        while (queued := self._queue.take_image()) is not None:
            image_id = queued.image_id
            self._show()
            try:
                if self._maker.make_boot_image(
                    image_id, functools.partial(self._queue.may_begin, queued)
                ):
                    self._announcer.announce(image_id)
            except errors.AcstorError as exc:
                LOG.warning("image %s: no boot image yet: %s", image_id, exc)
                self._owed.add(image_id)
            except Exception:
                LOG.exception("image %s: unexpected", image_id)
            finally:
                self._queue.finish_image(image_id)
