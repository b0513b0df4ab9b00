# SPDX-License-Identifier: Apache-2.0
"""Records boots on this host and sends their traces; a lost trace does no harm."""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import trio

from acstor_agent.core.boot import boot_recorder
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
"""Boots of one image recorded by a worker. A boot image needs two traces; the others replace
failed boots."""
MAX_REQUESTED = 1024  # images for which operators requested recordings; the oldest is forgotten

Send = Callable[[trace_message.BootTrace], None]  # sends a trace; never waits or fails


class RecordingLimits(NamedTuple):
    """Limits of recording."""

    longest_s: float  # 0 disables recording
    idle_s: float
    boots: int


class BootRecording:
    """The recording of boots on this host."""

    def __init__(
        self,
        host: ids.HostId,
        limits: RecordingLimits,
        send: Send,
        clock: clocks.Clock = time,
        requested_limit: int = MAX_REQUESTED,
    ) -> None:
        self._host, self._limits, self._send, self._clock = host, limits, send, clock
        self._open: dict[ids.ImageId, mirror.Mirror] = {}
        self._sent: dict[ids.ImageId, int] = {}
        self._requested = lru_table.LruTable[ids.ImageId, int](requested_limit)

    def record_more(self, image_id: ids.ImageId, boots: int) -> None:
        """Record so many more boots of an image, or raise Unusable if recording is disabled."""
        if not self._limits.longest_s:
            raise errors.Unusable(
                "boot_memory_limit_bytes", "is 0, so nothing is recorded here", "Increase it"
            )
        self._requested[image_id] = self._sent.get(image_id, 0) + boots

    def forget_image(self, image_id: ids.ImageId) -> None:
        """Forget a detached image, except for an operator's pending request."""
        left = self.remaining_boots(image_id) if image_id in self._requested else 0
        self._open.pop(image_id, None)
        self._sent.pop(image_id, None)
        self._requested.pop(image_id, None)
        if left:
            self._requested[image_id] = left

    def remaining_boots(self, image_id: ids.ImageId) -> int:
        """Return how many boots of an image are still to be recorded."""
        wanted = self._requested.get(image_id, self._limits.boots)
        return max(0, wanted - self._sent.get(image_id, 0))

    def image_opened(self, image: mirror.Mirror) -> int:
        """Record an open; return the opener number, 0 if it is not recorded."""
        image_id = image.map.image_id
        if not self._limits.longest_s or not self.remaining_boots(image_id):
            return 0
        if image.recorder is None:
            window = boot_trace.Window(
                self._limits.longest_s, self._limits.idle_s, trace_message.MAX_CHUNKS
            )
            image.recorder = boot_recorder.BootRecorder(image.map.geometry, window, MIN_CHUNKS)
        self._open[image_id] = image
        return image.recorder.open(self._clock.monotonic())

    async def run(self) -> None:
        """Close finished windows and send traces until cancelled."""
        while True:
            await trio.sleep(TICK_S)
            for image_id, image in list(self._open.items()):
                if image.recorder is not None:
                    for trace in image.recorder.take_finished_traces(self._clock.monotonic()):
                        self._hand_on(image, trace)
                    if image.recorder.is_idle:
                        image.recorder = None
                        del self._open[image_id]

    def _hand_on(self, image: mirror.Mirror, trace: tuple[int, ...]) -> None:
        image_id, cut = image.map.image_id, image.map.geometry
        self._sent[image_id] = self._sent.get(image_id, 0) + 1
        LOG.info("image %s: recorded a boot of %d chunks", image_id, len(trace))
        self._send(
            trace_message.BootTrace(
                host=self._host,
                image_id=image_id,
                size_bytes=cut.size_bytes,
                chunk_bytes=cut.chunk_bytes,
                trace=trace,
                recorded_s=time.time(),
            )
        )
