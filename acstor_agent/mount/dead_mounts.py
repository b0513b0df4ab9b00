# SPDX-License-Identifier: Apache-2.0
"""Finds guests whose image or disk lies on a mount that has ended.

A mount ends when all processes of an agent die and nobody holds its descriptor. What guests have
open there fails from then on with ENOTCONN, also after the agent's next start, until each guest's
QEMU is started again. The agent that serves now never hears of their requests; /proc shows them.
"""

import contextlib
import errno
import logging
import os
import re

import trio

from acstor_agent.mount import fuse_connection
from acstor_agent.mount import killed_guests
from acstor_agent.mount import open_files

LOG = logging.getLogger(__name__)

LOOK_S = 30.0
DEAD = frozenset({errno.ENOTCONN, errno.ECONNABORTED})
_FILE = re.compile(r"/(?:images|disks)/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b[^/]*$")


class DeadMounts:
    """The guests of this host that use a mount that has ended; keep :meth:`run` running.

    ``guests`` are ids of instances, or processes in words where no instance is known.
    """

    def __init__(self, mount_point: str) -> None:
        self.guests: tuple[str, ...] = ()
        self._mount_point = mount_point
        self._thread = trio.CapacityLimiter(1)  # its own: a foreign mount may hang

    async def run(self) -> None:
        """Look for them, for ever."""
        while True:
            found = await trio.to_thread.run_sync(
                guests_on_dead_mounts,
                self._mount_point,
                abandon_on_cancel=True,
                limiter=self._thread,
            )
            if new := sorted(set(found) - set(self.guests)):
                LOG.error(
                    "guests use a dead mount and get I/O errors; restart them: %s",
                    ", ".join(new),
                )
            self.guests = found
            await trio.sleep(LOOK_S)


def guests_on_dead_mounts(mount_point: str) -> tuple[str, ...]:
    """Return who has an image or a disk open on a mount that has ended.

    What lies on the mount of the running agent is left alone: nothing is asked of it.

    :raises OSError: processes cannot be listed
    """
    live = fuse_connection.device(mount_point)
    found = set()
    for pid in open_files.pids():
        with contextlib.suppress(OSError):  # it has ended
            if any(_is_dead(pid, fd, live) for fd in _files_of(pid)):
                instance = killed_guests.instance_of(pid)
                found.add(instance or f"process {pid} ({open_files.name_of(pid)})")
    return tuple(sorted(found))


def _files_of(pid: int) -> list[str]:
    """Return the descriptors of a process that are called as mirrors and disks are."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            if _FILE.search(os.readlink(f"/proc/{pid}/fd/{fd}")):
                found.append(fd)
    return found


def _is_dead(pid: int, fd: str, live: str) -> bool:
    """Say whether a descriptor's file system answers no more.

    :param live: the device of the mount that is served, which is not asked
    """
    if live and _device_of(pid, fd) == live:
        return False
    try:
        os.statvfs(f"/proc/{pid}/fd/{fd}")
    except OSError as e:
        return e.errno in DEAD
    return False


def _device_of(pid: int, fd: str) -> str:
    """Return the device of a descriptor's mount; empty if no mount namespace has that any more."""
    with open(f"/proc/{pid}/fdinfo/{fd}", encoding="utf-8") as lines:
        told = dict(line.split(":", 1) for line in lines if line.startswith("mnt_id"))
    wanted = told.get("mnt_id", "").strip()
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            number, _parent, device, _rest = line.split(" ", 3)
            if number == wanted:
                return device
    return ""
