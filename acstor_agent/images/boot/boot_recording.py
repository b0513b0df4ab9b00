# SPDX-License-Identifier: Apache-2.0
"""Records boots on this host and sends their traces; a lost trace does no harm."""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import trio

from acstor_agent.core.boot import boot_recorder
from acstor_agent.images.boot import boot_timelines
from acstor_agent.images.read import mirror
from acstor_common import errors
from acstor_common.image import boot_trace
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import lru_table
from acstor_common.wire import trace_message

LOG = logging.getLogger(__name__)

MIN_CHUNKS = 16  # a guest that read fewer chunks did not boot from the image
TICK_S = 1.0
LONGEST_S = 180.0
"""Longest recording: ten times the boots to a login prompt measured under emulation. Later reads
are the guest's work."""
IDLE_S = 60.0  # an emulated guest on a busy host read nothing for 20 s before its login
BOOTS = 4
"""Boots of an image and a profile recorded by a worker. A boot image needs two traces; the others
replace failed boots."""
MAX_REQUESTED = 1024  # images for which operators requested recordings; the oldest is forgotten
MAX_ANNOUNCED = 1024  # instances whose profile is known; the oldest are forgotten
ANNOUNCED_S = 600.0  # QEMU opens the image this long after the announcement, at most
AGAIN_S = 2 * 86400.0  # a profile's boots are recorded anew, so that listeners see it in use

Send = Callable[[trace_message.BootTrace], None]  # sends a trace; never waits or fails
InstanceOf = Callable[[int], str]  # the Nova instance of a thread, if known


class RecordingLimits(NamedTuple):
    """Limits of recording."""

    longest_s: float  # 0 disables recording
    idle_s: float
    boots: int  # of each profile


class BootRecords(NamedTuple):
    """Records of this host's boots."""

    recording: "BootRecording"
    timelines: boot_timelines.BootTimelines


class _Announced(NamedTuple):
    image_id: ids.ImageId
    profile: ids.ProfileKey
    at_s: float


class _SentTraces:
    """The sent traces of an image: their number, and that and the time of each profile's last."""

    def __init__(self) -> None:
        self.total = 0
        self.of_profiles: dict[ids.ProfileKey, tuple[int, float]] = {}

    def add(self, profile: ids.ProfileKey, now_s: float) -> None:
        self.total += 1
        self.of_profiles[profile] = self.of_profiles.get(profile, (0, now_s))[0] + 1, now_s

    def remaining_boots(self, profile: ids.ProfileKey, boots: int, now_s: float) -> int:
        others = self.of_profiles.keys() - {ids.NO_PROFILE, profile}
        if profile != ids.NO_PROFILE and len(others) >= boot_trace.MAX_PROFILES:
            return 0
        sent, last_s = self.of_profiles.get(profile, (0, now_s))
        is_due = profile != ids.NO_PROFILE and now_s - last_s >= AGAIN_S
        return max(boots - sent, int(is_due))


class BootRecording:
    """Records boots; Nova announces an instance with a profile before its QEMU opens the image."""

    def __init__(
        self,
        host: ids.HostId,
        limits: RecordingLimits,
        send: Send,
        clock: clocks.Clock = time,
        instance_of: InstanceOf = lambda thread: "",
        requested_limit: int = MAX_REQUESTED,
    ) -> None:
        self._host, self._limits, self._send, self._clock = host, limits, send, clock
        self._instance_of = instance_of
        self._open: dict[ids.ImageId, mirror.Mirror] = {}
        self._sent: dict[ids.ImageId, _SentTraces] = {}
        self._announced = lru_table.LruTable[str, _Announced](MAX_ANNOUNCED)
        self._requested = lru_table.LruTable[ids.ImageId, int](requested_limit)

    def record_more(self, image_id: ids.ImageId, boots: int) -> None:
        """Record so many more boots of an image, or raise Unusable if recording is disabled."""
        if not self._limits.longest_s:
            raise errors.Unusable(
                "boot_memory_limit_bytes", "is 0, so nothing is recorded here", "Increase it"
            )
        self._requested[image_id] = self._sent_of(image_id).total + boots

    def forget_image(self, image_id: ids.ImageId) -> None:
        """Forget a detached image, except for an operator's pending request."""
        left = self.requested_boots(image_id)
        self._open.pop(image_id, None)
        self._sent.pop(image_id, None)
        self._requested.pop(image_id, None)
        if left:
            self._requested[image_id] = left
        for instance_id, announced in list(self._announced.items()):
            if announced.image_id == image_id:
                del self._announced[instance_id]

    def remaining_boots(
        self, image_id: ids.ImageId, profile: ids.ProfileKey = ids.NO_PROFILE
    ) -> int:
        """Return how many boots of an image and a profile are still to be recorded."""
        sent, now_s = self._sent_of(image_id), self._clock.monotonic()
        by_itself = sent.remaining_boots(profile, self._limits.boots, now_s)
        return max(by_itself, self.requested_boots(image_id))

    def requested_boots(self, image_id: ids.ImageId) -> int:
        """Return how many boots that an operator requested are still to be recorded."""
        return max(0, self._requested.get(image_id, 0) - self._sent_of(image_id).total)

    def _sent_of(self, image_id: ids.ImageId) -> _SentTraces:
        return self._sent.get(image_id) or _SentTraces()

    def announce_boot(
        self, image_id: ids.ImageId, instance_id: str, profile: ids.ProfileKey
    ) -> None:
        """Note the profile of an instance that is about to boot from an image."""
        self._announced[instance_id] = _Announced(image_id, profile, self._clock.monotonic())

    def image_opened(self, image: mirror.Mirror, thread: int) -> int:
        """Record an open; return the opener number, 0 if it is not recorded."""
        image_id = image.map.image_id
        if not self._limits.longest_s or not self._is_wanted(image_id):
            return 0
        if image.recorder is None:
            window = boot_trace.Window(
                self._limits.longest_s, self._limits.idle_s, trace_message.MAX_CHUNKS
            )
            image.recorder = boot_recorder.BootRecorder(image.map.geometry, window, MIN_CHUNKS)
        self._open[image_id] = image
        return image.recorder.open(self._clock.monotonic(), thread)

    def _is_wanted(self, image_id: ids.ImageId) -> bool:
        """Return whether some guest that may boot from the image now is to be recorded."""
        profiles = {ids.NO_PROFILE, *self._announced_profiles(image_id, self._clock.monotonic())}
        return any(self.remaining_boots(image_id, profile) for profile in profiles)

    def _announced_profiles(self, image_id: ids.ImageId, opened_s: float) -> set[ids.ProfileKey]:
        """Return the profiles of guests that may have opened an image then, or later."""
        return {
            its.profile
            for its in self._announced.values()
            if its.image_id == image_id and its.at_s >= opened_s - ANNOUNCED_S
        }

    def _profile_of(
        self, image_id: ids.ImageId, boot: boot_recorder.FinishedTrace
    ) -> ids.ProfileKey | None:
        """Return the profile of a boot; None if it is unknown."""
        announced = self._announced.get(boot.instance_id)
        if announced is not None and announced.image_id == image_id:
            if announced.at_s >= boot.opened_s - ANNOUNCED_S:
                return announced.profile
        is_known = boot.instance_id or not self._announced_profiles(image_id, boot.opened_s)
        return ids.NO_PROFILE if is_known else None

    async def run(self) -> None:
        """Close finished windows and send traces until cancelled."""
        while True:
            await trio.sleep(TICK_S)
            for image_id, image in list(self._open.items()):
                if image.recorder is not None:
                    image.recorder.find_instances(self._instance_of)
                    for boot in image.recorder.take_finished_traces(self._clock.monotonic()):
                        self._hand_on(image, boot)
                    if image.recorder.is_idle:
                        image.recorder = None
                        del self._open[image_id]

    def _hand_on(self, image: mirror.Mirror, boot: boot_recorder.FinishedTrace) -> None:
        image_id, cut = image.map.image_id, image.map.geometry
        profile = self._profile_of(image_id, boot)
        if profile is None or not self.remaining_boots(image_id, profile):
            return
        self._sent.setdefault(image_id, _SentTraces()).add(profile, self._clock.monotonic())
        LOG.info("image %s: recorded a boot of %d chunks", image_id, len(boot.trace))
        self._send(
            trace_message.BootTrace(
                host=self._host,
                image_id=image_id,
                size_bytes=cut.size_bytes,
                chunk_bytes=cut.chunk_bytes,
                trace=boot.trace,
                recorded_s=time.time(),
                profile=profile.hex(),
            )
        )
