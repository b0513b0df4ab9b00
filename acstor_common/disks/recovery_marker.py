# SPDX-License-Identifier: Apache-2.0
"""Marker beside a server's disk: the disk may still lack data of its checkpoint.

During recovery QEMU copies clusters from the checkpoint's disk, then changes the backing file to
the image.  It writes L2 tables later: if QEMU is killed before, the disk lacks clusters.  So the
marker is written before the copy and removed when the file is complete.  Meanwhile the checkpoint's
disk is kept, the server starts with it, and no checkpoint of the disk is taken.
"""

import pathlib

from acstor_common.disks import local_file
from acstor_common.model import ids
from acstor_common.util import atomic_file

ENDING = ".acstor-recovered"
_MAX_BYTES = 64


def read(disk: str) -> ids.ImageId | None:
    """Return the checkpoint whose data a disk may lack; None without marker.

    :raises OSError: unreadable, or a link; ValueError: damaged
    """
    try:
        fd = local_file.open_regular(_path(disk))
    except FileNotFoundError:
        return None
    with open(fd, encoding="ascii") as file:
        return ids.parse_image_id(file.read(_MAX_BYTES))


def write(disk: str, checkpoint_id: ids.ImageId) -> None:
    """Write the marker durably, or raise OSError."""
    with atomic_file.atomic_write(_path(disk)) as file:
        file.write(checkpoint_id.encode("ascii"))


def remove(disk: str) -> None:
    """Remove the marker, or raise OSError."""
    _path(disk).unlink(missing_ok=True)


def _path(disk: str) -> pathlib.Path:
    return pathlib.Path(disk + ENDING)
