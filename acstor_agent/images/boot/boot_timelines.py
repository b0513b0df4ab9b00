# SPDX-License-Identifier: Apache-2.0
"""Timelines of the boots of this host: current ones, and the last finished ones.

A boot lasts from an image's open to its close or a long pause. Inspections leave no timeline.
"""

import collections
import dataclasses
import time
from collections.abc import Callable
from collections.abc import Iterator

import trio

from acstor_agent.core.boot import boot_phases
from acstor_agent.core.boot import load_record
from acstor_agent.core.boot import timeline_recorder
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.images.read import mirror
from acstor_agent.images.read import read_timing
from acstor_common.model import boot_timeline
from acstor_common.model import clocks
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.util import lru_table

MAX_BOOTS = 64
MAX_FINISHED = 64  # finished boots kept, of some KiB each
MAX_IMAGES = 256
ATTACHES = 8
LOOKBACK_S = 120.0  # attachments this long before an open belong to the boot
IDLE_S = 120.0  # a guest under emulation on a busy host read nothing for 20 s before its login
LONGEST_S = 600.0
MIN_BYTES = geometry.MIB  # a guest that read less of an image did not boot from it
TICK_S = 1.0
REPORT_INTERVAL_S = 30.0
REPORTED_AT_ONCE = 8

InstanceOf = Callable[[int], str]  # returns the Nova instance of a process, "" if none; may block


@dataclasses.dataclass(eq=False)
class _Boot:
    image: mirror.Mirror
    guest: requests.Stream
    thread: int
    timing: read_timing.Timing
    loading: load_record.LoadRecord
    zero_s: float  # its beginning, by the monotonic clock
    began_at_s: float
    attaches: tuple[tuple[float, float], ...]
    instance_id: str = ""
    reported_s: float = 0.0

    @property
    def recorder(self) -> timeline_recorder.TimelineRecorder:
        return self.timing.recorder


class BootTimelines:
    """The timelines; keep :meth:`run` running."""

    def __init__(
        self,
        instance_of: InstanceOf = lambda thread: "",
        clock: clocks.Clock = time,
    ) -> None:
        self._instance_of, self._clock = instance_of, clock
        self.histograms = boot_phases.BootHistograms()
        self._boots: dict[requests.Stream, _Boot] = {}
        self._over: collections.deque[boot_timeline.Timeline] = collections.deque(
            maxlen=MAX_FINISHED
        )
        self._unreported: collections.deque[boot_timeline.Timeline] = collections.deque(
            maxlen=MAX_FINISHED
        )
        self._attaches = lru_table.LruTable[ids.ImageId, collections.deque[tuple[float, float]]](
            MAX_IMAGES
        )

    def image_attached(self, image_id: ids.ImageId, from_s: float) -> None:
        """Record that an image was attached for a guest, from ``from_s`` until now."""
        known = self._attaches.get(image_id) or collections.deque(maxlen=ATTACHES)
        known.append((from_s, self._clock.monotonic()))
        self._attaches[image_id] = known

    def image_opened(self, image: mirror.Mirror, guest: requests.Stream, thread: int) -> None:
        """Record an open."""
        self.image_closed(guest)  # a reused number
        if len(self._boots) >= MAX_BOOTS:
            return
        now_s = self._clock.monotonic()
        since_s = now_s - LOOKBACK_S
        attaches = tuple(boot for boot in self._attaches_of(image) if boot[0] >= since_s)
        begins = [from_s for from_s, _ in attaches]
        begins += [image.attached_s[0], image.boots.loading.began_s]
        zero_s = min((boot for boot in begins if since_s <= boot <= now_s), default=now_s)
        timing = read_timing.Timing(timeline_recorder.TimelineRecorder(now_s), self._clock)
        image.timelines[guest] = timing
        self._boots[guest] = _Boot(
            image=image,
            guest=guest,
            thread=thread,
            timing=timing,
            loading=image.boots.loading,
            zero_s=zero_s,
            began_at_s=max(0.0, self._clock.time() - (now_s - zero_s)),
            attaches=attaches,
            reported_s=now_s,
        )

    def _attaches_of(self, image: mirror.Mirror) -> collections.deque[tuple[float, float]]:
        return self._attaches.get(image.map.image_id, collections.deque())

    def image_closed(self, guest: requests.Stream) -> None:
        """Record a close."""
        boot = self._boots.pop(guest, None)
        if boot is None:
            return
        if boot.image.timelines.get(guest) is boot.timing:
            del boot.image.timelines[guest]
        if boot.recorder.read_bytes >= MIN_BYTES:
            timeline = self._timeline_of(boot, is_over=True)
            self._over.append(timeline)
            if timeline.instance_id:
                self._unreported.append(timeline)
                self.histograms.count_boot(timeline)

    async def run(self) -> None:
        """Find the instances of boots, and finish their timelines, until cancelled."""
        while True:
            await trio.sleep(TICK_S)
            for boot in list(self._boots.values()):
                if not boot.instance_id:
                    boot.instance_id = await trio.to_thread.run_sync(
                        self._instance_of, boot.thread, abandon_on_cancel=True
                    )
                if boot.recorder.is_over(self._clock.monotonic(), IDLE_S, LONGEST_S):
                    if self._boots.get(boot.guest) is boot:
                        self.image_closed(boot.guest)

    def timelines_of(self, wanted_id: str = "") -> list[boot_timeline.Timeline]:
        """Return the timelines of an instance or image, or all, newest last."""
        found = [*self._over, *(self._timeline_of(boot) for boot in self._going_on())]
        return [
            timeline
            for timeline in found
            if wanted_id in ("", timeline.instance_id, timeline.image_id)
        ]

    def new_boots(self) -> tuple[boot_timeline.Timeline, ...]:
        """Return a few new reports of boots, made each REPORT_INTERVAL_S and at the end."""
        now_s = self._clock.monotonic()
        timelines = [
            self._unreported.popleft() for _ in range(min(REPORTED_AT_ONCE, len(self._unreported)))
        ]
        for boot in self._going_on():
            is_due = now_s - boot.reported_s >= REPORT_INTERVAL_S
            if boot.instance_id and is_due and len(timelines) < REPORTED_AT_ONCE:
                boot.reported_s = now_s
                timelines.append(self._timeline_of(boot))
        return tuple(timelines)

    def instance_of(self, thread: int) -> str:
        """Return the instance whose current boot is that of this thread; "" if it is unknown."""
        found = (boot.instance_id for boot in self._boots.values() if boot.thread == thread)
        return next(found, "")

    def _going_on(self) -> Iterator[_Boot]:
        return (boot for boot in self._boots.values() if boot.recorder.read_bytes >= MIN_BYTES)

    def _timeline_of(self, boot: _Boot, *, is_over: bool = False) -> boot_timeline.Timeline:
        recorder, now_s, zero_s = boot.recorder, self._clock.monotonic(), boot.zero_s
        return boot_timeline.Timeline(
            image_id=boot.image.map.image_id,
            instance_id=boot.instance_id,
            began_at_s=boot.began_at_s,
            boot_image=boot.image.boots.state.value,
            spans=tuple(_spans(boot, now_s)),
            opened_s=recorder.opened_s - zero_s,
            last_s=recorder.last_s - zero_s if recorder.reads else 0.0,
            is_over=is_over,
            reads=recorder.reads,
            waited_s=recorder.waited_s(now_s),
            bytes={str(via): count for via, count in recorder.bytes.items()},
            slice_s=recorder.slice_s,
            slices=recorder.time_slices(),
            longest=recorder.longest_reads(zero_s),
        )


def _spans(boot: _Boot, now_s: float) -> Iterator[boot_timeline.Span]:
    zero_s, loading = boot.zero_s, boot.loading
    attached_s, attached_to_s = boot.image.attached_s
    for from_s, to_s in boot.attaches:
        yield boot_timeline.Span("attach", from_s - zero_s, to_s - zero_s)
    if attached_s >= zero_s:
        yield boot_timeline.Span("chunk map", attached_s - zero_s, attached_to_s - zero_s)
    if loading.began_s >= zero_s:
        began_s, head_s = loading.began_s - zero_s, (loading.head_s or now_s) - zero_s
        ended_s = (loading.ended_s or now_s) - zero_s
        bytes_by_origin = {origin.value: count for origin, count in loading.bytes.items()}
        yield boot_timeline.Span("boot image head", began_s, head_s)
        yield boot_timeline.Span("boot image", head_s, ended_s, bytes_by_origin)
