# SPDX-License-Identifier: Apache-2.0
"""Has boot images made: of images that were just prepared, and of boots that agents recorded.

A sender of traces costs a look at its message and no more.  What follows is done
by one thread of ours, an image at a time; images that wait are each in the queue
once, and those that hosts boot come before the others.

Nothing that matters is in the queue: what a killed listener had there the next
one finds by its traces and by its first reconcile.
"""

import functools
import logging
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
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
WORKERS = 2
"""Boot images that are made at a time.  A guest that is booted for one takes 1.3 GiB of memory."""


class BootImageService:
    """The threads that make boot images, and what they are told.

    :param needed: returns the images that hosts use, as far as it is known
    :param ahead: tells hosts of what was made
    """

    def __init__(
        self,
        made: boot_image_maker.BootImageMaker,
        ways: build_modes.BuildModes,
        counters: metrics.ListenerMetrics,
        needed: Callable[[], Collection[str]],
        ahead: boot_image_announcer.BootImageAnnouncer,
    ) -> None:
        self.hears_traces = ways.records
        self._made, self._counters, self._needed = made, counters, needed
        self._ahead = ahead
        self._queue = work_queue.WorkQueue(WORKERS)
        self._owed: set[ids.ImageId] = set()

    def start(self) -> None:
        """Begin to make what is missing; waits for nothing."""
        if self.hears_traces:
            for image_id in self._made.list_recorded():
                self._put(image_id, Rank.BOOTED)
        for number in range(WORKERS):
            supervision.start(f"acstor-boot-images-{number}", self._work)

    def stop(self) -> None:
        """Begin with no other image."""
        self._queue.close()

    def put(self, image_id: ids.ImageId, project: str, *, is_asked: bool = False) -> None:
        """Note that an image may need a boot image: something has happened to it.

        :param project: its owner, as far as it is known
        :param is_asked: an operator wants it
        """
        self._put(image_id, Rank.BOOTED if is_asked else Rank.NEW, project)

    def requeue(self, image_ids: Iterable[ids.ImageId], owners: Mapping[ids.ImageId, str]) -> None:
        """Make the boot images that are due, and those that something kept us from.

        :param owners: the projects of the images
        """
        self._ahead.announce_pending()
        booted = {*self._needed(), *self._made.list_recorded()}
        while self._owed:
            self._put(self._owed.pop(), Rank.BOOTED)
        for image_id in image_ids:
            rank = Rank.BOOTED if image_id in booted else Rank.OLD
            self._put(image_id, rank, owners.get(image_id, work_queue.UNKNOWN))

    def add_trace(self, trace: trace_message.BootTrace) -> None:
        """Take in the trace of one boot."""
        self._put(self._made.add_trace(trace), Rank.BOOTED)

    def _put(self, image_id: ids.ImageId, rank: Rank, project: str = work_queue.UNKNOWN) -> None:
        self._queue.add_image(image_id, rank, project)
        self._show()

    def _show(self) -> None:
        waiting, _ = self._queue.queue_sizes()
        self._counters.boot_images_waiting.set(waiting)

    def _work(self) -> None:
        while (turn := self._queue.take_image()) is not None:
            image_id = turn.image_id
            self._show()
            try:
                if self._made.make_boot_image(
                    image_id, functools.partial(self._queue.may_begin, turn)
                ):
                    self._ahead.announce(image_id)
            except errors.AcstorError as exc:
                LOG.warning("image %s: no boot image yet: %s", image_id, exc)
                self._owed.add(image_id)
            except Exception:
                LOG.exception("image %s: unexpected", image_id)
            finally:
                self._queue.finish_image(image_id)
