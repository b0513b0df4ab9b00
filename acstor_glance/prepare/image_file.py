# SPDX-License-Identifier: Apache-2.0
"""The file of an image that is being hashed; detects changes meanwhile."""

import contextlib
import errno
import hashlib
import os
import pathlib
import stat
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import IO

from acstor_common import errors
from acstor_common.disks import local_file
from acstor_common.disks import qcow2_header
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_glance.prepare import format_check

_HASHED_BYTES = 1 * geometry.MIB


class ImageChanged(errors.Unusable):
    """The image changed while it was read."""


class ImageFile:
    """The open file of an image."""

    extents: Sequence[layout.Extent] = ()
    """A raw image has none: disk and file have the same offsets."""
    cluster_bytes = 1
    is_hole = False  # holes are looked up piece by piece

    def __init__(self, file: IO[bytes]) -> None:
        self.fd = file.fileno()
        # A file without a name has its descriptor's number as name.
        self.name = str(file.name) if isinstance(file.name, (str, os.PathLike)) else "image"
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            raise errors.Unusable(self.name, "not a regular file")
        self.size_bytes, self.mtime_ns = status.st_size, status.st_mtime_ns
        self.inode, self._device = status.st_ino, status.st_dev

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill ``view`` from ``offset`` on."""
        with translate_os_errors(self.name):
            count = local_file.read_into(self.fd, view, offset)
        if count < len(view):
            raise self._changed()

    @property
    def virtual_size(self) -> int:
        """Bytes of the disk of a raw image."""
        return self.size_bytes

    def part_reader(self, start: int, stop: int, cut: geometry.Geometry) -> "ImageFile":
        """Return the reader of a part: this object, for all parts."""
        return self

    def fill_buffer(self, view: memoryview, start: int) -> int:
        """Fill ``view``, unless the range is a hole; return the number of bytes filled."""
        stop = start + len(view)
        if self._data_from(start, stop) == stop:
            return 0
        self.read_into(view, start)
        return len(view)

    def _data_from(self, offset: int, stop: int) -> int:
        try:
            return min(os.lseek(self.fd, offset, os.SEEK_DATA), stop)
        except OSError as exc:
            if exc.errno == errno.ENXIO:  # only a hole up to the end
                return stop
            raise errors.Unusable(self.name, str(exc.strerror)) from exc

    def check_unchanged(self) -> None:
        """Raise if the file changed since it was opened."""
        status = os.fstat(self.fd)
        if (status.st_size, status.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
            raise self._changed()

    def check_format(self, disk_format: layout.DiskFormat) -> None:
        """Raise if the image has another format, or is unsafe."""
        head = bytearray(min(format_check.INSPECTED_BYTES, self.size_bytes))
        self.read_into(memoryview(head), 0)
        if disk_format is layout.DiskFormat.QCOW2:
            why, remedy = format_check.why_not_qcow2(bytes(head)), qcow2_header.REMEDY
        else:
            why = format_check.why_not_raw(bytes(head))
            remedy = "Convert it first (qemu-img convert -O raw)"
        if why:
            raise errors.NotRaw(self.name, why, remedy)

    def check_apart_from(self, *paths: pathlib.Path) -> None:
        """Raise if writing to one of ``paths`` would destroy the image."""
        for path in paths:
            with translate_os_errors(path):
                if not path.exists():
                    continue
                status = path.stat()
            if (status.st_ino, status.st_dev) == (self.inode, self._device):
                raise errors.Unusable(str(path), "is the image itself; choose another file")
            if not stat.S_ISREG(status.st_mode):
                raise errors.Unusable(str(path), "exists and is not a regular file")

    def _changed(self) -> ImageChanged:
        return ImageChanged(
            self.name, "changed while it was read", "Run again when no process writes to it"
        )


def write_sparse(file: IO[bytes], pieces: Iterable[bytes]) -> None:
    """Write pieces to an empty file, with holes for those of zeros."""
    for piece in pieces:
        if any(piece):
            file.write(piece)
        else:
            file.seek(len(piece), os.SEEK_CUR)
    file.truncate(file.tell())


def hash_mismatch(name: str, os_hash: chunk_map.OsHash) -> errors.ContentMismatch:
    """Return the error for bytes that do not have Glance's hash."""
    return errors.ContentMismatch(
        name, f"the {os_hash.algo} of its data differs from that in Glance"
    )


class FileHash:
    """The hash of a whole file, computed step by step; ``hasher`` None: no hash."""

    def __init__(self, source: ImageFile, hasher: "hashlib._Hash | None") -> None:
        self._source, self._hasher = source, hasher
        self._done = 0
        self._buffer = memoryview(bytearray(_HASHED_BYTES if hasher else 0))

    def hash_until(self, stop: int) -> None:
        """Hash the bytes before ``stop`` that are not hashed yet."""
        while self._hasher and self._done < stop:
            view = self._buffer[: stop - self._done]
            self._source.read_into(view, self._done)
            self._hasher.update(view)
            self._done += len(view)


@contextlib.contextmanager
def open_image(image: str | os.PathLike[str] | IO[bytes]) -> Iterator[ImageFile]:
    """Yield an image by its path, or by an open file whose position is restored."""
    if not isinstance(image, (str, os.PathLike)):
        position = os.lseek(image.fileno(), 0, os.SEEK_CUR)
        try:
            yield ImageFile(image)
        finally:
            os.lseek(image.fileno(), position, os.SEEK_SET)
        return
    with translate_os_errors(image):
        file = open(image, "rb", buffering=0)
    with file:
        yield ImageFile(file)


@contextlib.contextmanager
def translate_os_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Translate OSError about ``path`` into errors.Unusable."""
    try:
        yield
    except OSError as exc:
        raise errors.Unusable(os.fspath(path), exc.strerror or str(exc)) from exc
