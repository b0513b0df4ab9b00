# SPDX-License-Identifier: Apache-2.0
"""Processes that have ended as far as they can, and those that have not.

A process that was killed is there, with its files and its locks, until the kernel has let go of
each of its threads; one that hangs in a call to a dead file server keeps it for as long as that
hangs.  The rule: no code of such a process runs any more, so nobody has to wait for it.
"""

import contextlib
import ctypes
import os
import pathlib
import socket

from acstor_agent.core.mount import process_state

_PROC = pathlib.Path("/proc")
_PIDFD_THREAD = os.O_EXCL
"""Linux 6.9; before, threads beside the first one cannot be named so."""
_PIDFD_GETFD, _PROCESS_MRELEASE = 438, 448

_libc = ctypes.CDLL(None, use_errno=True)


def has_ended(pid: int) -> bool:
    """Say whether no code of a process runs any more, though the kernel may hold on to it.

    Its first thread is on its way out, or is to be killed and hangs in the kernel itself.

    :param pid: 0 for one in another PID namespace, of which nothing is known
    """
    if pid <= 0:
        return False
    with contextlib.suppress(OSError):
        return process_state.thread_of((_PROC / str(pid) / "stat").read_text()).is_ending
    return not (_PROC / str(pid)).exists()


def lockers(inode: int) -> list[int]:
    """Return the processes that have a lock (flock) on a file of this number, on whatever disk."""
    found = []
    with contextlib.suppress(OSError):
        for line in (_PROC / "locks").read_text().splitlines():
            fields = line.split()  # 3: FLOCK ADVISORY WRITE 1234 fe:01:5678 0 EOF
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
                found.append(int(fields[4]))
    return found


def shut_sockets(pid: int) -> int:
    """Shut the sockets of a process that has ended; return how many.

    Nobody would answer there any more, and its ports are wanted.  What this process has as well
    (where both write their log) stays as it is.
    """
    own = set(_sockets(pathlib.Path("/proc/self/fd")).values())
    shut = 0
    for task in (_PROC / str(pid) / "task").glob("*"):
        foreign = {fd: name for fd, name in _sockets(task / "fd").items() if name not in own}
        with contextlib.suppress(OSError):  # an older kernel, or the thread is gone by now
            thread = os.pidfd_open(int(task.name), _PIDFD_THREAD)
            try:
                shut += sum(_shut(thread, fd) for fd in foreign)
            finally:
                os.close(thread)
        if foreign:  # the other threads have the same ones
            break
    return shut


def free_memory(pid: int) -> bool:
    """Give back the memory of a process that has ended; say whether that could be done.

    It counts against the limit of the service, beside that of the process that comes next.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        return bool(_libc.syscall(_PROCESS_MRELEASE, process, 0) == 0)
    finally:
        os.close(process)


def _sockets(folder: pathlib.Path) -> dict[int, str]:
    """Return the sockets among the open files of a process or thread, by descriptor."""
    found = {}
    with contextlib.suppress(OSError):
        for link in folder.iterdir():
            with contextlib.suppress(OSError):
                if (name := os.readlink(link)).startswith("socket:"):
                    found[int(link.name)] = name
    return found


def _shut(thread: int, fd: int) -> bool:
    """Shut a socket of another thread; say whether that could be done."""
    ours = _libc.syscall(_PIDFD_GETFD, thread, fd, 0)
    if ours < 0:
        return False
    with socket.socket(fileno=ours) as link, contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
    return True
