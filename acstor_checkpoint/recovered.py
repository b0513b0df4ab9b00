# SPDX-License-Identifier: Apache-2.0
"""Disks that the agent of this host has made of checkpoints, as it has written them down.

A server that was recovered lies on such a disk, which lies on the image.  So what differs from the
image is what the overlay has and what the agent's disk has in its own file.

The one rule: before the agent has all of the former checkpoint there is no new one: it would lack
what has not come yet.
"""

import pathlib
import struct
from collections.abc import Iterator
from typing import Final

import blake3
import msgspec

from acstor_checkpoint import overlay
from acstor_common import errors
from acstor_common import ids

_MAX_RECOVERY_BYTES: Final = 64 * 1024
_FIELDS: Final = struct.Struct("<8sHHIQQ16s16s")  # doc/source/format/disk.rst
_MAGIC, _VERSION = b"\x89acdsk\r\n", 1
_DIGEST_BYTES: Final = 32
_AT_MARKS: Final = 4096
_READ_BYTES: Final = 1 << 20


class _Recovery(msgspec.Struct):
    """What is needed of the file; the agent checks all of it."""

    version: int
    image_id: str
    key: str


class Recovered:
    """The agent's disks.

    :param state_dir: the agent's state folder
    """

    def __init__(self, state_dir: pathlib.Path) -> None:
        self._folder = state_dir / "disks"

    def image_of(self, checkpoint_id: ids.ImageId) -> ids.ImageId | None:
        """Return the image that a disk began as; None if it is of no checkpoint known here."""
        try:
            return ids.parse_image_id(self._recovery(checkpoint_id).image_id)
        except (OSError, ValueError):
            return None

    def ranges(self, checkpoint_id: ids.ImageId) -> Iterator[tuple[int, int]]:
        """Yield what a disk has in its own file: offset and length, in the order of the disk.

        :raises errors.Unusable: not all of its checkpoint is there yet, or it cannot be read
        """
        what = f"the disk of checkpoint {checkpoint_id}"
        try:
            if self._recovery(checkpoint_id).key:
                raise errors.Unusable(what, "not all of that checkpoint is on this host yet")
            with (self._folder / f"{checkpoint_id}.acdisk").open("rb") as file:
                chunk_bytes = _chunk_bytes(file.read(_AT_MARKS))
                first = 0
                while marks := file.read(_READ_BYTES):
                    for at in _marked(marks):
                        yield (first + at) * chunk_bytes, chunk_bytes
                    first += len(marks)
        except (OSError, ValueError) as e:
            raise errors.Unusable(what, str(e)) from e

    def _recovery(self, checkpoint_id: ids.ImageId) -> _Recovery:
        with (self._folder / f"{checkpoint_id}.acrecovery").open("rb") as file:
            found = msgspec.json.decode(file.read(_MAX_RECOVERY_BYTES), type=_Recovery)
        if found.version != 1:
            raise ValueError(f"version {found.version} is unknown, 1 expected")
        return found


class Bases:
    """What overlays lie on: mirrors of images, or disks that the agent has made of checkpoints.

    :param mount_point: where the agent shows both
    """

    def __init__(self, mount_point: str, agent_state_dir: pathlib.Path) -> None:
        shown = mount_point.rstrip("/")
        self._mirrors, self._disks = f"{shown}/images", f"{shown}/disks"
        self._recovered = Recovered(agent_state_dir)

    def base_of(self, path: str) -> ids.ImageId | None:
        """Return the image that an overlay lies on, in the end; None if it lies on none."""
        checkpoint_id = overlay.checkpoint_of(path, self._disks)
        if checkpoint_id is not None:
            return self._recovered.image_of(checkpoint_id)
        return overlay.base_of(path, self._mirrors)

    def beneath(self, path: str) -> Iterator[tuple[int, int]]:
        """Yield what lies between an overlay and its image."""
        checkpoint_id = overlay.checkpoint_of(path, self._disks)
        return iter(()) if checkpoint_id is None else self._recovered.ranges(checkpoint_id)


def _chunk_bytes(head: bytes) -> int:
    fields = head[: _FIELDS.size]
    digest = head[_FIELDS.size : _FIELDS.size + _DIGEST_BYTES]
    if len(head) < _AT_MARKS or blake3.blake3(fields).digest() != digest:
        raise ValueError("its state is damaged")
    magic, version, _, chunk_bytes, *_others = _FIELDS.unpack(fields)
    if (magic, version) != (_MAGIC, _VERSION) or not chunk_bytes:
        raise ValueError("its state is of another version")
    return int(chunk_bytes)


def _marked(marks: bytes) -> Iterator[int]:
    for at, mark in enumerate(marks):
        if mark:
            yield at
