# SPDX-License-Identifier: Apache-2.0
"""Group commit: one ``syncfs`` for all threads that wait, and a limit of its data per host.

A thread waits for a pass that began after its call.  After a failure all later calls fail until a
restart: the kernel reports an I/O error once, and not for which data.  ``fsync`` would commit the
journal for each file; ``syncfs`` writes all of a file system, so a vault should have its own.
"""

import collections
import contextlib
import ctypes
import errno
import logging
import math
import os
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Final

from acstor_common.model import ids

LOG = logging.getLogger(__name__)

TIMEOUT_S: Final = 100.0  # of a sync; clients give up after 60 to 120 s
UNSYNCED_BYTES: Final = 32 << 20  # of one host: its daemon's four workers send as much
_libc = ctypes.CDLL(None, use_errno=True)


class _Pass:
    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: OSError | None = None


class GroupSync:
    """Group commit on the file system of ``folder``; thread-safe; OSError if it is not there."""

    def __init__(self, folder: pathlib.Path, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        # One for all passes: a descriptor reports errors since it was opened.
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._failed: OSError | None = None
        self._next: _Pass | None = None
        self.passes = 0  #: completed
        self._took_s, self._began_s = 0.0, math.inf  # no pass is running
        self._lock, self._one_at_a_time = threading.Lock(), threading.Lock()

    def wait_synced(self) -> None:
        """Wait until all data written before this call is durable; OSError if it is lost."""
        with self._lock:
            is_first = self._next is None
            mine = self._next = self._next or _Pass()
        if is_first:
            self._make(mine)
        if not mine.ended.wait(self._timeout_s):
            raise OSError(errno.ETIMEDOUT, "the disk does not answer")
        if mine.error is not None:
            raise OSError(mine.error.errno, mine.error.strerror)

    @property
    def took_s(self) -> float:
        """Duration of all passes, with that of a running one."""
        with self._lock:
            return self._took_s + max(0.0, time.monotonic() - self._began_s)

    @property
    def has_failed(self) -> bool:
        """Whether data was lost."""
        return self._failed is not None

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)

    def _make(self, mine: _Pass) -> None:
        with self._one_at_a_time:
            with self._lock:
                self._next = None  # later callers need the next pass
                self._began_s = time.monotonic()
            self._failed = self._failed or _fault(self._descriptor)
            with self._lock:
                self.passes += 1
                self._took_s += time.monotonic() - self._began_s
                self._began_s = math.inf
            mine.error = self._failed
            mine.ended.set()


class UnsyncedLimit:
    """Bounds the data of each host between write and sync; thread-safe.

    Otherwise one host would decide how long all others wait for a sync.  A request that is larger
    than the limit has its turn alone.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._held: collections.Counter[ids.HostId] = collections.Counter()
        self._waiting: dict[ids.HostId, collections.deque[object]] = {}

    @contextlib.contextmanager
    def hold_unsynced(self, owner: ids.HostId, size_bytes: int) -> Iterator[None]:
        """Count data of a host during the block; wait for its earlier data (timeout: OSError)."""
        with self._changed:
            self._wait(owner, size_bytes)
            self._held[owner] += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._held[owner] -= size_bytes
                self._held += collections.Counter()  # without zeros
                self._changed.notify_all()

    def _wait(self, owner: ids.HostId, size_bytes: int) -> None:
        mine, waiting = object(), self._waiting.setdefault(owner, collections.deque())
        waiting.append(mine)

        def may_begin() -> bool:
            held = self._held[owner]
            return waiting[0] is mine and (not held or held + size_bytes <= UNSYNCED_BYTES)

        try:
            if not self._changed.wait_for(may_begin, self._timeout_s):
                raise OSError(errno.ETIMEDOUT, "earlier data of this host is not synced yet")
        finally:
            waiting.remove(mine)
            if not waiting:
                del self._waiting[owner]
            self._changed.notify_all()


def _fault(descriptor: int) -> OSError | None:
    if not _libc.syncfs(descriptor):
        return None
    number = ctypes.get_errno()
    LOG.error("data written to the vault may be lost: %s", os.strerror(number))
    return OSError(number, os.strerror(number))
