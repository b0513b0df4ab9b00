# SPDX-License-Identifier: Apache-2.0
"""The slab files of one folder: found, created, removed; every call blocks.

A slab file gets its name when it is complete, and foreign files are never deleted. Nothing is
synced: checksums detect bytes lost in a power failure (slab_io.py).
"""

import errno
import fcntl
import os
import pathlib
import re
import stat
from collections.abc import Iterable

from oslo_log import log as logging

from acstor_agent.cache import slab_io
from acstor_agent.core.cache import cache_actions
from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import cache_slot
from acstor_agent.runtime import process_cleanup
from acstor_common import errors

LOG = logging.getLogger(__name__)

_SLAB_NAME = re.compile(r"slab-([0-9]{5}|[1-9][0-9]{5,8})\.acslab(\.new)?")
_NO_FILE_OF_OURS = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class SlabFiles:
    """A folder of slab files, locked for one process; may be read-only."""

    def __init__(self, folder: pathlib.Path, slab_bytes: int = 0) -> None:
        self.folder = folder
        self.fds: dict[int, int] = {}
        self.io = slab_io.SlabIo(self.fds)
        self._slab_bytes = slab_bytes
        self._lock_fd = -1
        self._read_only: dict[int, pathlib.Path] = {}
        self._to_remove: dict[pathlib.Path, bool] = {}
        """Files that could not be removed yet, and whether they are ours."""

    @property
    def is_open(self) -> bool:
        """Whether the folder is open."""
        return self._lock_fd >= 0

    def open(self) -> None:
        """Create the folder, private to the agent's user, and lock it.

        :raises errors.Unusable: another process uses it
        :raises OSError: it cannot be created, read or locked
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            if not _is_held_by_ended(fd):
                os.close(fd)
                raise errors.Unusable(
                    f"cache folder {self.folder}",
                    "another process is using it",
                    "Set a different cache_dir for each agent",
                ) from exc
            LOG.warning("%s: a killed process that cannot exit holds its lock", self.folder)
        except OSError:
            os.close(fd)
            raise
        if self.is_open:
            os.close(self._lock_fd)
        self._lock_fd = fd
        self._close_to_others(fd)

    def _close_to_others(self, fd: int) -> None:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if not mode & 0o077:
            return
        try:
            os.fchmod(fd, mode & 0o700)
        except OSError as exc:
            LOG.warning("%s is accessible to other users: %s", self.folder, exc.strerror or exc)
        else:
            LOG.info("%s was accessible to other users; now only its owner has access", self.folder)

    def close(self) -> None:
        """Close all files and the folder."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()
        if self.is_open:
            os.close(self._lock_fd)
        self._lock_fd = -1

    def make_writable(self) -> None:
        """Catch up on deferred changes; raise OSError if read-only or full, Unusable if in use."""
        if not self.is_in_place():
            self.open()
        probe = self.folder / "write-test"
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            slab_io.write(fd, [bytes(slab_io.BLOCK_BYTES)], 0)
        finally:
            os.close(fd)
            probe.unlink()
        for number, path in list(self._read_only.items()):
            self._reopen(number, path)
        for path, is_ours in list(self._to_remove.items()):
            self._remove(path, is_ours)

    def has_space(self) -> bool:
        """Return whether the disk has space for one more slab file."""
        disk = os.statvfs(self.folder)
        return disk.f_bavail * disk.f_frsize >= self._slab_bytes

    def is_in_place(self) -> bool:
        """Return whether the path still leads to the folder that was opened."""
        try:
            return os.path.samestat(os.stat(self.folder), os.fstat(self._lock_fd))
        except FileNotFoundError:
            return False

    def find_deleted(self) -> list[int]:
        """Return the numbers of slab files that were deleted from outside."""
        return [number for number, fd in list(self.fds.items()) if not os.fstat(fd).st_nlink]

    def _reopen(self, number: int, path: pathlib.Path) -> None:
        """Reopen a file for writing under its present descriptor, which may be in use."""
        if number in self.fds:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            if os.path.samestat(os.fstat(fd), os.fstat(self.fds[number])):
                os.dup2(fd, self.fds[number], inheritable=False)
            os.close(fd)
        del self._read_only[number]

    def load(self) -> list[cache_actions.FoundSlab]:
        """Open a former run's slab files; return their records, or raise OSError for the folder.

        Damaged files are removed and foreign ones renamed, now or when the folder is writable;
        unreadable ones are skipped; all with a warning.
        """
        found = []
        for path in sorted(self.folder.iterdir()):
            match = _SLAB_NAME.fullmatch(path.name)
            if match is None:
                continue
            if match[2]:
                self._try_remove(path, True)  # its creator was killed
            elif (slab := self._load_one(path, int(match[1]))) is not None:
                found.append(slab)
        return found

    def _load_one(self, path: pathlib.Path, number: int) -> cache_actions.FoundSlab | None:
        try:
            fd = self._open(path, number)
        except OSError as exc:
            if exc.errno in _NO_FILE_OF_OURS:
                self._try_remove(path, False)
            else:
                LOG.warning("Slab file %s is skipped: %s", path, exc.strerror or exc)
            return None
        try:
            layout, records = _read_table(fd, str(path))
        except errors.CacheFormatError as exc:
            self._reject(fd, path, str(exc))
        except OSError as exc:
            self._reject(fd, path, exc.strerror or str(exc))
        else:
            self.fds[number] = fd
            return cache_actions.FoundSlab(number, layout, records)
        self._read_only.pop(number, None)
        os.close(fd)
        return None

    def _open(self, path: pathlib.Path, number: int) -> int:
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(path, os.O_RDWR | flags)
        except OSError as exc:
            if exc.errno not in _READ_ONLY:
                raise
            fd = os.open(path, os.O_RDONLY | flags)
            self._read_only[number] = path
            return fd
        try:
            if os.fstat(fd).st_mode & 0o077:
                os.fchmod(fd, 0o600)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _reject(self, fd: int, path: pathlib.Path, why: str) -> None:
        if is_ours := _is_ours(fd):
            LOG.warning("Slab file discarded, its chunks will be fetched again: %s", why)
        self._try_remove(path, is_ours)

    def _try_remove(self, path: pathlib.Path, is_ours: bool) -> None:
        self._to_remove[path] = is_ours
        try:
            self._remove(path, is_ours)
        except OSError as exc:
            LOG.warning("%s cannot be removed: %s", path, exc.strerror or exc)

    def _remove(self, path: pathlib.Path, is_ours: bool) -> None:
        if is_ours:
            path.unlink(missing_ok=True)
        elif path.is_symlink() or path.exists():
            aside = path.with_name(f"{path.name}.foreign-{os.lstat(path).st_ino}")
            path.rename(aside)
            LOG.warning("%s is not a slab file; renamed to %s", path, aside.name)
        self._to_remove.pop(path, None)

    def _path(self, slab: cache_slot.Slab) -> pathlib.Path:
        return self.folder / f"slab-{slab.number:05d}.acslab"

    def apply_action(self, action: cache_actions.SlabAction) -> None:
        """Create or remove a slab file; raise OSError if there is no space, or the disk fails."""
        if isinstance(action, cache_actions.MakeSlab):
            self._make(action.slab)
        else:
            self.close_unused(action.slab)
            path = self._path(action.slab)
            self._to_remove[path] = True
            self._remove(path, True)

    def close_unused(self, slab: cache_slot.Slab) -> None:
        """Close a slab file without readers."""
        os.close(self.fds.pop(slab.number))

    def perform_batch(
        self, actions: Iterable[cache_actions.SlabAction], jobs: Iterable[slab_io.WriteJob]
    ) -> tuple[dict[cache_slot.Slab, OSError], dict[cache_slot.Slot, OSError]]:
        """Apply actions, then jobs; return slabs and jobs that failed; only log failed removals."""
        unmade = {}
        for action in actions:
            try:
                self.apply_action(action)
            except OSError as exc:
                if isinstance(action, cache_actions.MakeSlab):
                    unmade[action.slab] = exc
                else:
                    LOG.warning("Slab file %d cannot be removed: %s", action.slab.number, exc)
        doable = [job for job in jobs if job.slot.slab not in unmade]
        return unmade, {job.slot: exc for job, exc in self.io.write(doable)}

    def _make(self, slab: cache_slot.Slab) -> None:
        path = self._path(slab)
        if path in self._to_remove:
            self._remove(path, self._to_remove[path])
        new = path.with_suffix(".acslab.new")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, slab.layout.file_bytes)
            slab_io.write(fd, [cache_slab.pack_header(slab.layout)], 0)
            new.rename(path)
        except OSError:
            os.close(fd)
            new.unlink(missing_ok=True)
            raise
        self.fds[slab.number] = fd


def _read_table(fd: int, what: str) -> tuple[cache_slab.SlabLayout, list[cache_slab.SlotRecord]]:
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise errors.CacheFormatError(what, 0, "it is not a regular file")
    layout = cache_slab.unpack_header(os.pread(fd, cache_slab.HEADER_BYTES, 0), info.st_size, what)
    table = os.pread(fd, layout.table_bytes, 0)[cache_slab.HEADER_BYTES :]
    if len(table) != layout.slot_count * cache_slab.RECORD_BYTES:
        raise errors.CacheFormatError(what, len(table), "the file ends inside its records")
    return layout, list(cache_slab.unpack_records(table, layout.slot_bytes))


def _is_ours(fd: int) -> bool:
    """Return whether the file is a slab file, or one left empty by a power failure."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return False
    try:
        start = os.pread(fd, len(cache_slab.MAGIC), 0)
    except OSError:
        return True
    return start == cache_slab.MAGIC or not any(start)


def _is_held_by_ended(fd: int) -> bool:
    """Return whether a lock belongs only to processes that run no code any more."""
    pids = process_cleanup.lock_holders(os.fstat(fd).st_ino)
    return bool(pids) and all(map(process_cleanup.has_ended, pids))
