# SPDX-License-Identifier: Apache-2.0
"""Bounds the scratch files, in which QEMU keeps what guests overwrite while their disks are read.

One server's file may take half of what all may.  At half of its bound nothing more is read, so
the part that was read is kept; at the bound the backup job is ended, whatever its reader waits
for.  Where the sum is too large, or the file system nearly full, the largest file's job is ended.
"""

import contextlib
import logging
import os
import pathlib
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Final

from acstor_common import errors
from acstor_common import supervised

LOG = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.5
"""A guest that overwrites 1 GB/s exceeds a bound by half of that."""
SPARE_BYTES: Final = 1 << 30
"""Stays free: guests stop where their disks cannot grow."""


class Full(errors.Unusable):
    """A capture was ended, since its scratch file, or all of them, had become too large."""


class Watched:
    """One scratch file.

    :param end: ends the backup job
    """

    def __init__(self, path: pathlib.Path, end: Callable[[], None]) -> None:
        self.path, self.end = path, end
        self.is_late = False
        """Whether nothing more is to be read."""
        self.why = ""
        """Why the job was ended; "" if it was not."""

    def size_bytes(self) -> int:
        """Return what it takes of the disk."""
        try:
            return os.stat(self.path, follow_symlinks=False).st_blocks * 512
        except OSError:
            return 0


class Scratch:
    """The scratch files of this host's servers; may be used by any thread.

    :param limit_bytes: of all of them
    """

    def __init__(self, folder: pathlib.Path, limit_bytes: int) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self._lock = threading.Lock()
        self._watched: list[Watched] = []

    @contextlib.contextmanager
    def watched(self, path: pathlib.Path, end: Callable[[], None]) -> Iterator[Watched]:
        """Watch a file during the block.

        :param end: ends the backup job; is called by another thread
        :raises Full: the block failed, and the job was ended
        """
        one = Watched(path, end)
        with self._lock:
            self._watched.append(one)
        try:
            yield one
        except errors.AcstorError as e:
            if one.why:
                raise Full(str(path), one.why) from e
            raise
        finally:
            with self._lock:
                self._watched.remove(one)

    def run(self, ended: threading.Event) -> None:
        """Look at the files until the end."""
        while not ended.wait(LOOK_EVERY_S):
            self.look()

    def look(self) -> None:
        """End what has become too large."""
        with self._lock:
            sizes = {one: one.size_bytes() for one in self._watched if not one.why}
        limit_bytes = self._limit_bytes // 2
        for one, size_bytes in sizes.items():
            one.is_late = one.is_late or size_bytes > limit_bytes // 2
            if size_bytes > limit_bytes:
                _end(one, f"it has {size_bytes} bytes, of {limit_bytes} at most")
        left = {one: size_bytes for one, size_bytes in sizes.items() if not one.why}
        if left and (why := self._fault(sum(left.values()))):
            _end(max(left, key=left.__getitem__), why)

    def _fault(self, size_bytes: int) -> str:
        if size_bytes > self._limit_bytes:
            return f"all have {size_bytes} bytes, of {self._limit_bytes} at most"
        free = os.statvfs(self._folder)
        if free.f_bavail * free.f_frsize < SPARE_BYTES:
            return f"less than {SPARE_BYTES} bytes are free beside it"
        return ""


def _end(one: Watched, why: str) -> None:
    one.why = why
    LOG.warning("%s: the capture is ended: %s", one.path, why)
    supervised.start_once("end of a capture", one.end)  # libvirt may keep it waiting
