# SPDX-License-Identifier: Apache-2.0
"""Requests about writable disks, from nova-compute and operators."""

from typing import Any

import msgspec
import trio

from acstor_agent.control import control_socket
from acstor_agent.control import image_requests
from acstor_agent.core.disks import checkpoint_file
from acstor_agent.core.disks import disk_header
from acstor_agent.core.disks import restore_record
from acstor_agent.disks import checkpoint_restore
from acstor_agent.disks import disks
from acstor_agent.disks import flatten_disks
from acstor_agent.engine_io import exchange
from acstor_agent.mount import open_files
from acstor_common import errors
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.wire import control_wire


class DiskRequests:
    """Makes, restores, flattens and drops disks; a restore may take ``timeout_s``."""

    def __init__(
        self,
        made: disks.Disks,
        restore: checkpoint_restore.CheckpointRestore,
        images: image_requests.ImageRequests,
        chunks: exchange.Exchange,
        mount_point: str,
        timeout_s: float,
    ) -> None:
        self._disks, self._restore, self._images, self._chunks = made, restore, images, chunks
        self._mount_point, self._timeout_s = mount_point, timeout_s

    async def make_disk(self, request: control_wire.MakeDisk) -> dict[str, Any]:
        """Make a disk that begins as an image."""
        disk_id = disk_header.parse_disk_id(request.disk_id)
        image = await self._images.attach(request.image_id)
        made = await self._disks.make_disk(disk_id, image, request.size_bytes)
        return {
            "disk_id": disk_id,
            "image_id": made.header.image_id,
            "size_bytes": made.size_bytes,
            "path": self._path_of(disk_id),
        }

    async def attach_checkpoint(self, request: control_wire.AttachCheckpoint) -> dict[str, Any]:
        """Make a disk of a checkpoint; its chunks come when they are read."""
        what = f"checkpoint {request.checkpoint_id}"
        with trio.move_on_after(self._timeout_s):
            fields = msgspec.structs.asdict(request)
            backing, max_bytes = fields.pop("backing_file"), fields.pop("max_bytes")
            made = await self._restore.make_disk(
                restore_record.restore_record_of(**fields),
                backing,
                max_bytes or image_record.SERVED_VIRTUAL_BYTES,
            )
            head = bytes(await made.read(0, checkpoint_file.HEAD_BYTES))
            return {
                "disk_id": made.header.disk_id,
                "image_id": made.header.image_id,
                "size_bytes": checkpoint_file.disk_bytes(head),
                "lacking_chunks": made.lacking_chunks,
                "path": self._path_of(made.header.disk_id),
            }
        raise errors.DeadlineExceeded(what, self._timeout_s)

    async def list_restored(self) -> dict[str, Any]:
        """Return the disks that were made of checkpoints."""
        return {"disks": await trio.to_thread.run_sync(self._restore.list_restored)}

    def _path_of(self, disk_id: disk_header.DiskId) -> str:
        return f"{self._mount_point}/disks/{self._disks.name_of(disk_id)}"

    async def drop_disk(self, disk_id: disk_header.DiskId) -> dict[str, str]:
        """Remove a disk, or raise Unusable if a process has it open."""
        await self._check_closed(f"disks/{self._disks.name_of(disk_id)}", f"disk {disk_id}")
        await self._disks.drop(disk_id)
        return {"disk_id": disk_id}

    async def check_unused_image(self, image_id: ids.ImageId) -> None:
        """Raise Unusable if a process has an image open, or a disk is based on it."""
        await self._check_closed(f"images/{image_id}.raw", f"image {image_id}")
        if made := await self._disks.disks_of_image(image_id):
            raise errors.Unusable(f"image {image_id}", f"is the base of disks {made}")

    async def _check_closed(self, name: str, what: str) -> None:
        path = f"{self._mount_point}/{name}"
        pids = await trio.to_thread.run_sync(open_files.pids_with_open, path)
        if pids:
            raise errors.Unusable(what, f"is open in processes {pids}")

    async def flatten_disk(
        self, disk_id: disk_header.DiskId, report: control_socket.Report
    ) -> dict[str, int]:
        """Copy its image into a disk, or raise Unusable if there is no such disk."""
        try:
            made = await self._disks.open(disk_id)
        except FileNotFoundError as e:
            raise errors.Unusable(f"disk {disk_id}", "no such disk") from e
        image = await self._images.attach(made.header.image_id)
        return await flatten_disks.flatten([made], image, self._chunks, report)

    async def flatten_disks(self, image_id: str, report: control_socket.Report) -> dict[str, int]:
        """Copy an image into all disks of this host that are based on it."""
        known = await self._disks.disks_of_image(ids.parse_image_id(image_id))
        if not known:  # avoids fetching a chunk map
            return {"done_bytes": 0}
        made = [await self._disks.open(disk_id) for disk_id in known]
        image = await self._images.attach(image_id)
        return await flatten_disks.flatten(made, image, self._chunks, report)
