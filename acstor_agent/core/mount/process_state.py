# SPDX-License-Identifier: Apache-2.0
"""Which processes are being killed, and which handles are theirs alone.

A process that is being killed cannot end while a request of its is not answered: a read with
O_DIRECT, and what libaio and io_uring have under way when the process ends, wait for the answer
and hear no signal.  The kernel tells of a process that is to end by each of its threads: SIGKILL is
pending there (every fatal signal becomes that), or the thread is ending or has ended.

The one rule: nobody's request fails unless everybody who may have made it is being killed.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

FORGOTTEN = " (deleted)"
"""What the kernel puts after the path of an open file when it has forgotten its name: also where
only a look-up of it failed for a moment."""
_SIGKILL_PENDING = 1 << 8
_EXITING, _SIGNALED = 0x4, 0x400
_WORKER = 0x10 | 0x4000
"""Threads of the kernel within a process, as io_uring has: they hear signals their own way."""
_ENDED = frozenset("ZXx")
_AFTER_NAME = 3
"""Number of the first field behind the name, as proc_pid_stat(5) counts."""


class Thread(NamedTuple):
    """What /proc says of one thread.

    :param started: of its process's first thread this names the process, with its id
    """

    state: str
    flags: int
    started: int
    pending: int

    @property
    def is_ending(self) -> bool:
        """Say that it does nothing any more but end."""
        is_told = self.pending & _SIGKILL_PENDING or self.flags & (_EXITING | _SIGNALED)
        return bool(is_told) or self.state in _ENDED

    @property
    def is_worker(self) -> bool:
        """Say that it runs nothing of the process's own."""
        return bool(self.flags & _WORKER)


def thread_of(stat: str) -> Thread:
    """Return what a file ``stat`` says; the name in it may be anything.

    >>> thread_of("7 (a) b) D 1 7 7 0 -1 4194304 " + "0 " * 12 + "900 0 0 0 0 0 0 0 0 256 0")
    Thread(state='D', flags=4194304, started=900, pending=256)

    :raises ValueError: it is no such file
    """
    fields = stat.rpartition(")")[2].split()
    try:
        state, flags, started, pending = (fields[n - _AFTER_NAME] for n in (3, 9, 22, 31))
    except IndexError:
        raise ValueError(f"{stat[:80]!r} is no file stat") from None
    return Thread(state, int(flags), int(started), int(pending))


def is_dying(threads: Iterable[Thread]) -> bool:
    """Say that a process is being killed: each of its threads is ending.

    While one thread ends by itself, or all others make way for a new program, one goes on.
    """
    own = [thread for thread in threads if not thread.is_worker]
    return bool(own) and all(thread.is_ending for thread in own)


class Holder(NamedTuple):
    """A process that has a file open.

    :param tag: see ``inodes.py``
    :param thread: one of its threads by which its descriptors can be asked for
    :param fds: its descriptors of the file
    :param is_dying: it is being killed, or is to end and reads nothing more
    """

    pid: int
    tag: int
    thread: int
    fds: tuple[int, ...]
    is_dying: bool


Shares = Callable[[Holder, Holder], bool]
"""Says whether two processes have the same opening of a file, as after a fork."""


def may_end(tag: int, holders: Sequence[Holder], shares: Shares) -> bool:
    """Say whether all are being killed who may have made the requests of a handle.

    :param tag: of the process that has opened the handle; 0 if any may have
    :param holders: all processes that have the file open

    >>> dying, living = Holder(7, 1, 7, (3,), True), Holder(8, 2, 8, (3,), False)
    >>> [may_end(tag, [dying, living], lambda one, other: False) for tag in (1, 2, 0)]
    [True, False, False]
    >>> may_end(1, [dying, living], lambda one, other: True)
    False
    """
    own = [holder for holder in holders if holder.tag == tag] or holders  # who opened it has gone
    if not own or not all(holder.is_dying for holder in own):
        return False
    living = [holder for holder in holders if not holder.is_dying]
    return not any(shares(one, other) for one in own for other in living)
