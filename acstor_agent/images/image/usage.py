# SPDX-License-Identifier: Apache-2.0
"""Which images the instances of this host use.

An image is in use while one of these holds:

* a process has it open.  The worker counts who opens and closes; what was opened before it was
  started, it looks for among the processes of this host, each LOOK_S;
* a disk in ``disks/`` began as it;
* it was touched, read, or asked for by Nova less than ``within_s`` ago.  Nova touches the images
  of all its instances, also of those that are stopped, in each pass of its image cache manager
  (40 minutes).  While Nova touches nothing at all it may be away, and reads and openings do not
  show that it is there: that time does not count, up to a week; nor does it when Nova is back, and
  has yet to touch its images (``core/images/image_usage.py``).

When the worker is started all images count as touched at that moment: the time stamps that are on
the disk do not show who was away meanwhile, and the host's date may be wrong.
:meth:`ImageUsage.is_seen` tells what is seen to be used from what only counts as used.

What is promised: :meth:`ImageUsage.is_used` is never False for an image that somebody has opened
since the worker was started, and that answer holds until the next await.  It is never False before
the first look has ended.  It may be True for long after the last use, or after the worker's start,
by ``within_s`` and two LOOK_S; in a silence as said above by a week; an opening that the kernel
gave up counts until the worker is started again.

What may be missed: processes that this one cannot see (another pid namespace, no CAP_SYS_PTRACE)
and that opened an image before the worker was started.  Their reads and Nova's touches show the
image in use all the same.  Where Nova's cache manager is switched off (``manager_interval = -1``)
nothing shows that a stopped instance uses an image, unless a disk does.
"""

import time
from collections.abc import Callable
from collections.abc import Collection

import trio

from acstor_agent.core.images import image_usage
from acstor_agent.images.image import mirrors
from acstor_common.model import ids

LOOK_S = 10.0
LOOKED_AT_A_TIME = 64
"""Images between which guests have their turns: some 20 µs each."""

Look = Callable[[], Collection[ids.ImageId]]
"""Returns images; blocks, and is called in a thread."""


class ImageUsage:
    """The uses of all images of this host; keep :meth:`run` running.

    :param look_for_open: returns the images that processes have open
    :param look_for_bases: returns the images that disks began as
    :param is_for_others: says whether an image is attached because another host has asked for that
    """

    def __init__(
        self,
        images: mirrors.Mirrors,
        look_for_open: Look,
        look_for_bases: Look,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_for_others: Callable[[ids.ImageId], bool] = lambda image_id: False,
    ) -> None:
        self._images, self._clock = images, clock
        self._is_for_others = is_for_others
        self._look_for_open, self._look_for_bases = look_for_open, look_for_bases
        self._openings = image_usage.Openings()
        attached = images.list_attached()
        self._touches = image_usage.Touches(clock(), attached)
        self._bases: frozenset[ids.ImageId] = frozenset()
        self._has_looked = False
        self._seen = {image_id: (images.touched_ns(image_id), 0) for image_id in attached}
        """The stamp of each image when it was looked at, and how many reads it had had."""

    # What is seen

    def image_opened(self, image_id: ids.ImageId) -> None:
        """Note that somebody has opened an image."""
        self._openings.image_opened(image_id)
        self.image_touched(image_id)

    def image_closed(self, image_id: ids.ImageId) -> None:
        """Note that somebody has closed an image."""
        self._openings.image_closed(image_id)
        self.image_touched(image_id)

    def image_touched(self, image_id: ids.ImageId, *, is_by_nova: bool = False) -> None:
        """Note that somebody is about to use an image; it need not be attached yet.

        :param is_by_nova: Nova has touched it, so Nova is there
        """
        self._touches.image_touched(image_id, self._clock(), is_by_nova=is_by_nova)

    def image_detached(self, image_id: ids.ImageId) -> None:
        """Note that an image was detached: its last touch says nothing if it comes back."""
        self._touches.forget_image(image_id)
        self._seen.pop(image_id, None)

    # What is told

    def usage_of(self, image_id: ids.ImageId) -> image_usage.UsageEvidence:
        """Return what shows that an image is in use; may be asked from any thread."""
        return image_usage.UsageEvidence(
            is_open=not self._has_looked or self._openings.is_open(image_id),
            is_base=image_id in self._bases,
            idle_s=self._touches.idle_s(image_id, self._clock()),
        )

    def is_used(self, image_id: ids.ImageId, within_s: float = image_usage.IN_USE_S) -> bool:
        """Say whether instances of this host use an image; see what is promised above.

        :param within_s: how long a touch or a read counts, two LOOK_S at least
        """
        return self.usage_of(image_id).is_used(within_s)

    def is_seen(self, image_id: ids.ImageId) -> bool:
        """Say whether an image is used, and something has shown that since the worker's start."""
        if self._has_looked and (self._openings.is_seen(image_id) or image_id in self._bases):
            return True
        return self._touches.is_seen(image_id) and self.is_used(image_id)

    def is_only_for_others(self, image_id: ids.ImageId) -> bool:
        """Say whether an image was attached for other hosts, and nothing shows a use here."""
        return self._touches.is_for_others(image_id) and not self.is_seen(image_id)

    def base_images(self) -> frozenset[ids.ImageId]:
        """Return the images that disks of this host began as, attached or not; from any thread."""
        return self._bases

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            await self.scan_processes()
            await trio.sleep(LOOK_S)

    async def scan_processes(self) -> None:
        """Look for what cannot be counted.

        :raises OSError: processes or disks cannot be listed; nothing counts as looked at then
        """
        attached = frozenset(self._images.attached_now)
        await self._note_touches(attached)
        bases = await trio.to_thread.run_sync(self._look_for_bases)
        if self._openings.must_look(attached):
            self._openings.begin_look()
            found = await trio.to_thread.run_sync(self._look_for_open)
            self._openings.note_open_files(found, attached)
        self._bases, self._has_looked = frozenset(bases), True
        self._forget_others()

    async def _note_touches(self, attached: Collection[ids.ImageId]) -> None:
        """Note which images were touched or read since the last look, whatever the clock says."""
        for number, image_id in enumerate(attached, 1):
            if number % LOOKED_AT_A_TIME == 0:
                await trio.lowlevel.checkpoint()
            if not self._images.is_attached(image_id):  # any more
                continue
            image = self._images.get_nowait(image_id)
            reads = image.counters.latency.count if image else 0
            stamp_ns = self._images.touched_ns(image_id)
            seen = self._seen.get(image_id)
            is_for_others = self._is_for_others(image_id)
            shows_none = is_for_others or self._images.was_found(image_id)
            if seen is None and shows_none and not reads:
                self._touches.image_attached(image_id, self._clock(), is_for_others=is_for_others)
            elif seen != (stamp_ns, reads):
                is_stamped = seen is not None and seen[0] != stamp_ns
                self.image_touched(
                    image_id, is_by_nova=is_stamped
                )  # a new map has a stamp by itself
            self._seen[image_id] = stamp_ns, reads

    def _forget_others(self) -> None:
        attached = frozenset(self._images.attached_now)
        self._openings.forget_others(attached)
        self._touches.forget_others(attached)
        for image_id in self._seen.keys() - attached:
            del self._seen[image_id]
