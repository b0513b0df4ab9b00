# SPDX-License-Identifier: Apache-2.0
"""Makes what was written to a file system safe, for all who wait at once.

Who waits gets the end of a pass that began after he asked.  When one has failed, all later
ones fail until the process is started anew: the kernel tells a fault of the disk once, and
not whose bytes are lost.

``syncfs`` and not ``fsync``: of 128 files that were written together, each fsync is a commit of
the file system's journal and a flush of the disk's cache; all together need one.  It writes what
others have written to the same file system, too: a vault should have one of its own.
"""

import ctypes
import errno
import logging
import math
import os
import pathlib
import threading
import time
from typing import Final

LOG = logging.getLogger(__name__)

LONGEST_S: Final = 100.0
"""Of one sync; a client waits for 60 to 120 s and then takes the vault for too slow."""
_libc = ctypes.CDLL(None, use_errno=True)


class _Pass:
    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: OSError | None = None


class GroupSync:
    """Of one file system; may be used by many threads.

    :param folder: somewhere on it
    :raises OSError: it cannot be opened
    """

    def __init__(self, folder: pathlib.Path) -> None:
        # One for all passes: the kernel tells a descriptor of the faults since it was opened.
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._failed: OSError | None = None
        self._next: _Pass | None = None
        self.passes = 0  #: how many ended
        self._took_s, self._began_s = 0.0, math.inf  # no pass is on
        self._lock, self._one_at_a_time = threading.Lock(), threading.Lock()

    def wait_synced(self) -> None:
        """Wait until all that was written before this call is safe.

        :raises OSError: it is not, and nobody knows which part; or not within LONGEST_S
        """
        with self._lock:
            is_first = self._next is None
            mine = self._next = self._next or _Pass()
        if is_first:
            self._make(mine)
        if not mine.ended.wait(LONGEST_S):
            raise OSError(errno.ETIMEDOUT, "the disk does not answer")
        if mine.error is not None:
            raise OSError(mine.error.errno, mine.error.strerror)

    @property
    def took_s(self) -> float:
        """Return how long all passes took, and the one that is on takes: it may never end."""
        with self._lock:
            return self._took_s + max(0.0, time.monotonic() - self._began_s)

    @property
    def has_failed(self) -> bool:
        """Say whether something is not safe, and nobody knows what."""
        return self._failed is not None

    def close(self) -> None:
        """Let go of the file system."""
        os.close(self._descriptor)

    def _make(self, mine: _Pass) -> None:
        with self._one_at_a_time:
            with self._lock:
                self._next = None  # who comes from now on may have written after it began
                self._began_s = time.monotonic()
            self._failed = self._failed or _fault(self._descriptor)
            with self._lock:
                self.passes += 1
                self._took_s += time.monotonic() - self._began_s
                self._began_s = math.inf
            mine.error = self._failed
            mine.ended.set()


def _fault(descriptor: int) -> OSError | None:
    """Make a file system safe; return why that is not done."""
    if not _libc.syncfs(descriptor):
        return None
    number = ctypes.get_errno()
    LOG.error("data written to the vault may be lost: %s", os.strerror(number))
    return OSError(number, os.strerror(number))
