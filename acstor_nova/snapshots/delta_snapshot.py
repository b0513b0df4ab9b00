# SPDX-License-Identifier: Apache-2.0
"""Sends the delta of a disk on a mirror to the gateway, which makes the snapshot.

For a running guest, Nova's driver copies the disk as usual, and the copy's delta is sent instead of
the conversion. After a failure Nova makes the snapshot itself. An active image is always complete.
"""

import contextlib
import contextvars
import dataclasses
import logging
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Any

from acstor_common import errors
from acstor_common.disks import local_file
from acstor_common.formats import chunk_map
from acstor_common.image import image_record
from acstor_common.image import lineage
from acstor_common.model import ids
from acstor_common.wire import control_wire
from acstor_nova import host_context
from acstor_nova import imagebackend
from acstor_nova import mirror_link
from acstor_nova.snapshots import delta_stream
from acstor_nova.snapshots import gateway_client

LOG = logging.getLogger(__name__)

FORMATS = ("raw", "qcow2")
_REASONS = control_wire.Fallback
_Ineligible = host_context.NotEligibleError
_PREFIX = "acstor-"
_PROCESS = uuid.uuid4().hex[:8]  # in the names of the copies of disks that this process makes


@dataclasses.dataclass(frozen=True)
class SnapshotHooks:
    """The functions of Nova that delta snapshots use."""

    token_headers: Callable[[Any], dict[str, str]]  # authenticate Nova's caller
    update_image: Callable[[Any, str, dict[str, Any]], None]
    disk_semaphore: Callable[[], contextlib.AbstractContextManager[Any]]  # limits disk operations


@dataclasses.dataclass(frozen=True)
class PendingSnapshot:
    """A snapshot that Nova's driver is making."""

    hooks: SnapshotHooks
    is_live: bool
    is_suspended: bool
    record_of: Callable[[str], dict[str, Any]]
    make_live: Callable[[str, str, str], None]  # copies a disk, converts it (:func:`send_delta`)


_pending_snapshot: contextvars.ContextVar[PendingSnapshot | None] = contextvars.ContextVar(
    "pending_snapshot", default=None
)
_sender: contextvars.ContextVar[Callable[[str], None] | None] = contextvars.ContextVar(
    "sender", default=None
)


def begin_snapshot(made: PendingSnapshot) -> None:
    """Store the snapshot of this thread for the backend."""
    _pending_snapshot.set(made)


def is_of_running_guest() -> bool:
    """Return whether the guest of this thread's snapshot was running at its start."""
    made = _pending_snapshot.get()
    return made is not None and (made.is_live or made.is_suspended)


def send_delta(disk_path: str) -> bool:
    """Send the disk if this thread makes a delta snapshot; return whether it does."""
    send = _sender.get()
    if send is not None:
        send(disk_path)
    return send is not None


class DeltaSnapshotBase(imagebackend.MirrorBase):
    """Base of the backend that makes delta snapshots."""

    def direct_snapshot(
        self,
        context: Any,
        snapshot_name: str,
        image_format: str,
        image_id: str,
        base_image_id: str,
    ) -> Any:
        """Make the snapshot from a delta; else let Nova make a complete image."""
        made = _pending_snapshot.get()
        _pending_snapshot.set(None)
        if made is not None and (base := self._base_of_snapshot()) is not None:
            try:
                snapshot = Snapshot(self.host, made, context, image_id, image_format, base)
                return snapshot.create_image(self.path, snapshot_name)
            except Exception as e:
                why = f"snapshot {image_id} is not made from a delta: {e}"
                self.host.record_fallback(base, _reason(e), why)
        return super().direct_snapshot(  # type: ignore[misc]
            context, snapshot_name, image_format, image_id, base_image_id
        )

    def _base_of_snapshot(self) -> ids.ImageId | None:
        """Return the image whose mirror the disk is on, if there is a gateway."""
        if not self.host.nova.conf.acstor.gateway_url:
            return None
        base = local_file.backing_of(self.path)
        return mirror_link.image_of(base) if base else None


def _remove_copies(folder: str, ending: str) -> None:
    for name in os.listdir(folder):
        is_ours = name.startswith(_PREFIX) and name.endswith(ending)
        if is_ours and not name.startswith(f"{_PREFIX}{_PROCESS}-"):
            LOG.info("%s of a former nova-compute is removed", os.path.join(folder, name))
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _reason(e: Exception) -> control_wire.Fallback:
    match e:
        case host_context.NotEligibleError():
            return e.reason
        case errors.GatewayUnreachable():
            return _REASONS.GATEWAY_UNREACHABLE
        case errors.GatewayRefused():
            return _REASONS.GATEWAY_REFUSED
        case errors.AgentUnreachable():
            return _REASONS.AGENT_UNREACHABLE
        case errors.AgentRefused():
            return _REASONS.AGENT_REFUSED
    return _REASONS.DELTA_UNREADABLE


class Snapshot:
    """One delta snapshot: the new image, queued in Glance, and its base."""

    def __init__(
        self,
        host: host_context.HostContext,
        made: PendingSnapshot,
        context: Any,
        image_id: str,
        image_format: str,
        base: ids.ImageId,
    ) -> None:
        self._host, self._pending, self._context = host, made, context
        self._image_id, self._format, self._base = image_id, image_format, base
        own = host.nova.conf.acstor
        self._gateway = gateway_client.GatewayClient(
            own.gateway_url, own.ca_file, made.hooks.token_headers(context)
        )

    def create_image(self, disk_path: str, name: str) -> None:
        """Make the snapshot; after an error the image is queued as before."""
        self._check()
        self._gateway.check_base(self._base)
        record = self._pending.record_of(self._format)
        wanted = {key: record[key] for key in ("disk_format", "container_format")}
        self._pending.hooks.update_image(self._context, self._image_id, wanted)
        self._record_base()
        if self._pending.is_live:
            self._make_live(disk_path, name)
        else:
            self._send(disk_path)

    def _record_base(self) -> None:
        """Record the parent image, as a hint; Nova records the first of several snapshots."""
        fields = {"properties": lineage.direct_base(self._base, self._image_id)}
        try:
            self._pending.hooks.update_image(self._context, self._image_id, fields)
        except Exception as e:
            LOG.info("image %s: its parent image was not recorded: %s", self._image_id, e)

    def _check(self) -> None:
        libvirt = self._host.nova.conf.libvirt
        if self._format not in FORMATS:
            raise _Ineligible(_REASONS.SNAPSHOT_FORMAT, f"its format is {self._format}")
        if self._format == "qcow2" and libvirt.snapshot_compression:
            raise _Ineligible(_REASONS.SNAPSHOT_FORMAT, "it must be compressed")
        if self._pending.is_suspended:  # the guest is down meanwhile
            raise _Ineligible(_REASONS.GUEST_SUSPENDED, "Nova has suspended the guest for it")

    def _make_live(self, disk_path: str, name: str) -> None:
        conf = self._host.nova.conf
        folder, ending = conf.libvirt.snapshots_directory, f"@{conf.host}"
        os.makedirs(folder, exist_ok=True)
        _remove_copies(folder, ending)  # those that a killed nova-compute of this host left
        with tempfile.TemporaryDirectory(ending, f"{_PREFIX}{_PROCESS}-", folder) as own:
            os.chmod(own, 0o701)  # QEMU writes there as another user
            token = _sender.set(self._send)
            try:
                self._pending.make_live(disk_path, os.path.join(own, name), self._format)
            finally:
                _sender.reset(token)

    def _send(self, disk_path: str) -> None:
        beneath = local_file.backing_of(disk_path)
        if beneath is None or mirror_link.image_of(beneath) != self._base:
            raise errors.Unusable(disk_path, f"it is not based on image {self._base}")
        zero_map = self._host.agent.zero_map(self._base)
        if zero_map.os_hash == chunk_map.UNKNOWN_OS_HASH:
            # Image IDs may be reused: the hash identifies the disk's image.
            raise _Ineligible(_REASONS.AGENT_REFUSED, "the agent does not report its base's hash")
        with self._pending.hooks.disk_semaphore(), open(disk_path, "rb") as file:
            body = delta_stream.DeltaBody(delta_stream.open_disk(file), self._base, zero_map)
            LOG.info(
                "image %s: a delta of %d bytes of %d is sent to the gateway",
                self._image_id,
                len(body),
                body.head.virtual_size,
            )
            self._flatten(body)

    def _flatten(self, body: delta_stream.DeltaBody) -> None:
        began_s = time.monotonic()
        try:
            size = self._gateway.flatten_image(
                self._image_id, self._format, body, body.head.virtual_size
            )
        except Exception as e:
            if not self._is_active():
                raise
            LOG.info(
                "image %s is complete, though the gateway's last answer was lost: %s",
                self._image_id,
                e,
            )
        else:
            took_s = time.monotonic() - began_s
            words = "image %s: %d bytes were made from this delta in %.1f s"
            LOG.info(words, self._image_id, size, took_s)

    def _is_active(self) -> bool:
        """Wait until the upload has ended; return whether the image is active, so complete."""
        ends_s = time.monotonic() + self._host.timeouts.upload_end_s
        while True:
            image = self._host.nova.get_image(self._context, self._image_id)
            status = image.status if image else None
            if status != image_record.SAVING or time.monotonic() > ends_s:
                return status == image_record.ACTIVE
            time.sleep(self._host.timeouts.upload_poll_s)
