# SPDX-License-Identifier: Apache-2.0
"""Handles requests on the control socket, from operators and nova-compute.

An image or a disk that a process has open is never removed.
"""

import logging
import time
from collections.abc import Awaitable
from collections.abc import Callable
from typing import Any

import msgspec
import trio

from acstor_agent.cloud import ring_keeper
from acstor_agent.control import control_socket
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.disks import checkpoint_file
from acstor_agent.core.disks import disk_header
from acstor_agent.core.disks import restore_record
from acstor_agent.core.images import fill_rate
from acstor_agent.core.images import pin_record
from acstor_agent.disks import checkpoint_restore
from acstor_agent.disks import disks
from acstor_agent.disks import flatten_disks
from acstor_agent.engine_io import exchange
from acstor_agent.images.boot import boot_timelines
from acstor_agent.images.image import mirrors
from acstor_agent.images.image import usage
from acstor_agent.images.keep import hydration
from acstor_agent.images.keep import image_eviction
from acstor_agent.images.prefetch import pre_seed
from acstor_agent.images.read import mirror
from acstor_agent.mount import open_files
from acstor_agent.runtime import disk_io
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import control_wire
from acstor_common.wire import decision_messages

LOG = logging.getLogger(__name__)

FILL_MODES = {
    decision_messages.TaskKind.HYDRATE: pin_record.FillMode.URGENT,
    decision_messages.TaskKind.PAUSE: pin_record.FillMode.PAUSED,
    decision_messages.TaskKind.RESUME: pin_record.FillMode.NORMAL,
    decision_messages.TaskKind.UNPIN: None,
}
"""Fill mode that a task sets; None: the agent unpins the image."""


class ControlRequests:
    """Handlers of control requests.

    :param picture: returns the agent's status; called in a thread
    :param change_policy: sets the disk scheduling policy
    :param switched_off: called when a server is being switched off, to abort its waiting requests,
        or when that is taken back
    """

    def __init__(
        self,
        here: ids.HostId,
        mount_point: str,
        patience_s: float,
        *,
        images: mirrors.Mirrors,
        uses: usage.ImageUsage,
        whole: hydration.Hydration | None,
        made: disks.Disks,
        recovered: checkpoint_restore.CheckpointRestore,
        chunks: exchange.Exchange,
        detaching: image_eviction.ImageEviction,
        timelines: boot_timelines.Timelines,
        rings: ring_keeper.RingKeeper,
        io: disk_io.DiskIo,
        picture: Callable[[], dict[str, Any]],
        change_policy: Callable[[str], None],
        switched_off: Callable[[str, bool], Awaitable[int]],
    ) -> None:
        self.nova_fallbacks = dict.fromkeys(map(str, control_wire.Fallback), 0)
        self._host, self._mount_point = here, mount_point
        self._patience_s = patience_s
        self._images, self._disks, self._chunks = images, made, chunks
        self._recovering = recovered
        self._detaching, self._timelines = detaching, timelines
        self._ring, self._io, self._uses = rings, io, uses
        self._whole = whole
        self._picture, self._change_policy = picture, change_policy
        self._switched_off = switched_off

    async def handle_request(  # noqa: C901 - a branch for each request
        self, request: control_wire.AnyRequest, report: control_socket.Report
    ) -> Any:
        """Return the result of a request.

        :param report: receives the progress of long requests
        :raises errors.AcstorError: the request failed
        """
        match request:
            case control_wire.Status():
                return await trio.to_thread.run_sync(self._picture)
            case control_wire.Timelines(wanted_id):
                return {"timelines": self._timelines.timelines_of(wanted_id)}
            case control_wire.Ensure(image_id, head_bytes, algo, value):
                began_s = time.monotonic()
                expected = image_record.parse_os_hash(algo, value)
                found = await self._attach(image_id, head_bytes, expected)
                found.boots.begin_boot()
                self._timelines.image_ensured(found.map.image_id, began_s)
                stored = found.map.layout.stored
                return {
                    "image_id": found.map.image_id,
                    "size_bytes": found.size_bytes,
                    "disk_format": stored.disk_format.glance_name,
                    "stored_bytes": stored.size_bytes,
                }
            case control_wire.Drop(image_id):
                return await self._drop(ids.parse_image_id(image_id))
            case control_wire.PreSeed(image_id):
                return await self.pre_seed(image_id, report)
            case control_wire.Unpin(image_id):
                return await self._set_fill_mode(image_id, None)
            case control_wire.SetFillMode(image_id, mode, deadline_s):
                return await self._set_fill_mode(image_id, mode, deadline_s)
            case control_wire.SwitchedOff(instance_id, is_taken_back):
                instance_id = ids.parse_image_id(instance_id)
                return {"processes": await self._switched_off(instance_id, is_taken_back)}
            case control_wire.Zeros(image_id):
                return await self._zeros(image_id)
            case control_wire.Flatten(disk_id):
                return await self._flatten_disk(disk_header.parse_disk_id(disk_id), report)
            case control_wire.MakeDisk():
                return await self._make_disk(request)
            case control_wire.DropDisk(disk_id):
                return await self._drop_disk(disk_header.parse_disk_id(disk_id))
            case control_wire.AttachCheckpoint():
                return await self._attach_checkpoint(request)
            case control_wire.Recovered():
                return {"disks": await trio.to_thread.run_sync(self._recovering.list_recovered)}
            case control_wire.CountFallback(reason, times):
                self.nova_fallbacks[reason.value] += times
                return None
            case control_wire.SetRing(table):
                return {"epoch": self._ring.set_operator_table(bytes(table)).epoch}
            case control_wire.SetDiskPolicy(policy):
                return self._set_disk_policy(policy)
            case control_wire.GetRing():
                return msgspec.Raw(hash_ring.encode(self._ring.ring))

    def _set_disk_policy(self, policy: str) -> dict[str, str]:
        if policy not in (disk_io.AUTO, *self._io.schedulers):
            raise errors.Unusable(f"disk policy {policy}", "there is no such policy")
        self._change_policy(policy)
        LOG.info("disk policy: %s", self._io.policy)
        return {"policy": self._io.policy}

    async def _attach(
        self,
        image_id: str,
        head_bytes: int = 0,
        expected: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH,
    ) -> mirror.Mirror:
        """Attach an image and read its first bytes; return its mirror.

        Unlike a guest's read, this has a deadline.

        :param expected: Glance's hash of the image, if known
        :raises errors.ImageIdReused: the attached image has another hash
        """
        parsed = ids.parse_image_id(image_id)
        what = f"the chunk map of image {parsed}"
        self._uses.image_touched(parsed)
        guest = requests.Stream(requests.Klass.GUEST, parsed)
        with trio.move_on_after(self._patience_s), disk_io.use_stream(guest):
            found = await self._images.attach_image(parsed)
            _check_hash(found, expected)
            what = f"the first {head_bytes} bytes of image {parsed}"
            if head_bytes:
                await found.read(0, head_bytes)
            return found
        raise errors.DeadlineExceeded(what, self._patience_s)

    async def _set_fill_mode(
        self, image_id: str, mode: pin_record.FillMode | None, deadline_s: float = 0.0
    ) -> dict[str, Any]:
        """Set the fill mode of an image; None: unpin it."""
        parsed = ids.parse_image_id(image_id)
        if self._whole is None:
            raise errors.Unusable(
                f"image {parsed}", "cannot be cached completely: keep_images is none"
            )
        if mode is None:
            await self._whole.withdraw_request(parsed)
        else:
            await self._whole.set_fill_mode(parsed, mode, deadline_s)
        return {"image_id": parsed, **(self._whole.telling.status_of(parsed) or {})}

    async def apply_image_task(self, task: decision_messages.ImageTask) -> dict[str, Any]:
        """Apply an operator's task about the fill of an image.

        :raises errors.Unusable: keep_images is none, or the kind of task is unknown
        """
        if task.kind not in FILL_MODES:
            what = f"image {ids.parse_image_id(task.image_id)}"
            raise errors.Unusable(what, f"this agent does not know what {task.kind} is")
        deadline_s = task.deadline_s
        if task.due_at_s:  # a passed deadline means as fast as possible
            deadline_s = fill_rate.time_left_s(task.due_at_s, deadline_s, time.time())
        return await self._set_fill_mode(task.image_id, FILL_MODES[task.kind], deadline_s)

    async def _zeros(self, image_id: str) -> dict[str, Any]:
        image_map = (await self._attach(image_id)).map
        cut = image_map.geometry
        bits = await trio.to_thread.run_sync(image_map.zero_bitmap)
        return {
            "size_bytes": cut.size_bytes,
            "chunk_bytes": cut.chunk_bytes,
            "zeros": bits,
            "os_hash_algo": image_map.os_hash_algo,
            "os_hash_value": image_map.os_hash_value.hex(),
        }

    async def _drop(self, image_id: ids.ImageId) -> dict[str, str]:
        await self._check_closed(f"images/{image_id}.raw", f"image {image_id}")
        if made := await self._disks.of_image(image_id):
            raise errors.Unusable(f"image {image_id}", f"is what disks {made} began as")
        self._detaching.detach_image(image_id)
        if self._whole is not None:  # only now: an image that cannot be dropped stays pinned
            await self._whole.forget_image(image_id)
        return {"image_id": image_id}

    async def _make_disk(self, request: control_wire.MakeDisk) -> dict[str, Any]:
        disk_id = disk_header.parse_disk_id(request.disk_id)
        image = await self._attach(request.image_id)
        made = await self._disks.make_disk(disk_id, image, request.size_bytes)
        return {
            "disk_id": disk_id,
            "image_id": made.header.image_id,
            "size_bytes": made.size_bytes,
            "path": self._disk_path(disk_id),
        }

    async def _attach_checkpoint(self, request: control_wire.AttachCheckpoint) -> dict[str, Any]:
        what = f"checkpoint {request.checkpoint_id}"
        with trio.move_on_after(self._patience_s):
            told = msgspec.structs.asdict(request)
            backing, max_bytes = told.pop("backing_file"), told.pop("max_bytes")
            made = await self._recovering.make_disk(
                restore_record.restore_record_of(**told),
                backing,
                max_bytes or image_record.SERVED_VIRTUAL_BYTES,
            )
            head = bytes(await made.read(0, checkpoint_file.HEAD_BYTES))
            return {
                "disk_id": made.header.disk_id,
                "image_id": made.header.image_id,
                "size_bytes": checkpoint_file.size_of(head),
                "lacking_chunks": made.lacking_chunks,
                "path": self._disk_path(made.header.disk_id),
            }
        raise errors.DeadlineExceeded(what, self._patience_s)

    def _disk_path(self, disk_id: disk_header.DiskId) -> str:
        return f"{self._mount_point}/disks/{self._disks.name_of(disk_id)}"

    async def _drop_disk(self, disk_id: disk_header.DiskId) -> dict[str, str]:
        await self._check_closed(f"disks/{self._disks.name_of(disk_id)}", f"disk {disk_id}")
        await self._disks.drop(disk_id)
        return {"disk_id": disk_id}

    async def _check_closed(self, name: str, what: str) -> None:
        path = f"{self._mount_point}/{name}"
        pids = await trio.to_thread.run_sync(open_files.pids_with_open, path)
        if pids:
            raise errors.Unusable(what, f"is open in processes {pids}")

    async def _flatten_disk(
        self, disk_id: disk_header.DiskId, report: control_socket.Report
    ) -> dict[str, int]:
        try:
            made = await self._disks.open(disk_id)
        except FileNotFoundError as e:
            raise errors.Unusable(f"disk {disk_id}", "no such disk") from e
        image = await self._attach(made.header.image_id)
        return await flatten_disks.flatten([made], image, self._chunks, report)

    async def flatten_disks(self, image_id: str, report: control_socket.Report) -> dict[str, int]:
        """Copy an image into all disks of this host that are based on it."""
        known = await self._disks.of_image(ids.parse_image_id(image_id))
        if not known:  # avoids fetching a chunk map
            return {"done_bytes": 0}
        made = [await self._disks.open(disk_id) for disk_id in known]
        image = await self._attach(image_id)
        return await flatten_disks.flatten(made, image, self._chunks, report)

    async def pre_seed(self, image_id: str, report: control_socket.Report) -> dict[str, int]:
        """Fetch all of an image to this host and pin it; see :func:`pre_seed.pre_seed`.

        :raises errors.Unusable: there is not enough space to pin it
        """
        image = await self._attach(image_id)
        if self._whole is not None:
            await self._whole.request_hydration(image)
        return await pre_seed.pre_seed(
            image,
            self._chunks,
            report,
            is_home=self._chunks.is_home_of,
            first_chunk=pre_seed.first_chunk_of(self._host),
        )


def _check_hash(image: mirror.Mirror, expected: chunk_map.OsHash) -> None:
    """Raise ImageIdReused if Glance has given the image's ID to other bytes."""
    found = chunk_map.OsHash(image.map.os_hash_algo, image.map.os_hash_value)
    if chunk_map.UNKNOWN_OS_HASH not in (found, expected) and found != expected:
        raise errors.ImageIdReused(
            f"image {image.map.image_id}",
            f"its id was used again: this host shows bytes with {found.algo} "
            f"{found.value.hex()[:16]}…, Glance has others under it",
        )
