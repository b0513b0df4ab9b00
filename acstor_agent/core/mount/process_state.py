# SPDX-License-Identifier: Apache-2.0
"""Detects killed processes, and the handles that belong to them alone.

A killed process cannot exit while one of its requests is unanswered: reads with O_DIRECT, libaio
and io_uring wait uninterruptibly. Each of its threads has SIGKILL pending or exits. A request is
failed only if all processes that may have made it are being killed.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

FORGOTTEN = " (deleted)"
"""Suffix in the path of an open file whose name the kernel dropped, also after a failed lookup."""
_SIGKILL_PENDING = 1 << 8
_EXITING, _SIGNALED = 0x4, 0x400
_WORKER = 0x10 | 0x4000
"""Kernel threads in a process, such as io_uring's: they handle signals differently."""
_ENDED = frozenset("ZXx")
_AFTER_NAME = 3  # number of the first field after the name, as in proc_pid_stat(5)


class Thread(NamedTuple):
    """State of one thread from /proc."""

    state: str
    flags: int
    started: int  # start time; with the process ID, that of the first thread identifies the process
    pending: int

    @property
    def is_ending(self) -> bool:
        """Whether it only exits."""
        is_signalled = self.pending & _SIGKILL_PENDING or self.flags & (_EXITING | _SIGNALED)
        return bool(is_signalled) or self.state in _ENDED

    @property
    def is_worker(self) -> bool:
        """Whether it runs no code of the process."""
        return bool(self.flags & _WORKER)


def thread_of(stat: str) -> Thread:
    """Parse a ``stat`` file, whose name field may contain anything, or raise ValueError.

    >>> thread_of("7 (a) b) D 1 7 7 0 -1 4194304 " + "0 " * 12 + "900 0 0 0 0 0 0 0 0 256 0")
    Thread(state='D', flags=4194304, started=900, pending=256)
    """
    fields = stat.rpartition(")")[2].split()
    try:
        state, flags, started, pending = (fields[n - _AFTER_NAME] for n in (3, 9, 22, 31))
    except IndexError:
        raise ValueError(f"{stat[:80]!r} is not a line of /proc/<pid>/stat") from None
    return Thread(state, int(flags), int(started), int(pending))


def is_dying(threads: Iterable[Thread]) -> bool:
    """Return whether a process is being killed: all its threads are exiting."""
    own = [thread for thread in threads if not thread.is_worker]
    return bool(own) and all(thread.is_ending for thread in own)


class FileHolder(NamedTuple):
    """A process that has a file open."""

    pid: int
    tag: int
    thread: int  # one of its threads, to read its descriptors from /proc
    fds: tuple[int, ...]
    is_dying: bool  # it is being killed, or exits and reads nothing more


Shares = Callable[[FileHolder, FileHolder], bool]
"""Returns whether two processes share an open file description, as after a fork."""


def may_end(tag: int, holders: Sequence[FileHolder], shares: Shares) -> bool:
    """Return whether all processes that may use a handle are being killed.

    :param tag: of the process that opened the handle; 0 if unknown

    >>> dying, living = FileHolder(7, 1, 7, (3,), True), FileHolder(8, 2, 8, (3,), False)
    >>> [may_end(tag, [dying, living], lambda one, other: False) for tag in (1, 2, 0)]
    [True, False, False]
    >>> may_end(1, [dying, living], lambda one, other: True)
    False
    """
    own = [holder for holder in holders if holder.tag == tag] or holders  # the opener has exited
    if not own or not all(holder.is_dying for holder in own):
        return False
    living = [holder for holder in holders if not holder.is_dying]
    return not any(shares(candidate, other) for candidate in own for other in living)
