# SPDX-License-Identifier: Apache-2.0
"""What of the public cache waits in memory for the disk, and the writer that brings it there.

The rule guarded here: every slot with something to write is in the table
``_dirty`` and held exactly once by it, so its place is not handed out meanwhile.
Methods without ``async`` never wait and must be called from the event loop's thread.
"""

import errno
from collections.abc import Callable
from collections.abc import Sequence

import trio
from oslo_log import log as logging

from acstor_agent.cache import folder_recovery
from acstor_agent.cache import slab_files
from acstor_agent.cache import slab_io
from acstor_agent.core.cache import cache_slot
from acstor_agent.core.cache import public_cache
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.runtime import disk_io
from acstor_common.model import geometry
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

PENDING_LIMIT_BYTES = 32 * geometry.MIB
BATCH_BYTES = 8 * geometry.MIB
BATCH_JOBS = 512  # below IOV_MAX, so that neighbours need one call
ENOUGH_BYTES = 2 * geometry.MIB
"""Are written at once: more are no cheaper, and have left the processor's cache by then."""
GATHER_S = 0.5
"""How long the writer lets fewer than that gather: a hop to its thread is as dear for few chunks as
for many, and on slow links one comes in 20 to 40 ms.  A process that is killed loses them, as it
loses all that is not written: they are fetched again."""

Store = Callable[[ids.Cid, cache_slot.Data, public_cache.KeepClass], bool]


class WriteBehind:
    """Brings slots to disk, many at a time; keep :meth:`run` running.

    What cannot be written is dropped, counted, and told to ``mends``.

    ``pending_bytes`` are those in memory now, ``errors`` counts what could not be written.

    :param store: takes in a chunk again whose place could not be made
    :param pending_limit_bytes: chunks in memory from which on producers are to wait
    """

    def __init__(
        self,
        files: slab_files.SlabFiles,
        mends: folder_recovery.FolderRecovery,
        io: disk_io.DiskIo,
        store: Store,
        pending_limit_bytes: int = PENDING_LIMIT_BYTES,
    ) -> None:
        self.pending_bytes = self.errors = 0
        self._files = files
        self._mends = mends
        self._core = mends.core
        self._io = io
        self._store = store
        self._pending_limit_bytes = pending_limit_bytes
        self._enough_bytes = min(ENOUGH_BYTES, pending_limit_bytes)
        self._actions: list[public_cache.SlabAction] = []
        self._dirty: dict[cache_slot.Slot, requests.Stream] = {}
        self._work, self._enough = trio.Event(), trio.Event()
        self._room = trio.Event()
        self._writer_thread = trio.CapacityLimiter(1)

    def can_take(self, length_bytes: int) -> bool:
        """Say whether a chunk more is bearable, from producers that did not wait for room."""
        return self.pending_bytes + length_bytes <= 2 * self._pending_limit_bytes

    def add(
        self, slots: Sequence[cache_slot.Slot], actions: Sequence[public_cache.SlabAction]
    ) -> None:
        """Take slots with new chunks' ``data``, and what is to be done before they are written."""
        self.pending_bytes += sum([slot.length for slot in slots])
        self._actions += actions
        self._mark(slots)

    def add_slab_actions(self, actions: Sequence[public_cache.SlabAction]) -> None:
        """Take what is to be done before anything else is written."""
        self._actions += actions
        if actions:
            self._work.set()

    def mark_stale(self, slot: cache_slot.Slot) -> None:
        """Note that what the disk says of a slot is no longer so."""
        if slot not in self._dirty:
            self._mark((slot,))

    def _mark(self, slots: Sequence[cache_slot.Slot]) -> None:
        self._dirty.update(dict.fromkeys(slots, disk_io.deferred_stream()))
        self._core.hold_all(slots)
        self._work.set()
        if self._is_enough:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Write what there is without waiting for more."""
        self._enough.set()

    @property
    def _is_enough(self) -> bool:
        return self.pending_bytes >= self._enough_bytes or len(self._dirty) >= BATCH_JOBS

    @property
    def has_room(self) -> bool:
        """Say whether the chunks in memory are below their limit."""
        return self.pending_bytes < self._pending_limit_bytes

    async def wait_for_room(self) -> None:
        """Wait until the chunks in memory are below their limit."""
        while not self.has_room:
            await self._room.wait()

    async def run(self) -> None:
        """Bring new chunks to disk, for ever."""
        while True:
            await self._work.wait()
            with trio.move_on_after(GATHER_S):
                await self._enough.wait()
            due = len(self._dirty)  # what comes while that is written gathers again
            while self._dirty or self._actions:
                due -= await self._write_batch()
                if due <= 0:
                    break
            if not self._is_enough:
                self._enough = trio.Event()
                if not (self._dirty or self._actions):
                    self._work = trio.Event()

    async def flush(self) -> None:
        """Write what is pending."""
        while self._dirty or self._actions:
            await self._write_batch()

    async def aclose(self) -> None:
        """Write what is pending and close the files; nothing may be read afterwards."""
        with trio.CancelScope(shield=True):
            await self.flush()
            async with self._mends.writing:
                self._files.close()

    async def _write_batch(self) -> int:
        """Do the actions and the oldest jobs; return how many jobs that were."""
        with trio.CancelScope(shield=True):
            async with self._mends.writing:
                actions, self._actions = self._actions, []
                stream = next(iter(self._dirty.values()), None)
                jobs, batch_bytes = self._next_jobs(stream)
                with disk_io.use_stream(stream):
                    unmade, failed = await self._io.run(
                        self._io.address_of(*slab_io.where(jobs[0].slot)) if jobs else 0,
                        max(1, batch_bytes),
                        True,
                        self._files.perform_batch,
                        actions,
                        jobs,
                        limiter=self._writer_thread,
                    )
                self._settle(jobs, unmade, failed)
        self._room.set()
        self._room = trio.Event()
        return len(jobs)

    def _next_jobs(self, stream: requests.Stream | None) -> tuple[list[slab_io.WriteJob], int]:
        """Return the oldest jobs, and how many bytes of chunks they write.

        Where a scheduler tells streams apart they are those of one stream.
        """
        jobs: list[slab_io.WriteJob] = []
        batch_bytes, is_scheduling = 0, self._io.is_scheduling
        for slot, its in self._dirty.items():
            if batch_bytes >= BATCH_BYTES or len(jobs) == BATCH_JOBS:
                break
            if is_scheduling and its != stream:
                continue
            data = None if slot.is_gone else slot.data
            if data is not None:
                batch_bytes += slot.length
            jobs.append(slab_io.WriteJob(slot, data, slot.keep_class, slot.is_gone))
        return jobs, batch_bytes

    def _settle(
        self,
        jobs: list[slab_io.WriteJob],
        unmade: dict[cache_slot.Slab, OSError],
        failed: dict[cache_slot.Slot, OSError],
    ) -> None:
        """Let go of the slots, but of those that changed while the jobs were being done."""
        if failed:
            self._note_failures(jobs, unmade, failed)
            for slot, data, _, _ in jobs:
                failure = failed.get(slot)
                if failure is not None and data is not None and slot.slab not in unmade:
                    self._core.drop_chunk(slot, is_place_bad=failure.errno == errno.EIO)
        written = [job for job in jobs if job.slot.slab not in unmade] if unmade else jobs
        self._forget_bytes([job.slot for job in written])
        self._let_go(
            [
                slot
                for slot, _, keep_class, was_gone in written
                if (slot.is_gone is was_gone and slot.keep_class is keep_class) or slot in failed
            ]
        )
        for slab, exc in unmade.items():
            self._lose_slab(slab, exc)

    def _note_failures(
        self,
        jobs: list[slab_io.WriteJob],
        unmade: dict[cache_slot.Slab, OSError],
        failed: dict[cache_slot.Slot, OSError],
    ) -> None:
        """Count them; where no chunk at all was written the folder is at fault."""
        self.errors += len(failed)
        tried = (job.slot for job in jobs if job.data is not None and job.slot.slab not in unmade)
        exc = next(iter(failed.values()))
        if all(slot in failed for slot in tried):
            self._mends.record_fault(exc)
        else:
            LOG.warning("%d chunks cannot be written: %s", len(failed), exc)

    def _forget_bytes(self, slots: Sequence[cache_slot.Slot]) -> None:
        """Have the bytes of slots in memory no more."""
        for slot in slots:
            if slot.data is not None:
                slot.data = None
                self.pending_bytes -= slot.length

    def _let_go(self, slots: Sequence[cache_slot.Slot]) -> None:
        """Forget slots that have no more to write."""
        for slot in slots:
            del self._dirty[slot]
        self._core.release_all(slots)

    def _lose_slab(self, slab: cache_slot.Slab, exc: OSError) -> None:
        """Go on without a slab that could not be made; its chunks look for other places."""
        self.errors += 1
        self._mends.record_fault(exc, is_full=True)
        stranded = [slot for slot in self._dirty if slot.slab is slab]
        again = [(s.cid, s.data, s.keep_class) for s in stranded if not s.is_gone]
        self._core.lose_slab(slab)
        self._forget_bytes(stranded)
        self._let_go(stranded)
        for cid, data, keep_class in again:
            if data is not None:
                self._store(cid, data, keep_class)
