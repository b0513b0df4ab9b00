# SPDX-License-Identifier: Apache-2.0
"""Finds guests with files on a dead mount, which fail with ENOTCONN until QEMU restarts."""

import contextlib
import errno
import itertools
import logging
import os
import re

import trio

from acstor_agent.mount import fuse_connection
from acstor_agent.mount import killed_guests
from acstor_agent.mount import open_files
from acstor_agent.mount import proc_files
from acstor_common.util import mount_table

LOG = logging.getLogger(__name__)

SCAN_INTERVAL_S = 30.0
FILES_LIMIT = 64  # files of one process that are checked, the first ones; no guest has more disks
DEAD = frozenset({errno.ENOTCONN, errno.ECONNABORTED})
_FILE = re.compile(r"/(?:images|disks)/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b[^/]*$")


class DeadMounts:
    """``guests`` on a dead mount: instance IDs, or processes; keep :meth:`run` running."""

    def __init__(self, mount_point: str) -> None:
        self.guests: tuple[str, ...] = ()
        self._mount_point = mount_point
        self._thread = trio.CapacityLimiter(1)  # its own: a foreign mount may hang

    async def run(self) -> None:
        """Scan for them periodically until cancelled."""
        while True:
            found = await trio.to_thread.run_sync(
                guests_on_dead_mounts,
                self._mount_point,
                abandon_on_cancel=True,
                limiter=self._thread,
            )
            if new := sorted(set(found) - set(self.guests)):
                LOG.error(
                    "guests use a dead mount and get I/O errors; restart them: %s", ", ".join(new)
                )
            self.guests = found
            await trio.sleep(SCAN_INTERVAL_S)


def guests_on_dead_mounts(mount_point: str) -> tuple[str, ...]:
    """Return guests with files on a dead mount, or raise OSError; do not access the live one."""
    live = fuse_connection.device_number(mount_point)
    found = set()
    for pid in proc_files.pids():
        with contextlib.suppress(OSError):  # it exited
            if any(_is_dead(pid, fd, live) for fd in _files_of(pid)):
                instance = killed_guests.instance_of(pid)
                found.add(instance or f"process {pid} ({open_files.name_of(pid)})")
    return tuple(sorted(found))


def _files_of(pid: int) -> list[int]:
    found = (fd for fd, path in proc_files.links(pid).items() if _FILE.search(path))
    return list(itertools.islice(found, FILES_LIMIT))


def _is_dead(pid: int, fd: int, live: str) -> bool:
    if live and _device_of(pid, fd) == live:
        return False
    try:
        os.statvfs(f"/proc/{pid}/fd/{fd}")
    except OSError as e:
        return e.errno in DEAD
    return False


def _device_of(pid: int, fd: int) -> str:
    """Return the device of a descriptor's mount; empty if it is in no namespace."""
    wanted = proc_files.descriptor_field(pid, fd, "mnt_id:")
    mounts = mount_table.list_mounts(f"/proc/{pid}/mountinfo")
    return next((mount.device for mount in mounts if mount.mount_id == wanted), "")
