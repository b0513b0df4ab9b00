# SPDX-License-Identifier: Apache-2.0
"""The slab files of one folder: found, made, written, read; every call but one blocks.

The rule guarded here is the order of writes: clear the record, write the data,
write the record.  So a process that is killed at any instruction leaves slots
that are either free or whole.  Nothing is flushed to the disk on purpose; what
a power failure tears is seen when its bytes are hashed at first use.

Which bytes go where is decided in core/public_cache.py and core/cache_slab.py.
"""

import errno
import fcntl
import itertools
import os
import pathlib
import re
import stat
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from oslo_log import log as logging

from acstor_agent.core import cache_slab
from acstor_agent.core import cache_slot
from acstor_agent.core import public_cache
from acstor_common import errors
from acstor_common import ids

LOG = logging.getLogger(__name__)

_SLAB_NAME = re.compile(r"slab-([0-9]{5}|[1-9][0-9]{5,8})\.acslab(\.new)?")
_NO_FILE_OF_OURS = (errno.ELOOP, errno.EISDIR, errno.ENXIO)


class WriteJob(NamedTuple):
    """What is to be brought to disk about one slot, as it was when the job was made.

    Without ``data`` only the record is written: a new class, or none if the slot ``is_gone``.
    """

    slot: cache_slot.Slot
    data: cache_slot.Data | None
    keep_class: public_cache.KeepClass
    is_gone: bool

    def is_followed_by(self, other: "WriteJob") -> bool:
        """Say whether both can be written by the same calls."""
        mine, its = self.slot, other.slot
        is_whole = self.data is None or mine.length == mine.slab.layout.slot_bytes
        is_alike = (self.data is None, self.is_gone) == (other.data is None, other.is_gone)
        return is_whole and is_alike and mine.slab is its.slab and mine.slot_no + 1 == its.slot_no


Part = tuple[cache_slot.Slot, int, int]
"""A slot, and from where to where its chunk's bytes are wanted."""


def where(slot: cache_slot.Slot) -> tuple[object, int, int]:
    """Return the name of a slot's file, the slot's place in it, and the file's length in bytes."""
    return ("slab", slot.slab.number), slot.offset, slot.slab.layout.file_bytes


class ReadPart(NamedTuple):
    """Bytes ``start`` to ``stop`` of a chunk; ``data`` if they are in memory still."""

    slot: cache_slot.Slot
    data: cache_slot.Data | None
    start: int
    stop: int


class SlabFiles:
    """A folder with slab files; one process at a time may have it.

    :raises errors.Unusable: the folder cannot be made, locked or written
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.fds: dict[int, int] = {}
        self._nowait_flags = os.RWF_NOWAIT
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
        self, actions: Iterable[public_cache.SlabAction], jobs: Iterable[WriteJob]
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
        return unmade, {job.slot: exc for job, exc in self.write(doable)}

    def _make(self, slab: cache_slot.Slab) -> None:
        new = self._path(slab).with_suffix(".acslab.new")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, slab.layout.file_bytes)
            _write(fd, [cache_slab.pack_header(slab.layout)], 0)
            new.rename(self._path(slab))
        except OSError:
            os.close(fd)
            new.unlink(missing_ok=True)
            raise
        self.fds[slab.number] = fd

    def write(self, jobs: Sequence[WriteJob]) -> Iterator[tuple[WriteJob, OSError]]:
        """Do the jobs and yield those that failed; neighbours are written together."""
        for run in _runs(jobs):
            try:
                self._write_run(run)
            except OSError as exc:
                if len(run) == 1:
                    yield run[0], exc
                else:
                    for job in run:
                        yield from self.write([job])

    def _write_run(self, run: Sequence[WriteJob]) -> None:
        first = run[0]
        fd = self.fds[first.slot.slab.number]
        table_offset = cache_slab.record_offset(first.slot.slot_no)
        if first.is_gone or first.data is not None:
            _write(fd, [bytes(cache_slab.RECORD_BYTES * len(run))], table_offset)
        if first.is_gone:
            return
        if first.data is not None:
            _write(fd, [job.data for job in run if job.data is not None], first.slot.offset)
        _write(fd, [_record_of(job) for job in run], table_offset)

    def read(
        self, parts: Iterable[ReadPart], buffer: memoryview
    ) -> tuple[list[cache_slot.Slot], list[cache_slot.Slot]]:
        """Fill ``buffer`` with ``parts``, back to back.

        Bytes of a slot that is not verified are hashed first.

        :return: slots found good now, and slots found bad: their part of the buffer is rubbish
        """
        good: list[cache_slot.Slot] = []
        bad: list[cache_slot.Slot] = []
        begin = 0
        for part in parts:
            end = begin + part.stop - part.start
            into = buffer[begin:end]
            begin = end
            if part.data is not None:
                into[:] = memoryview(part.data)[part.start : part.stop]
            elif part.slot.is_verified:
                if not self._read_verified(part, into):
                    bad.append(part.slot)
            elif (data := self._read_whole(part.slot)) is None:
                bad.append(part.slot)
            else:
                into[:] = memoryview(data)[part.start : part.stop]
                good.append(part.slot)
        return good, bad

    def read_nowait(self, parts: Sequence[Part], buffer: memoryview) -> bool:
        """Fill ``buffer`` with ``parts``, back to back, if that needs no wait.

        Parts that are neighbours in a slab file are read by one call.

        :return: False if something is not in the page cache or not verified: use :meth:`read`
        """
        begin = end = 0  # of the run in the buffer
        slab_no = offset = next_offset = -1  # of the run on disk
        for slot, start, stop in parts:
            if not slot.is_verified:
                return False
            at = slot.offset + start
            if at != next_offset or slot.slab.number != slab_no or slot.data is not None:
                if end > begin and not self._pread_nowait(slab_no, buffer[begin:end], offset):
                    return False
                begin, offset, slab_no = end, at, slot.slab.number
            end += stop - start
            next_offset = at + stop - start
            if slot.data is not None:
                buffer[begin:end] = memoryview(slot.data)[start:stop]
                begin, next_offset = end, -1
        return end == begin or self._pread_nowait(slab_no, buffer[begin:end], offset)

    def _pread_nowait(self, slab_no: int, into: memoryview, offset: int) -> bool:
        if not self._nowait_flags:
            return False
        try:
            count = os.preadv(self.fds[slab_no], [into], offset, self._nowait_flags)
        except BlockingIOError:
            return False
        except OSError as exc:
            if exc.errno == errno.EOPNOTSUPP:
                self._nowait_flags = 0
            return False  # read() meets the same fault and deals with it
        return count == len(into)

    def _read_verified(self, part: ReadPart, into: memoryview) -> bool:
        slot = part.slot
        try:
            count = os.preadv(self.fds[slot.slab.number], [into], slot.offset + part.start)
        except OSError as exc:
            LOG.warning("Chunk %s cannot be read: %s", slot.cid.hex(), exc)
            return False
        return count == len(into)

    def _read_whole(self, slot: cache_slot.Slot) -> bytes | None:
        try:
            data = os.pread(self.fds[slot.slab.number], slot.length, slot.offset)
        except OSError as exc:
            LOG.warning("Chunk %s cannot be read: %s", slot.cid.hex(), exc)
            return None
        return data if ids.cid_of(data) == slot.cid else None


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


def _runs(jobs: Sequence[WriteJob]) -> Iterator[list[WriteJob]]:
    """Cut jobs into runs of neighbours that are written together."""
    ordered = sorted(jobs, key=lambda job: (job.slot.slab.number, job.slot.slot_no))
    run = ordered[:1]
    for before, job in itertools.pairwise(ordered):
        if not before.is_followed_by(job):
            yield run
            run = []
        run.append(job)
    if run:
        yield run


def _record_of(job: WriteJob) -> bytes:
    slot = job.slot
    return cache_slab.pack_record(slot.cid, slot.sequence, slot.length, job.keep_class)


def _write(fd: int, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
    """Write all of ``pieces``, back to back.

    :raises OSError: not everything could be written
    """
    if os.pwritev(fd, pieces, offset) != sum(map(len, pieces)):
        raise OSError(errno.EIO, "short write")
