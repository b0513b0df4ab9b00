# SPDX-License-Identifier: Apache-2.0
"""Finds open files of all processes in /proc, without touching the mount."""

import contextlib
import os
import pathlib
from typing import NamedTuple

from acstor_agent.core.mount import process_state
from acstor_agent.mount import fuse_connection
from acstor_agent.mount import proc_files
from acstor_agent.sources import base
from acstor_common.model import ids

DESCRIBED = 20


class User(NamedTuple):
    """A process with open files below a mount."""

    pid: int
    name: str
    paths: tuple[str, ...]


def users_of(mount_point: str) -> list[User]:
    """Return the processes with open files below a mount point."""
    below = fuse_connection.resolve_path(mount_point)
    found = []
    for pid in proc_files.pids():
        paths = {path for path in _open_of(pid) if path == below or path.startswith(f"{below}/")}
        if paths:
            found.append(User(pid, name_of(pid), tuple(sorted(paths))))
    return found


def list_open_images(mount_point: str) -> set[ids.ImageId]:
    """Return the images that processes have open below a mount point, or raise OSError."""
    below = f"{fuse_connection.resolve_path(mount_point)}/images/"
    found = set()
    for pid in proc_files.pids():
        for path in _open_of(pid):
            if path.startswith(below):
                name, _, _ = path.removeprefix(below).partition(base.BlobKind.IMAGE.value)
                with contextlib.suppress(ValueError):
                    found.add(ids.parse_image_id(name))
    return found


def describe(users: list[User]) -> str:
    """Describe users in one line: PID, program, images.

    >>> describe([User(7, "qemu guest=one", ("/m/images/a.raw",))])
    'process 7 (qemu guest=one) has a.raw open'
    """
    if not users:
        return "no process in this mount namespace, but maybe in another"
    described = [
        f"process {user.pid} ({user.name}) has "
        f"{', '.join(os.path.basename(path) for path in user.paths)} open"
        for user in users[:DESCRIBED]
    ]
    more = [f"and {len(users) - DESCRIBED} more"] if len(users) > DESCRIBED else []
    return "; ".join(described + more)


def _open_of(pid: int) -> list[str]:
    paths: list[str] = []
    with contextlib.suppress(OSError):  # it exited
        paths += proc_files.links(pid).values()
        paths.append(os.readlink(f"/proc/{pid}/cwd"))
    return [path.removesuffix(process_state.FORGOTTEN) for path in paths]


def name_of(pid: int) -> str:
    """Return the program name of a process, for QEMU with its guest's."""
    with contextlib.suppress(OSError):
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        guest = [word for word in words if word.startswith(b"guest=")]
        shown = [os.path.basename(words[0]), *(word.split(b",")[0] for word in guest[:1])]
        return b" ".join(shown).decode(errors="replace")
    return "?"


def pids_with_open(path: str) -> list[int]:
    """Return the processes that have ``path`` open."""
    folder, name = os.path.split(path)
    real = os.path.join(os.path.realpath(os.path.dirname(folder)), os.path.basename(folder), name)
    return [pid for pid in proc_files.pids() if real in _open_of(pid)]
