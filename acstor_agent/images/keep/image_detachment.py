# SPDX-License-Identifier: Apache-2.0
"""Detaches images that were not used for long, and deletes their state.

It deletes the mirror and its inode, the chunk map and the boot image; chunks stay until evicted. An
image that is gone from the source stays for KEEP_GONE_S after Nova's last touch, because guests of
other hosts may need its chunks, which are not served without the chunk map. Then its chunks are
dropped, except those of other attached images. An image in use is never detached: there is no await
after the last check. A handle that is open nevertheless reattaches the image by its number.
"""

import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable

import trio

from acstor_agent.images.image import mirrors
from acstor_agent.images.image import usage
from acstor_agent.images.keep import pins
from acstor_agent.images.read import boot_session
from acstor_common import errors
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import log_once

LOG = logging.getLogger(__name__)

LOOKUP_TIMEOUT_S = 10.0  # how long the source may take to answer whether it still has an image
KEEP_GONE_S = 30 * 24 * 3600.0  # by the wall clock, since it outlives restarts
DROPS_IN_A_ROW = 256  # chunks dropped between two checkpoints: about a millisecond

DetachHandler = Callable[[ids.ImageId], None]  # called with an image that was detached; never waits


@dataclasses.dataclass(frozen=True)
class DetachLimits:
    """Intervals of detachment."""

    unused_s: float  # before detachment; 0 disables it
    check_interval_s: float = 60.0
    gone_check_interval_s: float = 3600.0  # for an image that the source no longer has


class ImageDetachment:
    """Detaches unused images, and then calls ``detach_handlers``; keep :meth:`run` running."""

    def __init__(
        self,
        images: mirrors.Mirrors,
        boots: boot_session.BootSessions,
        uses: usage.ImageUsage,
        image_pins: pins.ImagePins,
        *,
        limits: DetachLimits,
        detach_handlers: Iterable[DetachHandler] = (),
        clock: clocks.Clock = time,
    ) -> None:
        self.detached = self.purged_chunks = 0
        self.limits = limits
        self._images, self._boots, self._uses = images, boots, uses
        self._pins = image_pins
        self._source, self._counters = boots.source, boots.chunks.counters
        self._detach_handlers, self._clock = tuple(detach_handlers), clock
        self._stay_until_s: dict[ids.ImageId, float] = {}
        self._asks_from_s = -math.inf
        self._fault = log_once.LogOnce(LOG)

    async def run(self) -> None:
        """Detach unused images and attach maps that appeared, until cancelled."""
        self._boots.delete_other_heads(self._images.list_attached())
        while True:
            interval_s, unused_s = self.limits.check_interval_s, self.limits.unused_s
            await trio.sleep(min(interval_s, unused_s / 4 or interval_s))
            await self._images.attach_new_maps()
            if self.limits.unused_s:
                await self.detach_unused()

    async def detach_unused(self) -> None:
        """Detach unused images; one that cannot be deleted stays attached."""
        fault = ""
        attached = self._images.list_attached()
        for image_id in attached:
            if self._is_unused(image_id) and not self._stays(image_id):
                try:
                    await self._take_away(image_id)
                except OSError as e:
                    fault = f"image {image_id} cannot be detached: {e.strerror}"
        self._fault.log_warning(fault)
        for image_id in self._stay_until_s.keys() - set(attached):
            del self._stay_until_s[image_id]
        for image_id in list(self._counters.fetched):
            if not self._images.is_attached(image_id):
                self._counters.forget_image(image_id)

    def detach_image(self, image_id: ids.ImageId) -> None:
        """Detach an image, used or not; its chunks stay in the cache.

        :raises errors.Unusable: it is not attached, or is being attached now
        :raises OSError: its chunk map cannot be deleted; then it stays attached
        """
        self._images.detach_image(image_id)
        self._boots.forget_image(image_id)
        self._counters.forget_image(image_id)
        self._uses.image_detached(image_id)
        for other in self._detach_handlers:
            other(image_id)

    def _is_unused(self, image_id: ids.ImageId) -> bool:
        use = self._uses.usage_of(image_id)
        is_new = math.isinf(use.idle_s)  # attached since the last scan
        if is_new or self._is_kept(image_id):
            return False
        if self._uses.is_only_replica(image_id):
            return not use.is_open  # at once: its map counts against the limit for other hosts
        return not use.is_used(self.limits.unused_s)

    def _is_kept(self, image_id: ids.ImageId) -> bool:
        return self._uses.is_leased(image_id) or self._pins.get(image_id) is not None

    def _stays(self, image_id: ids.ImageId) -> bool:
        return trio.current_time() < self._stay_until_s.get(image_id, -math.inf)

    async def _take_away(self, image_id: ids.ImageId) -> None:
        garbage: Collection[ids.Cid] = ()
        if await self._is_gone(image_id):
            if self._clock.time() - self._images.touched_ns(image_id) / 1e9 < KEEP_GONE_S:
                LOG.info("image %s was deleted: kept for guests of other hosts", image_id)
                stay_s = self.limits.gone_check_interval_s
                self._stay_until_s[image_id] = trio.current_time() + stay_s
                return
            garbage = await trio.to_thread.run_sync(self._only_of, image_id)
        if not self._is_unused(image_id):
            return
        try:
            self.detach_image(image_id)
        except errors.Unusable as e:  # attached again, or detached already
            LOG.debug("%s", e)
            return
        self.detached += 1
        unused_s = self.limits.unused_s
        LOG.info("image %s: detached after %g s without use", image_id, unused_s)
        await self._purge(image_id, garbage)

    async def _is_gone(self, image_id: ids.ImageId) -> bool:
        if trio.current_time() < self._asks_from_s:
            return False
        with trio.move_on_after(LOOKUP_TIMEOUT_S):
            try:
                blob = self._images.stored_blob(image_id)
                if blob is None:  # its format is unknown
                    return False
                await self._source.size_bytes(blob)
            except errors.ChunkMissing:
                return True
            except errors.AcstorError as e:
                LOG.debug("image %s: %s", image_id, e)
            else:
                return False
        # Other images would wait as long.
        self._asks_from_s = trio.current_time() + self.limits.check_interval_s
        return False

    def _only_of(self, image_id: ids.ImageId) -> set[ids.Cid]:
        every = itertools.chain(self._images.cids_of(image_id), self._boots.frame_cids(image_id))
        found = {cid for cid in every if cid in self._pins.cache}
        for other in self._images.list_attached():
            if found and other != image_id:
                found.difference_update(self._images.cids_of(other))
        return found

    async def _purge(self, image_id: ids.ImageId, garbage: Collection[ids.Cid]) -> None:
        for number, cid in enumerate(garbage, 1):
            self.purged_chunks += self._pins.cache.drop_chunk(cid)
            if number % DROPS_IN_A_ROW == 0:
                await trio.lowlevel.checkpoint()
        if garbage:
            LOG.info(
                "image %s was deleted: dropped %d chunks that only it used", image_id, len(garbage)
            )
