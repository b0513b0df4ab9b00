# SPDX-License-Identifier: Apache-2.0
"""Opens a snapshot of a server's disk, whether the server runs or is powered off."""

import contextlib
import functools
import logging
import pathlib
import time
import uuid
from collections.abc import Iterator
from typing import Final
from typing import NamedTuple

from acstor_checkpoint.capture import disk_states
from acstor_checkpoint.capture import nbd_client
from acstor_checkpoint.capture import offline_export
from acstor_checkpoint.capture import scratch_files
from acstor_checkpoint.capture import snapshot_window
from acstor_checkpoint.capture.domains import domain_list
from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.capture.domains import libvirt_domain
from acstor_common import errors
from acstor_common.formats import checkpoint_manifest

LOG = logging.getLogger(__name__)

NBD_TIMEOUT_S: Final = 120.0  # QEMU may read from a mirror, which may fetch chunks from other hosts


class DiskSnapshot(NamedTuple):
    """A snapshot of a disk, taken for a checkpoint."""

    checkpoint_id: str
    disk: nbd_client.ExportedDisk
    previous_manifest: checkpoint_manifest.Manifest | None  # None: the writes since are unknown
    next_bitmap: str  # dirty bitmap that begins with it; "": none
    is_frozen: bool
    taken_ms: int
    should_stop: snapshot_window.ShouldStop = lambda: False  # whether the scratch file is too large

    @property
    def consistency(self) -> checkpoint_manifest.Consistency:
        """FILESYSTEM if the guest's file systems were frozen."""
        frozen = checkpoint_manifest.Consistency.FILESYSTEM
        return frozen if self.is_frozen else checkpoint_manifest.Consistency.CRASH

    def iter_dirty_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield position and length of the ranges written since the last one."""
        extents = self.disk.iter_extents() if self.previous_manifest else ()
        return ((at, length) for at, length, flags in extents if flags & nbd_client.DIRTY)


class SnapshotSource:
    """Opens snapshots of this host's disks; for arguments see ``take_checkpoint.Settings``."""

    def __init__(
        self,
        domains: domain_list.Domains,
        states: disk_states.DiskStates,
        scratch: scratch_files.ScratchFiles,
        folder: pathlib.Path,
        mirrors: str,
    ) -> None:
        self._domains, self._states, self._scratch = domains, states, scratch
        self._folder, self._mirrors = folder, mirrors

    @contextlib.contextmanager
    def open_snapshot(
        self,
        server: domain_xml.Server,
        state: disk_states.DiskState,
        before: checkpoint_manifest.Manifest | None,
    ) -> Iterator[DiskSnapshot]:
        """Create a snapshot; without ``previous_manifest`` if its bitmap is lost."""
        domain, checkpoint_id = self._domains.find_domain(server), str(uuid.uuid4())
        if not domain.is_active():
            self._states.save(server.instance, state)
            with self._open_offline(server, state, checkpoint_id, before) as snapshot:
                yield snapshot
                if domain.is_active():
                    raise offline_export.DiskChanged(domain.name, "it was started")
            return
        bitmap = f"{libvirt_domain.PREFIX}{checkpoint_id}"
        state.obsolete_bitmaps.append(bitmap)
        state.may_be_frozen = server.has_agent
        self._states.save(server.instance, state)
        since = state.bitmap if before else ""
        files = domain.export_files(bitmap, self._folder)
        end = functools.partial(domain.end_backup, str(files.socket))
        with contextlib.ExitStack() as stack:
            watched = stack.enter_context(self._scratch.watch_file(files.scratch, end))
            try:
                exported = self._export(stack, domain, bitmap, since)
            except libvirt_domain.BitmapLost as e:
                LOG.warning("%s", e)
                before, since = None, ""
                exported = self._export(stack, domain, bitmap, since)
            self._check_base(server)
            taken_ms = _wall_clock_ms()
            context = _meta_context(libvirt_domain.EXPORT_BITMAP if since else "")
            disk = stack.enter_context(
                nbd_client.ExportedDisk(exported.export, context, NBD_TIMEOUT_S)
            )
            before, should_stop = before if since else None, lambda: watched.should_stop
            yield DiskSnapshot(
                checkpoint_id, disk, before, bitmap, exported.is_frozen, taken_ms, should_stop
            )

    def _check_base(self, server: domain_xml.Server) -> None:
        if self._domains.base_of(server.disk.path) != server.disk.base:
            raise errors.Unusable(
                server.disk.path, f"it is no longer based on image {server.disk.base}"
            )

    def _export(
        self, stack: contextlib.ExitStack, domain: libvirt_domain.Domain, bitmap: str, since: str
    ) -> libvirt_domain.Snapshot:
        return stack.enter_context(domain.export_snapshot(bitmap, since, self._folder))

    @contextlib.contextmanager
    def _open_offline(
        self,
        server: domain_xml.Server,
        state: disk_states.DiskState,
        checkpoint_id: str,
        before: checkpoint_manifest.Manifest | None,
    ) -> Iterator[DiskSnapshot]:
        base_of = self._domains.base_of
        bitmaps = offline_export.list_bitmaps(server.disk, base_of)
        since = state.bitmap if state.bitmap in bitmaps and before else ""
        taken_ms = _wall_clock_ms()
        context = _meta_context(since)
        with (
            offline_export.export_disk(
                server.disk, base_of, since, self._folder, self._mirrors
            ) as export,
            nbd_client.ExportedDisk(export, context, NBD_TIMEOUT_S) as disk,
        ):
            before = before if since else None
            yield DiskSnapshot(checkpoint_id, disk, before, since, False, taken_ms)


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _meta_context(bitmap: str) -> str:
    return f"qemu:dirty-bitmap:{bitmap}" if bitmap else nbd_client.ALLOCATION
