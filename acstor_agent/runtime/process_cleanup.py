# SPDX-License-Identifier: Apache-2.0
"""Detects ended processes that the kernel still holds, and frees them.

A thread that hangs in the kernel keeps a killed process's files and locks, but runs no more code.
"""

import contextlib
import ctypes
import os
import pathlib
import socket

from acstor_agent.core.mount import process_state

_PROC = pathlib.Path("/proc")
_PIDFD_THREAD = os.O_EXCL  # since Linux 6.9; before, a pidfd can only refer to a first thread
_PIDFD_GETFD, _PROCESS_MRELEASE = 438, 448

_libc = ctypes.CDLL(None, use_errno=True)


def has_ended(pid: int) -> bool:
    """Return whether a process runs no code any more; False for PID 0 (of another namespace)."""
    if pid <= 0:
        return False
    with contextlib.suppress(OSError):
        return process_state.thread_of((_PROC / str(pid) / "stat").read_text()).is_ending
    return not (_PROC / str(pid)).exists()


def lock_holders(inode: int) -> list[int]:
    """Return the processes with a flock on a file of this inode number, on any device."""
    found = []
    with contextlib.suppress(OSError):
        for line in (_PROC / "locks").read_text().splitlines():
            fields = line.split()  # 3: FLOCK ADVISORY WRITE 1234 fe:01:5678 0 EOF
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
                found.append(int(fields[4]))
    return found


def shut_sockets(pid: int) -> int:
    """Shut down an ended process's sockets that this one does not share; return the count."""
    own = set(_sockets(pathlib.Path("/proc/self/fd")).values())
    shut = 0
    for task in (_PROC / str(pid) / "task").glob("*"):
        foreign = {fd: name for fd, name in _sockets(task / "fd").items() if name not in own}
        with contextlib.suppress(OSError):  # an older kernel, or the thread has ended
            thread = os.pidfd_open(int(task.name), _PIDFD_THREAD)
            try:
                shut += sum(_shut(thread, fd) for fd in foreign)
            finally:
                os.close(thread)
        if foreign:  # other threads share the descriptors
            break
    return shut


def free_memory(pid: int) -> bool:
    """Release an ended process's memory, charged to the service; return whether it worked."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        return bool(_libc.syscall(_PROCESS_MRELEASE, process, 0) == 0)
    finally:
        os.close(process)


def _sockets(folder: pathlib.Path) -> dict[int, str]:
    found = {}
    with contextlib.suppress(OSError):
        for link in folder.iterdir():
            with contextlib.suppress(OSError):
                if (name := os.readlink(link)).startswith("socket:"):
                    found[int(link.name)] = name
    return found


def _shut(thread: int, fd: int) -> bool:
    ours = _libc.syscall(_PIDFD_GETFD, thread, fd, 0)
    if ours < 0:
        return False
    with socket.socket(fileno=ours) as link, contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
    return True
