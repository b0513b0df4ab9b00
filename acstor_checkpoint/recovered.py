# SPDX-License-Identifier: Apache-2.0
"""Disks that the agent of this host has made of checkpoints, as it has written them down.

The disk of a server that was recovered lies on such a one, which lies on the image's mirror.

The one rule: nothing is read through the agent's mount here, which may not answer.
"""

import os
import pathlib
from typing import Final

import msgspec

from acstor_checkpoint import overlay
from acstor_common import errors
from acstor_common import ids
from acstor_common import local_file

_MAX_RECOVERY_BYTES: Final = 64 * 1024


class _Recovery(msgspec.Struct):
    """What is needed of the file; the agent checks all of it."""

    version: int
    key: str


class Recovered:
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
        except (OSError, ValueError) as e:
            raise errors.Unusable(f"the disk of checkpoint {checkpoint_id}", str(e)) from e
        return found.version == 1 and not found.key

    def base(self, checkpoint_id: ids.ImageId) -> str:
        """Return the path of what the disk of a checkpoint lies on.

        :raises errors.Unusable: it does not say, or there is no such file
        """
        found = local_file.backing_of(str(self.file(checkpoint_id)))
        if not found or not os.path.isabs(found) or not os.path.lexists(found):
            what = f"the disk of checkpoint {checkpoint_id}"
            raise errors.Unusable(what, f"it should lie on {found}, which is not there")
        return found

    def file(self, checkpoint_id: ids.ImageId) -> pathlib.Path:
        """Return the file that has a checkpoint's bytes."""
        return self._folder / f"{checkpoint_id}.data"


class Bases:
    """What overlays lie on: mirrors of images, or disks that the agent has made of checkpoints.

    :param mount_point: where the agent shows both
    """

    def __init__(self, mount_point: str) -> None:
        shown = mount_point.rstrip("/")
        self._mirrors, self._disks = f"{shown}/images", f"{shown}/disks"

    def image_of(self, path: str) -> ids.ImageId | None:
        """Return the image whose mirror an overlay lies on; None if it lies on none."""
        return overlay.base_of(path, self._mirrors)

    def checkpoint_of(self, path: str) -> ids.ImageId | None:
        """Return the checkpoint whose disk an overlay lies on; None if it lies on none."""
        return overlay.checkpoint_of(path, self._disks)
