# SPDX-License-Identifier: Apache-2.0
"""The file beside a server's disk that says that it may lack what its checkpoint has.

QEMU changes what a disk lies on as soon as it has copied the last cluster, and writes the tables
that lead to such clusters later, at the latest when the guest flushes.  Who kills it in between
leaves a disk that lies on the image's mirror and has not all that the checkpoint had.  So the mark
is there before QEMU begins to copy, and goes when the file has all of it.

As long as it is there the checkpoint's disk stays, the server starts on that, and
no checkpoint is made of what the tables say.  It goes with the server's folder.
"""

import pathlib

from acstor_common.formats import local_file
from acstor_common.model import ids
from acstor_common.util import atomic_file

ENDING = ".acstor-recovered"
_MAX_BYTES = 64


def read(disk: str) -> ids.ImageId | None:
    """Return the checkpoint that a disk may lack something of; None if it lacks nothing.

    :raises OSError: nobody can tell, or it is a link
    :raises ValueError: the mark is damaged
    """
    try:
        fd = local_file.open_regular(_path(disk))
    except FileNotFoundError:
        return None
    with open(fd, encoding="ascii") as file:
        return ids.parse_image_id(file.read(_MAX_BYTES))


def write(disk: str, checkpoint_id: ids.ImageId) -> None:
    """Put it beside a disk, safe.

    :raises OSError: it cannot be
    """
    with atomic_file.atomic_write(_path(disk)) as file:
        file.write(checkpoint_id.encode("ascii"))


def remove(disk: str) -> None:
    """Take it away: the disk has all.

    :raises OSError: it cannot be
    """
    _path(disk).unlink(missing_ok=True)


def _path(disk: str) -> pathlib.Path:
    return pathlib.Path(disk + ENDING)
