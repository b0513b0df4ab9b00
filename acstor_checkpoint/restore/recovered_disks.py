# SPDX-License-Identifier: Apache-2.0
"""Disks that the agent created from checkpoints, by its files: its mount may hang."""

import logging
import os
import pathlib
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Final

import msgspec

from acstor_checkpoint.capture import overlay
from acstor_common import errors
from acstor_common.disks import disk_delta
from acstor_common.disks import local_file
from acstor_common.disks import recovery_marker
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

_MAX_RECOVERY_BYTES: Final = 64 * 1024
_MAX_LOGGED: Final = 1000  # disks with a logged marker error


class _Recovery(msgspec.Struct):
    """Needed fields of the agent's file, which validates it."""

    version: int
    instance_id: str
    key: str


class RecoveredDisks:
    """Disks in the agent's state folder."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        self._folder = state_dir / "disks"

    def is_complete(self, checkpoint_id: ids.ImageId) -> bool:
        """Return whether all data of a checkpoint is on this host, or raise Unusable."""
        found = self._read(checkpoint_id)
        return found.version == 1 and not found.key

    def check_server(self, checkpoint_id: ids.ImageId, instance: ids.ImageId) -> None:
        """Raise Unusable unless a checkpoint is of this server: a QEMU can forge its header."""
        if self._read(checkpoint_id).instance_id != instance:
            what = f"the disk of checkpoint {checkpoint_id}"
            raise errors.Unusable(what, f"it does not belong to server {instance}")

    def _read(self, checkpoint_id: ids.ImageId) -> _Recovery:
        try:
            with (self._folder / f"{checkpoint_id}.acrecovery").open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_RECOVERY_BYTES), type=_Recovery)
        except (OSError, ValueError, msgspec.DecodeError) as e:
            raise errors.Unusable(f"the disk of checkpoint {checkpoint_id}", str(e)) from e

    def base_path(self, checkpoint_id: ids.ImageId) -> str:
        """Return the backing file of a checkpoint's disk, or raise Unusable."""
        found = local_file.backing_of(str(self.checkpoint_path(checkpoint_id)))
        if not found or not os.path.isabs(found) or not os.path.lexists(found):
            what = f"the disk of checkpoint {checkpoint_id}"
            raise errors.Unusable(what, f"its backing file {found} does not exist")
        return found

    def is_copied_into(self, path: str, checkpoint_id: ids.ImageId) -> bool:
        """Return whether an overlay's tables cover a checkpoint's, or raise Unusable."""
        has = _joined(overlay.allocated_ranges(path))
        own = next(has, None)
        for start, stop in _joined(
            overlay.allocated_ranges(str(self.checkpoint_path(checkpoint_id)))
        ):
            while own is not None and own[1] < stop:
                own = next(has, None)
            if own is None or start < own[0]:
                return False
        return True

    def checkpoint_path(self, checkpoint_id: ids.ImageId) -> pathlib.Path:
        """Return the file with a checkpoint's data."""
        return self._folder / f"{checkpoint_id}.data"


class BackingImages:
    """Backing files of overlays: mirrors (in the folder ``mirrors``) or checkpoints' disks."""

    def __init__(self, mount_point: str) -> None:
        shown = mount_point.rstrip("/")
        self.mirrors, self._disks = f"{shown}/images", f"{shown}/disks"
        self._logged: set[str] = set()

    def image_of(self, path: str) -> ids.ImageId | None:
        """Return the image of an overlay's mirror, or None, also if it may lack checkpoint data."""
        image_id = overlay.base_of(path, self.mirrors)
        return None if image_id is None or self._may_lack_some(path) else image_id

    def checkpoint_of(self, path: str) -> ids.ImageId | None:
        """Return the checkpoint below an overlay, or that it may lack data of."""
        return overlay.checkpoint_of(path, self._disks) or _mark(path)

    def is_backed_by_checkpoint(self, path: str) -> bool:
        """Return whether an overlay's backing file is a checkpoint's disk."""
        return overlay.checkpoint_of(path, self._disks) is not None

    def mounted_path(self, checkpoint_id: ids.ImageId) -> str:
        """Return the path of a checkpoint's disk in the mount."""
        return f"{self._disks}/{checkpoint_id}.qcow2"

    def _may_lack_some(self, path: str) -> bool:
        try:
            may_lack_some = recovery_marker.read(path) is not None
        except (OSError, ValueError) as e:
            if path not in self._logged and len(self._logged) < _MAX_LOGGED:
                why = "is damaged or cannot be read, so no checkpoint of this disk is taken"
                LOG.warning("%s%s %s: %s", path, recovery_marker.ENDING, why, e)
                self._logged.add(path)
            return True
        self._logged.discard(path)
        return may_lack_some


def _joined(found: Iterable[disk_delta.Extent]) -> Iterator[tuple[int, int]]:
    start = stop = 0
    for at, length, _ in found:
        if at > stop:
            if stop:
                yield start, stop
            start = at
        stop = at + length
    if stop:
        yield start, stop


def _mark(path: str) -> ids.ImageId | None:
    try:
        return recovery_marker.read(path)
    except (OSError, ValueError):
        return None
