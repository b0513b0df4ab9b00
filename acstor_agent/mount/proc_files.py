# SPDX-License-Identifier: Apache-2.0
"""Reads processes and their open files in /proc, without accessing a mount."""

import contextlib
import os
import pathlib


def pids() -> list[int]:
    """Return the IDs of all processes; raises OSError if they cannot be listed."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def numbers(folder: str) -> list[int]:
    """Return the numeric names in a folder, sorted; none if its process exited."""
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    except (FileNotFoundError, ProcessLookupError):
        return []


def links(thread: int) -> dict[int, str]:
    """Return a thread's open files by descriptor, none if it exited, or raise PermissionError."""
    found = {}
    for fd in numbers(f"/proc/{thread}/fd"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # closed meanwhile
            found[fd] = os.readlink(f"/proc/{thread}/fd/{fd}")
    return found


def descriptor_field(thread: int, fd: int, name: str) -> str:
    """Return a field of a descriptor's fdinfo, as ``ino:``; empty if there is none."""
    for line in text(f"/proc/{thread}/fdinfo/{fd}").splitlines():
        if line.startswith(name):
            return line.split()[1]
    return ""


def text(path: str) -> str:
    """Return a file's text; empty if it is unreadable."""
    try:
        return pathlib.Path(path).read_text(errors="replace")
    except OSError:
        return ""
