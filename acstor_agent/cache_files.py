# SPDX-License-Identifier: Apache-2.0
"""The public cache of this host: chunks by CID, on the local disk.

The rule guarded here: nobody ever gets bytes that do not match their CID.
Bytes that this process stored were verified by the one who stored them; bytes
of a former run are hashed at their first use.  A disk that is full or broken
costs chunks, never an answer.

A new chunk is answered from memory until the writer has it on disk.  Every
slot with something to write is in the table ``_dirty`` and held exactly once
by it, so its place is not handed out meanwhile.  Methods without ``async``
never wait and must be called from the event loop's thread, but ``in``.
"""

import contextlib
import gc
import os
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

import trio
from oslo_log import log as logging

from acstor_agent import disk_io
from acstor_agent import slab_files
from acstor_agent.core import cache_slot
from acstor_agent.core import public_cache
from acstor_agent.core.disk_scheduling import request as requests
from acstor_common import errors
from acstor_common import geometry
from acstor_common import ids

LOG = logging.getLogger(__name__)

PENDING_LIMIT_BYTES = 32 * geometry.MIB
BATCH_BYTES = 8 * geometry.MIB
BATCH_JOBS = 512  # below IOV_MAX, so that neighbours need one call
GATHER_S = 0.01
"""How long the writer lets chunks gather: one thread hop then serves many of them."""
READ_THREADS = 32


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Spare the collector from looking at many new objects of which none is garbage.

    It takes a third of the time of opening a large cache.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CacheFiles:
    """Chunks by CID on the local disk, bounded in bytes.

    Make it with :meth:`open`, keep :meth:`run` running, and end with :meth:`aclose`.
    """

    def __init__(
        self,
        files: slab_files.SlabFiles,
        core: public_cache.PublicCache,
        pending_limit_bytes: int = PENDING_LIMIT_BYTES,
        io: disk_io.DiskIo | None = None,
    ) -> None:
        self._files = files
        self._io = io or disk_io.DiskIo()
        self._core = core
        self.lookup = core.lookup
        """Returns the slot of a CID, to be read before the next checkpoint; this is a use."""
        self.read_nowait = files.read_nowait
        self._pending_limit_bytes = pending_limit_bytes
        self._pending_bytes = 0
        self._healed = self._refused = self._write_errors = 0
        self._actions: list[public_cache.SlabAction] = []
        self._dirty: dict[cache_slot.Slot, requests.Stream] = {}
        self._work = trio.Event()
        self._room = trio.Event()
        self._writing = trio.Lock()
        self._writer_thread = trio.CapacityLimiter(1)
        self._reader_threads = trio.CapacityLimiter(READ_THREADS)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        limit_bytes: int,
        slab_bytes: int,
        policy: str = "lru",
        pending_limit_bytes: int = PENDING_LIMIT_BYTES,
        io: disk_io.DiskIo | None = None,
    ) -> "CacheFiles":
        """Open the cache in ``folder`` with the chunks that a former run left there.

        It blocks (about 3 us per chunk): call it before serving begins.

        :param limit_bytes: upper bound of the slab files' lengths, all together
        :param slab_bytes: the cache grows by files of this length
        :param policy: ``lru``, ``lfu`` or ``fifo``
        :param pending_limit_bytes: chunks in memory from which on producers are to wait
        :param io: the way to the disk; one without a scheduler if not given
        :raises errors.Unusable: the folder cannot be written, or another process has it
        """
        files = slab_files.SlabFiles(pathlib.Path(folder))
        core = public_cache.PublicCache(limit_bytes, slab_bytes, policy)
        try:
            with _no_garbage_collection():
                actions = core.restore(files.load())
            for action in actions:
                files.perform(action)
        except OSError as exc:
            files.close()
            raise errors.Unusable(f"cache folder {folder}", exc.strerror or str(exc)) from exc
        except errors.Unusable:
            files.close()
            raise
        return cls(files, core, pending_limit_bytes, io)

    def __contains__(self, cid: object) -> bool:
        """Say whether the chunk is in the cache; may be asked from any thread."""
        return cid in self._core

    def iter_cids(self) -> Iterator[ids.Cid]:
        """Iterate over the CIDs that are in the cache now; may be called from any thread."""
        return iter(self._core.cids())

    @property
    def statistics(self) -> public_cache.Statistics:
        """The cache in numbers."""
        core = self._core
        names = [keep_class.name.lower() for keep_class in public_cache.KeepClass]
        return public_cache.Statistics(
            chunks=len(core),
            stored_bytes=sum(core.class_bytes),
            disk_bytes=core.disk_bytes,
            limit_bytes=core.limit_bytes,
            slabs=core.slab_count,
            evictions=core.evictions,
            healed=self._healed,
            refused=self._refused,
            write_errors=self._write_errors,
            pending_bytes=self._pending_bytes,
            chunks_by_class=dict(zip(names, core.class_chunks, strict=True)),
            bytes_by_class=dict(zip(names, core.class_bytes, strict=True)),
        )

    # Reading

    async def read(self, parts: Sequence[slab_files.Part], buffer: memoryview) -> list[ids.Cid]:
        """Fill ``buffer`` with ``parts``, back to back, in a thread.

        :return: chunks that proved bad or have left the cache; they are no longer in it, and the
            buffer is good only if there are none
        """
        slots = [slot for slot, _, _ in parts]
        gone = [slot.cid for slot in slots if slot.is_gone]
        if gone:
            return gone
        wanted = [slab_files.ReadPart(slot, slot.data, start, stop) for slot, start, stop in parts]
        for slot in slots:
            self._core.hold(slot)
        try:
            good, bad = await self._io.run(
                self._place(slots[0]),
                len(buffer),
                False,
                self._files.read,
                wanted,
                buffer,
                limiter=self._reader_threads,
            )
            for slot in good:
                slot.is_verified = not slot.is_gone
            for slot in bad:
                self._heal(slot)
        finally:
            for slot in slots:
                self._core.release(slot)
        return list(dict.fromkeys(slot.cid for slot in bad))

    def _place(self, slot: cache_slot.Slot) -> int:
        """Return the address of a slot on the disk."""
        slab = slot.slab
        return self._io.place(("slab", slab.number), slot.offset, slab.layout.file_bytes)

    def read_chunk_nowait(self, cid: ids.Cid) -> cache_slot.Data | None:
        """Return the bytes of a chunk, None if the cache has not got it or that takes waiting.

        They may be those in memory: nobody may change them.
        """
        slot = self._core.lookup(cid)
        if slot is None or not slot.is_verified:
            return None
        if slot.data is not None:
            return slot.data
        buffer = bytearray(slot.length)
        return buffer if self.read_nowait([(slot, 0, slot.length)], memoryview(buffer)) else None

    async def read_chunk(self, cid: ids.Cid) -> cache_slot.Data | None:
        """Return the bytes of a chunk, None if the cache has not got it; nobody may change them."""
        data = self.read_chunk_nowait(cid)
        slot = self._core.lookup(cid)
        if data is not None or slot is None:
            return data
        buffer = bytearray(slot.length)
        bad = await self.read([(slot, 0, slot.length)], memoryview(buffer))
        return None if bad else buffer

    def _heal(self, slot: cache_slot.Slot) -> None:
        if slot.is_gone:
            return
        LOG.warning(
            "Chunk %s is damaged in slab file %d; dropped", slot.cid.hex(), slot.slab.number
        )
        self._healed += 1
        self._drop(slot)

    # Changing what is in the cache

    def store(
        self,
        cid: ids.Cid,
        data: cache_slot.Data,
        keep_class: public_cache.KeepClass = public_cache.KeepClass.BORROWED,
    ) -> bool:
        """Take in a chunk whose ``data`` were verified; if it is here, only raise its class.

        Nobody may change ``data`` from now on.

        :return: False if it was not stored, because it is all zeros or nothing can make room;
            that is no error
        """
        if cid == ids.ZERO_CID:
            return False
        if self.promote(cid, keep_class):
            return True
        if self._pending_bytes + len(data) > 2 * self._pending_limit_bytes:
            self._refused += 1
            return False
        try:
            slot, actions = self._core.place(cid, len(data), keep_class)
        except errors.CacheFull:
            self._refused += 1
            return False
        slot.data = data
        slot.is_verified = True
        self._pending_bytes += slot.length
        self._actions += actions
        self._mark_dirty(slot)
        return True

    def promote(self, cid: ids.Cid, keep_class: public_cache.KeepClass) -> bool:
        """Raise the class of a chunk; say whether it is in the cache at all."""
        slot = self._core.peek(cid)
        if slot is None:
            return False
        if self._core.promote(slot, keep_class):
            self._mark_dirty(slot)
        return True

    def on_gone(self, tell: Callable[[ids.Cid], None]) -> None:
        """Have ``tell`` called, from the event loop, with each chunk that leaves the cache."""
        self._core.gone = tell

    def let_go(self, cid: ids.Cid) -> bool:
        """Make a borrowed chunk the first to make room; say whether it is one."""
        return (slot := self._core.peek(cid)) is not None and self._core.let_go(slot)

    def drop(self, cid: ids.Cid) -> bool:
        """Take a chunk out of the cache; say whether it was there."""
        if (slot := self._core.peek(cid)) is not None:
            self._drop(slot)
        return slot is not None

    def _drop(self, slot: cache_slot.Slot) -> None:
        self._mark_dirty(slot)  # its record must be cleared before its place is used again
        self._core.drop(slot)

    def _mark_dirty(self, slot: cache_slot.Slot) -> None:
        if slot not in self._dirty:
            self._dirty[slot] = disk_io.stream_of_later()
            self._core.hold(slot)
        self._work.set()

    # Writing behind

    @property
    def has_room(self) -> bool:
        """Say whether the chunks in memory are below their limit."""
        return self._pending_bytes < self._pending_limit_bytes

    async def wait_for_room(self) -> None:
        """Wait until the chunks in memory are below their limit."""
        while not self.has_room:
            await self._room.wait()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Bring new chunks to disk, for ever."""
        task_status.started()
        while True:
            await self._work.wait()
            if self._pending_bytes < BATCH_BYTES:
                await trio.sleep(GATHER_S)
            self._work = trio.Event()
            while self._dirty:
                await self._write_batch()

    async def aclose(self) -> None:
        """Write what is pending and close the files; nothing may be read afterwards."""
        with trio.CancelScope(shield=True):
            while self._dirty:
                await self._write_batch()
            async with self._writing:
                self._files.close()

    async def _write_batch(self) -> None:
        with trio.CancelScope(shield=True):
            async with self._writing:
                actions, self._actions = self._actions, []
                stream = next(iter(self._dirty.values()), None)
                jobs = list(self._next_jobs(stream))
                with disk_io.as_stream(stream):
                    unmade, failed = await self._io.run(
                        self._place(jobs[0].slot) if jobs else 0,
                        max(1, sum(len(job.data or b"") for job in jobs)),
                        True,
                        self._files.perform_batch,
                        actions,
                        jobs,
                        limiter=self._writer_thread,
                    )
                self._settle(jobs, unmade, failed)
        self._room.set()
        self._room = trio.Event()

    def _next_jobs(self, stream: requests.Stream | None) -> Iterator[slab_files.WriteJob]:
        """Yield the oldest jobs; where a scheduler tells streams apart, those of one stream."""
        batch_bytes = count = 0
        for slot, its in self._dirty.items():
            if batch_bytes >= BATCH_BYTES or count == BATCH_JOBS:
                return
            if its != stream and self._io.is_scheduling:
                continue
            count += 1
            data = None if slot.is_gone else slot.data
            batch_bytes += len(data or b"")
            yield slab_files.WriteJob(slot, data, slot.keep_class, slot.is_gone)

    def _settle(
        self,
        jobs: list[slab_files.WriteJob],
        unmade: dict[cache_slot.Slab, OSError],
        failed: dict[cache_slot.Slot, OSError],
    ) -> None:
        if failed:
            self._write_errors += len(failed)
            LOG.warning("%d chunks cannot be written: %s", len(failed), next(iter(failed.values())))
        for job in jobs:
            if job.slot.slab not in unmade:
                self._settle_job(job, has_failed=job.slot in failed)
        for slab, exc in unmade.items():
            self._lose_slab(slab, exc)

    def _settle_job(self, job: slab_files.WriteJob, has_failed: bool) -> None:
        """Let go of the slot, unless it changed while the job was being done."""
        slot = job.slot
        if has_failed and job.data is not None:
            self._core.drop(slot)
        has_changed = (slot.is_gone, slot.keep_class) != (job.is_gone, job.keep_class)
        self._forget_data(slot)
        if has_failed or not has_changed:
            self._clean(slot)

    def _forget_data(self, slot: cache_slot.Slot) -> None:
        if slot.data is not None:
            slot.data = None
            self._pending_bytes -= slot.length

    def _clean(self, slot: cache_slot.Slot) -> None:
        del self._dirty[slot]
        self._core.release(slot)

    def _lose_slab(self, slab: cache_slot.Slab, exc: OSError) -> None:
        """Go on without a slab that could not be made; its chunks look for other places."""
        LOG.warning("The cache stops growing, slab file %d cannot be made: %s", slab.number, exc)
        self._write_errors += 1
        stranded = [slot for slot in self._dirty if slot.slab is slab]
        again = [(s.cid, s.data, s.keep_class) for s in stranded if not s.is_gone]
        self._core.lose_slab(slab)
        for slot in stranded:
            self._forget_data(slot)
            self._clean(slot)
        for cid, data, keep_class in again:
            if data is not None:
                self.store(cid, data, keep_class)
