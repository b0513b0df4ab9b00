# SPDX-License-Identifier: Apache-2.0
"""Fetches missing chunks of pinned images at the lowest priority.

A fetch pauses while a guest waits for a chunk, up to a limit, unless the source is far: the link is
free in the guest's round trip. It then waits while guests boot and this process uses more than a
share of a processor; the share of chunks near those that guests waited for is larger. All fills
share a rate (``core/images/fill_rate.py``); each follows the guests of its image
(``core/images/fill_order.py``).
"""

import array
import dataclasses
import itertools
import math
import time
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

import trio

from acstor_agent.core import counters
from acstor_agent.core.cloud import interface_traffic
from acstor_agent.core.images import fill_order
from acstor_agent.core.images import fill_rate
from acstor_agent.core.images import fill_window
from acstor_agent.core.images import pin_record
from acstor_agent.core.images import replica_placement
from acstor_agent.engine import chunk_ref
from acstor_agent.engine_io import background_fetch
from acstor_agent.engine_io import exchange
from acstor_agent.engine_io import read_request
from acstor_agent.images.image import mirrors
from acstor_agent.images.keep import boot_deferral
from acstor_agent.images.keep import pins
from acstor_agent.images.prefetch import pre_seed
from acstor_agent.images.read import boot_session
from acstor_agent.images.read import read_admission
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import ids

TOGETHER_S = 0.01  # chunks that arrive in this time at the allowed rate are requested together
FAR_TOGETHER, FAR_BATCHES = 0.5, 4  # of a far source: the same in round trips; requests in flight
FAILURES = 8
YIELD_TICK_S = 0.005

FillMode = pin_record.FillMode


@dataclasses.dataclass(frozen=True)
class FillLimits:
    """Limits of the background fill."""

    bytes_s: float = math.inf
    slice_s: float = 5.0  # of one image, before the next one is chosen
    measure_interval_s: float = 1.0  # of the link's traffic
    calm_s: float = 1.0  # few chunks are in flight for so long after a guest's wait
    fetch_s: float = 60.0  # longest wait for the first chunk after a slice
    last_s: float = 2.0  # longest wait for the last chunks after a slice in which some arrived
    yield_s: float = 0.25  # longest pause for a waiting guest
    first_pause_s: float = fill_rate.FIRST_PAUSE_S  # after a failure
    longest_pause_s: float = fill_rate.LONGEST_PAUSE_S
    chunks_per_checkpoint: int = pre_seed.CHUNKS_PER_CHECKPOINT


class FillProgress:
    """Fill state of one image."""

    def __init__(self, backoff: fill_rate.Backoff) -> None:
        self.part: replica_placement.ReplicaPart | None = None
        self.total_bytes = 0
        self.stored_share = 1.0  # bytes of the stored file for each byte of its chunks
        self.left_bytes: int | None = None  # None: not counted yet
        self.unwritten: list[int] = []  # cached in memory only, as of the count
        self.unwritten_bytes = 0  # of these, at the last check
        self.shortfall_bytes = 0
        self.missing = fill_order.MissingChunks()  # one chunk of each missing content
        self.deadline: fill_rate.Deadline | None = None
        self.is_miss_logged = False
        self.speed = fill_rate.Speed()
        self.slow_start = fill_window.SlowStart(fill_window.FEW)
        self.cloud_speed = fill_rate.Speed()
        self.cloud_left_bytes: int | None = None
        self.cloud_checked_s = -math.inf
        self.lacks_new_share = False  # no capacity for its share by the table in force
        self.is_used = False  # by instances of this host
        self.backoff = backoff
        self.counted_s = -math.inf
        self.losses_at_count = 0  # losses of pinned chunks, of all images, at the count
        self.changes_at_failure: object = None  # ImagePins.changes when it did not fit
        self.refused_bytes = 0  # length of a chunk that the cache has no space for; 0: none

    @property
    def unfinished_bytes(self) -> int | None:
        """Bytes missing or not yet on disk; None: not counted yet."""
        return None if self.left_bytes is None else self.left_bytes + self.unwritten_bytes


class _FillSlice:
    def __init__(
        self, image_map: chunk_map.ChunkMap, progress: FillProgress, until_s: float
    ) -> None:
        self.map, self.progress, self.until_s = image_map, progress, until_s
        self.came = self.failures = 0
        self.why = ""

    def chunk_length(self, number: int) -> int:
        return self.map.geometry.chunk_length(number)

    def has_come(self, number: int) -> None:
        self.came += 1
        left_bytes = (self.progress.left_bytes or 0) - self.chunk_length(number)
        self.progress.left_bytes = max(0, left_bytes)

    def chunk_failed(self, number: int, why: str) -> None:
        self.failures += 1
        self.why = why
        self.progress.missing.put_back(number)


class BackgroundFill:
    """Fills images, one at a time; hosts begin apart, each from its ``first_chunk`` on."""

    def __init__(
        self,
        images: mirrors.Mirrors,
        image_pins: pins.ImagePins,
        chunks: exchange.Exchange,
        boots: boot_deferral.BootDeferral,
        reads: read_admission.ReadAdmission,
        traffic: interface_traffic.InterfaceCounters,
        *,
        first_chunk: int = 0,
        limits: FillLimits = FillLimits(),
    ) -> None:
        self.boots, self.limits = boots, limits
        self.progress: dict[ids.ImageId, FillProgress] = {}
        self.current: ids.ImageId | None = None  # the image that is being filled
        self._images, self._pins, self._chunks, self._reads = images, image_pins, chunks, reads
        self._traffic, self._first_chunk = traffic, first_chunk
        self._spare, self._pacer = fill_rate.SpareBandwidth(), fill_rate.Pacer()
        self._link_share = fill_rate.LinkShare()
        self._processor = fill_rate.ProcessorShare(fill_rate.BESIDE_BOOTS)
        self._near_processor = fill_rate.ProcessorShare(fill_rate.NEAR_GUESTS)
        self._must_hurry = False  # a deadline needs more than the measured rate

    def progress_of(self, image_id: ids.ImageId) -> FillProgress:
        """Return the fill state of an image, a new one if it is not filled yet."""
        if image_id not in self.progress:
            self.progress[image_id] = FillProgress(self.make_backoff())
        return self.progress[image_id]

    def make_backoff(self) -> fill_rate.Backoff:
        """Return a backoff with the pauses of these limits."""
        return fill_rate.Backoff(self.limits.first_pause_s, self.limits.longest_pause_s)

    def pause_fill(self) -> None:
        """Record that filling pauses."""
        self._spare.reset()

    async def count_missing(
        self, part: replica_placement.ReplicaPart, progress: FillProgress
    ) -> None:
        """Find the missing chunks of a part."""
        progress.counted_s, progress.losses_at_count = (
            trio.current_time(),
            self._pins.cache.pinned_lost,
        )
        unwritten: list[int] = []
        found, homes = await self._missing(part.map, part.numbers, unwritten)
        missing, left_bytes = fill_order.MissingChunks(part.map.geometry.chunk_bytes), 0
        for done, at in enumerate(pre_seed.chunks_in_order(homes, self._first_chunk), 1):
            missing.append(found[at])
            left_bytes += part.map.geometry.chunk_length(found[at])
            await self._pause_after(done)
        progress.unwritten = unwritten  # at the end, because others read and replace it
        progress.part, progress.total_bytes = part, part.total_bytes
        progress.stored_share = part.stored_share
        progress.missing, progress.left_bytes = missing, left_bytes
        self.update_unwritten(progress)

    def update_unwritten(self, progress: FillProgress) -> None:
        """Update the bytes that are in memory only."""
        if (part := progress.part) is None:
            return
        is_written, cid = self._pins.cache.is_written, part.map.cid_of
        progress.unwritten = [
            chunk_no for chunk_no in progress.unwritten if not is_written(cid(chunk_no))
        ]
        progress.unwritten_bytes = sum(map(part.map.geometry.chunk_length, progress.unwritten))

    async def _missing(
        self, image_map: chunk_map.ChunkMap, numbers: Iterable[int], unwritten: list[int]
    ) -> tuple["array.array[int]", bytearray]:
        """Return the missing chunks, and whether this host is the home of each."""
        missing, homes = array.array("I"), bytearray()
        for looked_at, number in enumerate(numbers, 1):
            if image_map.cid_of(number) not in self._pins.cache:
                is_home = self._chunks.is_home_of(self._chunks.chunk_ref_of(image_map, number))
                missing.append(number)
                homes.append(is_home)
            elif not self._pins.cache.is_written(image_map.cid_of(number)):
                unwritten.append(number)
            await self._pause_after(looked_at)
        return missing, homes

    async def _pause_after(self, chunk_count: int) -> None:
        if chunk_count % self.limits.chunks_per_checkpoint == 0:
            await trio.lowlevel.checkpoint()

    async def fill_slice(
        self,
        part: replica_placement.ReplicaPart,
        progress: FillProgress,
        also_due: Collection[FillProgress] = (),
    ) -> str:
        """Fill an image for ``slice_s``; ``also_due`` wait. Return why nothing arrived."""
        self.current = part.map.image_id
        try:
            return await self._fill_slice(part, progress, also_due)
        finally:
            self.current = None

    async def _fill_slice(
        self,
        part: replica_placement.ReplicaPart,
        progress: FillProgress,
        also_due: Collection[FillProgress],
    ) -> str:
        slice_s, fetch_s = self.limits.slice_s, self.limits.fetch_s
        filling = _FillSlice(part.map, progress, trio.current_time() + slice_s)
        progress.refused_bytes = 0
        progress.slow_start.begin_round(trio.current_time())
        async with trio.open_nursery() as nursery:
            await nursery.start(self._measure, progress, also_due)
            with self._chunks.background_fetch(exchange.Priority.HYDRATE) as ahead:
                with trio.move_on_after(slice_s + fetch_s):
                    await self._fetch_some(filling, ahead)
                waited_s = trio.current_time() - filling.until_s
                for number in ahead.missing_items():
                    what = read_request.describe_chunk(self._chunks.chunk_ref_of(part.map, number))
                    filling.chunk_failed(number, f"{what} did not arrive in {waited_s:.0f} s")
            nursery.cancel_scope.cancel()
        if progress.missing or not filling.came:
            return "" if filling.came else filling.why
        await self._pins.cache.wait_for_room()
        await self.count_missing(part, progress)
        return self._why_refused() if progress.missing else ""

    def _why_refused(self) -> str:
        fault = self._pins.cache.fault
        return fault.what if fault else "the cache has no space for fetched data"

    async def _fetch_some(
        self, filling: _FillSlice, ahead: background_fetch.BackgroundFetch[int]
    ) -> None:
        while (wait_s := await self._request_some(filling, ahead)) is not None or ahead:
            if wait_s is None and filling.came:
                wait_s = filling.until_s + self.limits.last_s - trio.current_time()
                if wait_s <= 0:
                    return  # one chunk must not keep the others from being fetched
            with trio.move_on_after(math.inf if wait_s is None else wait_s):
                for number, outcome in await ahead.wait_for_arrivals():
                    self._take(filling, number, outcome)

    async def _request_some(
        self, filling: _FillSlice, ahead: background_fetch.BackgroundFetch[int]
    ) -> float | None:
        """Request what the rate allows; return seconds until the next request, None: not now."""
        progress, pin = filling.progress, self._pins.get(filling.map.image_id)
        if pin is None or pin.mode is FillMode.PAUSED or filling.failures >= FAILURES:
            return None
        if not progress.missing or trio.current_time() >= filling.until_s:
            return None
        is_urgent = pin.mode is FillMode.URGENT and self._is_pressing(pin, progress)
        limit, is_far = self._max_in_flight(filling, is_urgent=is_urgent), self.boots.is_far
        room, batch = limit - len(ahead), max(1, limit // FAR_BATCHES) if is_far else 1
        if room < batch:
            return self.limits.calm_s / 10
        is_limited = is_far and not (is_urgent or self._must_hurry)
        order, wait_s = self._allowed(filling, is_limited=is_limited)
        if wait_s:
            return min(wait_s, FAR_TOGETHER * self.boots.rtt_s)  # a guest may wait by then
        most, bytes_s = batch if is_far else room, math.inf if is_urgent else self._pacer.bytes_s
        numbers = self._next_of(filling, order, most, bytes_s)
        if not numbers:
            return 0.0
        if not is_urgent:
            link_bytes = self._link_share.share * sum(map(filling.chunk_length, numbers))
            wait_s = self._pacer.wait_s(link_bytes, trio.current_time())
            if wait_s:
                return min(wait_s, self.limits.measure_interval_s)  # the rate may change by then
        for number in numbers:
            progress.missing.remove(number)
        if not (is_urgent or self._must_hurry or is_far):
            await self._yield_to_guests()
        await self._fetch(filling, numbers, ahead)
        return 0.0

    def _max_in_flight(self, filling: _FillSlice, *, is_urgent: bool) -> int:
        progress, chunk_bytes = filling.progress, filling.map.geometry.chunk_bytes
        boots, bytes_s = self.boots, self._pacer.bytes_s / self._link_share.share
        limit_bytes = fill_window.most_bytes(
            progress.slow_start,
            fill_window.Route(boots.rtt_s, boots.is_far, bytes_s, self._chunks.near_hosts),
            progress.speed.recent_bytes_s,
            chunk_bytes,
            is_beside_guests=not (is_urgent or self._must_hurry) and self._is_beside_guests(),
        )
        return max(1, int(limit_bytes / chunk_bytes))

    def _allowed(self, filling: _FillSlice, *, is_limited: bool) -> tuple[Iterator[int], float]:
        """Return the chunks to request in their order, and the wait for a processor's share."""
        image, missing = self._images.get_nowait(filling.map.image_id), filling.progress.missing
        waited_for: Sequence[int] = () if image is None else tuple(image.waited_for)
        if not (is_limited and self.boots.is_any_booting()):
            return missing.in_order(waited_for), 0.0
        used_s, now_s = time.process_time(), trio.current_time()
        wait_s = self._processor.wait_s(used_s, now_s)
        if wait_s and missing.has_near(waited_for):
            return missing.near(waited_for), self._near_processor.wait_s(used_s, now_s)
        return missing.in_order(waited_for), wait_s

    def _next_of(
        self, filling: _FillSlice, order: Iterator[int], room: int, bytes_s: float
    ) -> list[int]:
        """Take out chunks that guests have read; return the next ones to request together.

        The list is empty if guests have read all of the first ``chunks_per_checkpoint``.
        """
        numbers: list[int] = []
        cached: list[int] = []
        left_bytes = max(TOGETHER_S, FAR_TOGETHER * self.boots.rtt_s) * bytes_s
        for number in itertools.islice(order, self.limits.chunks_per_checkpoint):
            if filling.map.cid_of(number) in self._pins.cache:
                cached.append(number)
                continue
            left_bytes -= self._link_share.share * filling.chunk_length(number)
            if numbers and (left_bytes < 0 or len(numbers) == room):
                break
            numbers.append(number)
        for number in cached:
            filling.progress.missing.remove(number)
            filling.has_come(number)
        return numbers

    async def _fetch(
        self, filling: _FillSlice, numbers: list[int], ahead: background_fetch.BackgroundFetch[int]
    ) -> None:
        refs: list[tuple[int, chunk_ref.ChunkRef]] = []
        for number in numbers:
            ref = self._chunks.chunk_ref_of(filling.map, number)
            try:
                if ref.cid in self._pins.cache:  # read by a guest since
                    filling.has_come(number)
                elif not self._pins.cache.can_store_pinned(filling.chunk_length(number)):
                    filling.progress.refused_bytes = filling.chunk_length(number)
                    filling.chunk_failed(number, self._why_refused())
                elif await self._unpack(ref.image_id, ref.cid):  # in a frame of the boot image
                    filling.has_come(number)
                else:
                    refs.append((number, ref))
            except errors.AcstorError as e:
                filling.chunk_failed(number, str(e))
        ahead.request_items(refs)

    def _take(self, filling: _FillSlice, number: int, outcome: background_fetch.Outcome) -> None:
        if isinstance(outcome, errors.AcstorError):
            filling.chunk_failed(number, str(outcome))
            return
        length, is_stored = filling.chunk_length(number), outcome.origin is counters.Origin.SOURCE
        filling.progress.speed.count_bytes(length)
        filling.progress.slow_start.count_arrived(1, trio.current_time())
        share = filling.progress.stored_share if is_stored else 1.0
        self._spare.count_bytes(self._link_share.count_chunk(length, share))
        if filling.map.cid_of(number) in self._pins.cache:
            filling.has_come(number)
        else:
            filling.chunk_failed(number, self._why_refused())

    async def _unpack(self, image_id: ids.ImageId, cid: ids.Cid) -> bool:
        """Unpack a chunk from a local boot image frame; return whether it is cached now."""
        image = self._images.get_nowait(image_id)
        if image is None or image.boots.state is boot_session.State.LOADING:
            return False
        if not image.boots.may_load_chunk(cid) or await image.boots.load_chunk(cid) is None:
            return False
        return cid in self._pins.cache

    def _is_pressing(self, pin: pin_record.ImagePin, progress: FillProgress) -> bool:
        if progress.deadline is None:
            return not pin.deadline_s  # else the deadline is not set yet
        return progress.deadline.is_pressing(trio.current_time())

    def _is_beside_guests(self) -> bool:
        return self.boots.is_any_booting() or self._reads.remote_idle_s() < self.limits.calm_s

    async def _yield_to_guests(self) -> None:
        with trio.move_on_after(self.limits.yield_s):
            while not self._reads.remote_idle_s():  # noqa: ASYNC110 - nothing says when it is
                await trio.sleep(YIELD_TICK_S)

    async def _measure(
        self,
        progress: FillProgress,
        also_due: Collection[FillProgress],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        while True:
            try:
                spare_bytes_s = self._spare.spare_bytes_s(
                    await trio.to_thread.run_sync(self._traffic.read_counters)
                )
            except errors.Unusable:  # the decision service reports it
                spare_bytes_s = fill_rate.UNKNOWN_BYTES_S
            if self._is_beside_guests() and not self.boots.is_far:
                spare_bytes_s *= fill_rate.BESIDE_GUESTS
            usual_bytes_s = min(spare_bytes_s, self.limits.bytes_s)
            progress.speed.refresh(trio.current_time())
            self._link_share.refresh()
            needed_bytes_s = self._needed_bytes_s(progress, also_due)
            self._must_hurry = needed_bytes_s > progress.speed.bytes_s
            self._pacer.bytes_s = max(usual_bytes_s, needed_bytes_s * self._link_share.share)
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            await trio.sleep(self.limits.measure_interval_s)

    def _needed_bytes_s(self, progress: FillProgress, also_due: Collection[FillProgress]) -> float:
        if progress.deadline is None:
            return 0.0
        every = ((fill.deadline, fill.left_bytes or 0) for fill in (progress, *also_due))
        due = ((deadline, left_bytes) for deadline, left_bytes in every if deadline is not None)
        return fill_rate.needed_bytes_s(due, trio.current_time())
