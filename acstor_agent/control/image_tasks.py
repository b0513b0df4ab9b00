# SPDX-License-Identifier: Apache-2.0
"""What this host is asked to do about images over the bus, and what it tells about them.

Who asks waits for nothing and is told nothing directly; samples say what has
become of a task.  So whatever goes wrong with one is kept until then.
"""

import collections
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
from acstor_agent.core import counters
from acstor_agent.images.boot import boot_recording
from acstor_agent.images.image import mirrors
from acstor_agent.images.prefetch import boot_image_prefetch
from acstor_agent.images.read import mirror
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress

LOG = logging.getLogger(__name__)

MOST_WAITING = 64
"""Tasks that wait: those that take long, and as many wishes."""
MOST_TO_COME = 128
"""Boot images that wait, each for half an hour at most: of those of a night hosts may be told
together."""
MOST_REMEMBERED = 128
"""Images whose last task is told."""
MOST_IMAGES = 256
"""Images that a sample names: those in use that are not whole, for these must stay in the source,
then the others in use, then those used last."""
LOOK_AGAIN_S = 15.0
"""At images without a task; to count what of one is cached takes 1 ms for 10,000 chunks."""

Bring = Callable[[str, control_socket.Report], Awaitable[Mapping[str, int]]]
"""Does something about an image, reports how far it is, and returns the bytes done."""
Fetched = Callable[[ids.ImageId], counters.Tally | None]
Wish = Callable[[decision_messages.ImageTask], Awaitable[object]]
"""Does what is wished of an image that is whole, or is to become so, and ends soon."""
WholeOf = Callable[[ids.ImageId], fill_progress.FillStatus]


class _Heard(NamedTuple):
    """A boot image, and when this host was told of it."""

    task: decision_messages.ImageTask
    at_s: float


class ImageTasks:
    """The tasks of this host.

    :param pre_seed: brings an image here
    :param flatten: copies an image into the disks here that are based on it
    :param wish: does what is neither of these
    :param fetched: returns what was moved to this host of an image
    :param whole_of: returns how far an image is from being whole; may be asked from any thread
    :param bases: returns the images that disks here began as, whose maps may be lost; as well
    :param ahead: brings boot images before they are needed
    """

    def __init__(
        self,
        images: mirrors.Mirrors,
        recording: boot_recording.BootRecording,
        pre_seed: Bring,
        flatten: Bring,
        wish: Wish,
        fetched: Fetched,
        whole_of: WholeOf,
        bases: Callable[[], Iterable[ids.ImageId]],
        ahead: boot_image_prefetch.BootAhead,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._images, self._recording = images, recording
        self._bring_by = {
            decision_messages.TaskKind.PRE_SEED: pre_seed,
            decision_messages.TaskKind.FLATTEN: flatten,
        }
        self._wish, self._ahead = wish, ahead
        self._fetched, self._whole_of, self._clock = fetched, whole_of, clock
        self._bases = bases
        self._told = collections.OrderedDict[str, decision_messages.TaskProgress]()
        self._held: dict[str, decision_messages.HeldImage] = {}
        self._changed: set[str] = set()
        self._looked_s = -LOOK_AGAIN_S
        self._asked, self._to_do = trio.open_memory_channel[decision_messages.ImageTask](
            MOST_WAITING
        )
        self._wished, self._wishes = trio.open_memory_channel[decision_messages.ImageTask](
            MOST_WAITING
        )
        self._coming, self._to_come = trio.open_memory_channel[_Heard](MOST_TO_COME)

    def queue_task(self, task: decision_messages.ImageTask) -> None:
        """Take a task; it takes the place of an earlier one of the same image in what is told.

        One that is given again was taken before: who gave it has not heard so yet.  Of a boot image
        all hosts are told: one that does not want it says nothing, and what somebody has asked
        this host for stays what is told.
        """
        told = self._told.get(task.image_id)
        if told is not None and told.request == task.request:
            self._changed.add(task.image_id)
            return
        is_ahead = task.kind is decision_messages.TaskKind.PREFETCH_BOOT_IMAGE
        if is_ahead and not self._ahead.is_for(task):
            return
        LOG.info("image %s: asked to %s", task.image_id, task.kind)
        if not is_ahead or told is None or told.kind is task.kind:
            self._tell(task, decision_messages.TaskState.WAITING)
        if task.kind is decision_messages.TaskKind.RECORD_BOOTS:
            self._record(task)
            return
        line = self._asked if task.kind in self._bring_by else self._wished
        try:
            if is_ahead:
                self._coming.send_nowait(_Heard(task, trio.current_time()))
            else:
                line.send_nowait(task)
        except trio.WouldBlock:
            count = MOST_TO_COME if is_ahead else MOST_WAITING
            self._fail(task, f"{count} other tasks wait here already")

    async def run(self) -> None:
        """Bring one image after the other, for ever; others than these do not wait for that."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._do_wishes)
            nursery.start_soon(self._bring_boot_images)
            async for task in self._to_do:
                await self._bring(task, functools.partial(self._bring_by[task.kind], task.image_id))

    async def _bring_boot_images(self) -> None:
        async for task, told_s in self._to_come:
            await trio.sleep_until(told_s + self._ahead.delay_s())
            await self._bring(task, functools.partial(self._ahead.prefetch_boot_image, task))

    async def _do_wishes(self) -> None:
        async for task in self._wishes:
            try:
                await self._wish(task)
            except (errors.AcstorError, ValueError, OSError) as e:
                self._fail(task, str(e))
            else:
                self._go_on(task, decision_messages.TaskState.DONE)

    async def changed_images(self) -> dict[str, decision_messages.HeldImage] | None:
        """Return what is to be told of the images here; None if nothing new is."""
        now_s = self._clock()
        for image_id, told in list(self._told.items()):
            self._look_at_recording(image_id, told)
        changed, self._changed = self._changed, set()
        if now_s - self._looked_s >= LOOK_AGAIN_S:
            self._looked_s = now_s
            self._held = await trio.to_thread.run_sync(lambda: self._look(self._present()))
            return self._held
        held = await trio.to_thread.run_sync(self._look_at_changed, changed)
        if held is None:
            return None
        self._held = held
        return self._held

    async def _bring(
        self,
        task: decision_messages.ImageTask,
        bring: Callable[[control_socket.Report], Awaitable[Mapping[str, int]]],
    ) -> None:
        async def report(done: int, total: int) -> None:
            self._go_on(task, decision_messages.TaskState.RUNNING, done, total)

        self._go_on(task, decision_messages.TaskState.RUNNING)
        try:
            came = await bring(report)
        except (errors.AcstorError, ValueError, OSError) as e:
            self._fail(task, str(e))
            return
        done_bytes = came["done_bytes"]
        self._go_on(task, decision_messages.TaskState.DONE, done_bytes, done_bytes)

    def _record(self, task: decision_messages.ImageTask) -> None:
        try:
            self._recording.record_more(ids.parse_image_id(task.image_id), task.boots)
        except errors.Unusable as e:
            self._fail(task, str(e))
        else:
            self._tell(task, decision_messages.TaskState.RUNNING, 0, task.boots)

    def _look_at_recording(self, image_id: str, told: decision_messages.TaskProgress) -> None:
        is_open = told.state is decision_messages.TaskState.RUNNING
        if told.kind is not decision_messages.TaskKind.RECORD_BOOTS or not is_open:
            return
        left = self._recording.boots_left(ids.parse_image_id(image_id))
        done = max(0, told.total - left)
        if done != told.done:
            state = (
                decision_messages.TaskState.RUNNING if left else decision_messages.TaskState.DONE
            )
            self._told[image_id] = msgspec.structs.replace(told, state=state, done=done)
            self._changed.add(image_id)

    def _fail(self, task: decision_messages.ImageTask, why: str) -> None:
        LOG.warning("image %s: cannot %s: %s", task.image_id, task.kind, why)
        self._go_on(task, decision_messages.TaskState.FAILED, why=why[: decision_messages.MAX_WHY])

    def _go_on(
        self,
        task: decision_messages.ImageTask,
        state: decision_messages.TaskState,
        done: int = 0,
        total: int = 0,
        why: str = "",
    ) -> None:
        """Tell how far a task is, unless a newer one has taken its place."""
        told = self._told.get(task.image_id)
        if told is None or told.request == task.request:
            self._tell(task, state, done, total, why)

    def _tell(
        self,
        task: decision_messages.ImageTask,
        state: decision_messages.TaskState,
        done: int = 0,
        total: int = 0,
        why: str = "",
    ) -> None:
        self._told[task.image_id] = decision_messages.TaskProgress(
            request=task.request, kind=task.kind, state=state, done=done, total=total, why=why
        )
        self._told.move_to_end(task.image_id)
        if len(self._told) > MOST_REMEMBERED:
            self._told.popitem(last=False)
        self._changed.add(task.image_id)

    # In a thread

    def _present(self) -> set[str]:
        """Return the images that are to be told: MOST_IMAGES here, and those that a task names."""
        here = self._here()
        if len(here) > MOST_IMAGES:
            here = set(sorted(here, key=self._rank_of, reverse=True)[:MOST_IMAGES])
        return {*here, *list(self._told)}

    def _here(self) -> set[ids.ImageId]:
        return {*self._images.list_attached(), *self._bases()}

    def _rank_of(self, image_id: ids.ImageId) -> tuple[bool, bool, int, str]:
        whole, touched_ns = self._whole_of(image_id), self._images.touched_ns(image_id)
        return whole.is_used and not whole.is_fully_cached, whole.is_used, touched_ns, image_id

    def _look_at_changed(self, changed: set[str]) -> dict[str, decision_messages.HeldImage] | None:
        """Look at what has changed; return what is to be told, None if nothing new is.

        However much that is, no more images are told than are :meth:`_present`.

        :param changed: the images whose tasks have
        """
        present, held = self._present(), self._held
        whole_of = {one: self._whole_of(ids.parse_image_id(one)) for one in present}
        turned = {one for one, whole in whole_of.items() if self._is_other(held.get(one), whole)}
        if not changed and not turned:
            return None
        kept = {one: told for one, told in held.items() if one in present}
        return kept | self._look(present & (changed | turned))

    @staticmethod
    def _is_other(told: decision_messages.HeldImage | None, now: fill_progress.FillStatus) -> bool:
        before = told.fill if told is not None else None
        if before is None:
            return now.is_used
        return (before.is_used, before.is_fully_cached) != (now.is_used, now.is_fully_cached)

    def _look(self, wanted: Iterable[str]) -> dict[str, decision_messages.HeldImage]:
        found = {}
        for image_id in map(ids.parse_image_id, wanted):
            image, told = self._images.get_nowait(image_id), self._told.get(image_id)
            whole = self._whole_of(image_id)
            found[str(image_id)] = held_image(image, self._fetched(image_id), whole, told)
        return found


def held_image(
    image: mirror.Mirror | None,
    fetched: counters.Tally | None,
    whole: fill_progress.FillStatus | None,
    task: decision_messages.TaskProgress | None,
) -> decision_messages.HeldImage:
    """Return what is told of one image; of one that was not read since the start it is little."""
    given = (fetched or counters.Tally()).bytes
    came = decision_messages.FetchedBytes(
        given[counters.Origin.PEER] + given[counters.Origin.HOME], given[counters.Origin.SOURCE]
    )
    if image is None:
        return decision_messages.HeldImage(fetched=came, fill=whole, task=task)
    read, head, held = image.counters.read.bytes, image.boots.head, image.count_cached()
    return decision_messages.HeldImage(
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
