# SPDX-License-Identifier: Apache-2.0
"""The writable disks of this host: created on request, found again by their state files."""

import contextlib
import logging
import pathlib
import uuid
from collections.abc import Iterable

import trio

from acstor_agent.core.disks import disk_header
from acstor_agent.core.mount import inodes
from acstor_agent.disks import checkpoint_client
from acstor_agent.disks import checkpoint_reader
from acstor_agent.disks import disk
from acstor_agent.disks import disk_files
from acstor_agent.disks import restore_files
from acstor_agent.images.image import reattach
from acstor_agent.images.read import mirror
from acstor_agent.images.read import read_admission
from acstor_agent.runtime import disk_io
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

SYNC_INTERVAL_S = 5.0  # longest time until a write is synced without a guest's request
_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")


def this_boot() -> bytes:
    """Return the ID of the host's current boot."""
    return uuid.UUID(_BOOT_ID.read_text().strip()).bytes


class Disks:
    """All writable disks of this host; without ``holder_connections``, restored ones wait."""

    def __init__(
        self,
        folder: pathlib.Path,
        reattach: reattach.Reattach,
        boot_id: bytes | None = None,
        io: disk_io.DiskIo | None = None,
        inode_numbers: inodes.Inodes | None = None,
        reads: read_admission.ReadAdmission | None = None,
        holder_connections: checkpoint_client.HolderConnections | None = None,
    ) -> None:
        self.holder_connections = holder_connections
        self._inodes = inode_numbers or inodes.Inodes(inodes.keyed(bytes(inodes.KEY_BYTES)))
        self._reads = reads
        table = None if reads is None else reads.table
        self.writes = read_admission.ReadAdmission(read_admission.WRITES_LIMIT_BYTES, table=table)
        self._io = io or disk_io.DiskIo()
        with contextlib.suppress(OSError):  # an attempt to create a disk fails
            folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self._opened = reattach
        self._boot_id = boot_id or this_boot()
        self._disks: dict[disk_header.DiskId, disk.Disk] = {}
        self._opening = trio.Lock()
        self._being_made: set[disk_header.DiskId] = set()

    def list_disks(self) -> list[disk_header.DiskId]:
        """Return the disks of this host, opened since the start or not."""
        found = []
        for path in self.folder.glob(f"*{disk_files.STATE_ENDING}"):
            try:
                found.append(disk_header.parse_disk_id(path.stem))
            except ValueError:
                LOG.warning("%s: not the name of a disk's state; ignored", path)
        return sorted(found)

    def get_nowait(self, disk_id: disk_header.DiskId) -> disk.Disk | None:
        """Return the disk if it was opened since the start."""
        return self._disks.get(disk_id)

    def has_disk(self, disk_id: disk_header.DiskId) -> bool:
        """Return whether there is such a disk."""
        return disk_files.state_path(self.folder, disk_id).exists()

    async def open(self, disk_id: disk_header.DiskId) -> disk.Disk:
        """Return a disk; raise FileNotFoundError, or FormatError if its files are damaged."""
        async with self._opening:
            if disk_id not in self._disks:
                self._disks[disk_id] = await trio.to_thread.run_sync(self._open, disk_id)
            return self._disks[disk_id]

    def _open(self, disk_id: disk_header.DiskId) -> disk.Disk:
        files = disk_files.DiskFiles(self.folder, disk_id, self._boot_id)
        try:
            former = self._checkpoint(disk_id, files.header.cut.chunk_count)
        except BaseException:
            files.close()
            raise
        is_read_only = restore_files.is_restored(self.folder, disk_id)
        ways = self._attach, self._io, self._reads, self.writes
        return disk.Disk(files, *ways, former, is_read_only=is_read_only)

    def _checkpoint(
        self, disk_id: disk_header.DiskId, clusters: int
    ) -> checkpoint_reader.CheckpointReader | None:
        record = restore_files.read(self.folder, disk_id)
        if record is None or record.is_complete:
            return None
        if self.holder_connections is None:
            raise errors.Unusable(f"disk {disk_id}", "this host cannot reach its checkpoint")
        of = checkpoint_client.CheckpointClient(self.holder_connections, record)
        manifest = of.open_manifest(restore_files.read_manifest(self.folder, disk_id))
        return checkpoint_reader.CheckpointReader(record, manifest, of, clusters)

    def name_of(self, disk_id: disk_header.DiskId) -> str:
        """Return the file name of a disk."""
        is_made = restore_files.is_restored(self.folder, disk_id)
        return f"{disk_id}{'.qcow2' if is_made else '.raw'}"

    def is_shown(self, disk_id: disk_header.DiskId, name: str) -> bool:
        """Return whether the disk exists and has this file name."""
        return self.has_disk(disk_id) and self.name_of(disk_id) == name

    async def make_disk(
        self, disk_id: disk_header.DiskId, image: mirror.Mirror, size_bytes: int | None = None
    ) -> disk.Disk:
        """Create a disk based on ``image``, with zeros after it; ``size_bytes`` None: the image's.

        :raises errors.Unusable: the disk exists, or cannot have this size
        :raises errors.NumberInUse: the inode number is in use
        """
        cut = image.map.geometry
        size = cut.size_bytes if size_bytes is None else size_bytes
        try:
            header = disk_header.DiskHeader(
                disk_id,
                image.map.image_id,
                geometry.Geometry(size, cut.chunk_bytes),
                cut.size_bytes,
            )
        except ValueError as e:
            raise errors.Unusable(f"disk {disk_id}", str(e)) from e
        await self.create_disk(header)
        LOG.info("disk %s: made from image %s", disk_id, header.image_id)
        return await self.open(disk_id)

    async def create_disk(
        self, header: disk_header.DiskHeader, beginning: Iterable[bytes] = ()
    ) -> None:
        """Create a disk; ``beginning``: the first chunks' bytes, in parts.

        :raises errors.Unusable: the disk exists, or is being created
        :raises errors.NumberInUse: the inode number is in use
        """
        self._check_made(header.disk_id)
        self._being_made.add(header.disk_id)
        try:  # not under the lock: a beginning may be long
            self._inodes.register_disk(header.disk_id)
            await trio.to_thread.run_sync(
                disk_files.create, self.folder, header, self._boot_id, beginning
            )
        finally:
            self._being_made.remove(header.disk_id)

    def _check_made(self, disk_id: disk_header.DiskId) -> None:
        if disk_id in self._being_made:
            raise errors.Unusable(f"disk {disk_id}", "is being made")

    async def drop(self, disk_id: disk_header.DiskId) -> None:
        """Delete a disk that no process has open; raise Unusable if there is no such disk (yet)."""
        async with self._opening:
            self._check_made(disk_id)
            opened = self._disks.pop(disk_id, None)
            if opened is not None:
                await opened.aclose()
            try:
                await trio.to_thread.run_sync(disk_files.remove, self.folder, disk_id)
            except FileNotFoundError as e:
                raise errors.Unusable(f"disk {disk_id}", "no such disk") from e
            await trio.to_thread.run_sync(restore_files.remove, self.folder, disk_id)
            self._inodes.forget_disk(disk_id)
        LOG.info("disk %s: deleted", disk_id)

    async def disks_of_image(self, image_id: ids.ImageId) -> list[disk_header.DiskId]:
        """Return the disks based on an image; damaged ones are left out."""
        found = []
        for disk_id in self.list_disks():
            try:
                if (await self.open(disk_id)).header.image_id == image_id:
                    found.append(disk_id)
            except (errors.FormatError, OSError) as e:
                LOG.warning("disk %s: %s", disk_id, e)
        return found

    def list_base_images(self) -> set[ids.ImageId]:
        """Return the base images of all disks but damaged ones; blocks; from any thread."""
        found = set()
        for disk_id in self.list_disks():
            opened = self._disks.get(disk_id)
            with contextlib.suppress(errors.FormatError, OSError):  # an open reports it
                header = opened.header if opened else disk_files.header_of(self.folder, disk_id)
                found.add(header.image_id)
        return found

    async def run(self) -> None:
        """Sync unsynced disks periodically until cancelled."""
        while True:
            await trio.sleep(SYNC_INTERVAL_S)
            await self.sync_writes()

    async def sync_writes(self) -> None:
        """Sync all disks."""
        for opened in list(self._disks.values()):
            if opened.unsynced_chunks:
                with contextlib.suppress(OSError):  # already logged; a guest's own sync fails
                    await opened.sync()

    async def aclose(self) -> None:
        """Sync all disks and close connections; no use afterwards."""
        await self.sync_writes()
        if self.holder_connections is not None:
            await self.holder_connections.aclose()

    async def _attach(self, header: disk_header.DiskHeader) -> mirror.Mirror:
        found = await self._opened.get_mirror(header.image_id, inodes.guest_of_disk(header.disk_id))
        if found.size_bytes != header.image_bytes:
            raise errors.Unusable(
                f"disk {header.disk_id}",
                f"its image {header.image_id} had {header.image_bytes} bytes when it was made, "
                f"and has {found.size_bytes} now",
            )
        return found
