# SPDX-License-Identifier: Apache-2.0
"""Limits of scratch files, in which QEMU stores data that guests overwrite.

A server's file may have half of the limit of all.  At half of that the capture keeps the part that
it has read; at the limit the agent ends the backup job.  If the sum exceeds the limit, or the file
system is nearly full, it ends the job with the largest file, and no other for RETRY_S, because QEMU
frees the space with a delay.
"""

import contextlib
import logging
import math
import os
import pathlib
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Final

from acstor_common import errors
from acstor_common.model import clocks
from acstor_common.util import supervision

LOG = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 0.5  # a guest that overwrites 1 GB/s exceeds a limit by half of that
RETRY_S: Final = 10.0
"""Time until another job is ended for space, and until ending a job is retried."""
SPARE_BYTES: Final = 1 << 30


class ScratchFull(errors.Unusable):
    """A capture was ended because its scratch file, or all, became too large."""


class ScratchFile:
    """One scratch file."""

    def __init__(self, path: pathlib.Path, end_job: Callable[[], None]) -> None:
        self.path, self.end_job = path, end_job
        self.should_stop = False
        """Whether to stop reading."""
        self.end_reason = ""
        """Why the job was ended; "": it was not."""
        self._again_s = -math.inf
        self._ending: threading.Thread | None = None

    def size_bytes(self) -> int:
        """Return its size on disk."""
        try:
            return os.stat(self.path, follow_symlinks=False).st_blocks * 512
        except OSError:
            return 0

    def end_capture(self, why: str, now_s: float) -> None:
        """End the job; retry after RETRY_S, unless a call to libvirt is pending."""
        if now_s < self._again_s or (self._ending is not None and self._ending.is_alive()):
            return
        self.end_reason = why  # first: its reader reports this reason
        self._again_s = now_s + RETRY_S
        LOG.warning("%s: the capture is aborted: %s", self.path, why)
        self._ending = supervision.start_once("end of a capture", self.end_job)


class ScratchFiles:
    """Scratch files of this host's servers; thread-safe.

    :param limit_bytes: of all files
    :param spare_bytes: space to leave free: guests pause if their disks cannot grow
    """

    def __init__(
        self,
        folder: pathlib.Path,
        limit_bytes: int,
        clock: clocks.Clock = time,
        spare_bytes: int = SPARE_BYTES,
    ) -> None:
        self._folder, self._limit_bytes, self._clock = folder, limit_bytes, clock
        self._spare_bytes = spare_bytes
        self._next_s = -math.inf
        self._lock = threading.Lock()
        self._watched: list[ScratchFile] = []

    @contextlib.contextmanager
    def watch_file(self, path: pathlib.Path, end_job: Callable[[], None]) -> Iterator[ScratchFile]:
        """Watch a file, which need not exist yet; another thread may call ``end_job``.

        :raises ScratchFull: the block failed because the job was ended
        """
        scratch = ScratchFile(path, end_job)
        with self._lock:
            self._watched.append(scratch)
        try:
            yield scratch
        except errors.AcstorError as e:
            if scratch.end_reason:
                raise ScratchFull(str(path), scratch.end_reason) from e
            raise
        finally:
            with self._lock:
                self._watched.remove(scratch)

    def run(self, ended: threading.Event) -> None:
        """Check the files periodically until ``ended`` is set."""
        while not ended.wait(CHECK_INTERVAL_S):
            self.end_oversized()

    def end_oversized(self) -> None:
        """End jobs whose files are too large."""
        with self._lock:
            sizes = {scratch: scratch.size_bytes() for scratch in self._watched}
        limit_bytes = self._limit_bytes // 2
        for scratch, size_bytes in sizes.items():
            scratch.should_stop = scratch.should_stop or size_bytes > limit_bytes // 2
            if scratch.end_reason:
                scratch.end_capture(scratch.end_reason, self._clock.monotonic())
            elif size_bytes > limit_bytes:
                self._end(scratch, f"it has {size_bytes} bytes, of {limit_bytes} at most")
        left = {
            scratch: size_bytes for scratch, size_bytes in sizes.items() if not scratch.end_reason
        }
        if (
            left
            and self._clock.monotonic() >= self._next_s
            and (why := self._fault(sum(sizes.values())))
        ):
            self._end(max(left, key=left.__getitem__), why)

    def _end(self, scratch: ScratchFile, why: str) -> None:
        self._next_s = self._clock.monotonic() + RETRY_S
        scratch.end_capture(why, self._clock.monotonic())

    def _fault(self, size_bytes: int) -> str:
        if size_bytes > self._limit_bytes:
            return f"all have {size_bytes} bytes, of {self._limit_bytes} at most"
        free = os.statvfs(self._folder)
        if free.f_bavail * free.f_frsize < self._spare_bytes:
            return f"less than {self._spare_bytes} bytes are free beside it"
        return ""
