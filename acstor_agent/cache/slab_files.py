# SPDX-License-Identifier: Apache-2.0
"""The slab files of one folder: found, made, removed; every call blocks.

The rule guarded here: a slab file has its name only when it is whole, and no
file that is not ours is lost.  Nothing is flushed to the disk on purpose; what
a power failure tears is seen by its checksums when it is read (slab_io.py).

Which bytes go where is decided in core/public_cache.py and core/cache_slab.py.
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
from acstor_agent.core import cache_slab
from acstor_agent.core import cache_slot
from acstor_agent.core import public_cache
from acstor_common import errors

LOG = logging.getLogger(__name__)

_SLAB_NAME = re.compile(r"slab-([0-9]{5}|[1-9][0-9]{5,8})\.acslab(\.new)?")
_NO_FILE_OF_OURS = (errno.ELOOP, errno.EISDIR, errno.ENXIO)


class SlabFiles:
    """A folder with slab files; one process at a time may have it.

    :raises errors.Unusable: the folder cannot be made, locked or written
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.fds: dict[int, int] = {}
        self.io = slab_io.SlabIo(self.fds)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as exc:
            raise self._unusable(exc) from exc
        try:
            self._claim()
        except OSError as exc:
            os.close(self._lock_fd)
            raise self._unusable(exc) from exc

    def _unusable(self, exc: OSError) -> errors.Unusable:
        if exc.errno == errno.EWOULDBLOCK:
            return errors.Unusable(
                f"cache folder {self.folder}",
                "another process is using it",
                "Give each agent a cache_dir of its own",
            )
        return errors.Unusable(
            f"cache folder {self.folder}",
            exc.strerror or str(exc),
            "The agent's user must be able to make and write files there",
        )

    def _claim(self) -> None:
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        probe = self.folder / "write-test"
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        probe.unlink()

    def close(self) -> None:
        """Close all files and let go of the folder."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()
        os.close(self._lock_fd)

    def load(self) -> list[public_cache.FoundSlab]:
        """Open the slab files of a former run and return what their records say.

        A damaged slab file is removed, a file that is not a slab file is renamed; both with a
        warning.

        :raises errors.Unusable: a slab file cannot be opened
        """
        found = []
        for path in sorted(self.folder.iterdir()):
            match = _SLAB_NAME.fullmatch(path.name)
            if match is None:
                continue
            if match[2]:
                self._remove_damaged(path)  # its maker was killed
            elif (slab := self._load_one(path, int(match[1]))) is not None:
                found.append(slab)
        return found

    def _load_one(self, path: pathlib.Path, number: int) -> public_cache.FoundSlab | None:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as exc:
            if exc.errno in _NO_FILE_OF_OURS:
                self._set_aside(path, "it is not a regular file")
                return None
            raise errors.Unusable(
                f"slab file {path}", exc.strerror or str(exc), "Is LimitNOFILE large enough?"
            ) from exc
        try:
            layout, records = _read_table(fd, str(path))
        except errors.CacheFormatError as exc:
            self._reject(fd, path, str(exc))
        except OSError as exc:
            self._reject(fd, path, exc.strerror or str(exc))
        else:
            self.fds[number] = fd
            return public_cache.FoundSlab(number, layout, records)
        os.close(fd)
        return None

    def _reject(self, fd: int, path: pathlib.Path, why: str) -> None:
        if _is_ours(fd):
            LOG.warning("Slab file thrown away, its chunks will be fetched again: %s", why)
            self._remove_damaged(path)
        else:
            self._set_aside(path, why)

    def _remove_damaged(self, path: pathlib.Path) -> None:
        try:
            path.unlink()
        except OSError as exc:
            raise self._unusable(exc) from exc

    def _set_aside(self, path: pathlib.Path, why: str) -> None:
        aside = path.with_name(f"{path.name}.foreign-{os.lstat(path).st_ino}")
        try:
            path.rename(aside)
        except OSError as exc:
            raise self._unusable(exc) from exc
        LOG.warning("%s is in the place of a slab file (%s); renamed to %s", path, why, aside.name)

    def _path(self, slab: cache_slot.Slab) -> pathlib.Path:
        return self.folder / f"slab-{slab.number:05d}.acslab"

    def perform(self, action: public_cache.SlabAction) -> None:
        """Make or remove a slab file.

        :raises OSError: there is no room for it, or the disk is at fault
        """
        if isinstance(action, public_cache.MakeSlab):
            self._make(action.slab)
        else:
            os.close(self.fds.pop(action.slab.number))
            self._path(action.slab).unlink()

    def perform_batch(
        self, actions: Iterable[public_cache.SlabAction], jobs: Iterable[slab_io.WriteJob]
    ) -> tuple[dict[cache_slot.Slab, OSError], dict[cache_slot.Slot, OSError]]:
        """Do the actions, then the jobs; return slabs that were not made and jobs that failed.

        A slab file that cannot be removed is left where it is, with a warning.
        """
        unmade = {}
        for action in actions:
            try:
                self.perform(action)
            except OSError as exc:
                if isinstance(action, public_cache.MakeSlab):
                    unmade[action.slab] = exc
                else:
                    LOG.warning("Slab file %d cannot be removed: %s", action.slab.number, exc)
        doable = [job for job in jobs if job.slot.slab not in unmade]
        return unmade, {job.slot: exc for job, exc in self.io.write(doable)}

    def _make(self, slab: cache_slot.Slab) -> None:
        new = self._path(slab).with_suffix(".acslab.new")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, slab.layout.file_bytes)
            slab_io.write(fd, [cache_slab.pack_header(slab.layout)], 0)
            new.rename(self._path(slab))
        except OSError:
            os.close(fd)
            new.unlink(missing_ok=True)
            raise
        self.fds[slab.number] = fd


def _read_table(fd: int, what: str) -> tuple[cache_slab.SlabLayout, list[cache_slab.Record]]:
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise errors.CacheFormatError(what, 0, "it is not a regular file")
    layout = cache_slab.unpack_header(os.pread(fd, cache_slab.HEADER_BYTES, 0), info.st_size, what)
    table = os.pread(fd, layout.table_bytes, 0)[cache_slab.HEADER_BYTES :]
    if len(table) != layout.slot_count * cache_slab.RECORD_BYTES:
        raise errors.CacheFormatError(what, len(table), "the file ends inside its records")
    return layout, list(cache_slab.unpack_records(table, layout.slot_bytes))


def _is_ours(fd: int) -> bool:
    """Say whether the file is a slab file, or one that a power failure left empty."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return False
    try:
        start = os.pread(fd, len(cache_slab.MAGIC), 0)
    except OSError:
        return True
    return start == cache_slab.MAGIC or not any(start)
