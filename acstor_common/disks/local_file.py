# SPDX-License-Identifier: Apache-2.0
"""Local files read by ranges, and backing files of local qcow2 files."""

import errno
import os
import stat
import struct

from acstor_common import errors
from acstor_common.disks import qcow2_header

_HEADER = struct.Struct(">4sIQI")  # magic, version, offset and length of the backing file's name
_MAX_NAME_BYTES = 1023


class LocalFile:
    """An open file as :class:`qcow2_header.Source`; it may grow, and must stay open."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor, self.name = descriptor, name

    @property
    def size_bytes(self) -> int:
        """Current length."""
        return os.fstat(self._descriptor).st_size

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill ``view`` from ``offset``; raise Unusable on EOF or error."""
        try:
            count = read_into(self._descriptor, view, offset)
        except OSError as e:
            raise errors.Unusable(self.name, str(e.strerror)) from e
        if count < len(view):
            raise errors.Unusable(self.name, f"it ends before {offset + len(view)}")


def read_into(descriptor: int, view: memoryview, offset: int) -> int:
    """Fill ``view`` from ``offset``; return the number of bytes before EOF."""
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if not count:
            break
        done += count
    return done


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file, following no link; OSError ELOOP: a link, EINVAL: not regular."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    return fd


def path_of(descriptor: int) -> str:
    """Return a path of an open file, valid here and in children that inherit it."""
    return f"/proc/self/fd/{descriptor}"


def backing_of(path: str) -> str | None:
    """Return a qcow2 file's backing file; None without one, or if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            magic, _version, at, length = _HEADER.unpack(file.read(_HEADER.size))
            if magic != qcow2_header.MAGIC or not at or length > _MAX_NAME_BYTES:
                return None
            file.seek(at)
            return os.fsdecode(file.read(length))
    except (OSError, struct.error):
        return None
