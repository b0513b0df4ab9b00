# SPDX-License-Identifier: Apache-2.0
"""Finds killed processes whose waiting requests keep them from exiting, by /proc.

No path below a mount is accessed, and no memory map or command line, which could hang.
"""

import collections
import contextlib
import ctypes
import itertools
import logging
import math
import os
import platform
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.mount import process_state
from acstor_agent.mount import proc_files
from acstor_common import errors
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

SCAN_INTERVAL_S = 2.0
RESCAN_S = 60.0  # interval of full scans without a new waiting guest or a dying process
LINKS_LIMIT = 500_000  # descriptors in one scan; a larger scan is inconclusive
FDS_LIMIT = 16  # most descriptors of one file compared between two processes; more count as shared
INIT = 1  # opens no images, and may be unreadable in a container
POWER_OFF_S = 60.0
"""How long a process counts as dying after its instance's power-off was announced."""
POWER_OFF_LIMIT = 1024
_ROOT_DISKS = frozenset({"disk", "disk.rescue"})
_KCMP = {"x86_64": 312, "aarch64": 272, "riscv64": 272, "ppc64le": 354, "s390x": 343}
_KCMP_FILE = 0
_libc = ctypes.CDLL(None, use_errno=True)

Tag = Callable[[int, int], int]  # computes the tag of a process from its ID and start time


class WaitingGuest(NamedTuple):
    """A guest with waiting requests."""

    guest: requests.Stream
    inode: int
    name: str
    tag: int


class _PowerOff(NamedTuple):
    instance_id: str
    ends_s: float


class KilledGuests:
    """The processes that have files open whose requests wait."""

    def __init__(self, tag: Tag, links_limit: int = LINKS_LIMIT) -> None:
        self._tag, self._links_limit = tag, links_limit
        self._pids: dict[requests.Stream, set[int]] = {}
        self._scanned_s = -RESCAN_S
        self._not_before_s = -math.inf
        self._is_logged = False
        self._power_offs: dict[tuple[int, int], _PowerOff] = {}

    def note_power_off(
        self, instance_id: str, processes: Iterable[tuple[int, int]], now_s: float
    ) -> None:
        """Treat an instance's processes as dying for POWER_OFF_S; raise Unusable if too many."""
        known = {
            process: power_off
            for process, power_off in self._power_offs.items()
            if power_off.ends_s > now_s
        }
        known.update(dict.fromkeys(processes, _PowerOff(instance_id, now_s + POWER_OFF_S)))
        if len(known) > POWER_OFF_LIMIT:
            raise errors.Unusable("this agent", f"{POWER_OFF_LIMIT} processes are being shut down")
        self._power_offs = known

    def cancel_power_off(self, instance_id: str) -> int:
        """Treat the processes of an instance as alive again; return their number."""
        before = self._power_offs
        self._power_offs = {
            process: power_off
            for process, power_off in before.items()
            if power_off.instance_id != instance_id
        }
        return len(before) - len(self._power_offs)

    def find_killed(self, waiters: Sequence[WaitingGuest], now_s: float) -> list[requests.Stream]:
        """Return the guests whose processes are all being killed; blocks."""
        if not self._is_due(waiters, now_s):
            return []
        self._scanned_s = now_s
        try:
            holders = self._holders({(waiter.name, waiter.inode) for waiter in waiters}, now_s)
        except PermissionError as e:  # unseen processes may be alive
            self._not_before_s = now_s + RESCAN_S
            if not self._is_logged:
                LOG.warning("cannot list open files of processes: killed processes may hang: %s", e)
                self._is_logged = True
            return []
        if holders is None:
            LOG.warning(
                "processes have over %d files open: killed processes may hang", self._links_limit
            )
            self._not_before_s = now_s + RESCAN_S
            return []
        self._pids = {
            waiter.guest: {holder.pid for holder in holders[waiter.inode]} for waiter in waiters
        }
        return [
            waiter.guest
            for waiter in waiters
            if process_state.may_end(waiter.tag, holders[waiter.inode], _shares)
        ]

    def _is_due(self, waiters: Sequence[WaitingGuest], now_s: float) -> bool:
        since_s = now_s - self._scanned_s
        if since_s < SCAN_INTERVAL_S or now_s < self._not_before_s:
            return False
        if since_s >= RESCAN_S or any(waiter.guest not in self._pids for waiter in waiters):
            return True
        known = set().union(*(self._pids[waiter.guest] for waiter in waiters))
        power_off = {pid for pid, _ in self._power_offs}
        return bool(known & power_off) or any(_is_marked(pid) for pid in known)

    def _holders(
        self, files: set[tuple[str, int]], now_s: float
    ) -> Mapping[int, list[process_state.FileHolder]] | None:
        names = {name for name, _ in files}
        found: dict[int, list[process_state.FileHolder]] = {inode: [] for _, inode in files}
        looked_at = 0
        for pid in proc_files.pids():
            try:
                thread, links = _links_of(pid)
            except PermissionError:
                if pid != INIT:
                    raise
                continue
            looked_at += len(links)
            if looked_at > self._links_limit:
                return None
            of_process: dict[int, list[int]] = {}
            for fd in _fds_of(links, names):
                if (inode := _inode(thread, fd)) in found:
                    of_process.setdefault(inode, []).append(fd)
            for inode, fds in of_process.items():
                found[inode].append(self._holder(pid, thread, fds, now_s))
        return found

    def _holder(
        self, pid: int, thread: int, fds: Iterable[int], now_s: float
    ) -> process_state.FileHolder:
        tag = tag_of_opener(pid, self._tag)
        first = next(_threads_of(pid, [pid]), None)
        power_off = first and self._power_offs.get((pid, first.started))
        is_dying = power_off is not None and power_off.ends_s > now_s
        # Other threads, which may be many, are rarely needed.
        if not is_dying and _is_marked(pid):
            threads = proc_files.numbers(f"/proc/{pid}/task")
            is_dying = process_state.is_dying(_threads_of(pid, threads))
        return process_state.FileHolder(pid, tag, thread, tuple(fds), is_dying)


def processes_of(instance_id: str, links_limit: int = LINKS_LIMIT) -> list[tuple[int, int]]:
    """Return (PID, start time) of processes that can write an instance's root disk, not readers.

    :raises errors.Unusable: there are too many open files to scan
    """
    found: list[tuple[int, int]] = []
    looked_at = 0
    for pid in proc_files.pids():
        try:
            thread, links = _links_of(pid)
        except PermissionError:
            continue
        looked_at += len(links)
        if looked_at > links_limit:
            why = f"processes have over {links_limit} files open: guests may hang at power-off"
            raise errors.Unusable("this agent", why)
        fds = [fd for fd, path in links.items() if path.endswith(f"/{instance_id}/disk")]
        if any(_is_written(thread, fd) for fd in fds):
            found += ((pid, first.started) for first in _threads_of(pid, [pid]))
    return found


def instance_of(thread: int) -> str:
    """Return the Nova instance of a thread with a root disk open for writing, else ""."""
    with contextlib.suppress(PermissionError):
        for fd, path in proc_files.links(thread).items():
            folder, name = os.path.split(path)
            instance_id = os.path.basename(folder)
            if name in _ROOT_DISKS and _is_id(instance_id) and _is_written(thread, fd):
                return instance_id
    return ""


def _is_id(name: str) -> bool:
    try:
        return ids.parse_image_id(name) == name
    except ValueError:
        return False


def tag_of_opener(thread: int, tag: Tag) -> int:
    """Return the tag of a thread's process, 0 if it is unreadable or exited."""
    for line in proc_files.text(f"/proc/{thread}/status").splitlines():
        if line.startswith("Tgid:"):
            pid = int(line.split()[1])
            for first in _threads_of(pid, [pid]):
                return tag(pid, first.started)
    return 0


def _is_marked(pid: int) -> bool:
    """Return whether a process may be dying: a fatal signal reaches every thread at once."""
    first = next(_threads_of(pid, [pid]), None)
    return first is None or first.is_ending


def _threads_of(pid: int, threads: Iterable[int]) -> Iterator[process_state.Thread]:
    for thread in threads:
        if stat := proc_files.text(f"/proc/{pid}/task/{thread}/stat"):
            yield process_state.thread_of(stat)


def _links_of(pid: int) -> tuple[int, dict[int, str]]:
    """Return a thread of a process, another one if the first exited, and its open files."""
    links = proc_files.links(pid)
    if not links and _is_marked(pid):
        for thread in proc_files.numbers(f"/proc/{pid}/task"):
            if links := proc_files.links(thread):
                return thread, links
    return pid, links


def _fds_of(links: Mapping[int, str], names: Container[str]) -> Iterator[int]:
    seen = collections.Counter[str]()
    for fd, path in links.items():
        name = path.rpartition("/")[2].removesuffix(process_state.FORGOTTEN)
        if name in names and seen[path] <= FDS_LIMIT:  # one more than is compared
            seen[path] += 1
            yield fd


def _inode(thread: int, fd: int) -> int:
    """Return the inode of an open file, 0 if unknown (before Linux 5.14)."""
    return int(proc_files.descriptor_field(thread, fd, "ino:") or "0")


def _is_written(thread: int, fd: int) -> bool:
    flags = int(proc_files.descriptor_field(thread, fd, "flags:") or "0", 8)
    return bool(flags & (os.O_WRONLY | os.O_RDWR))


def _shares(holder: process_state.FileHolder, other: process_state.FileHolder) -> bool:
    """Return whether two processes share an open file description; True if unknown."""
    if max(len(holder.fds), len(other.fds)) > FDS_LIMIT:
        return True
    return any(
        _same(holder.thread, other.thread, mine, theirs)
        for mine, theirs in itertools.product(holder.fds, other.fds)
    )


def _same(first_pid: int, other: int, mine: int, theirs: int) -> bool:
    number = _KCMP.get(platform.machine())
    if number is None:
        return True
    pids = ctypes.c_int(first_pid), ctypes.c_int(other)
    fds = ctypes.c_ulong(mine), ctypes.c_ulong(theirs)
    return int(_libc.syscall(number, *pids, _KCMP_FILE, *fds)) <= 0
