# SPDX-License-Identifier: Apache-2.0
"""The overlay of a server as it lies on this host, which a guest may be writing to.

QEMU keeps tables of a qcow2 file in memory and writes them when the guest flushes, or
before.  So the file's tables have every cluster of which the guest was told that it is safe,
and may lack later ones.  They never lack one that they had: with a backing file QEMU marks
what is discarded as zeros.

The one rule: only what the tables say is taken from here, never bytes of the disk.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common import errors
from acstor_common.formats import disk_delta
from acstor_common.formats import local_file
from acstor_common.formats import qcow2
from acstor_common.model import ids


class Stamp(NamedTuple):
    """What tells one state of the file from another, as far as anybody wrote to it.

    Who writes may set the time of the content back, but not that of the inode.
    """

    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


def stamp(path: str) -> Stamp:
    """Return what the file is now.

    :raises errors.Unusable: it cannot be looked at
    """
    try:
        status = os.stat(path)
    except OSError as e:
        raise errors.Unusable(path, str(e)) from e
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def check_opened(fd: int, path: str, base: str) -> None:
    """Refuse an open overlay whose header would lead QEMU's tools to any file but ``base``.

    They run as root and follow what the file says, and the QEMU of a guest could write to it.

    :param path: for errors
    :raises errors.Unusable: it is refused, or cannot be read
    """
    check(fd, path, local_file.backing_of(local_file.path_of(fd)), base)


def check(fd: int, path: str, found: str | None, base: str) -> None:
    """Do the same where somebody else has found what the overlay lies on.

    :param found: that
    :raises errors.Unusable: it is refused, or cannot be read
    """
    qcow2.Qcow2(local_file.LocalFile(fd, path), may_have_backing=True)
    if found != base:
        raise errors.Unusable(path, f"it should lie on {base}, and lies on {found}")


def allocated_ranges(path: str) -> Iterator[disk_delta.Extent]:
    """Yield what the overlay has that its base has not, as far as its tables say it.

    :raises errors.Unusable: it is no overlay, or cannot be read
    """
    with open_file(path) as fd:
        # What others wrote past the page cache is read from the disk.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        yield from qcow2.Qcow2(local_file.LocalFile(fd, path), may_have_backing=True).iter_changes()


def size_of(fd: int, path: str) -> int:
    """Return the length of the disk that an open overlay is, in bytes.

    :param path: for errors
    """
    return qcow2.Qcow2(local_file.LocalFile(fd, path), may_have_backing=True).virtual_size


def base_of(path: str, mirrors: str) -> ids.ImageId | None:
    """Return the image whose mirror an overlay lies on; None if it lies on none.

    :param mirrors: the folder that the agent shows mirrors in: ``<mount point>/images``
    """
    try:
        # Nova's base file is a link to the mirror.  No further: that would ask the mirror.
        return _shown_in(mirrors, os.readlink(backing_path(path)), ".raw")
    except (OSError, ValueError):
        return None


def checkpoint_of(path: str, disks: str) -> ids.ImageId | None:
    """Return the checkpoint whose disk an overlay lies on; None if it lies on none.

    :param disks: the folder that the agent shows disks in: ``<mount point>/disks``
    """
    try:
        return _shown_in(disks, backing_path(path), ".qcow2")
    except ValueError:
        return None


def backing_path(path: str) -> str:
    """Return the path of what an overlay lies on; that of its folder if on nothing."""
    return os.path.join(os.path.dirname(path), local_file.backing_of(path) or "")


def _shown_in(shown: str, path: str, ending: str) -> ids.ImageId | None:
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    return ids.parse_image_id(stem) if folder == shown and suffix == ending else None


@contextlib.contextmanager
def open_file(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Have a regular file open for the block; see :func:`local_file.open_regular`.

    :raises errors.Unusable: it cannot be opened
    """
    try:
        fd = local_file.open_regular(path, flags)
    except OSError as e:
        raise errors.Unusable(path, str(e)) from e
    try:
        yield fd
    finally:
        os.close(fd)
