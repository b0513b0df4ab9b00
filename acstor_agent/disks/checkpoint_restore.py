# SPDX-License-Identifier: Apache-2.0
"""Creates disks from checkpoints, and fetches their chunks in the background.

Such a disk is a qcow2 file (``checkpoint_file``) between a server's own disk and the image's
mirror, readable as soon as its manifest is here. Manifest and key are kept until all chunks are
synced. A lock for each disk guards its files: silent holders of one disk block no other.
"""

import logging
import pathlib
from collections.abc import Iterator
from typing import Any

import trio

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.disks import checkpoint_file
from acstor_agent.core.disks import disk_header
from acstor_agent.core.disks import restore_record
from acstor_agent.disks import checkpoint_client
from acstor_agent.disks import disk
from acstor_agent.disks import disk_files
from acstor_agent.disks import disks
from acstor_agent.disks import restore_files
from acstor_agent.images.image import mirrors
from acstor_agent.images.read import mirror
from acstor_agent.runtime import disk_io
from acstor_agent.runtime import keyed_locks
from acstor_common import errors
from acstor_common.formats import checkpoint_manifest
from acstor_common.image import image_record
from acstor_common.model import geometry

LOG = logging.getLogger(__name__)

CHECK_INTERVAL_S = 10.0
RETRY_S = 30.0
AT_ONCE = checkpoint_client.CONNECTIONS // 4
"""Background fetches; the other connections are for guests."""
TURNS = 256  # chunks examined between two checkpoints: about 0.1 ms


class CheckpointRestore:
    """The restored disks of this host; keep :meth:`run` running."""

    def __init__(
        self, guest_disks: disks.Disks, images: mirrors.Mirrors, retry_s: float = RETRY_S
    ) -> None:
        self._disks, self._images, self._retry_s = guest_disks, images, retry_s
        self._changing = keyed_locks.KeyedLocks[disk_header.DiskId]()
        self._wanted = trio.Event()
        self._in_flight: set[disk_header.DiskId] = set()

    async def make_disk(
        self,
        record: restore_record.RestoreRecord,
        backing: str,
        max_bytes: int = image_record.SERVED_VIRTUAL_BYTES,
    ) -> disk.Disk:
        """Return the disk of a checkpoint; create it if needed.

        :param max_bytes: greatest size of the server's disk
        :raises errors.Unusable: the ID is taken, or the manifest is of another or a larger disk
        :raises errors.ChunkUnavailable: no holder has the manifest
        :raises errors.DeadlineExceeded: no holder answered in time
        """
        async with self._changing.hold(record.checkpoint_id):
            if not self._disks.has_disk(record.checkpoint_id):
                await self._make(record, backing, max_bytes)
            found = restore_files.read(self._disks.folder, record.checkpoint_id)
            if found is None or found.manifest_name != record.manifest_name:
                what = f"disk {record.checkpoint_id}"
                raise errors.Unusable(what, "exists, and was not made from this checkpoint")
            self._wanted.set()
            return await self._disks.open(record.checkpoint_id)

    async def _make(
        self, record: restore_record.RestoreRecord, backing: str, max_bytes: int
    ) -> None:
        if self._disks.holder_connections is None:
            what = f"checkpoint {record.checkpoint_id}"
            raise errors.Unusable(what, "this host cannot reach the holders")
        self._disks.holder_connections.check_credentials()
        of = checkpoint_client.CheckpointClient(self._disks.holder_connections, record)
        sealed = await of.fetch_manifest()
        manifest = await trio.to_thread.run_sync(of.open_manifest, sealed)
        image = await self._images.attach_image(record.image_id)
        _check(record, manifest.subject, image)
        _check_size(record, manifest.subject, max_bytes)
        plan = await trio.to_thread.run_sync(checkpoint_file.plan, manifest, backing)
        cut = geometry.Geometry(plan.file_bytes, checkpoint_file.cluster_bytes(manifest))
        header = _header(record, cut)
        folder = self._disks.folder
        await trio.to_thread.run_sync(_remove_left, folder, record.checkpoint_id)
        await trio.to_thread.run_sync(restore_files.write, folder, record, sealed)
        await self._disks.create_disk(header, plan.iter_tables())
        LOG.info(
            "disk %s: made from the checkpoint of instance %s, which has %d chunks",
            record.checkpoint_id,
            record.instance_id,
            len(manifest),
        )

    def list_restored(self) -> list[dict[str, Any]]:
        """Return the status of each restored disk; blocks; any thread may call it."""
        return [self._report_of(record) for record in self._records()]

    def _report_of(self, record: restore_record.RestoreRecord) -> dict[str, Any]:
        opened = self._disks.get_nowait(record.checkpoint_id)
        lacking = opened.lacking_chunks if opened else None
        return {
            "checkpoint_id": record.checkpoint_id,
            "instance_id": record.instance_id,
            "image_id": record.image_id,
            "is_complete": record.is_complete,
            "lacking_chunks": 0 if record.is_complete else lacking,
        }

    def _records(self) -> Iterator[restore_record.RestoreRecord]:
        for disk_id in self._disks.list_disks():
            try:
                found = restore_files.read(self._disks.folder, disk_id)
            except (errors.FormatError, OSError) as e:
                LOG.warning("disk %s: %s", disk_id, e)
                continue
            if found is not None:
                yield found

    async def run(self) -> None:
        """Fetch missing chunks until cancelled; first remove leftovers of former workers."""
        folder = self._disks.folder
        for disk_id in restore_files.leftover_disk_ids(folder, disk_files.STATE_ENDING):
            async with self._changing.hold(disk_id):
                if not self._disks.has_disk(disk_id):  # else it was just created
                    _remove_left(folder, disk_id)
        async with trio.open_nursery() as nursery:
            while True:
                self._wanted = trio.Event()
                for record in await trio.to_thread.run_sync(list, self._records()):
                    if not record.is_complete and record.checkpoint_id not in self._in_flight:
                        self._in_flight.add(record.checkpoint_id)
                        nursery.start_soon(self._complete, record)
                with trio.move_on_after(CHECK_INTERVAL_S):
                    await self._wanted.wait()

    async def _complete(self, record: restore_record.RestoreRecord) -> None:
        disk_id = record.checkpoint_id
        try:
            while self._disks.has_disk(disk_id):
                try:
                    await self._bring_all(await self._disks.open(disk_id))
                    await self._forget_key(record)
                except (errors.AcstorError, OSError) as e:
                    LOG.warning(
                        "disk %s: its checkpoint is incomplete on this host: %s", disk_id, e
                    )
                    await trio.sleep(self._retry_s)
                else:
                    return
        finally:
            self._in_flight.discard(disk_id)

    async def _bring_all(self, restored: disk.Disk) -> None:
        former = restored.checkpoint
        if former is None:
            return
        failures: list[errors.AcstorError | OSError] = []
        lacking = iter(former.clusters)

        async def bring() -> None:
            for looked, chunk_no in enumerate(lacking, 1):
                if looked % TURNS == 0:
                    await trio.lowlevel.checkpoint()
                if restored.is_missing(chunk_no):
                    try:
                        await restored.store_restored([chunk_no])
                    except (errors.AcstorError, OSError) as e:  # others may come
                        failures.append(e)

        stream = requests.Stream(requests.Klass.FILL, f"recover {restored.header.disk_id}")
        with disk_io.use_stream(stream):
            async with trio.open_nursery() as nursery:
                for _ in range(AT_ONCE):
                    nursery.start_soon(bring)
        if failures:
            raise failures[0]

    async def _forget_key(self, record: restore_record.RestoreRecord) -> None:
        async with self._changing.hold(record.checkpoint_id):
            restored = await self._disks.open(record.checkpoint_id)
            await restored.sync()
            await trio.to_thread.run_sync(restore_files.mark_complete, self._disks.folder, record)
            restored.checkpoint = None
        LOG.info("disk %s: its checkpoint is complete on this host", record.checkpoint_id)


def _header(record: restore_record.RestoreRecord, cut: geometry.Geometry) -> disk_header.DiskHeader:
    """Return the header: no part of the qcow2 file is the image's."""
    try:
        return disk_header.DiskHeader(record.checkpoint_id, record.image_id, cut, 0)
    except ValueError as e:
        raise errors.Unusable(f"checkpoint {record.checkpoint_id}", str(e)) from e


def _remove_left(folder: pathlib.Path, disk_id: disk_header.DiskId) -> None:
    if restore_files.is_restored(folder, disk_id):  # else it is another kind of disk
        disk_files.data_path(folder, disk_id).unlink(missing_ok=True)
    restore_files.remove(folder, disk_id)


def _check_size(
    record: restore_record.RestoreRecord, subject: checkpoint_manifest.Subject, max_bytes: int
) -> None:
    """The tables alone could fill this host's disk."""
    if subject.cut.size_bytes > max_bytes:
        why = f"its disk has {subject.cut.size_bytes} bytes, and may have {max_bytes} at most"
        raise errors.Unusable(f"checkpoint {record.checkpoint_id}", why)


def _check(
    record: restore_record.RestoreRecord, subject: checkpoint_manifest.Subject, image: mirror.Mirror
) -> None:
    what = f"checkpoint {record.checkpoint_id}"
    expected = (record.vault_disk, record.instance_id, record.image_id)
    if (subject.disk, subject.instance, subject.base) != expected:
        raise errors.Unusable(what, "its manifest is of another disk, instance or image")
    image_map = image.map
    if subject.cut.chunk_bytes != image_map.geometry.chunk_bytes:
        why = f"it has chunks of {subject.cut.chunk_bytes} bytes, its image has another size"
        raise errors.Unusable(what, why)
    known = subject.os_hash, (image_map.os_hash_algo, image_map.os_hash_value)
    if all(algo for algo, _ in known) and known[0] != known[1]:
        raise errors.Unusable(what, f"image {record.image_id} has changed since then")
