# SPDX-License-Identifier: Apache-2.0
"""One writable disk: an image's content with copy-on-reference writes.

Written chunks lie in a sparse file; a state file marks them, always after their bytes. A write is
answered when both are in the kernel, so a killed process loses nothing; such a mark (UNSYNCED) is
valid until the host goes down. ``sync`` makes the bytes durable, then the marks (WRITTEN): after a
power failure each chunk is entirely the guest's or the image's. Written chunks have no CID, so they
are never served to peers.
"""

import contextlib
import errno
import functools
import logging
import os
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

import trio

from acstor_agent.core.disks import disk_header
from acstor_agent.core.disks import disk_plan
from acstor_agent.core.images import chunk_state
from acstor_agent.core.mount import inodes
from acstor_agent.disks import checkpoint_reader
from acstor_agent.disks import disk_files
from acstor_agent.engine_io import read_request
from acstor_agent.images.read import mirror
from acstor_agent.images.read import read_admission
from acstor_agent.runtime import disk_io
from acstor_agent.runtime import keyed_locks
from acstor_common import errors

LOG = logging.getLogger(__name__)

Attach = Callable[[disk_header.DiskHeader], Awaitable[mirror.Mirror]]
_Place = tuple[disk_plan.Stretch, memoryview]


class Disk:
    """A writable disk; ``checkpoint`` is the source of missing chunks, until none is missing."""

    def __init__(
        self,
        files: disk_files.DiskFiles,
        attach: Attach,
        io: disk_io.DiskIo | None = None,
        reads: read_admission.ReadAdmission | None = None,
        writes: read_admission.ReadAdmission | None = None,
        checkpoint: checkpoint_reader.CheckpointReader | None = None,
        *,
        is_read_only: bool = False,
    ) -> None:
        self.checkpoint, self.is_read_only = checkpoint, is_read_only
        self.header = files.header
        self._guest = inodes.guest_of_disk(files.header.disk_id)
        self._reads = read_admission.ReadAdmission() if reads is None else reads
        if writes is None:
            writes = read_admission.ReadAdmission(
                read_admission.WRITES_LIMIT_BYTES, table=self._reads.table
            )
        self._writes = writes
        self._io = io or disk_io.DiskIo()
        self._files = files
        self._attach = attach
        self._states = chunk_state.ChunkStates(files.header.cut.chunk_count)
        for chunk_no in (*files.written, *files.unsynced):
            self._states.apply_event(chunk_no, chunk_state.ChunkEvent.WHOLE_WRITTEN)
        self.written_chunks = len(files.written) + len(files.unsynced)
        self._unsynced = set(files.unsynced)
        self._locks: dict[int, trio.Lock] = {}
        self._bringing = keyed_locks.KeyedLocks[int]()
        self.lacking_chunks = sum(map(self.is_missing, checkpoint.clusters if checkpoint else ()))
        """Chunks of the checkpoint that are not in the disk's own file."""
        self._syncing = trio.Lock()
        self._sync_failure: OSError | None = None
        if files.has_failed():
            self._sync_failure = OSError(errno.EIO, f"an earlier one failed ({files.failed_path})")
            LOG.error("disk %s: syncs fail: %s", self.header.disk_id, self._sync_failure.strerror)

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
        """Number of chunks first written since the last sync."""
        return len(self._unsynced)

    async def read(self, offset: int, length: int) -> read_request.Bytes:
        """Return a range of the disk, cut at its end; use it before the next await.

        :raises errors.AcstorError: a chunk of the image is unavailable
        """
        length = max(0, min(length, self.size_bytes - offset, mirror.MAX_READ_BYTES))
        if self.checkpoint is not None and (lacking := self._lacking(offset, length)):
            return await self._reads.run_admitted(
                self._guest, self._read_brought, lacking, offset, length
            )
        stretches = self._plan_read(offset, length)
        if len(stretches) == 1 and stretches[0].origin is disk_plan.StretchOrigin.IMAGE:
            return await (await self._attach(self.header)).read_at(offset, length, self._guest)
        if len(stretches) == 1 and (kept := self._read_nowait(stretches[0])) is not None:
            return kept
        is_local = all(stretch.origin is disk_plan.StretchOrigin.DISK for stretch in stretches)
        return await self._reads.run_admitted(
            self._guest, self._read, stretches, length, is_local=is_local
        )

    async def _read_brought(self, lacking: Sequence[int], offset: int, length: int) -> bytearray:
        await self.store_restored(lacking)
        return await self._read(self._plan_read(offset, length), length)

    async def _read(self, stretches: Sequence[disk_plan.Stretch], length: int) -> bytearray:
        buffer = bytearray(length)
        await self._fill(_places(stretches, memoryview(buffer)))
        return buffer

    def _plan_read(self, offset: int, length: int) -> list[disk_plan.Stretch]:
        header = self.header
        return disk_plan.plan_read(header.cut, header.image_bytes, self._states, offset, length)

    def _read_nowait(self, stretch: disk_plan.Stretch) -> bytearray | None:
        if stretch.origin is not disk_plan.StretchOrigin.DISK:
            return None
        buffer = bytearray(stretch.stop - stretch.start)
        return buffer if self._files.read_nowait(memoryview(buffer), stretch.start) else None

    async def _fill(self, places: Iterable[_Place]) -> None:
        await _run_all(functools.partial(self._fill_one, *place) for place in places)

    async def _fill_one(self, stretch: disk_plan.Stretch, view: memoryview) -> None:
        if stretch.origin is disk_plan.StretchOrigin.DISK:
            await self._io.run(
                self._place(stretch.start), len(view), False, self._files.read, view, stretch.start
            )
        elif stretch.origin is disk_plan.StretchOrigin.IMAGE:
            image = await self._attach(self.header)
            for at in range(0, len(view), mirror.MAX_READ_BYTES):
                part = view[at : at + mirror.MAX_READ_BYTES]
                part[:] = await image.read_at(stretch.start + at, len(part))

    async def write(self, offset: int, data: bytes) -> int:
        """Write what fits; first fetch the rest of partial chunks. Idempotent; returns the length.

        :raises OSError: EFBIG after the disk's end; EROFS; ENOSPC and others of the host's disk
        :raises errors.AcstorError: missing bytes are unavailable; nothing changed
        """
        if self.is_read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if offset >= self.size_bytes and data:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        data = data[: self.size_bytes - offset]
        chunks = disk_plan.chunks_of(self.header.cut, offset, len(data))
        if not self._writes.has_room(len(data)) and self._write_nowait(offset, data, chunks):
            return len(data)
        await self._writes.run_admitted(
            self._guest, self._write, offset, data, chunks, more_bytes=len(data)
        )
        return len(data)

    def _write_nowait(self, offset: int, data: bytes, chunks: range) -> bool:
        """Write at once, blocking shortly, if no fetch or lock is needed; else return False."""
        plan = self._plan_write(offset, data)
        if plan.before or plan.after or any(chunk_no in self._locks for chunk_no in chunks):
            return False
        self._files.write([data], offset, list(disk_header.runs(plan.fresh)))
        self._note_written(plan)
        return True

    def _plan_write(self, offset: int, data: bytes) -> disk_plan.WritePlan:
        header = self.header
        return disk_plan.plan_write(header.cut, header.image_bytes, self._states, offset, len(data))

    def _note_written(self, plan: disk_plan.WritePlan) -> None:
        disk_plan.note_written(self._states, plan)
        self.written_chunks += len(plan.fresh)
        self._unsynced.update(plan.fresh)

    async def _write(self, offset: int, data: bytes, chunks: range) -> None:
        async with self._alone(chunks):
            if chunks:
                await self._write_alone(offset, data)

    async def _write_alone(self, offset: int, data: bytes) -> None:
        plan = self._plan_write(offset, data)
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
        self._note_written(plan)

    @contextlib.asynccontextmanager
    async def _alone(self, chunks: range) -> AsyncIterator[range]:
        """Lock chunks against other writes, in order, so there is no deadlock."""
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

    def chunks_of_image(self) -> list[int]:
        """Return the chunks whose bytes are still the image's."""
        header = self.header
        whole = disk_plan.chunks_of(header.cut, 0, header.image_bytes)
        return [n for n in whole if not disk_plan.is_on_disk(self._states, n)]

    def is_missing(self, chunk_no: int) -> bool:
        """Return whether a chunk's bytes are still only in the checkpoint."""
        if self.checkpoint is None or disk_plan.is_on_disk(self._states, chunk_no):
            return False
        return chunk_no in self.checkpoint.clusters

    def _lacking(self, offset: int, length: int) -> list[int]:
        return [
            n for n in disk_plan.chunks_of(self.header.cut, offset, length) if self.is_missing(n)
        ]

    async def store_restored(self, chunk_nos: Iterable[int]) -> None:
        """Store the checkpoint's bytes of chunks in the disk's own file, concurrently.

        :raises errors.AcstorError: some are unavailable
        :raises OSError: some could not be written
        """
        await _run_all(functools.partial(self._bring_one, chunk_no) for chunk_no in chunk_nos)

    async def _bring_one(self, chunk_no: int) -> None:
        async with self._bringing.hold(chunk_no):
            if self.is_missing(chunk_no) and self.checkpoint is not None:
                await self.keep_base_chunk(chunk_no, await self.checkpoint.fetch_cluster(chunk_no))
                self.lacking_chunks -= 1

    async def keep_base_chunk(self, chunk_no: int, data: read_request.Bytes) -> None:
        """Store an image chunk, unless a guest wrote it; on OSError nothing changes."""
        cut = self.header.cut
        start, length = cut.chunk_offset(chunk_no), cut.chunk_length(chunk_no)
        async with self._alone(range(chunk_no, chunk_no + 1)):
            if disk_plan.is_on_disk(self._states, chunk_no):
                return
            whole = [bytes(data).ljust(length, b"\0")]  # zeros after the image's end
            fresh = [(chunk_no, 1)]
            place = self._place(start)
            await self._io.run(place, length, True, self._files.write, whole, start, fresh)
            self._states.apply_event(chunk_no, chunk_state.ChunkEvent.WHOLE_WRITTEN)
            self.written_chunks += 1
            self._unsynced.add(chunk_no)

    async def sync(self) -> None:
        """Make all answered writes durable on the host's disk, or raise OSError.

        A failure is permanent, also for later workers: the kernel reports lost bytes only once, and
        does not say which.
        """
        async with self._syncing:
            if self._sync_failure is not None:
                raise OSError(*self._sync_failure.args)
            unsynced, self._unsynced = self._unsynced, set()
            try:
                runs = list(disk_header.runs(unsynced))
                await self._io.run(self._place(0), 1, True, self._files.sync, runs)
                unsynced.clear()
            except OSError as e:
                self._sync_failure = e
                with contextlib.suppress(OSError):  # this may fail, too
                    await self._io.run(self._place(0), 1, True, self._files.note_failure)
                LOG.error("disk %s: syncs fail: %s", self.header.disk_id, e)
                raise
            finally:
                self._unsynced |= unsynced  # it failed, or was cancelled

    @property
    def _name(self) -> tuple[str, str]:
        return "disk", self.header.disk_id

    def _place(self, offset: int) -> int:
        return self._io.address_of(self._name, offset, self.size_bytes)

    async def aclose(self) -> None:
        """Close the files; later operations fail with EBADF."""
        async with self._syncing:
            self._files.close()
            self._io.forget_file(self._name)


async def _run_all(calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    failures: list[errors.AcstorError | OSError] = []

    async def run(call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except (errors.AcstorError, OSError) as e:
            failures.append(e)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(run, call)
    if failures:
        raise failures[0]


def _length(stretches: Sequence[disk_plan.Stretch]) -> int:
    return sum(stretch.stop - stretch.start for stretch in stretches)


def _places(stretches: Sequence[disk_plan.Stretch], view: memoryview) -> Iterator[_Place]:
    at = 0
    for stretch in stretches:
        end = at + stretch.stop - stretch.start
        yield stretch, view[at:end]
        at = end
