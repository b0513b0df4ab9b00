# SPDX-License-Identifier: Apache-2.0
"""Takes one checkpoint of one server, from snapshot to registration.

A kill at any time loses at most this checkpoint:

1. record the new bitmap and a possible freeze in the state;
2. create the snapshot, store its chunks at all holders, then the manifest;
3. register the checkpoint;
4. record it and its bitmap in the state;
5. delete obsolete bitmaps, chunks and manifests.

A part (snapshot_window.py) is the base of the next attempt.  A checkpoint whose registration failed
is not, but the next attempt does not send its chunks again.
"""

import contextlib
import logging
import pathlib
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from acstor_checkpoint.capture import disk_capture
from acstor_checkpoint.capture import disk_snapshot
from acstor_checkpoint.capture import disk_states
from acstor_checkpoint.capture import overlay
from acstor_checkpoint.capture import rate_limit
from acstor_checkpoint.capture import scratch_files
from acstor_checkpoint.capture import snapshot_window
from acstor_checkpoint.capture.domains import domain_list
from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.holders import checkpoint_record
from acstor_checkpoint.holders import holder_group
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest
from acstor_common.formats import chunk_map
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

FIRST: Final = "it is the first one"
IMAGE_CHANGED: Final = "the disk was recreated"
MANIFEST_LOST: Final = "the manifest of the last one is lost"
NO_BITMAP: Final = "writes since the last one were not tracked"


class Settings(NamedTuple):
    """Settings of captures."""

    host: ids.HostId
    copies: int  # number of holders
    rate_bytes_s: int  # of reading disks; 0: no limit
    folder: pathlib.Path  # for sockets and scratch files; QEMU can write to it
    mirrors: str  # folder of the agent's mirrors
    ended: threading.Event  # set when the daemon ends, which aborts the running checkpoint
    window_s: float = 300.0  # of a snapshot, during which libvirt refuses to migrate the server
    long_window_s: float = 4 * 3600.0  # the same if the guest writes faster than its disk is read
    holders: holder_group.HolderLimits = holder_group.LIMITS  # limits of the holders of a disk


FindImage = Callable[[ids.ImageId], chunk_map.Subject]
"""Returns an image's geometry and Glance's hash."""


class CheckpointTaker:
    """Takes checkpoints of this host's servers; one thread per server."""

    def __init__(
        self,
        settings: Settings,
        domains: domain_list.Domains,
        states: disk_states.DiskStates,
        image_of: FindImage,
        pool: holder_group.HolderChooser,
        register: checkpoint_record.Register,
        scratch: scratch_files.ScratchFiles,
    ) -> None:
        self._settings, self._domains, self._states = settings, domains, states
        self._image_of, self._pool, self._register = image_of, pool, register
        self._snapshots = disk_snapshot.SnapshotSource(
            domains, states, scratch, settings.folder, settings.mirrors
        )
        self._windows = snapshot_window.SnapshotWindow(settings.window_s, settings.long_window_s)
        self._rate_limit = rate_limit.RateLimit(settings.rate_bytes_s, settings.ended)

    def take_checkpoint(
        self, server: domain_xml.Server, interval_s: int = 0
    ) -> checkpoint_record.CheckpointRecord:
        """Take and register a checkpoint, or raise AcstorError.

        :param interval_s: between checkpoints, 0: none; a silent holder fails after half of it
        """
        self.clean_up(server)
        image = self._image_of(server.disk.base)
        state, why = self._state_of(server, image)
        state.number += 1
        with contextlib.ExitStack() as stack:
            group, chosen = self._open_holders(stack, state, interval_s)
            record, retained = self._take_and_register(
                server, state, image, why, group, chosen, interval_s
            )
            # No manifest is in memory any more.
            slow = self._delete_obsolete(server, state, retained, group)
        return record._replace(slow_holder=slow or record.slow_holder)

    def _take_and_register(
        self,
        server: domain_xml.Server,
        state: disk_states.DiskState,
        image: chunk_map.Subject,
        why: str,
        group: holder_group.HolderGroup,
        chosen: Sequence[checkpoint_record.VaultHolder],
        interval_s: int,
    ) -> tuple[checkpoint_record.CheckpointRecord, set[str]]:
        snapshot, capture, sealed = self._capture(server, state, image, why, group)
        state.manifest = self._states.save_manifest(server.instance, sealed)
        if capture.unread_bytes:
            kind = self._record_part(server.instance, state, snapshot, capture, chosen)
            raise kind(capture.read_bytes, capture.unread_bytes, group.slow_holder())
        group.put_manifest(sealed)
        state.taken_ms = snapshot.taken_ms
        record = self._record(server, state, snapshot, capture, interval_s, chosen)
        record = record._replace(slow_holder=group.slow_holder())
        state.full_read_reason = ""
        retained = {*self._register(record), state.manifest}
        state.is_partial, state.unread_bytes, state.stalled_parts = False, 0, 0
        self._record_base(server.instance, state, snapshot.next_bitmap, chosen)
        return record, retained

    def _capture(
        self,
        server: domain_xml.Server,
        state: disk_states.DiskState,
        image: chunk_map.Subject,
        why: str,
        group: holder_group.HolderGroup,
    ) -> tuple[disk_snapshot.DiskSnapshot, disk_capture.DiskCapture, bytearray]:
        """Capture a snapshot; ``why``: reason for a full read; "": none is known yet."""
        instance = server.instance
        before = None if why else self._states.read_manifest(instance, state, state.manifest)
        why = why or ("" if before else MANIFEST_LOST)
        with (
            self._open_window(server, state) as should_stop,
            self._snapshots.open_snapshot(server, state, before) as snapshot,
        ):
            why = why or ("" if snapshot.previous_manifest else NO_BITMAP)
            capture, sealed = self._capture_disk(server, state, image, snapshot, group, should_stop)
        state.full_read_reason = why or state.full_read_reason
        state.is_partial = True
        return snapshot, capture, sealed

    def _record_part(
        self,
        instance: ids.ImageId,
        state: disk_states.DiskState,
        snapshot: disk_snapshot.DiskSnapshot,
        capture: disk_capture.DiskCapture,
        chosen: Sequence[checkpoint_record.VaultHolder],
    ) -> type[snapshot_window.PartialCapture]:
        """Make a part the base of the next attempt; return the error that reports it."""
        has_stalled = snapshot_window.has_stalled(
            state.unread_bytes, capture.unread_bytes, capture.read_bytes
        )
        state.unread_bytes = capture.unread_bytes
        state.stalled_parts += has_stalled
        self._record_base(instance, state, snapshot.next_bitmap, chosen)
        is_overwritten = has_stalled and snapshot.should_stop()
        return snapshot_window.Overwritten if is_overwritten else snapshot_window.PartialCapture

    def clean_up(self, server: domain_xml.Server) -> None:
        """End jobs of an aborted checkpoint, also of a former daemon, or raise AcstorError."""
        state = self._states.load(server.instance)
        obsolete_bitmaps, may_be_frozen = (
            (state.obsolete_bitmaps, state.may_be_frozen) if state else ([], False)
        )
        domain = self._domains.find_domain(server)
        domain.clean_up(obsolete_bitmaps, self._settings.folder, may_be_frozen=may_be_frozen)
        if state:
            self._forget_bitmaps(server, state)

    def _state_of(
        self, server: domain_xml.Server, image: chunk_map.Subject
    ) -> tuple[disk_states.DiskState, str]:
        """Return the state of a disk, and the reason for a full read or ""."""
        state = self._states.load(server.instance)
        chunk_bytes = image.geometry.chunk_bytes
        if state is None:
            return disk_states.new_state(server.disk.base, chunk_bytes), FIRST
        if (state.base, state.chunk_bytes) != (server.disk.base, chunk_bytes):
            anew = disk_states.new_state(server.disk.base, chunk_bytes)
            anew.obsolete_bitmaps = [*state.obsolete_bitmaps, *filter(None, [state.bitmap])]
            anew.number = state.number  # numbers increase across disks
            return anew, IMAGE_CHANGED
        return state, "" if state.manifest else FIRST

    @contextlib.contextmanager
    def _open_window(
        self, server: domain_xml.Server, state: disk_states.DiskState
    ) -> Iterator[snapshot_window.ShouldStop]:
        with self._windows.open_window(state.stalled_parts) as (should_stop, is_long):
            if is_long:
                state.stalled_parts = 0  # after an abort, begin with short ones again
                LOG.warning(
                    "server %s writes faster than its disk is read: all of it is read as it is "
                    "now, for %g s at most; it cannot migrate meanwhile",
                    server.instance,
                    self._settings.long_window_s,
                )
            yield should_stop

    def _open_holders(
        self, stack: contextlib.ExitStack, state: disk_states.DiskState, interval_s: int
    ) -> tuple[holder_group.HolderGroup, Sequence[checkpoint_record.VaultHolder]]:
        disk = ids.ImageId(state.disk)
        current = [ids.HostId(host) for host in state.holders]
        chosen = self._pool.choose_holders(disk, self._settings.copies, current)
        if not chosen:
            raise errors.Unusable("checkpoints", "no other host can store them")
        clients = [stack.enter_context(self._pool.client_of(holder)) for holder in chosen]
        acknowledged = [] if state.may_lack_chunks else current
        group = holder_group.HolderGroup(
            object_names.VaultDisk(self._settings.host, disk),
            clients,
            acknowledged,
            interval_s=interval_s,
            limits=self._settings.holders,
        )
        stack.enter_context(self._record_holder_failure(group))
        return group, chosen

    @contextlib.contextmanager
    def _record_holder_failure(self, group: holder_group.HolderGroup) -> Iterator[None]:
        try:
            yield
        except holder_group.HolderFailed as e:
            self._pool.record_failure(e.holder, is_costly=e.holder in group.filled_holders)
            raise

    def _capture_disk(
        self,
        server: domain_xml.Server,
        state: disk_states.DiskState,
        image: chunk_map.Subject,
        snapshot: disk_snapshot.DiskSnapshot,
        group: holder_group.HolderGroup,
        should_stop: snapshot_window.ShouldStop,
    ) -> tuple[disk_capture.DiskCapture, bytearray]:
        seal = checkpoint_encryption.Seal(bytes.fromhex(state.key))
        # Without a bitmap the next attempt would start over, so there is no limit.
        ends = (
            (lambda: should_stop() or snapshot.should_stop())
            if snapshot.next_bitmap
            else lambda: False
        )
        capture = disk_capture.DiskCapture(
            snapshot.disk, state.chunk_bytes, seal, group, self._rate_limit, ends
        )
        seen = disk_capture.ChangedRanges(
            snapshot.previous_manifest,
            snapshot.iter_dirty_ranges,
            lambda: (change[:2] for change in overlay.allocated_ranges(server.disk.path)),
        )
        entries = capture.iter_entries(seen)
        subject = checkpoint_manifest.Subject(
            disk=ids.ImageId(state.disk),
            instance=server.instance,
            project=server.project,
            base=server.disk.base,
            os_hash=image.os_hash,
            cut=capture.cut,
            taken_ms=snapshot.taken_ms,
            consistency=snapshot.consistency,
            number=state.number,
        )
        return capture, seal.close_manifest(checkpoint_manifest.build(subject, entries))

    def _record(
        self,
        server: domain_xml.Server,
        state: disk_states.DiskState,
        snapshot: disk_snapshot.DiskSnapshot,
        capture: disk_capture.DiskCapture,
        interval_s: int,
        chosen: Sequence[checkpoint_record.VaultHolder],
    ) -> checkpoint_record.CheckpointRecord:
        return checkpoint_record.CheckpointRecord(
            checkpoint_id=snapshot.checkpoint_id,
            instance_id=server.instance,
            project=server.project,
            image_id=server.disk.base,
            owner=self._settings.host,
            vault_disk=ids.ImageId(state.disk),
            taken_ms=snapshot.taken_ms,
            consistency=snapshot.consistency,
            interval_s=interval_s,
            number=state.number,
            disk_bytes=capture.cut.size_bytes,
            changed_bytes=capture.changed_bytes,
            read_bytes=capture.read_bytes,
            sent_bytes=capture.sent_bytes,
            full_read_reason=state.full_read_reason,
            manifest_name=state.manifest,
            holders=tuple(chosen),
            key=state.key,
        )

    def _record_base(
        self,
        instance: ids.ImageId,
        state: disk_states.DiskState,
        bitmap: str,
        chosen: Sequence[checkpoint_record.VaultHolder],
    ) -> None:
        former = [] if state.bitmap in ("", bitmap) else [state.bitmap]
        state.obsolete_bitmaps = [
            *(name for name in state.obsolete_bitmaps if name != bitmap),
            *former,
        ]
        state.bitmap, state.holders = bitmap, [holder.host for holder in chosen]
        state.may_be_frozen = state.may_lack_chunks = False
        self._states.save(instance, state)

    def _delete_obsolete(
        self,
        server: domain_xml.Server,
        state: disk_states.DiskState,
        retained: set[str],
        group: holder_group.HolderGroup,
    ) -> str:
        """Delete obsolete bitmaps and chunks; return the holder that was too slow, or ""."""
        slow_holder = ""
        try:
            self._forget_bitmaps(server, state)
            self._states.retain_only(server.instance, retained)
            group.retain_only(self._states.iter_needed(server.instance, state, retained))
        except (errors.AcstorError, OSError) as e:
            LOG.warning("server %s: obsolete data is not deleted yet: %s", server.instance, e)
            if isinstance(e, holder_group.HolderSlow):
                slow_holder = e.holder
                if e.is_stalled:
                    self._pool.record_failure(e.holder, is_costly=True)
        return slow_holder

    def _forget_bitmaps(self, server: domain_xml.Server, state: disk_states.DiskState) -> None:
        domain = self._domains.find_domain(server)
        left = [
            name
            for name in state.obsolete_bitmaps
            if name != state.bitmap and not domain.remove_bitmap(name)
        ]
        if left != state.obsolete_bitmaps or state.may_be_frozen:
            state.obsolete_bitmaps, state.may_be_frozen = left, False
            self._states.save(server.instance, state)
