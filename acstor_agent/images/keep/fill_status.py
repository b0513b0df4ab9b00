# SPDX-License-Identifier: Apache-2.0
"""Reports the fill status of pinned images to operators, services and peers."""

from typing import Any

import msgspec
import trio

from acstor_agent.core.images import fill_rate
from acstor_agent.core.images import pin_record
from acstor_agent.core.images import replica_holders
from acstor_agent.images.image import usage
from acstor_agent.images.keep import background_fill
from acstor_agent.images.keep import pins
from acstor_agent.images.keep import replication
from acstor_common.model import ids
from acstor_common.wire import fill_progress

FillMode = pin_record.FillMode
State = fill_progress.FillState


class FillStatus:
    """Fill status of all images; any thread may ask."""

    def __init__(
        self,
        filler: background_fill.BackgroundFill,
        image_pins: pins.ImagePins,
        uses: usage.ImageUsage,
        replicas: replication.Replication | None,
    ) -> None:
        self._filler, self._pins, self._uses = filler, image_pins, uses
        self._replicas = replicas
        self._clock = trio.lowlevel.current_clock().current_time

    def is_replica(self, image_id: ids.ImageId) -> bool:
        """Return whether an image is kept here only for instances of other hosts."""
        pin = self._pins.get(image_id)
        if self._replicas is None or self._uses.is_seen(image_id):
            return False
        return pin.is_replica if pin else self._uses.is_only_replica(image_id)

    def list_status(self) -> dict[ids.ImageId, dict[str, Any]]:
        """Return the status of all images to be fully cached here."""
        shown = ((image_id, self.status_of(image_id)) for image_id in list(self._filler.progress))
        return {image_id: status for image_id, status in shown if status is not None}

    def status_of(self, image_id: ids.ImageId) -> dict[str, Any] | None:
        """Return the status of an image; None if it need not be cached fully here."""
        progress, pin = self._filler.progress.get(image_id), self._pins.get(image_id)
        if progress is None or self.is_replica(image_id):
            return None
        left_bytes = progress.unfinished_bytes  # read once: the event loop may change it
        total_bytes, speed = max(progress.total_bytes, left_bytes or 0), progress.speed
        state, why = self._state(image_id, progress, pin, left_bytes)
        if (cloud := self._in_cloud(progress)) is not None:
            left_bytes, total_bytes, speed = (
                cloud.left_bytes,
                cloud.total_bytes,
                progress.cloud_speed,
            )
            state, why = _state_in_cloud(cloud, state, why)
        is_filling = state is State.FILLING
        takes_s = speed.left_s(left_bytes or 0) if is_filling else None
        deadline, now_s = progress.deadline, self._clock()
        return {
            "state": state.value,
            "why": why,
            "total_bytes": total_bytes,
            "remaining_bytes": left_bytes,
            "cached_share": fill_progress.cached_share(total_bytes, left_bytes),
            "rate_bytes_s": round(speed.bytes_s) if is_filling else 0,
            "remaining_s": takes_s,
            "due_in_s": round(deadline.left_s(now_s), 1) if deadline else None,
            "is_late": deadline.is_late(takes_s, now_s) if deadline else None,
            "shortfall_bytes": progress.shortfall_bytes,
            "is_shared": cloud is not None,
            "is_pinned": bool(pin and pin.is_operator_pin),
            "mode": (pin.mode if pin else FillMode.NORMAL).value,
        }

    def _state(
        self,
        image_id: ids.ImageId,
        progress: background_fill.FillProgress,
        pin: pin_record.ImagePin | None,
        left_bytes: int | None,
    ) -> tuple[State, str]:
        failure: fill_rate.Failure | None = progress.backoff.failure
        if progress.shortfall_bytes:
            return State.NO_SPACE, f"the cache lacks {progress.shortfall_bytes} bytes"
        if pin is not None and left_bytes == 0 and image_id != self._filler.current:
            return State.FULLY_CACHED, ""
        if pin is not None and pin.mode is FillMode.PAUSED:
            return State.PAUSED, "by the operator"
        if failure is not None:
            return State.FAILING, failure.why
        if image_id == self._filler.current or progress.left_bytes == 0:
            return State.FILLING, ""
        return (State.BOOTING if self._filler.boots.must_wait(image_id) else State.QUEUED), ""

    def _in_cloud(
        self, progress: background_fill.FillProgress
    ) -> replica_holders.CloudProgress | None:
        """Return the state of an image in the cloud; None if it is kept fully here."""
        part = progress.part
        if self._replicas is None or part is None or part.table is None:
            return None
        report = self._replicas.report_shares(part.map.image_id)
        copies = self._replicas.count_copies()
        return replica_holders.cloud_progress(
            report, copies, part.image_bytes, progress.total_bytes, progress.unfinished_bytes
        )

    def update_cloud_rate(self, progress: background_fill.FillProgress) -> bool:
        """Update the fill rate in the cloud; return whether it is known."""
        progress.cloud_checked_s = self._clock()
        if (cloud := self._in_cloud(progress)) is None or cloud.left_bytes is None:
            return False
        before, progress.cloud_left_bytes = progress.cloud_left_bytes, cloud.left_bytes
        if before is not None:
            progress.cloud_speed.count_bytes(max(0, before - cloud.left_bytes))
        progress.cloud_speed.refresh(self._clock())
        return True


def _state_in_cloud(
    cloud: replica_holders.CloudProgress, state: State, why: str
) -> tuple[State, str]:
    if state is not State.FULLY_CACHED:
        return state, why
    if cloud.is_whole:
        return State.FULLY_CACHED, cloud.why
    if cloud.trouble in (replication.State.NO_ROOM, replication.State.CROWDED):
        return State.NO_SPACE, cloud.why
    if cloud.trouble is not replication.State.KEPT:
        return State.FAILING, cloud.why
    return State.FILLING, cloud.why or "other hosts fetch their shares"


def fill_report(
    status: FillStatus | None, uses: usage.ImageUsage, image_id: ids.ImageId
) -> fill_progress.FillStatus:
    """Return the status of an image for other services; any thread may call it."""
    if status is not None and status.is_replica(image_id):
        return fill_progress.FillStatus(
            state=State.EVICTABLE, is_used=False, why="its share is kept for other hosts"
        )
    is_used = uses.is_used(image_id)
    shown = status.status_of(image_id) if status is not None else None
    if shown is None:
        why = "keep_images is none" if status is None else "no use of it was reported yet"
        return fill_progress.FillStatus(
            state=State.EVICTABLE, is_used=is_used, why=why if is_used else "not used"
        )
    why = shown["why"][: fill_progress.MAX_WHY]
    return msgspec.convert({**shown, "is_used": is_used, "why": why}, fill_progress.FillStatus)
