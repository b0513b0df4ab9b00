# SPDX-License-Identifier: Apache-2.0
"""Requests about images, from operators, nova-compute and the decision service."""

import time
from typing import Any

import trio

from acstor_agent.control import control_socket
from acstor_agent.core import counters
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.images import fill_rate
from acstor_agent.core.images import pin_record
from acstor_agent.engine_io import exchange
from acstor_agent.images.image import mirrors
from acstor_agent.images.image import usage
from acstor_agent.images.keep import fill_status
from acstor_agent.images.keep import hydration
from acstor_agent.images.prefetch import pre_seed
from acstor_agent.images.read import mirror
from acstor_agent.runtime import disk_io
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress

FILL_MODES = {
    decision_messages.TaskKind.HYDRATE: pin_record.FillMode.URGENT,
    decision_messages.TaskKind.PAUSE: pin_record.FillMode.PAUSED,
    decision_messages.TaskKind.RESUME: pin_record.FillMode.NORMAL,
    decision_messages.TaskKind.UNPIN: None,
}
"""Fill mode that a task sets; None: the agent unpins the image."""


class ImageRequests:
    """Attaches, fills and describes images; an attachment may take ``timeout_s``."""

    def __init__(
        self,
        host: ids.HostId,
        images: mirrors.Mirrors,
        uses: usage.ImageUsage,
        filling: hydration.Hydration | None,
        chunks: exchange.Exchange,
        timeout_s: float,
    ) -> None:
        self._host, self._timeout_s = host, timeout_s
        self._uses, self._hydration, self._chunks = uses, filling, chunks
        self.mirrors = images

    async def attach(
        self,
        image_id: str,
        head_bytes: int = 0,
        expected: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH,
    ) -> mirror.Mirror:
        """Attach an image and read its first bytes, with a deadline; return its mirror.

        :param expected: Glance's hash of the image, if known
        :raises errors.ImageIdReused: the attached image has another hash
        """
        parsed = ids.parse_image_id(image_id)
        what = f"the chunk map of image {parsed}"
        self._uses.image_touched(parsed)
        guest = requests.Stream(requests.Klass.GUEST, parsed)
        with trio.move_on_after(self._timeout_s), disk_io.use_stream(guest):
            found = await self.mirrors.attach_image(parsed)
            _check_hash(found, expected)
            what = f"the first {head_bytes} bytes of image {parsed}"
            if head_bytes:
                await found.read_at(0, head_bytes)
            return found
        raise errors.DeadlineExceeded(what, self._timeout_s)

    async def set_fill_mode(
        self, image_id: str, mode: pin_record.FillMode | None, deadline_s: float = 0.0
    ) -> dict[str, Any]:
        """Set an image's fill mode; None: unpin it. Raise Unusable if keep_images is none."""
        parsed = ids.parse_image_id(image_id)
        if self._hydration is None:
            raise errors.Unusable(
                f"image {parsed}", "cannot be cached completely: keep_images is none"
            )
        if mode is None:
            await self._hydration.withdraw_request(parsed)
        else:
            await self._hydration.set_fill_mode(parsed, mode, deadline_s)
        return {"image_id": parsed, **(self._hydration.status.status_of(parsed) or {})}

    async def apply_image_task(self, task: decision_messages.ImageTask) -> dict[str, Any]:
        """Apply an operator's fill task; raise Unusable if unknown, or if keep_images is none."""
        if task.kind not in FILL_MODES:
            what = f"image {ids.parse_image_id(task.image_id)}"
            raise errors.Unusable(what, f"this agent does not support the task {task.kind}")
        deadline_s = task.deadline_s
        if task.due_at_s:  # a passed deadline means as fast as possible
            deadline_s = fill_rate.time_left_s(task.due_at_s, deadline_s, time.time())
        return await self.set_fill_mode(task.image_id, FILL_MODES[task.kind], deadline_s)

    async def pre_seed(self, image_id: str, report: control_socket.Report) -> dict[str, int]:
        """Fetch all of an image and pin it; raise Unusable if there is not enough space."""
        image = await self.attach(image_id)
        if self._hydration is not None:
            await self._hydration.request_hydration(image)
        return await pre_seed.pre_seed(
            image,
            self._chunks,
            report,
            is_home=self._chunks.is_home_of,
            first_chunk=pre_seed.first_chunk_of(self._host),
        )

    async def read_zeros(self, image_id: str) -> dict[str, Any]:
        """Return which chunks of an image are zeros, as a bitmap."""
        image_map = (await self.attach(image_id)).map
        cut = image_map.geometry
        bits = await trio.to_thread.run_sync(image_map.zero_bitmap)
        return {
            "size_bytes": cut.size_bytes,
            "chunk_bytes": cut.chunk_bytes,
            "zeros": bits,
            "os_hash_algo": image_map.os_hash_algo,
            "os_hash_value": image_map.os_hash_value.hex(),
        }

    async def forget_image(self, image_id: ids.ImageId) -> None:
        """Unpin a dropped image."""
        if self._hydration is not None:
            await self._hydration.forget_image(image_id)

    # From any thread

    def list_local(self) -> set[ids.ImageId]:
        """Return the images attached here, or with disks here based on them."""
        return {*self.mirrors.list_attached(), *self._uses.base_images()}

    def fetch_tally(self, image_id: ids.ImageId) -> counters.Tally | None:
        """Return the counters of what this host fetched of an image."""
        return self._chunks.counters.fetched.get(image_id)

    def fill_report(self, image_id: ids.ImageId) -> fill_progress.FillStatus:
        """Return the fill status of an image."""
        filling = self._hydration.status if self._hydration else None
        return fill_status.fill_report(filling, self._uses, image_id)


def _check_hash(image: mirror.Mirror, expected: chunk_map.OsHash) -> None:
    """Raise ImageIdReused if Glance has given the image's ID to other bytes."""
    found = chunk_map.OsHash(image.map.os_hash_algo, image.map.os_hash_value)
    if chunk_map.UNKNOWN_OS_HASH not in (found, expected) and found != expected:
        raise errors.ImageIdReused(
            f"image {image.map.image_id}",
            f"its id was reused: this host serves bytes with {found.algo} "
            f"{found.value.hex()[:16]}…, Glance has others",
        )
