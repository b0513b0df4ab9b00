# SPDX-License-Identifier: Apache-2.0
"""Shares equal blocks of two files by ``FIDEDUPERANGE`` (XFS reflink=1, Btrfs).

The kernel locks both files and compares the bytes, so no file's content ever changes.
"""

import contextlib
import errno
import fcntl
import math
import os
import stat
import struct
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.util import rate_limiter
from acstor_glance.dedup import common_ranges

CALL_BYTES = 256 * geometry.KIB  # bytes per call, during which readers of both files wait
_FIDEDUPERANGE = 0xC0189436  # _IOWR(0x94, 54, struct file_dedupe_range) of linux/fs.h
_ASKED = struct.Struct("=QQHHI")  # offset and length in the base, number of files, reserved
_TOLD = struct.Struct("=qQQiI")  # descriptor, its offset, shared bytes, status, reserved
_DIFFERS = 1
_WHY = {
    errno.EPERM: "the kernel allows it only to the owner of the image's file, or with write "
    "access: run the listener as Glance's user",
    errno.EROFS: "the store's folder is read-only: set ReadWritePaths= in the listener's unit",
    errno.EXDEV: "the image and its backing image are on different file systems",
}
_CANNOT = "its file system does not support it: use XFS (reflink=1) or Btrfs"
_WHY |= dict.fromkeys((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY), _CANNOT)


@contextlib.contextmanager
def open_stored_file(path: str | os.PathLike[str], size_bytes: int) -> Iterator[int]:
    """Yield a file's descriptor; Unusable if it is missing or of another length."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except OSError as exc:
        raise errors.Unusable(os.fspath(path), str(exc.strerror)) from exc
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size_bytes:
            raise errors.Unusable(os.fspath(path), f"not a file of {size_bytes} bytes")
        yield descriptor
    finally:
        os.close(descriptor)


def block_bytes(descriptor: int) -> int:
    """Return the block size of a file's file system."""
    return os.fstatvfs(descriptor).f_bsize


def share_blocks(
    image: int,
    base: int,
    ranges: Iterable[common_ranges.Range],
    bytes_s: int,
    wait: Callable[[float], bool],
) -> int:
    """Share ranges of two files (descriptors); return the number of bytes shared.

    :param bytes_s: limit of the rate; 0: none
    :param wait: waits so many seconds; returns true to stop the work, which raises Stopped
    :raises errors.Unusable: the kernel refuses
    """
    shared_bytes = 0
    limiter = rate_limiter.RateLimiter(bytes_s or math.inf, time.monotonic)
    for call in _calls(image, ranges):
        _read_ahead(image, base, call)
        try:
            shared_bytes += _share_one(image, base, call)
        except OSError as exc:
            why = _WHY.get(exc.errno or 0, str(exc.strerror))
            raise errors.Unusable("deduplication of an image with its backing image", why) from exc
        if wait(limiter.wait_s(call.length)):
            raise Stopped
    return shared_bytes


class Stopped(Exception):
    """The work was interrupted."""


def _calls(image: int, ranges: Iterable[common_ranges.Range]) -> Iterator[common_ranges.Range]:
    for common in ranges:
        for start, stop in _data(image, common.offset, common.offset + common.length):
            for at in range(start, stop, CALL_BYTES):
                base_offset = common.base_offset + at - common.offset
                yield common_ranges.Range(at, base_offset, min(CALL_BYTES, stop - at))


def _data(descriptor: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    while start < stop:
        try:
            start = min(stop, os.lseek(descriptor, start, os.SEEK_DATA))
        except OSError as exc:
            if exc.errno == errno.ENXIO:  # a hole to the end
                return
            raise
        end = min(stop, os.lseek(descriptor, start, os.SEEK_HOLE)) if start < stop else stop
        if end > start:
            yield start, end
        start = end


def _read_ahead(image: int, base: int, common: common_ranges.Range) -> None:
    """Read both ranges, so that the kernel waits for no disk while it locks them."""
    os.pread(image, common.length, common.offset)
    os.pread(base, common.length, common.base_offset)


def _share_one(image: int, base: int, common: common_ranges.Range) -> int:
    asked = bytearray(_ASKED.pack(common.base_offset, common.length, 1, 0, 0))
    asked += _TOLD.pack(image, common.offset, 0, 0, 0)
    fcntl.ioctl(base, _FIDEDUPERANGE, asked)
    _descriptor, _offset, shared_bytes, status, _ = _TOLD.unpack_from(asked, _ASKED.size)
    if status < 0:
        raise OSError(-status, os.strerror(-status))
    return 0 if status == _DIFFERS else int(shared_bytes)
