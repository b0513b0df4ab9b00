# SPDX-License-Identifier: Apache-2.0
"""One writable disk: an image's content, copied on reference when a part of it is written (S0).

What was written lies in a sparse file at its own place; a state file says
which chunks do.  The rule: a chunk's mark follows its bytes.  A write is
answered when the bytes, then the marks were handed to the kernel, so a killed
worker or agent loses nothing; such a mark (UNSYNCED) holds until the host
goes down.  ``sync`` makes the bytes safe first and only then the marks
(WRITTEN), so after a power failure a chunk is all the guest's or all the
image's, never a mixture with something foreign.

Nothing here knows a CID: chunks that were written can be asked of nobody.
"""

import contextlib
import errno
import logging
import os
import pathlib
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

import trio

from acstor_agent import disk_io
from acstor_agent import fetcher
from acstor_agent import mirror
from acstor_agent.core import chunk_state
from acstor_agent.core import disk_header
from acstor_agent.core import disk_plan
from acstor_common import errors

LOG = logging.getLogger(__name__)

DATA_ENDING = ".data"
STATE_ENDING = ".acdisk"
_INCOMING = ".incoming-"

Attach = Callable[[disk_header.DiskHeader], Awaitable[mirror.Mirror]]
"""Returns the mirror of the image that a disk began as."""
_Place = tuple[disk_plan.Stretch, memoryview]


class DiskFiles:
    """The two files of one disk.  Everything here blocks: call it in a thread.

    :param folder: where they lie
    :param boot_id: names the time since the host was started (16 bytes)
    :raises errors.FormatError: a file is damaged, missing or not of this disk
    """

    def __init__(self, folder: pathlib.Path, disk_id: disk_header.DiskId, boot_id: bytes) -> None:
        self._path = state_path(folder, disk_id)
        with contextlib.ExitStack() as opened:
            self._state_fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            opened.callback(os.close, self._state_fd)
            self.header, marks, former_boot_id = self._read_state(disk_id)
            self.data_fd = self._open_data(data_path(folder, disk_id))
            opened.callback(os.close, self.data_fd)
            self.written = list(disk_header.marked(marks, disk_header.WRITTEN))
            self.unsynced = list(disk_header.marked(marks, disk_header.UNSYNCED))
            if boot_id != former_boot_id:
                self._begin_boot(boot_id)
            opened.pop_all()

    def _read_state(
        self, disk_id: disk_header.DiskId
    ) -> tuple[disk_header.DiskHeader, bytes, bytes]:
        what = str(self._path)
        raw = os.pread(self._state_fd, disk_header.AT_MARKS, 0)
        header, boot_id = disk_header.unpack(raw, what)
        if header.disk_id != disk_id:
            raise errors.FormatError(what, 0, f"this is the state of disk {header.disk_id}")
        if os.fstat(self._state_fd).st_size != header.file_bytes:
            raise errors.FormatError(what, 0, f"{header.file_bytes} bytes are expected")
        marks = os.pread(self._state_fd, header.cut.chunk_count, disk_header.AT_MARKS)
        disk_header.check_marks(marks, header, what)
        return header, marks, boot_id

    def _open_data(self, path: pathlib.Path) -> int:
        size_bytes = self.header.cut.size_bytes
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as e:
            raise errors.FormatError(str(path), 0, "what was written is missing") from e
        if os.fstat(fd).st_size != size_bytes:
            os.close(fd)
            raise errors.FormatError(str(path), 0, f"{size_bytes} bytes are expected")
        return fd

    def _begin_boot(self, boot_id: bytes) -> None:
        """Give up chunks that were not safe when the host went down; their marks go first."""
        if self.unsynced:
            LOG.warning(
                "disk %s: %d chunks were not synced when the host went down; they are the image's",
                self.header.disk_id,
                len(self.unsynced),
            )
        self._mark(disk_header.runs(self.unsynced), disk_header.UNWRITTEN)
        os.fdatasync(self._state_fd)
        os.pwrite(self._state_fd, boot_id, disk_header.AT_BOOT_ID)
        os.fdatasync(self._state_fd)
        self.unsynced = []

    def _mark(self, runs: Iterable[tuple[int, int]], mark: int) -> None:
        for first, count in runs:
            _write_all(self._state_fd, [bytes([mark]) * count], disk_header.AT_MARKS + first)

    def read(self, into: memoryview, offset: int) -> None:
        """Fill ``into`` with what was written at ``offset``."""
        if os.preadv(self.data_fd, [into], offset) != len(into):
            raise errors.FormatError(str(self._path), offset, "what was written is cut off")

    def read_nowait(self, into: memoryview, offset: int) -> bool:
        """Do as :meth:`read` if that needs no wait; False if it does."""
        try:
            return os.preadv(self.data_fd, [into], offset, os.RWF_NOWAIT) == len(into)
        except OSError:  # not in the page cache, or not to be had in this way: read() finds out
            return False

    def write(
        self, parts: list[bytes | bytearray], offset: int, fresh: Iterable[tuple[int, int]]
    ) -> None:
        """Write ``parts`` back to back, then mark the runs of chunks that are new in the file."""
        _write_all(self.data_fd, parts, offset)
        self._mark(fresh, disk_header.UNSYNCED)

    def sync(self, unsynced: Iterable[tuple[int, int]]) -> None:
        """Make safe what was written, then the marks of these runs of chunks."""
        os.fdatasync(self.data_fd)
        self._mark(unsynced, disk_header.WRITTEN)
        os.fdatasync(self._state_fd)

    def close(self) -> None:
        """Let go of both files, and forget their numbers: they may soon be those of others."""
        fds, self.data_fd, self._state_fd = (self.data_fd, self._state_fd), -1, -1
        for fd in fds:
            os.close(fd)


def state_path(folder: pathlib.Path, disk_id: disk_header.DiskId) -> pathlib.Path:
    """Return the file that says which chunks were written; a disk exists while it does."""
    return folder / f"{disk_id}{STATE_ENDING}"


def data_path(folder: pathlib.Path, disk_id: disk_header.DiskId) -> pathlib.Path:
    """Return the file with the bytes that were written."""
    return folder / f"{disk_id}{DATA_ENDING}"


def create(folder: pathlib.Path, header: disk_header.DiskHeader, boot_id: bytes) -> None:
    """Make the files of a new disk; they are there as a whole or not at all.

    :raises errors.Unusable: there is such a disk, or what a lost one has written
    """
    data, state = data_path(folder, header.disk_id), state_path(folder, header.disk_id)
    incoming = folder / f"{_INCOMING}{header.disk_id}"
    if state.exists():
        raise errors.Unusable(f"disk {header.disk_id}", "exists already")
    if data.exists() and data.stat().st_blocks:
        raise errors.Unusable(
            str(data), "has bytes of a disk whose state is lost", "Move it away if it is not needed"
        )
    try:
        with open(os.open(data, os.O_RDWR | os.O_CREAT, 0o600), "rb+") as file:
            file.truncate(header.cut.size_bytes)
            os.fsync(file.fileno())
        with incoming.open("wb") as file:
            file.write(disk_header.pack(header, boot_id))
            file.flush()
            os.posix_fallocate(file.fileno(), 0, header.file_bytes)
            os.fsync(file.fileno())
        incoming.rename(state)
    except OSError:
        incoming.unlink(missing_ok=True)
        data.unlink(missing_ok=True)
        raise
    _sync_folder(folder)


def remove(folder: pathlib.Path, disk_id: disk_header.DiskId) -> None:
    """Delete the files of a disk; after a kill half-way it can be done again."""
    data_path(folder, disk_id).unlink(missing_ok=True)
    state_path(folder, disk_id).unlink()
    _sync_folder(folder)


def _sync_folder(folder: pathlib.Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, parts: Sequence[bytes | bytearray], offset: int) -> None:
    """Write ``parts`` back to back; a disk that is full raises before the end."""
    done, length = os.pwritev(fd, parts, offset), sum(map(len, parts))
    while done < length:  # cut short: the next try says why
        done += os.pwrite(fd, b"".join(parts)[done:], offset + done)


class Disk:
    """A writable disk.

    :param attach: returns the image's mirror; asked only where the image is needed
    :param io: the way to the host's disk; one without a scheduler if not given
    """

    def __init__(self, files: DiskFiles, attach: Attach, io: disk_io.DiskIo | None = None) -> None:
        self.header = files.header
        self._io = io or disk_io.DiskIo()
        self._files = files
        self._attach = attach
        self._states = chunk_state.ChunkStates(files.header.cut.chunk_count)
        for chunk_no in (*files.written, *files.unsynced):
            self._states.apply(chunk_no, chunk_state.ChunkEvent.WHOLE_WRITTEN)
        self.written_chunks = len(files.written) + len(files.unsynced)
        self._unsynced = set(files.unsynced)
        self._locks: dict[int, trio.Lock] = {}
        self._syncing = trio.Lock()
        self._sync_failure: OSError | None = None

    @property
    def size_bytes(self) -> int:
        """Length of the disk."""
        return self.header.cut.size_bytes

    @property
    def fd(self) -> int:
        """The file whose attributes (owner, mode, times, blocks) are the disk's."""
        return self._files.data_fd

    @property
    def unsynced_chunks(self) -> int:
        """How many chunks were written first since the last sync."""
        return len(self._unsynced)

    async def read(self, offset: int, length: int) -> fetcher.Bytes:
        """Return a range of the disk, cut at its end; use it before anything is awaited.

        :raises errors.AcstorError: a chunk of the image is not to be had
        """
        length = max(0, min(length, self.size_bytes - offset, mirror.MAX_READ_BYTES))
        stretches = self._plan_read(offset, length)
        if len(stretches) == 1 and stretches[0].origin is disk_plan.Origin.IMAGE:
            return await (await self._attach(self.header)).read(offset, length)
        buffer = bytearray(length)
        view = memoryview(buffer)
        if len(stretches) != 1 or not self._read_nowait(stretches[0], view):
            await self._fill(_places(stretches, view))
        return buffer

    def _plan_read(self, offset: int, length: int) -> list[disk_plan.Stretch]:
        header = self.header
        return disk_plan.plan_read(header.cut, header.image_bytes, self._states, offset, length)

    def _read_nowait(self, stretch: disk_plan.Stretch, view: memoryview) -> bool:
        is_ours = stretch.origin is disk_plan.Origin.DISK
        return is_ours and self._files.read_nowait(view, stretch.start)

    async def _fill(self, places: Iterable[_Place]) -> None:
        """Bring stretches into their places (zeros before), all at once; one failure ends it."""
        failures: list[errors.AcstorError | OSError] = []
        async with trio.open_nursery() as nursery:

            async def fill(stretch: disk_plan.Stretch, view: memoryview) -> None:
                try:
                    await self._fill_one(stretch, view)
                except (errors.AcstorError, OSError) as e:
                    failures.append(e)
                    nursery.cancel_scope.cancel()

            for place in places:
                nursery.start_soon(fill, *place)
        if failures:
            raise failures[0]

    async def _fill_one(self, stretch: disk_plan.Stretch, view: memoryview) -> None:
        if stretch.origin is disk_plan.Origin.DISK:
            await self._io.run(
                self._place(stretch.start), len(view), False, self._files.read, view, stretch.start
            )
        elif stretch.origin is disk_plan.Origin.IMAGE:
            image = await self._attach(self.header)
            for at in range(0, len(view), mirror.MAX_READ_BYTES):
                part = view[at : at + mirror.MAX_READ_BYTES]
                part[:] = await image.read(stretch.start + at, len(part))

    async def write(self, offset: int, data: bytes) -> int:
        """Write at ``offset`` what fits on the disk; return how much that is.

        Bytes of the image that are missing in a chunk which is written in part are fetched first.
        To do the same write again does no harm.

        :raises OSError: EFBIG behind the disk's end; ENOSPC and others of the host's own disk
        :raises errors.AcstorError: what is missing is not to be had; nothing has changed
        """
        if offset >= self.size_bytes and data:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        data = data[: self.size_bytes - offset]
        cut = self.header.cut
        async with self._alone(disk_plan.chunks_of(cut, offset, len(data))) as chunks:
            if chunks:
                await self._write(offset, data)
        return len(data)

    async def _write(self, offset: int, data: bytes) -> None:
        header = self.header
        plan = disk_plan.plan_write(header.cut, header.image_bytes, self._states, offset, len(data))
        before, after = (bytearray(_length(side)) for side in (plan.before, plan.after))
        if before or after:
            await self._fill(
                [*_places(plan.before, memoryview(before)), *_places(plan.after, memoryview(after))]
            )
        parts = [before, data, after]
        fresh = list(disk_header.runs(plan.fresh))
        start = offset - len(before)
        length = sum(map(len, parts))
        await self._io.run(self._place(start), length, True, self._files.write, parts, start, fresh)
        disk_plan.note_written(self._states, plan)
        self.written_chunks += len(plan.fresh)
        self._unsynced.update(plan.fresh)

    @contextlib.asynccontextmanager
    async def _alone(self, chunks: range) -> AsyncIterator[range]:
        """Keep other writes off these chunks; locked in order, so nobody waits in a ring."""
        held: list[trio.Lock] = []
        try:
            for chunk_no in chunks:
                lock = self._locks.setdefault(chunk_no, trio.Lock())
                try:
                    lock.acquire_nowait()
                except trio.WouldBlock:
                    await lock.acquire()
                held.append(lock)
            yield chunks
        finally:
            for lock in held:
                lock.release()
            for chunk_no in chunks:
                lock_or_none = self._locks.get(chunk_no)
                if lock_or_none is not None and not lock_or_none.locked():
                    del self._locks[chunk_no]

    async def sync(self) -> None:
        """Make safe on the host's disk every write that was answered.

        Once this has failed it fails for good: the kernel tells of bytes that it could not write
        one time only, and nobody knows afterwards which they were.

        :raises OSError: the host's disk cannot
        """
        async with self._syncing:
            if self._sync_failure is not None:
                raise OSError(*self._sync_failure.args)
            unsynced, self._unsynced = self._unsynced, set()
            try:
                runs = list(disk_header.runs(unsynced))
                await self._io.run(self._place(0), 1, True, self._files.sync, runs)
            except OSError as e:
                self._unsynced |= unsynced
                self._sync_failure = e
                LOG.error("disk %s: syncs fail from now on: %s", self.header.disk_id, e)
                raise

    def _place(self, offset: int) -> int:
        """Return the address of a byte of this disk on the host's disk."""
        return self._io.place(("disk", self.header.disk_id), offset, self.size_bytes)

    async def aclose(self) -> None:
        """Let go of the files; from now on the disk fails with EBADF."""
        async with self._syncing:
            self._files.close()


def _length(stretches: Sequence[disk_plan.Stretch]) -> int:
    return sum(stretch.stop - stretch.start for stretch in stretches)


def _places(stretches: Sequence[disk_plan.Stretch], view: memoryview) -> Iterator[_Place]:
    """Cut ``view`` into the places of stretches that lie back to back."""
    at = 0
    for stretch in stretches:
        end = at + stretch.stop - stretch.start
        yield stretch, view[at:end]
        at = end
