# SPDX-License-Identifier: Apache-2.0
"""Which processes have a file open, asked of the kernel.

An agent that was restarted does not know what was opened before; /proc does.
"""

import os


def pids_with_open(path: str) -> list[int]:
    """Return the processes that have ``path`` open; the path itself is not touched."""
    folder, name = os.path.split(path)
    real = os.path.join(os.path.realpath(os.path.dirname(folder)), os.path.basename(folder), name)
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _has_open(pid, real)]


def _has_open(pid: str, path: str) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        return any(os.readlink(f"{folder}/{number}") == path for number in os.listdir(folder))
    except OSError:  # it has ended, or belongs to another user
        return False
