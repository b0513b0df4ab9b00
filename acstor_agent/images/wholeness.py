# SPDX-License-Identifier: Apache-2.0
"""Lets the images that instances of this host use become whole here, and stay so.

An image that is used is promised and pinned (``promises``).  When its boot is over, what of it is
not here is fetched behind everything else, other hosts before the source, one image at a time, the
one that was promised first before the others (``filling``).  When it is used no longer its pins
go; its chunks stay until others need the room.

The one rule: whatever fails is tried again, later and later, and ends nothing.
"""

import logging
import time
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import msgspec
import trio

from acstor_agent.cache import cache_files
from acstor_agent.chunks import fetcher
from acstor_agent.core import boot_activity
from acstor_agent.core import counters
from acstor_agent.core import links
from acstor_agent.core import promise as promise_
from acstor_agent.core import whole_pace
from acstor_agent.images import booting
from acstor_agent.images import filling
from acstor_agent.images import mirror
from acstor_agent.images import mirrors
from acstor_agent.images import promises as promises_
from acstor_agent.images import uses as uses_
from acstor_common import errors
from acstor_common import ids
from acstor_common import whole_image

LOG = logging.getLogger(__name__)

TICK_S = 1.0
RECOUNT_S = 15.0
"""How often an image is counted again of which chunks are missing, and room is looked for."""
ATTACH_S = 10.0
_HERE = (counters.Origin.ZERO, counters.Origin.CACHE)

Pace = promise_.Pace
State = whole_image.State


class Limits(NamedTuple):
    """What filling is bounded by.

    :param bytes_s: however much the link has to spare
    :param boot_idle_s: a boot is over when a guest has needed nothing from elsewhere for so long
    :param boot_longest_s: and so long after its beginning in any case
    """

    bytes_s: float
    boot_idle_s: float
    boot_longest_s: float


class Wholeness:
    """What makes images whole; keep :meth:`run` running.

    :param guests_wait: says whether a guest waits for what is not here
    :param look: looks at the link; blocks, and is called in a thread
    :param first_chunk: where this host begins, so that not all begin with the same
    """

    def __init__(
        self,
        images: mirrors.Mirrors,
        uses: uses_.Uses,
        promises: promises_.Promises,
        *,
        chunks: fetcher.Fetcher,
        cache: cache_files.CacheFiles,
        guests_wait: Callable[[], bool],
        look: Callable[[], links.Look],
        limits: Limits,
        first_chunk: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._images, self._uses, self._promises = images, uses, promises
        self._cache, self._limits, self._clock = cache, limits, clock
        self._filler = filling.Filler(
            images,
            promises,
            chunks=chunks,
            cache=cache,
            guests_wait=guests_wait,
            is_boot=lambda: any(map(self._is_booting, list(self._known))),
            look=look,
            limit_bytes_s=limits.bytes_s,
            first_chunk=first_chunk,
            clock=clock,
        )
        self._known: dict[ids.ImageId, filling.Progress] = {}
        self._boots: dict[ids.ImageId, boot_activity.BootActivity] = {}
        self._current: ids.ImageId | None = None
        self._changed = trio.Event()

    async def run(self) -> None:
        """Keep promises, for ever."""
        while True:
            await self._settle()
            image_id = self._next()
            if image_id is not None:
                await self._fill(image_id)
                continue
            self._filler.pause()
            self._changed = trio.Event()
            with trio.move_on_after(TICK_S):
                await self._changed.wait()

    # What is promised

    async def _settle(self) -> None:
        """Promise what is used, give up what is not, and count what is missing."""
        promised = self._promises.all()
        every = {**promised, **dict.fromkeys(self._images.attached())}
        for image_id in every:
            one = promised.get(image_id)
            is_used = self._uses.is_used if one else self._uses.is_seen  # no promise in doubt
            if is_used(image_id) or (one is not None and one.is_asked):
                await self._keep(image_id)
            elif one is not None:
                LOG.info("image %s: no longer used; it need not stay whole", image_id)
                await self.forget(image_id)
            else:
                self._known.pop(image_id, None)
        for image_id in self._known.keys() - every:
            del self._known[image_id]
        for image_id in self._boots.keys() - self._known.keys():
            del self._boots[image_id]

    async def _keep(self, image_id: ids.ImageId) -> None:
        known = self._known.setdefault(image_id, filling.Progress())
        self._note_boot(image_id)
        is_due = self._clock() - known.counted_s >= RECOUNT_S
        image_map, lost = self._promises.pinned(image_id), self._cache.pinned_lost
        if image_map is None:
            if is_due and known.changes_then != self._promises.changes:
                known.counted_s = self._clock()
                await self._promise(image_id, known)
            return
        known.lacking_bytes = 0  # an operator may have asked for it when there was room
        if known.left_bytes is None:
            await self._filler.count(image_map, known)
        elif not self._cache.pinned_missing:
            known.left_bytes, known.lost_then = 0, lost
            known.to_do.clear()
        elif not known.to_do and (lost != known.lost_then or (is_due and known.left_bytes)):
            await self._filler.count(image_map, known)

    async def _promise(self, image_id: ids.ImageId, known: filling.Progress) -> None:
        try:
            with trio.fail_after(ATTACH_S):
                image = await self._images.attach(image_id)
        except (errors.AcstorError, OSError, trio.TooSlowError) as e:
            known.backoff.failed(f"its chunk map cannot be had: {e}", self._clock())
            return
        changes = self._promises.changes
        lacking_bytes = await self._promises.make(image_id, image.map, self._cache)
        known.changes_then = changes if lacking_bytes else -1
        if lacking_bytes and not known.lacking_bytes:
            LOG.warning(
                "image %s: cannot become whole here: the cache lacks %d bytes for it and for what "
                "was promised before",
                image_id,
                lacking_bytes,
            )
        known.lacking_bytes = lacking_bytes

    def _note_boot(self, image_id: ids.ImageId) -> None:
        image = self._images.get_nowait(image_id)
        if image is None:
            return
        boot = self._boots.get(image_id)
        if boot is None:
            boot = boot_activity.BootActivity(self._limits.boot_idle_s, self._limits.boot_longest_s)
            self._boots[image_id] = boot
        boot.begun(image.boots.begun_s)
        requests = image.counters.read.requests
        fetched = sum(count for origin, count in requests.items() if origin not in _HERE)
        is_waited_for = bool(image.counters.in_flight)
        boot.fetched(fetched, is_waited_for=is_waited_for, now_s=self._clock())

    def _is_booting(self, image_id: ids.ImageId) -> bool:
        image, boot = self._images.get_nowait(image_id), self._boots.get(image_id)
        if image is None or boot is None:
            return False
        boot.begun(image.boots.begun_s)
        is_expected = image.boots.state in (booting.State.LOADING, booting.State.READY)
        return boot.is_on(self._clock(), is_expected=is_expected)

    # Filling

    def _next(self) -> ids.ImageId | None:
        """Return the image to be filled now: those in a hurry, then in the order of promises."""
        promised = self._promises.all()
        for pace in (Pace.HURRY, Pace.USUAL):
            for image_id, one in promised.items():
                known = self._known.get(image_id)
                if one.pace is not pace or known is None or not known.to_do:
                    continue
                if pace is Pace.USUAL and self._is_booting(image_id):
                    continue
                if known.backoff.may_try(self._clock()):
                    return image_id
        return None

    async def _fill(self, image_id: ids.ImageId) -> None:
        image_map, known = self._promises.pinned(image_id), self._known[image_id]
        if image_map is None:
            return
        self._current, before = image_id, len(known.to_do)
        try:
            why = await self._filler.fill(image_map, known)
        finally:
            self._current = None
        if why:
            LOG.info("image %s: does not become whole: %s", image_id, why)
            known.backoff.failed(why, self._clock())
        elif len(known.to_do) < before:
            known.backoff.succeeded()
            if not known.to_do:
                LOG.info("image %s: is whole", image_id)

    # What operators do

    async def ask(self, image: mirror.Mirror) -> None:
        """Keep an image whole until :meth:`unask`, whether it is used or not.

        :raises errors.Unusable: there is no room for it
        """
        image_id = image.map.image_id
        lacking_bytes = await self._promises.make(image_id, image.map, self._cache, is_asked=True)
        if lacking_bytes:
            raise errors.Unusable(
                f"image {image_id}",
                f"cannot be kept here: the cache lacks {lacking_bytes} bytes",
                "Raise cache_limit_bytes, set cache_may_grow_for_pins, or unpin another image",
            )
        self._changed.set()

    async def unask(self, image_id: ids.ImageId) -> None:
        """Keep an image only as long as it is used.

        :raises errors.Unusable: it is not kept here
        """
        self._check_promised(image_id)
        await self._promises.change(image_id, is_asked=False)
        self._changed.set()

    async def set_pace(self, image_id: ids.ImageId, pace: Pace) -> None:
        """Hurry an image, pause it, or do neither.

        :raises errors.Unusable: it is not kept here
        """
        if self._promises.get(image_id) is None and self._uses.is_used(image_id):
            await self._promise(image_id, self._known.setdefault(image_id, filling.Progress()))
        self._check_promised(image_id)
        await self._promises.change(image_id, pace=pace)
        if image_id in self._known:
            self._known[image_id].backoff.succeeded()
        self._changed.set()

    def _check_promised(self, image_id: ids.ImageId) -> None:
        if self._promises.get(image_id) is None:
            known = self._known.get(image_id)
            lacks = f": the cache lacks {known.lacking_bytes} bytes" if known else ""
            raise errors.Unusable(f"image {image_id}", f"is not kept whole here{lacks}")

    async def forget(self, image_id: ids.ImageId) -> None:
        """Let go of an image that is not used any more, or not mirrored."""
        await self._promises.take_back(image_id, self._cache)
        self._known.pop(image_id, None)

    # What is told, from any thread

    def of(self, image_id: ids.ImageId) -> dict[str, Any] | None:
        """Return how far an image is; None if it need not become whole here."""
        known, promised = self._known.get(image_id), self._promises.get(image_id)
        if known is None:
            return None
        left_bytes = known.left_bytes  # once: the event loop's thread goes on
        total_bytes = max(known.total_bytes, left_bytes or 0)
        state, why = self._state(image_id, known, promised, left_bytes)
        is_filling = state is State.FILLING
        return {
            "state": state.value,
            "why": why,
            "total_bytes": total_bytes,
            "left_bytes": left_bytes,
            "share": whole_image.share(total_bytes, left_bytes),
            "bytes_s": round(known.speed.bytes_s) if is_filling else 0,
            "left_s": known.speed.left_s(left_bytes or 0) if is_filling else None,
            "lacking_bytes": known.lacking_bytes,
            "is_asked": bool(promised and promised.is_asked),
            "pace": (promised.pace if promised else Pace.USUAL).value,
        }

    def _state(
        self,
        image_id: ids.ImageId,
        known: filling.Progress,
        promised: promise_.Promise | None,
        left_bytes: int | None,
    ) -> tuple[State, str]:
        failure: whole_pace.Failure | None = known.backoff.failure
        if known.lacking_bytes:
            return State.NO_ROOM, f"the cache lacks {known.lacking_bytes} bytes"
        if promised is not None and left_bytes == 0:
            return State.WHOLE, ""
        if promised is not None and promised.pace is Pace.PAUSED:
            return State.PAUSED, "by the operator"
        if failure is not None:
            return State.FAILING, failure.why
        if image_id == self._current:
            return State.FILLING, ""
        return (State.BOOTING if self._is_booting(image_id) else State.QUEUED), ""


def told(whole: Wholeness | None, uses: uses_.Uses, image_id: ids.ImageId) -> whole_image.Whole:
    """Return how far an image is, as other services are told it; from any thread.

    :param whole: None: images are not kept whole here
    """
    is_used = uses.is_used(image_id)
    shown = whole.of(image_id) if whole is not None else None
    if shown is None:
        why = "keep_images is none" if whole is None else "nothing has shown yet that it is used"
        return whole_image.Whole(
            state=State.NOT_KEPT, is_used=is_used, why=why if is_used else "not used"
        )
    why = shown["why"][: whole_image.MAX_WHY]
    return msgspec.convert({**shown, "is_used": is_used, "why": why}, whole_image.Whole)
