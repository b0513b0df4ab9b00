# SPDX-License-Identifier: Apache-2.0
"""Finds out, from /proc, whose waiting requests keep a killed process from ending.

Nothing here asks anything of a mount, or of what a hung process may hold: no path
below a mount is touched, no memory map or command line is read.
"""

import contextlib
import ctypes
import itertools
import logging
import math
import os
import pathlib
import platform
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.mount import process_state
from acstor_common import errors
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

SCAN_EVERY_S = 2.0
RESCAN_S = 60.0
"""All processes are looked at when a guest is new among those that wait or one of them seems to be
dying, and so often in any case."""
LINKS_LIMIT = 500_000
"""Descriptors that are looked at in one scan; a scan that met more proves nothing."""
FDS_LIMIT = 16
"""Descriptors of one file that are compared between two processes; with more they count as one."""
INIT = 1
"""It opens no images, and a container may not look at it whatever it may otherwise."""
TOLD_S = 60.0
"""So long a process counts as dying once it was said that its instance is switched off."""
TOLD_LIMIT = 1024
_ROOT_DISKS = frozenset({"disk", "disk.rescue"})
_KCMP = {"x86_64": 312, "aarch64": 272, "riscv64": 272, "ppc64le": 354, "s390x": 343}
_KCMP_FILE = 0
_libc = ctypes.CDLL(None, use_errno=True)

Tag = Callable[[int, int], int]
"""Makes the tag of a process of its id and the time of its start."""


class Waiter(NamedTuple):
    """A guest whose requests wait.

    :param inode: of the file that it has open
    :param name: the last part of that file's path
    :param tag: of the process that has opened it, 0 if any may have
    """

    guest: requests.Stream
    inode: int
    name: str
    tag: int


class _SwitchedOff(NamedTuple):
    """What was said of a process: whose it is, and how long it counts as dying."""

    instance_id: str
    ends_s: float


class KilledGuests:
    """The processes that have files open, as far as their requests wait."""

    def __init__(self, tag: Tag) -> None:
        self._tag = tag
        self._pids: dict[requests.Stream, set[int]] = {}
        self._scanned_s = -RESCAN_S
        self._not_before_s = -math.inf
        self._is_told = False
        self._switched_off: dict[tuple[int, int], _SwitchedOff] = {}

    def switched_off(
        self, instance_id: str, processes_: Iterable[tuple[int, int]], now_s: float
    ) -> None:
        """Take the processes of an instance for dying from now on, for :data:`TOLD_S`.

        :param processes_: see :func:`guests_of`
        :raises errors.Unusable: there are too many of them
        """
        known = {one: told for one, told in self._switched_off.items() if told.ends_s > now_s}
        known.update(dict.fromkeys(processes_, _SwitchedOff(instance_id, now_s + TOLD_S)))
        if len(known) > TOLD_LIMIT:
            raise errors.Unusable("this agent", f"{TOLD_LIMIT} processes are being shut down")
        self._switched_off = known

    def stays_on(self, instance_id: str) -> int:
        """Take the processes of an instance for living again; return how many were not."""
        before = self._switched_off
        self._switched_off = {
            one: told for one, told in before.items() if told.instance_id != instance_id
        }
        return len(before) - len(self._switched_off)

    def killed_of(self, waiters: Sequence[Waiter], now_s: float) -> list[requests.Stream]:
        """Return the guests whose processes are all being killed; may take a while.

        :param now_s: of a clock that never goes back
        """
        if not self._is_due(waiters, now_s):
            return []
        self._scanned_s = now_s
        try:
            holders = self._holders({(waiter.name, waiter.inode) for waiter in waiters}, now_s)
        except PermissionError as e:  # who is not seen may live
            self._not_before_s = now_s + RESCAN_S
            if not self._is_told:
                LOG.warning("cannot see who has files open: killed processes may hang: %s", e)
                self._is_told = True
            return []
        if holders is None:
            LOG.warning("processes have over %d files open: killed processes may hang", LINKS_LIMIT)
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

    def _is_due(self, waiters: Sequence[Waiter], now_s: float) -> bool:
        since_s = now_s - self._scanned_s
        if since_s < SCAN_EVERY_S or now_s < self._not_before_s:
            return False
        if since_s >= RESCAN_S or any(waiter.guest not in self._pids for waiter in waiters):
            return True
        known = set().union(*(self._pids[waiter.guest] for waiter in waiters))
        told = {pid for pid, _ in self._switched_off}
        return bool(known & told) or any(_is_marked(pid) for pid in known)

    def _holders(
        self, files: set[tuple[str, int]], now_s: float
    ) -> Mapping[int, list[process_state.Holder]] | None:
        """Return who has which of some files open, by their inodes; None if there is too much.

        :raises PermissionError: a process may have them open that is not to be seen
        """
        names = {name for name, _ in files}
        found: dict[int, list[process_state.Holder]] = {inode: [] for _, inode in files}
        looked_at = 0
        for pid in _numbers("/proc"):
            try:
                thread, links = _links_of(pid)
            except PermissionError:
                if pid != INIT:
                    raise
                continue
            looked_at += len(links)
            if looked_at > LINKS_LIMIT:
                return None
            of_process: dict[int, list[int]] = {}
            for fd, path in links.items():
                name = path.rpartition("/")[2].removesuffix(process_state.FORGOTTEN)
                if name in names and (inode := _inode(thread, fd)) in found:
                    of_process.setdefault(inode, []).append(fd)
            for inode, fds in of_process.items():
                found[inode].append(self._holder(pid, thread, fds, now_s))
        return found

    def _holder(
        self, pid: int, thread: int, fds: Iterable[int], now_s: float
    ) -> process_state.Holder:
        tag = tag_of_opener(pid, self._tag)
        first = next(_threads_of(pid, [pid]), None)
        told = first and self._switched_off.get((pid, first.started))
        is_dying = told is not None and told.ends_s > now_s
        # The other threads of most, which may be many, need no look.
        if not is_dying and _is_marked(pid):
            threads = _numbers(f"/proc/{pid}/task")
            is_dying = process_state.is_dying(_threads_of(pid, threads))
        return process_state.Holder(pid, tag, thread, tuple(fds), is_dying)


def guests_of(instance_id: str) -> list[tuple[int, int]]:
    """Return the processes that have the root disk of one of Nova's instances open to write it.

    Each with the time of its start, which no later process of that id has.  Who only looks at the
    disk, as libvirt, Nova and the qemu-img of its snapshots do, is none.

    :raises errors.Unusable: processes have too many files open to look at them all
    """
    found: list[tuple[int, int]] = []
    looked_at = 0
    for pid in _numbers("/proc"):
        try:
            thread, links = _links_of(pid)
        except PermissionError:
            continue
        looked_at += len(links)
        if looked_at > LINKS_LIMIT:
            why = f"processes have over {LINKS_LIMIT} files open: who is switched off may hang"
            raise errors.Unusable("this agent", why)
        fds = [fd for fd, path in links.items() if path.endswith(f"/{instance_id}/disk")]
        if any(_is_written(thread, fd) for fd in fds):
            found += ((pid, first.started) for first in _threads_of(pid, [pid]))
    return found


def instance_of(thread: int) -> str:
    """Return the instance of Nova's whose guest a thread is of; "" if it is no guest's.

    It has the instance's root disk open to write it: who only looks at a disk is no guest.
    """
    with contextlib.suppress(PermissionError):
        for fd, path in _links(thread).items():
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
    """Return the tag of the process of a thread, 0 if it is not to be seen or has ended."""
    for line in _text(f"/proc/{thread}/status").splitlines():
        if line.startswith("Tgid:"):
            pid = int(line.split()[1])
            for first in _threads_of(pid, [pid]):
                return tag(pid, first.started)
    return 0


def _is_marked(pid: int) -> bool:
    """Say whether a process may be dying, or has ended: one look, at its first thread.

    A fatal signal reaches every thread at once.
    """
    first = next(_threads_of(pid, [pid]), None)
    return first is None or first.is_ending


def _threads_of(pid: int, threads: Iterable[int]) -> Iterator[process_state.Thread]:
    """Yield what is known of those threads of a process that are still there."""
    for thread in threads:
        if stat := _text(f"/proc/{pid}/task/{thread}/stat"):
            yield process_state.thread_of(stat)


def _links_of(pid: int) -> tuple[int, dict[int, str]]:
    """Return what a process has open, by descriptor, and the thread that shows it.

    A first thread that has ended shows nothing; its process may go on without it.
    """
    links = _links(pid)
    if not links and _is_marked(pid):
        for thread in _numbers(f"/proc/{pid}/task"):
            if links := _links(thread):
                return thread, links
    return pid, links


def _links(thread: int) -> dict[int, str]:
    links = {}
    for fd in _numbers(f"/proc/{thread}/fd"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # closed meanwhile
            links[fd] = os.readlink(f"/proc/{thread}/fd/{fd}")
    return links


def _inode(thread: int, fd: int) -> int:
    """Return the inode of an open file, 0 if the kernel does not say it (before Linux 5.14)."""
    return int(_of_opening(thread, fd, "ino:") or "0")


def _is_written(thread: int, fd: int) -> bool:
    """Say whether a file is open to be written."""
    return bool(int(_of_opening(thread, fd, "flags:") or "0", 8) & (os.O_WRONLY | os.O_RDWR))


def _of_opening(thread: int, fd: int, name: str) -> str:
    """Return what the kernel says of an open file under a name; nothing if it does not."""
    for line in _text(f"/proc/{thread}/fdinfo/{fd}").splitlines():
        if line.startswith(name):
            return line.split()[1]
    return ""


def _text(path: str) -> str:
    """Return a file of /proc; nothing if what it is about has ended."""
    try:
        return pathlib.Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _numbers(folder: str) -> list[int]:
    """Return the numbers among the names in a folder, lowest first; none if its process ended.

    :raises PermissionError: they are not to be seen
    """
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _shares(one: process_state.Holder, other: process_state.Holder) -> bool:
    """Say whether two processes may have the same opening of a file: yes, where nobody knows."""
    if max(len(one.fds), len(other.fds)) > FDS_LIMIT:
        return True
    return any(
        _same(one.thread, other.thread, mine, theirs)
        for mine, theirs in itertools.product(one.fds, other.fds)
    )


def _same(one: int, other: int, mine: int, theirs: int) -> bool:
    number = _KCMP.get(platform.machine())
    if number is None:
        return True
    pids = ctypes.c_int(one), ctypes.c_int(other)
    fds = ctypes.c_ulong(mine), ctypes.c_ulong(theirs)
    return int(_libc.syscall(number, *pids, _KCMP_FILE, *fds)) <= 0
