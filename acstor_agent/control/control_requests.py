# SPDX-License-Identifier: Apache-2.0
"""Handles requests on the control socket; never removes an image or disk that is open."""

import logging
import time
from typing import Any
from typing import Protocol

import msgspec
import trio

from acstor_agent.cloud import ring_store
from acstor_agent.control import control_socket
from acstor_agent.control import disk_requests
from acstor_agent.control import image_requests
from acstor_agent.core.disks import disk_header
from acstor_agent.images.boot import boot_recording
from acstor_agent.images.keep import image_detachment
from acstor_agent.mount import stuck_requests
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import control_wire

LOG = logging.getLogger(__name__)

_ImageRequest = (
    control_wire.AttachImage
    | control_wire.DetachImage
    | control_wire.PreSeed
    | control_wire.Unpin
    | control_wire.SetFillMode
    | control_wire.Zeros
)
_DiskRequest = (
    control_wire.MakeDisk
    | control_wire.DropDisk
    | control_wire.Flatten
    | control_wire.AttachCheckpoint
    | control_wire.ListRestoredDisks
)


class ControlledAgent(Protocol):
    """The agent, as far as control requests concern all of it."""

    def current_status(self) -> dict[str, Any]:
        """Return the agent's status; thread-safe."""

    def set_disk_policy(self, policy: str) -> str:
        """Set and return the disk policy (``auto``: choose one); Unusable if it is unknown."""


class ControlRequests:
    """Handlers of control requests."""

    def __init__(
        self,
        images: image_requests.ImageRequests,
        disks: disk_requests.DiskRequests,
        *,
        detachment: image_detachment.ImageDetachment,
        boots: boot_recording.BootRecords,
        rings: ring_store.RingStore,
        stuck: stuck_requests.StuckRequests,
        agent: ControlledAgent,
    ) -> None:
        self.nova_fallbacks = dict.fromkeys(map(str, control_wire.Fallback), 0)
        self._images, self._disks, self._detachment = images, disks, detachment
        self._boots, self._ring, self._stuck = boots, rings, stuck
        self._agent = agent

    async def handle_request(
        self, request: control_wire.AnyRequest, report: control_socket.Report
    ) -> Any:
        """Return a request's result, or raise AcstorError; ``report`` receives its progress."""
        match request:
            case control_wire.Status():
                return await trio.to_thread.run_sync(self._agent.current_status)
            case control_wire.Timelines(wanted_id):
                return {"timelines": self._boots.timelines.timelines_of(wanted_id)}
            case control_wire.PowerOff(instance_id, is_cancelled):
                instance_id = ids.parse_image_id(instance_id)
                return {"processes": await self._stuck.power_off(instance_id, is_cancelled)}
            case control_wire.CountFallback(reason, times):
                self.nova_fallbacks[reason.value] += times
                return None
            case control_wire.SetRing(table):
                return {"epoch": self._ring.set_operator_table(bytes(table)).epoch}
            case control_wire.SetDiskPolicy(policy):
                chosen = self._agent.set_disk_policy(policy)
                LOG.info("disk policy: %s", chosen)
                return {"policy": chosen}
            case control_wire.GetRing():
                return msgspec.Raw(hash_ring.encode(self._ring.ring))
        if isinstance(request, _ImageRequest):
            return await self._handle_image_request(request, report)
        return await self._handle_disk_request(request, report)

    async def _handle_image_request(
        self, request: _ImageRequest, report: control_socket.Report
    ) -> Any:
        match request:
            case control_wire.AttachImage():
                return await self._attach(request)
            case control_wire.DetachImage(image_id):
                return await self._detach(ids.parse_image_id(image_id))
            case control_wire.PreSeed(image_id):
                return await self._images.pre_seed(image_id, report)
            case control_wire.Unpin(image_id):
                return await self._images.set_fill_mode(image_id, None)
            case control_wire.SetFillMode(image_id, mode, deadline_s):
                return await self._images.set_fill_mode(image_id, mode, deadline_s)
            case control_wire.Zeros(image_id):
                return await self._images.read_zeros(image_id)

    async def _handle_disk_request(
        self, request: _DiskRequest, report: control_socket.Report
    ) -> Any:
        match request:
            case control_wire.MakeDisk():
                return await self._disks.make_disk(request)
            case control_wire.DropDisk(disk_id):
                return await self._disks.drop_disk(disk_header.parse_disk_id(disk_id))
            case control_wire.Flatten(disk_id):
                return await self._disks.flatten_disk(disk_header.parse_disk_id(disk_id), report)
            case control_wire.AttachCheckpoint():
                return await self._disks.attach_checkpoint(request)
            case control_wire.ListRestoredDisks():
                return await self._disks.list_restored()

    async def _attach(self, request: control_wire.AttachImage) -> dict[str, Any]:
        began_s = time.monotonic()
        expected = image_record.parse_os_hash(request.os_hash_algo, request.os_hash_value)
        found = await self._images.attach(request.image_id, request.head_bytes, expected)
        profile = ids.profile_key_of(request.profile)
        found.boots.begin_boot(profile)
        self._boots.timelines.image_attached(found.map.image_id, began_s)
        if request.instance_id:
            instance_id = ids.parse_image_id(request.instance_id)
            self._boots.recording.announce_boot(found.map.image_id, instance_id, profile)
        stored = found.map.layout.stored
        return {
            "image_id": found.map.image_id,
            "size_bytes": found.size_bytes,
            "disk_format": stored.disk_format.glance_name,
            "stored_bytes": stored.size_bytes,
        }

    async def _detach(self, image_id: ids.ImageId) -> dict[str, str]:
        await self._disks.check_unused_image(image_id)
        self._detachment.detach_image(image_id)
        await self._images.forget_image(image_id)  # only now: one that cannot go stays pinned
        return {"image_id": image_id}
