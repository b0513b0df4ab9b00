# SPDX-License-Identifier: Apache-2.0
"""Tasks about images from the message bus, and reports about images in samples."""

import functools
import logging
import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import trio

from acstor_agent.control import control_socket
from acstor_agent.control import disk_requests
from acstor_agent.control import image_requests
from acstor_agent.core import counters
from acstor_agent.core.boot import boot_set
from acstor_agent.images.boot import boot_recording
from acstor_agent.images.prefetch import boot_image_prefetch
from acstor_agent.images.read import mirror
from acstor_common import errors
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import lru_table
from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress

LOG = logging.getLogger(__name__)

MAX_WAITING = 64  # limit of waiting tasks, for long and for short ones each
MAX_BOOT_IMAGES = 128  # limit of waiting boot images; each waits half an hour at most
MAX_REPORTED_TASKS = 128  # limit of images whose last task is reported
MAX_IMAGES = 256
"""Limit of images in a sample.

Images in use that are not fully cached come first, as they must stay in the source; then others in
use; then the most recently used.
"""
DESCRIBE_INTERVAL_S = 15.0
"""Interval at which images without tasks are examined; 10,000 chunks take 1 ms."""


class _BootImageTask(NamedTuple):
    task: decision_messages.ImageTask
    at_s: float


class ImageTasks:
    """The tasks of this host."""

    def __init__(
        self,
        images: image_requests.ImageRequests,
        disks: disk_requests.DiskRequests,
        recording: boot_recording.BootRecording,
        boot_prefetch: boot_image_prefetch.BootImagePrefetch,
        clock: clocks.Clock = time,
        max_images: int = MAX_IMAGES,
    ) -> None:
        self._images, self._recording, self._boot_prefetch = images, recording, boot_prefetch
        self._kinds = {
            decision_messages.TaskKind.PRE_SEED: images.pre_seed,
            decision_messages.TaskKind.FLATTEN: disks.flatten_disks,
        }
        self._clock, self._max_images = clock, max_images
        self._progress = lru_table.LruTable[str, decision_messages.TaskProgress](MAX_REPORTED_TASKS)
        self._held: dict[str, decision_messages.HeldImage] = {}
        self._changed: set[str] = set()
        self._described_s = -DESCRIBE_INTERVAL_S
        self._asked, self._to_do = trio.open_memory_channel[decision_messages.ImageTask](
            MAX_WAITING
        )
        self._fill_queue, self._fill_tasks = trio.open_memory_channel[decision_messages.ImageTask](
            MAX_WAITING
        )
        self._coming, self._to_come = trio.open_memory_channel[_BootImageTask](MAX_BOOT_IMAGES)

    def queue_task(self, task: decision_messages.ImageTask) -> None:
        """Queue a task; its progress replaces that of the image's previous task.

        A repeated task is only reported again. Boot images are announced to all hosts: a host that
        does not want one reports nothing, and an operator's task keeps its place in the report.
        """
        progress = self._progress.get(task.image_id)
        if progress is not None and progress.request == task.request:
            self._changed.add(task.image_id)
            return
        is_ahead = task.kind is decision_messages.TaskKind.PREFETCH_BOOT_IMAGE
        if is_ahead and not self._boot_prefetch.is_for(task):
            return
        LOG.info("image %s: received the task %s", task.image_id, task.kind)
        if not is_ahead or progress is None or progress.kind is task.kind:
            self._report(task, decision_messages.TaskState.WAITING, is_new=True)
        if task.kind is decision_messages.TaskKind.RECORD_BOOTS:
            self._record(task)
            return
        line = self._asked if task.kind in self._kinds else self._fill_queue
        try:
            if is_ahead:
                self._coming.send_nowait(_BootImageTask(task, trio.current_time()))
            else:
                line.send_nowait(task)
        except trio.WouldBlock:
            count = MAX_BOOT_IMAGES if is_ahead else MAX_WAITING
            self._fail(task, f"{count} other tasks already wait on this host")

    async def run(self) -> None:
        """Run tasks forever: long ones one by one, short ones beside them."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_fill_tasks)
            nursery.start_soon(self._prefetch_boot_images)
            async for task in self._to_do:
                await self._run_task(task, functools.partial(self._kinds[task.kind], task.image_id))

    async def _prefetch_boot_images(self) -> None:
        async for task, given_s in self._to_come:
            await trio.sleep_until(given_s + self._boot_prefetch.delay_s())
            await self._run_task(
                task, functools.partial(self._boot_prefetch.prefetch_boot_image, task)
            )

    async def _run_fill_tasks(self) -> None:
        async for task in self._fill_tasks:
            try:
                await self._images.apply_image_task(task)
            except (errors.AcstorError, ValueError, OSError) as e:
                self._fail(task, str(e))
            else:
                self._report(task, decision_messages.TaskState.DONE)

    async def changed_images(self) -> dict[str, decision_messages.HeldImage] | None:
        """Return the images to report; None if nothing changed."""
        now_s = self._clock.monotonic()
        for image_id, progress in list(self._progress.items()):
            self._update_recording(image_id, progress)
        changed, self._changed = self._changed, set()
        if now_s - self._described_s >= DESCRIBE_INTERVAL_S:
            self._described_s = now_s
            self._held = await trio.to_thread.run_sync(lambda: self._describe(self._reported()))
            return self._held
        held = await trio.to_thread.run_sync(self._describe_changed, changed)
        if held is None:
            return None
        self._held = held
        return self._held

    async def _run_task(
        self,
        task: decision_messages.ImageTask,
        bring: Callable[[control_socket.Report], Awaitable[Mapping[str, int]]],
    ) -> None:
        async def report(done: int, total: int) -> None:
            self._report(task, decision_messages.TaskState.RUNNING, done, total)

        self._report(task, decision_messages.TaskState.RUNNING)
        try:
            came = await bring(report)
        except (errors.AcstorError, ValueError, OSError) as e:
            self._fail(task, str(e))
            return
        done_bytes = came["done_bytes"]
        self._report(task, decision_messages.TaskState.DONE, done_bytes, done_bytes)

    def _record(self, task: decision_messages.ImageTask) -> None:
        try:
            self._recording.record_more(ids.parse_image_id(task.image_id), task.boots)
        except errors.Unusable as e:
            self._fail(task, str(e))
        else:
            self._report(task, decision_messages.TaskState.RUNNING, 0, task.boots)

    def _update_recording(self, image_id: str, progress: decision_messages.TaskProgress) -> None:
        is_open = progress.state is decision_messages.TaskState.RUNNING
        if progress.kind is not decision_messages.TaskKind.RECORD_BOOTS or not is_open:
            return
        left = self._recording.requested_boots(ids.parse_image_id(image_id))
        done = max(0, progress.total - left)
        if done != progress.done:
            state = (
                decision_messages.TaskState.RUNNING if left else decision_messages.TaskState.DONE
            )
            self._progress[image_id] = msgspec.structs.replace(progress, state=state, done=done)
            self._changed.add(image_id)

    def _fail(self, task: decision_messages.ImageTask, why: str) -> None:
        LOG.warning("image %s: cannot %s: %s", task.image_id, task.kind, why)
        self._report(task, decision_messages.TaskState.FAILED, why=why[: decision_messages.MAX_WHY])

    def _report(
        self,
        task: decision_messages.ImageTask,
        state: decision_messages.TaskState,
        done: int = 0,
        total: int = 0,
        why: str = "",
        is_new: bool = False,
    ) -> None:
        progress = self._progress.get(task.image_id)
        if is_new or progress is None or progress.request == task.request:
            self._progress[task.image_id] = decision_messages.TaskProgress(
                request=task.request, kind=task.kind, state=state, done=done, total=total, why=why
            )
            self._changed.add(task.image_id)

    # In a thread

    def _reported(self) -> set[str]:
        """Return the images to report: ``max_images`` here, and those with tasks."""
        local = self._images.list_local()
        if len(local) > self._max_images:
            local = set(sorted(local, key=self._rank_of, reverse=True)[: self._max_images])
        return {*local, *list(self._progress)}

    def _rank_of(self, image_id: ids.ImageId) -> tuple[bool, bool, int, str]:
        whole = self._images.fill_report(image_id)
        touched_ns = self._images.mirrors.touched_ns(image_id)
        return whole.is_used and not whole.is_fully_cached, whole.is_used, touched_ns, image_id

    def _describe_changed(self, changed: set[str]) -> dict[str, decision_messages.HeldImage] | None:
        present, held = self._reported(), self._held
        fills = {
            image_id: self._images.fill_report(ids.parse_image_id(image_id)) for image_id in present
        }
        other_fill = {
            image_id for image_id, fill in fills.items() if self._differs(held.get(image_id), fill)
        }
        if not changed and not other_fill:
            return None
        kept = {image_id: report for image_id, report in held.items() if image_id in present}
        return kept | self._describe(present & (changed | other_fill))

    @staticmethod
    def _differs(report: decision_messages.HeldImage | None, now: fill_progress.FillStatus) -> bool:
        before = report.fill if report is not None else None
        if before is None:
            return now.is_used
        return (before.is_used, before.is_fully_cached) != (now.is_used, now.is_fully_cached)

    def _describe(self, wanted: Iterable[str]) -> dict[str, decision_messages.HeldImage]:
        found = {}
        for image_id in map(ids.parse_image_id, wanted):
            image, progress = (
                self._images.mirrors.get_nowait(image_id),
                self._progress.get(image_id),
            )
            fill = self._images.fill_report(image_id)
            held = held_image(image, self._images.fetch_tally(image_id), fill, progress)
            if image is None and (ahead := self._boot_prefetch.boot_set_of(image_id)) is not None:
                held = _with_boot_set(held, ahead)
            found[str(image_id)] = held
        return found


def held_image(
    image: mirror.Mirror | None,
    fetched: counters.Tally | None,
    whole: fill_progress.FillStatus | None,
    task: decision_messages.TaskProgress | None,
) -> decision_messages.HeldImage:
    """Return the report of one image; it is short if the image was not read yet."""
    given = (fetched or counters.Tally()).bytes
    came = decision_messages.FetchedBytes(
        given[counters.Origin.PEER] + given[counters.Origin.HOME], given[counters.Origin.SOURCE]
    )
    if image is None:
        return decision_messages.HeldImage(fetched=came, fill=whole, task=task)
    read, head, held = image.counters.read.bytes, image.boots.head, image.count_cached()
    report = decision_messages.HeldImage(
        size_bytes=image.size_bytes,
        cached_bytes=held.cached_bytes,
        missing_bytes=held.missing_bytes,
        boot_image=image.boots.state.value,
        boot_revision=head.header.revision if head else 0,
        read=decision_messages.ReadBytes(
            local=read[counters.Origin.ZERO] + read[counters.Origin.CACHE],
            boot=read[counters.Origin.BOOT],
            peer=read[counters.Origin.PEER] + read[counters.Origin.HOME],
            source=read[counters.Origin.SOURCE],
        ),
        fetched=came,
        fill=whole,
        task=task,
    )
    return report if held.boot is None else _with_boot_set(report, held.boot)


def _with_boot_set(
    report: decision_messages.HeldImage, found: boot_set.BootSet
) -> decision_messages.HeldImage:
    return msgspec.structs.replace(
        report, boot_set_bytes=found.total_bytes, boot_set_cached_bytes=found.cached_bytes
    )
