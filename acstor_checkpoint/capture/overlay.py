# SPDX-License-Identifier: Apache-2.0
"""Reader of a server's overlay, also while its guest writes.

QEMU writes cached qcow2 tables on a guest flush or before, so the tables may lack later writes.
They never lose a cluster: with a backing file discarded clusters are marked as zeros.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common import errors
from acstor_common.disks import disk_delta
from acstor_common.disks import local_file
from acstor_common.disks import qcow2
from acstor_common.model import ids


class Stamp(NamedTuple):
    """Identifies a version of a file: writers can set mtime back, but not ctime."""

    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


def stamp(path: str) -> Stamp:
    """Return the file's stamp, or raise Unusable."""
    try:
        status = os.stat(path)
    except OSError as e:
        raise errors.Unusable(path, str(e)) from e
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def check_backing_file(fd: int, path: str, base: str) -> None:
    """Raise Unusable unless ``base`` backs an open overlay.

    The guest's QEMU can write the header, and QEMU's tools, which run as root, follow it.
    """
    check_backing(fd, path, local_file.backing_of(local_file.path_of(fd)), base)


def check_backing(fd: int, path: str, found: str | None, base: str) -> None:
    """Check an overlay whose backing file ``found`` is known; as :func:`check_backing_file`."""
    qcow2.Qcow2(local_file.LocalFile(fd, path), may_have_backing=True)
    if found != base:
        raise errors.Unusable(path, f"its backing file should be {base}, but is {found}")


def allocated_ranges(path: str) -> Iterator[disk_delta.Extent]:
    """Yield an overlay's differences from its base by its tables, or raise Unusable."""
    with open_file(path) as fd:
        # QEMU may write with O_DIRECT, past the page cache.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        yield from qcow2.Qcow2(local_file.LocalFile(fd, path), may_have_backing=True).iter_changes()


def virtual_size(fd: int, path: str) -> int:
    """Return the virtual size of an open overlay."""
    return qcow2.Qcow2(local_file.LocalFile(fd, path), may_have_backing=True).virtual_size


def base_of(path: str, mirrors: str) -> ids.ImageId | None:
    """Return the image whose mirror in the folder ``mirrors`` backs an overlay, or None."""
    try:
        # Resolve Nova's link only, without access to the mirror.
        return _shown_in(mirrors, os.readlink(backing_path(path)), ".raw")
    except (OSError, ValueError):
        return None


def checkpoint_of(path: str, disks: str) -> ids.ImageId | None:
    """Return the checkpoint whose disk in the folder ``disks`` backs an overlay, or None."""
    try:
        return _shown_in(disks, backing_path(path), ".qcow2")
    except ValueError:
        return None


def backing_path(path: str) -> str:
    """Return the path of an overlay's backing file; its own folder if it has none."""
    return os.path.join(os.path.dirname(path), local_file.backing_of(path) or "")


def _shown_in(shown: str, path: str, ending: str) -> ids.ImageId | None:
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    return ids.parse_image_id(stem) if folder == shown and suffix == ending else None


@contextlib.contextmanager
def open_file(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a regular file for the block, or raise Unusable."""
    try:
        fd = local_file.open_regular(path, flags)
    except OSError as e:
        raise errors.Unusable(path, str(e)) from e
    try:
        yield fd
    finally:
        os.close(fd)
