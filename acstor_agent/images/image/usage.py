# SPDX-License-Identifier: Apache-2.0
"""Which images the instances of this host use.

An image is in use while one of these holds:

* a process has it open: counted since the worker started; earlier opens are found in /proc, each
  SCAN_INTERVAL_S;
* a disk in ``disks/`` is based on it;
* it was touched, read, or requested by Nova less than ``within_s`` ago. Nova touches the images of
  all its instances, also stopped ones, each pass of its image cache manager (40 minutes). Time
  without any touch by Nova does not count, up to a week (``core/images/image_usage.py``).

At the worker's start all images count as touched; :meth:`ImageUsage.is_seen` excludes that.
:meth:`ImageUsage.is_used` is never False before the first scan, nor for an image opened since the
start; the answer holds until the next await. It may stay True for ``within_s`` plus two
SCAN_INTERVAL_S after the last use, or a week in Nova's absence.

Processes that are invisible here (other pid namespace, no CAP_SYS_PTRACE) are missed if they opened
an image before the start. With Nova's cache manager off (``manager_interval = -1``), an image of a
stopped instance without a disk looks unused.
"""

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Container

import trio

from acstor_agent.core.images import image_usage
from acstor_agent.images.image import mirrors
from acstor_common.model import clocks
from acstor_common.model import ids

SCAN_INTERVAL_S = 10.0

FindImages = Callable[[], Collection[ids.ImageId]]  # returns images; blocks, called in a thread


@dataclasses.dataclass(frozen=True)
class UsageLimits:
    """Intervals of the search for uses; a touch or a read counts for ``in_use_s``."""

    scan_interval_s: float = SCAN_INTERVAL_S
    in_use_s: float = image_usage.IN_USE_S
    images_per_checkpoint: int = 64  # of about 20 µs each


class ImageUsage:
    """Usage of all images here, and their ``leases`` by others; keep :meth:`run` running."""

    def __init__(
        self,
        images: mirrors.Mirrors,
        find_open: FindImages,
        find_bases: FindImages,
        clock: clocks.Clock = time,
        *,
        leases: Container[ids.ImageId] = frozenset(),
        limits: UsageLimits = UsageLimits(),
    ) -> None:
        self.limits = limits
        self._images, self._clock = images, clock
        self._leases = leases
        self._look_for_open, self._look_for_bases = find_open, find_bases
        self._openings = image_usage.Openings()
        attached = images.list_attached()
        self._touches = image_usage.Touches(clock.monotonic(), attached)
        self._bases: frozenset[ids.ImageId] = frozenset()
        self._has_looked = False
        self._seen = {image_id: (images.touched_ns(image_id), 0) for image_id in attached}
        """Time stamp and read count of each image at the last scan."""

    def image_opened(self, image_id: ids.ImageId) -> None:
        """Record an open."""
        self._openings.image_opened(image_id)
        self.image_touched(image_id)

    def image_closed(self, image_id: ids.ImageId) -> None:
        """Record a close."""
        self._openings.image_closed(image_id)
        self.image_touched(image_id)

    def image_touched(self, image_id: ids.ImageId, *, is_by_nova: bool = False) -> None:
        """Record a use of an image, attached or not; ``is_by_nova`` shows Nova's presence."""
        self._touches.image_touched(image_id, self._clock.monotonic(), is_by_nova=is_by_nova)

    def image_detached(self, image_id: ids.ImageId) -> None:
        """Record a detach; a later attachment starts without history."""
        self._touches.forget_image(image_id)
        self._seen.pop(image_id, None)

    def usage_of(self, image_id: ids.ImageId) -> image_usage.UsageEvidence:
        """Return the evidence that an image is in use; any thread may call it."""
        return image_usage.UsageEvidence(
            is_open=not self._has_looked or self._openings.is_open(image_id),
            is_base=image_id in self._bases,
            idle_s=self._touches.idle_s(image_id, self._clock.monotonic()),
        )

    def is_used(self, image_id: ids.ImageId) -> bool:
        """Return whether instances of this host use an image; see the guarantee above."""
        return self.usage_of(image_id).is_used(self.limits.in_use_s)

    def is_seen(self, image_id: ids.ImageId) -> bool:
        """Return whether an image is used, with evidence from after the worker's start."""
        if self._has_looked and (self._openings.is_seen(image_id) or image_id in self._bases):
            return True
        return self._touches.is_seen(image_id) and self.is_used(image_id)

    def is_only_replica(self, image_id: ids.ImageId) -> bool:
        """Return whether only other hosts need an image, as far as is known."""
        return self._touches.is_replica(image_id) and not self.is_seen(image_id)

    def is_leased(self, image_id: ids.ImageId) -> bool:
        """Return whether another host leases an image; any thread may call it."""
        return image_id in self._leases

    def is_leased_only(self, image_id: ids.ImageId) -> bool:
        """Return whether another host leases an image, and nothing shows a use here."""
        return self.is_leased(image_id) and not self.is_seen(image_id)

    def base_images(self) -> frozenset[ids.ImageId]:
        """Return the base images of disks, attached or not; any thread may call it."""
        return self._bases

    async def run(self) -> None:
        """Scan periodically until cancelled."""
        while True:
            await self.scan_processes()
            await trio.sleep(self.limits.scan_interval_s)

    async def scan_processes(self) -> None:
        """Scan processes and disks for uses; raise OSError, without effect, if that fails."""
        attached = frozenset(self._images.attached_now)
        await self._note_touches(attached)
        bases = await trio.to_thread.run_sync(self._look_for_bases)
        if self._openings.is_inspection_due(attached):
            self._openings.begin_inspection()
            found = await trio.to_thread.run_sync(self._look_for_open)
            self._openings.note_open_files(found, attached)
        self._bases, self._has_looked = frozenset(bases), True
        self._forget_others()

    async def _note_touches(self, attached: Collection[ids.ImageId]) -> None:
        for number, image_id in enumerate(attached, 1):
            if number % self.limits.images_per_checkpoint == 0:
                await trio.lowlevel.checkpoint()
            if not self._images.is_attached(image_id):
                continue
            image = self._images.get_nowait(image_id)
            reads = image.counters.latency.count if image else 0
            stamp_ns = self._images.touched_ns(image_id)
            seen = self._seen.get(image_id)
            is_replica = self.is_leased(image_id)
            shows_none = is_replica or self._images.was_attached_by_map(image_id)
            if seen is None and shows_none and not reads:
                self._touches.image_attached(
                    image_id, self._clock.monotonic(), is_replica=is_replica
                )
            elif seen != (stamp_ns, reads):
                is_stamped = seen is not None and seen[0] != stamp_ns
                self.image_touched(
                    image_id, is_by_nova=is_stamped
                )  # a new map has a stamp of its own
            self._seen[image_id] = stamp_ns, reads

    def _forget_others(self) -> None:
        attached = frozenset(self._images.attached_now)
        self._openings.forget_others(attached)
        self._touches.forget_others(attached)
        for image_id in self._seen.keys() - attached:
            del self._seen[image_id]
