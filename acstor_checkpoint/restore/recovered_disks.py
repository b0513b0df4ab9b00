# SPDX-License-Identifier: Apache-2.0
"""Disks that the agent of this host has made of checkpoints, as it has written them down.

The disk of a server that was recovered lies on such a one, which lies on the image's mirror.

Nothing is read through the agent's mount here, which may not answer.
"""

import logging
import os
import pathlib
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Final

import msgspec

from acstor_checkpoint.capture import overlay
from acstor_common import errors
from acstor_common.formats import disk_delta
from acstor_common.formats import local_file
from acstor_common.formats import recovery_marker
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

_MAX_RECOVERY_BYTES: Final = 64 * 1024
_MAX_TOLD: Final = 1000
"""Disks of which the log says that their marks cannot be read."""


class _Recovery(msgspec.Struct):
    """What is needed of the file; the agent checks all of it."""

    version: int
    key: str


class RecoveredDisks:
    """The agent's disks.

    :param state_dir: the agent's state folder
    """

    def __init__(self, state_dir: pathlib.Path) -> None:
        self._folder = state_dir / "disks"

    def is_whole(self, checkpoint_id: ids.ImageId) -> bool:
        """Say whether all of a checkpoint is on this host.

        :raises errors.Unusable: nothing is known of it here
        """
        try:
            with (self._folder / f"{checkpoint_id}.acrecovery").open("rb") as file:
                found = msgspec.json.decode(file.read(_MAX_RECOVERY_BYTES), type=_Recovery)
        except (OSError, ValueError, msgspec.DecodeError) as e:
            raise errors.Unusable(f"the disk of checkpoint {checkpoint_id}", str(e)) from e
        return found.version == 1 and not found.key

    def base_path(self, checkpoint_id: ids.ImageId) -> str:
        """Return the path of what the disk of a checkpoint lies on.

        :raises errors.Unusable: it does not say, or there is no such file
        """
        found = local_file.backing_of(str(self.checkpoint_path(checkpoint_id)))
        if not found or not os.path.isabs(found) or not os.path.lexists(found):
            what = f"the disk of checkpoint {checkpoint_id}"
            raise errors.Unusable(what, f"it should lie on {found}, which is not there")
        return found

    def is_in(self, path: str, checkpoint_id: ids.ImageId) -> bool:
        """Say whether an overlay has all that a checkpoint has, by the tables of its file.

        :raises errors.Unusable: one of both cannot be read
        """
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
        """Return the file that has a checkpoint's bytes."""
        return self._folder / f"{checkpoint_id}.data"


class BackingImages:
    """What overlays lie on: mirrors of images, or disks that the agent has made of checkpoints.

    :param mount_point: where the agent shows both
    :ivar mirrors: the folder of the former
    """

    def __init__(self, mount_point: str) -> None:
        shown = mount_point.rstrip("/")
        self.mirrors, self._disks = f"{shown}/images", f"{shown}/disks"
        self._told: set[str] = set()

    def image_of(self, path: str) -> ids.ImageId | None:
        """Return the image whose mirror an overlay lies on; None if it lies on none.

        None as well as long as it may lack some of its checkpoint, or nobody can tell.
        """
        image_id = overlay.base_of(path, self.mirrors)
        return None if image_id is None or self._may_lack_some(path) else image_id

    def checkpoint_of(self, path: str) -> ids.ImageId | None:
        """Return the checkpoint that an overlay lies on, or may lack some of; None if none."""
        return overlay.checkpoint_of(path, self._disks) or _mark(path)

    def lies_on_checkpoint(self, path: str) -> bool:
        """Say whether an overlay lies on the disk of a checkpoint."""
        return overlay.checkpoint_of(path, self._disks) is not None

    def shown_path(self, checkpoint_id: ids.ImageId) -> str:
        """Return the path by which the disk of a checkpoint is shown."""
        return f"{self._disks}/{checkpoint_id}.qcow2"

    def _may_lack_some(self, path: str) -> bool:
        """Say whether an overlay has a mark beside it, or one that cannot be read: once."""
        try:
            may_lack_some = recovery_marker.read(path) is not None
        except (OSError, ValueError) as e:
            if path not in self._told and len(self._told) < _MAX_TOLD:
                why = "is damaged or cannot be read, so no checkpoint of this disk is taken"
                LOG.warning("%s%s %s: %s", path, recovery_marker.ENDING, why, e)
                self._told.add(path)
            return True
        self._told.discard(path)
        return may_lack_some


def _joined(found: Iterable[disk_delta.Extent]) -> Iterator[tuple[int, int]]:
    """Yield beginning and end of what changes cover, where they follow each other as one."""
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
