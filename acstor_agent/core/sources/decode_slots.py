# SPDX-License-Identifier: Apache-2.0
"""Fair scheduling of decoding of compressed clusters, by image and guest.

The image with the least time used goes first, in it the guest served longest ago; a new image
starts level with the others (start-time fair queueing, Goyal, Vin and Cheng 1996). Beyond a second
for FLOOR_BYTES_S decoded bytes, an image has a budget of BURST_S, refilled at REFILL of a second
per second; while it is in debt, one slot is left to others. Times but ``now_s`` are of a processor.
"""

import collections
import dataclasses

from acstor_agent.core.disk_scheduling import request as requests
from acstor_common.model import geometry
from acstor_common.model import ids

SLICE_S = 0.002  # of a slot, while other images wait
GUEST_SLICE_S = 0.02  # while other guests of the image wait
FLOOR_BYTES_S = 8 * geometry.MIB
BURST_S = 0.25
REFILL = 0.1
IMAGES = 256  # images remembered; more only while they decode or are in debt


@dataclasses.dataclass(eq=False, slots=True)
class Job:
    """A request for a slot."""

    image_id: ids.ImageId
    guest: requests.Stream
    allowed_s: float = 0.0  # the rest of the image's budget when it starts


class _Image:
    def __init__(self, used_s: float) -> None:
        self.used_s = used_s  # virtual time, which advances while it is idle
        self.waiting: dict[Job, None] = {}
        self.running = 0
        self._served: collections.Counter[requests.Stream] = collections.Counter()
        self._count = 0
        self._debt_s, self._debt_at_s = 0.0, 0.0

    def next(self) -> Job:
        job = min(self.waiting, key=lambda waiting: self._served[waiting.guest])
        del self.waiting[job]
        self._count += 1
        guests = {waiting.guest for waiting in self.waiting}
        self._served = collections.Counter(
            {guest: at for guest, at in self._served.items() if guest in guests}
        )
        self._served[job.guest] = self._count
        return job

    def spent(self, used_s: float, decoded_bytes: int, now_s: float) -> None:
        self.used_s += used_s
        debt_s = self.debt_s(now_s) + used_s - decoded_bytes / FLOOR_BYTES_S
        self._debt_s, self._debt_at_s = max(0.0, debt_s), now_s

    def debt_s(self, now_s: float) -> float:
        return max(0.0, self._debt_s - REFILL * (now_s - self._debt_at_s))

    def left_s(self, now_s: float) -> float:
        return BURST_S - self.debt_s(now_s)

    def may_begin(self, now_s: float) -> bool:
        return self.left_s(now_s) >= SLICE_S / 2

    def delay_s(self, now_s: float) -> float:
        return 0.0 if self.may_begin(now_s) else (SLICE_S - self.left_s(now_s)) / REFILL


class DecodeSlots:
    """The slots of a host.

    >>> slots, guest = DecodeSlots(1), requests.Stream(requests.Klass.GUEST, "an image/8")
    >>> job = slots.queue_job(ids.ImageId("an image"), guest)
    >>> slots.begin_job(1.0) is job, slots.begin_job(1.0)
    (True, None)
    >>> slots.end_job(job, used_s=0.001, decoded_bytes=65536, now_s=1.001)
    """

    def __init__(self, slots: int) -> None:
        self._slots = self._free = slots
        self._images: dict[ids.ImageId, _Image] = {}
        self._used_s = 0.0
        self._waiting = 0

    def queue_job(self, image_id: ids.ImageId, guest: requests.Stream) -> Job:
        """Queue a job."""
        image = self._images.get(image_id)
        if image is None:
            image = self._images[image_id] = _Image(self._used_s)
        elif not image.waiting and not image.running:
            image.used_s = max(image.used_s, self._used_s)
        job = Job(image_id, guest)
        image.waiting[job] = None
        self._waiting += 1
        return job

    def is_over(self, job: Job, used_s: float, decoded_bytes: int) -> bool:
        """Return whether a job must give up its slot; any thread may call it."""
        image = self._images.get(job.image_id)
        waiting = len(image.waiting) if image else 0
        if used_s >= SLICE_S and self._waiting > waiting:
            return True
        if used_s >= GUEST_SLICE_S and waiting:
            return True
        return used_s >= job.allowed_s + decoded_bytes / FLOOR_BYTES_S

    def leave_queue(self, job: Job) -> None:
        """Remove a job from the queue."""
        if self._images[job.image_id].waiting.pop(job, job) is None:
            self._waiting -= 1

    def begin_job(self, now_s: float) -> Job | None:
        """Start the next job and return it; None if none may start."""
        if not self._free:
            return None
        waiting = (image for image in self._images.values() if image.waiting)
        ready = (image for image in waiting if self._may_begin(image, now_s))
        image = min(ready, key=lambda queued: queued.used_s, default=None)
        if image is None:
            return None
        self._free -= 1
        self._waiting -= 1
        image.running += 1
        self._used_s = max(self._used_s, image.used_s)
        job = image.next()
        job.allowed_s = image.left_s(now_s)
        return job

    def _may_begin(self, image: _Image, now_s: float) -> bool:
        is_last = image.running and image.running >= self._slots - 1
        return image.may_begin(now_s) and not (is_last and image.debt_s(now_s))

    def end_job(self, job: Job, used_s: float, decoded_bytes: int, now_s: float) -> None:
        """End a job and free its slot."""
        image = self._images[job.image_id]
        self._free += 1
        image.running -= 1
        image.spent(used_s, decoded_bytes, now_s)
        if len(self._images) > IMAGES:
            self._forget(now_s)

    def delay_s(self, now_s: float) -> float | None:
        """Return the delay until :meth:`begin_job` may succeed without a job ending, or None."""
        if not self._free:
            return None
        waiting = [image for image in self._images.values() if image.waiting and not image.running]
        return min((image.delay_s(now_s) for image in waiting), default=None)

    def _forget(self, now_s: float) -> None:
        for image_id, image in list(self._images.items()):
            is_idle = not image.waiting and not image.running
            if is_idle and not image.debt_s(now_s):
                del self._images[image_id]
