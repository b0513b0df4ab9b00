# SPDX-License-Identifier: Apache-2.0
"""Keeps the images that instances of this host use fully cached.

A used image is pinned (``pins``). After its boot, missing chunks are fetched at the lowest
priority, one image at a time, oldest pin first (``background_fill``). An unused image is unpinned;
its chunks stay until evicted. With replication, a host keeps only its share of each image, also of
images that other hosts use (``replication``); an image is fully cached when all hosts have theirs.
"""

import dataclasses
import logging
import math
import time

import trio

from acstor_agent.core.images import fill_order
from acstor_agent.core.images import fill_rate
from acstor_agent.core.images import pin_record
from acstor_agent.core.images import replica_leases
from acstor_agent.images.image import mirrors
from acstor_agent.images.image import usage
from acstor_agent.images.keep import background_fill
from acstor_agent.images.keep import fill_status
from acstor_agent.images.keep import pins
from acstor_agent.images.keep import replication
from acstor_agent.images.read import mirror
from acstor_common import errors
from acstor_common.model import clocks
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

CLOUD_S = 5.0  # interval of updates of the state in the cloud
FillMode = pin_record.FillMode


@dataclasses.dataclass(frozen=True)
class HydrationLimits:
    """Intervals and timeouts of hydration."""

    tick_s: float = 1.0
    recount_s: float = 15.0  # between counts of missing chunks, and between tries to pin
    attach_s: float = 10.0  # for one image
    attach_round_s: float = 1.0  # after it, further images wait for the next round


class Hydration:
    """Pins and fills images; keep :meth:`run` running."""

    def __init__(
        self,
        images: mirrors.Mirrors,
        uses: usage.ImageUsage,
        image_pins: pins.ImagePins,
        filler: background_fill.BackgroundFill,
        replicas: replication.Replication | None = None,
        clock: clocks.Clock = time,
        limits: HydrationLimits = HydrationLimits(),
    ) -> None:
        self.limits = limits
        self._images, self._uses, self._pins, self._filler = images, uses, image_pins, filler
        self._replicas, self._clock = replicas, clock
        self._boots = filler.boots
        self._known = filler.progress
        self.status = fill_status.FillStatus(filler, image_pins, uses, replicas)
        self._attach_by_s = math.inf
        self._changed = trio.Event()
        self._has_begun = False

    async def run(self) -> None:
        """Pin and fill images until cancelled."""
        if self._replicas is not None and not self._has_begun:
            for pinned_id, pin in self._pins.list_pins().items():
                if pin.is_replica or pin.leased_until_s:
                    self._replicas.restore_lease(pinned_id, pin.leased_until_s)
        self._has_begun = True
        while True:
            await self._settle()
            image_id = self._next()
            if image_id is not None:
                await self._fill(image_id)
                continue
            self._filler.pause_fill()
            self._changed = trio.Event()
            with trio.move_on_after(self.limits.tick_s):
                await self._changed.wait()

    async def _settle(self) -> None:
        all_pins = self._pins.list_pins()
        await self._pins.release_former_shares()
        self._attach_by_s = trio.current_time() + self.limits.attach_round_s
        every = {**all_pins, **dict.fromkeys(self._images.list_attached())}
        for image_id in every:
            pin = all_pins.get(image_id)
            is_used, is_operator_pin = (
                self._is_used(image_id, pin),
                pin is not None and pin.is_operator_pin,
            )
            if is_used or is_operator_pin or self._uses.is_leased(image_id):
                known = self._filler.progress_of(image_id)
                if is_used and not known.is_used:
                    known.changes_at_failure, known.counted_s = (
                        None,
                        -math.inf,
                    )  # it has precedence now
                known.is_used = is_used
                await self._keep(image_id, is_replica=not (is_used or is_operator_pin))
            elif pin is not None:
                LOG.info("image %s: no longer used, so no longer pinned", image_id)
                await self.forget_image(image_id)
            else:
                self._known.pop(image_id, None)
        for image_id in self._known.keys() - every:
            del self._known[image_id]
        self._pins.forget_unpinned_parts(self._known)
        self._boots.forget_others(self._known.keys())
        for known in list(self._known.values()):
            if (
                trio.current_time() >= known.cloud_checked_s + CLOUD_S
                and self.status.update_cloud_rate(known)
            ):
                await trio.lowlevel.checkpoint()  # it takes 1 ms for 1,000 hosts

    def _is_used(self, image_id: ids.ImageId, pin: pin_record.ImagePin | None) -> bool:
        if pin is None or pin.is_replica:
            return self._uses.is_seen(image_id)  # a new pin needs evidence of use
        return self._uses.is_used(image_id)

    async def _keep(self, image_id: ids.ImageId, *, is_replica: bool) -> None:
        known = self._filler.progress_of(image_id)
        self._boots.note_reads(image_id)
        self._filler.update_unwritten(known)
        await self._look_at_deadline(image_id, known)
        if is_replica and not self._pins.is_in_table:
            return  # the pinned part stays: others fetch it from here
        await self._note_leases(image_id, is_replica=is_replica)
        is_due = trio.current_time() - known.counted_s >= self.limits.recount_s
        if self._pins.pinned_part(image_id) is None:
            await self._pin_if_due(image_id, known, is_due, is_replica=is_replica)
            return
        if is_due or not known.lacks_new_share:
            known.shortfall_bytes = await self._pins.apply_ring(image_id)
            known.lacks_new_share = bool(known.shortfall_bytes)
            known.counted_s = trio.current_time() if known.lacks_new_share else known.counted_s
        await self._count_if_due(image_id, known, is_due)

    async def _pin_if_due(
        self,
        image_id: ids.ImageId,
        known: background_fill.FillProgress,
        is_due: bool,
        *,
        is_replica: bool,
    ) -> None:
        if known.part is not None:  # it was unpinned for another image
            known.part = known.left_bytes = None
            known.missing = fill_order.MissingChunks()
            is_due = True
        have_pins_changed = known.changes_at_failure != self._pins.changes
        if is_due and have_pins_changed and self._may_attach(image_id, known):
            known.counted_s = trio.current_time()
            await self._pin_image(image_id, known, is_replica=is_replica)

    async def _count_if_due(
        self, image_id: ids.ImageId, known: background_fill.FillProgress, is_due: bool
    ) -> None:
        part, cache = self._pins.pinned_part(image_id), self._pins.cache
        if part is None:
            return  # it was unpinned meanwhile
        is_same, is_complete = known.part is part, not cache.pinned_missing
        if is_same and is_complete and not known.left_bytes:
            known.left_bytes, known.losses_at_count = 0, cache.pinned_lost
            known.missing = fill_order.MissingChunks()
        elif not is_same or is_complete:  # the last chunks arrived otherwise
            await self._filler.count_missing(part, known)
        elif not known.missing and self._must_count(known, cache.pinned_lost, is_due):
            await self._filler.count_missing(part, known)

    async def _note_leases(self, image_id: ids.ImageId, *, is_replica: bool) -> None:
        changes: dict[str, object] = {"is_replica": is_replica}
        pin = self._pins.get(image_id)
        until_s = self._replicas.leased_until_s(image_id) if self._replicas else 0.0
        if pin is not None and abs(until_s - pin.leased_until_s) > replica_leases.MAX_LEASE_S / 4:
            changes["leased_until_s"] = until_s
        await self._pins.change_pin(image_id, **changes)

    def _must_count(self, known: background_fill.FillProgress, lost: int, is_due: bool) -> bool:
        return lost != known.losses_at_count or (is_due and bool(known.left_bytes))

    def _may_attach(self, image_id: ids.ImageId, known: background_fill.FillProgress) -> bool:
        is_open, now_s = self._images.get_nowait(image_id) is not None, trio.current_time()
        # a hanging load must not block others
        return is_open or (now_s < self._attach_by_s and known.backoff.may_try(now_s))

    async def _pin_image(
        self,
        image_id: ids.ImageId,
        known: background_fill.FillProgress,
        *,
        is_replica: bool = False,
    ) -> None:
        try:
            with trio.fail_after(self.limits.attach_s):
                max_map_bytes = replication.MAP_BYTES if is_replica else mirrors.MAX_MAP_BYTES
                image = await self._images.attach_image(image_id, max_map_bytes)
        except (errors.AcstorError, OSError, trio.TooSlowError) as e:
            why = f"its chunk map is unavailable: {e}"
            known.backoff.record_failure(why, trio.current_time(), known.deadline)
            return
        known.backoff.record_success()
        changes = self._pins.changes
        lacking_bytes = await self._pins.pin_image(image_id, image.map, is_replica=is_replica)
        known.changes_at_failure = changes if lacking_bytes else None
        if lacking_bytes and not known.shortfall_bytes:
            LOG.log(
                logging.INFO if is_replica else logging.WARNING,
                "image %s: cannot %s: the cache lacks %d bytes for it and for images pinned before",
                image_id,
                "be kept for other hosts" if is_replica else "be cached completely",
                lacking_bytes,
            )
        known.shortfall_bytes = lacking_bytes

    async def _look_at_deadline(
        self, image_id: ids.ImageId, known: background_fill.FillProgress
    ) -> None:
        pin, now_s = self._pins.get(image_id), trio.current_time()
        if pin is None or pin.mode is not FillMode.URGENT or not pin.deadline_s:
            known.deadline = None
            return
        if known.deadline is None:
            known.is_miss_logged = False
            left_s = fill_rate.time_left_s(pin.due_at_s, pin.deadline_s, self._clock.time())
            known.deadline = fill_rate.Deadline(now_s + left_s, pin.deadline_s)
        left_s, is_known = known.deadline.left_s(now_s), known.counted_s > -math.inf
        if known.left_bytes == 0:
            LOG.info("image %s: fully cached %.0f s before its deadline", image_id, left_s)
            known.deadline = None
            await self._pins.change_pin(image_id, deadline_s=0.0, due_at_s=0.0)
        elif left_s <= 0 and is_known and not known.is_miss_logged:
            known.is_miss_logged = True
            left = "all of it" if known.left_bytes is None else f"{known.left_bytes} bytes"
            LOG.warning(
                "image %s: missed its deadline of %.0f s: %s left; filling as fast as possible now",
                image_id,
                pin.deadline_s,
                left,
            )

    def _next(self) -> ids.ImageId | None:
        all_pins = self._pins.list_pins()
        urgent = [image_id for image_id, pin in all_pins.items() if pin.mode is FillMode.URGENT]
        normal = [image_id for image_id, pin in all_pins.items() if pin.mode is FillMode.NORMAL]
        normal.sort(key=lambda image_id: all_pins[image_id].is_replica)
        for image_id in (*sorted(urgent, key=self._due_s), *normal):
            known = self._known.get(image_id)
            if known is None or not known.missing or not self._may_fill(known):
                continue
            if known.part is not self._pins.pinned_part(image_id):
                continue  # the missing chunks are counted first
            if all_pins[image_id].mode is FillMode.URGENT or not self._boots.must_wait(image_id):
                return image_id
        return None

    def _due_s(self, image_id: ids.ImageId) -> float:
        known = self._known.get(image_id)
        return known.deadline.at_s if known and known.deadline else -math.inf

    def _due_besides(
        self, current: background_fill.FillProgress
    ) -> list[background_fill.FillProgress]:
        now_s, every = trio.current_time(), self._known.values()
        due = [
            candidate
            for candidate in every
            if candidate is not current and candidate.deadline and candidate.missing
        ]
        return [candidate for candidate in due if candidate.backoff.may_try(now_s)]

    def _may_fill(self, known: background_fill.FillProgress) -> bool:
        refused_bytes = known.refused_bytes
        if refused_bytes and self._pins.cache.can_store_pinned(refused_bytes):
            return True  # space appeared
        return known.backoff.may_try(trio.current_time())

    async def _fill(self, image_id: ids.ImageId) -> None:
        part, known = self._pins.pinned_part(image_id), self._known[image_id]
        if part is None:
            return
        before = len(known.missing)
        why = await self._filler.fill_slice(part, known, self._due_besides(known))
        if why:
            if known.backoff.failure is None or known.backoff.failure.why != why:
                LOG.info("image %s: not fully cached: %s", image_id, why)
            known.backoff.record_failure(why, trio.current_time(), known.deadline)
        elif len(known.missing) < before:
            known.backoff.record_success()
            if not known.missing:
                LOG.info("image %s: fully cached", image_id)

    async def request_hydration(self, image: mirror.Mirror) -> None:
        """Pin an image, used or not, until :meth:`withdraw_request`, or raise Unusable if full."""
        image_id = image.map.image_id
        lacking_bytes = await self._pins.pin_image(image_id, image.map, is_operator_pin=True)
        if lacking_bytes:
            raise errors.Unusable(
                f"image {image_id}",
                f"cannot be kept here: the cache lacks {lacking_bytes} bytes",
                "Raise cache_limit_bytes, or unpin another image",
            )
        self._changed.set()

    async def withdraw_request(self, image_id: ids.ImageId) -> None:
        """Keep an image only as long as it is used, or raise Unusable if it is not kept here."""
        self._check_pinned(image_id)
        await self._pins.change_pin(image_id, is_operator_pin=False)
        self._changed.set()

    async def set_fill_mode(
        self, image_id: ids.ImageId, mode: FillMode, deadline_s: float = 0.0
    ) -> None:
        """Set the fill mode (``deadline_s`` 0: as fast as possible); Unusable if not kept."""
        if self._pins.get(image_id) is None and self._uses.is_used(image_id):
            await self._pin_image(image_id, self._filler.progress_of(image_id))
        self._check_pinned(image_id)
        due_at_s = self._clock.time() + deadline_s if deadline_s else 0.0
        await self._pins.change_pin(image_id, mode=mode, deadline_s=deadline_s, due_at_s=due_at_s)
        if (known := self._known.get(image_id)) is not None:
            known.backoff.record_success()
            known.deadline = None
            await self._look_at_deadline(image_id, known)
        self._changed.set()

    def _check_pinned(self, image_id: ids.ImageId) -> None:
        if self._pins.get(image_id) is None:
            known = self._known.get(image_id)
            lacks = f": the cache lacks {known.shortfall_bytes} bytes" if known else ""
            raise errors.Unusable(f"image {image_id}", f"cannot be cached completely here{lacks}")

    async def forget_image(self, image_id: ids.ImageId) -> None:
        """Unpin an image that is not used any more, or not mirrored."""
        await self._pins.unpin_image(image_id)
        self._known.pop(image_id, None)
