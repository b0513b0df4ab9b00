# SPDX-License-Identifier: Apache-2.0
"""Write-behind of the public cache: writes changed slots in batches.

Every slot with pending changes is in ``_dirty`` and held once by it, so it is not reused. Methods
without ``async`` never wait; call them from the event loop's thread.
"""

import errno
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import trio
from oslo_log import log as logging

from acstor_agent.cache import folder_recovery
from acstor_agent.cache import slab_files
from acstor_agent.cache import slab_io
from acstor_agent.core.cache import cache_actions
from acstor_agent.core.cache import cache_slot
from acstor_agent.core.cache import public_cache
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.runtime import disk_io
from acstor_common.model import geometry
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

BATCH_BYTES = 8 * geometry.MIB

Store = Callable[[ids.Cid, cache_slot.Data, public_cache.KeepClass], bool]


class WriteLimits(NamedTuple):
    """When chunks in memory are written, and how many there may be.

    :param enough_bytes: written at once; larger batches are no cheaper, and leave the CPU's cache
    :param gather_s: how long fewer bytes are gathered, because a thread switch costs the same for
        few chunks, and slow links bring one each 20 to 40 ms; after a kill they are fetched again
    """

    pending_bytes: int = 32 * geometry.MIB  # chunks in memory from which on producers are to wait
    enough_bytes: int = 2 * geometry.MIB
    batch_jobs: int = 512  # so many slots, too; below IOV_MAX, so a run of slots needs one call
    gather_s: float = 0.5


WRITE_LIMITS = WriteLimits()


class WriteBehind:
    """Writes slots to disk in batches; keep :meth:`run` running.

    Failed chunks are dropped, counted in ``errors``, and reported to ``recovery``. ``store`` stores
    a chunk again whose slab could not be created. ``pending_bytes`` are in memory only.
    """

    def __init__(
        self,
        files: slab_files.SlabFiles,
        recovery: folder_recovery.FolderRecovery,
        io: disk_io.DiskIo,
        store: Store,
        limits: WriteLimits = WRITE_LIMITS,
    ) -> None:
        self.pending_bytes = self.errors = 0
        self._files = files
        self._recovery = recovery
        self._core = recovery.core
        self._io = io
        self._store = store
        self._limits = limits
        self._enough_bytes = min(limits.enough_bytes, limits.pending_bytes)
        self._actions: list[cache_actions.SlabAction] = []
        self._dirty: dict[cache_slot.Slot, requests.Stream] = {}
        self._work, self._enough = trio.Event(), trio.Event()
        self._room = trio.Event()
        self._writer_thread = trio.CapacityLimiter(1)

    def can_take(self, length_bytes: int) -> bool:
        """Return whether one more chunk is acceptable from a producer that did not wait."""
        return self.pending_bytes + length_bytes <= 2 * self._limits.pending_bytes

    def add(
        self, slots: Sequence[cache_slot.Slot], actions: Sequence[cache_actions.SlabAction]
    ) -> None:
        """Queue slots with new ``data``, and slab actions to apply before them."""
        self.pending_bytes += sum([slot.length for slot in slots])
        self._actions += actions
        self._mark(slots)

    def add_slab_actions(self, actions: Sequence[cache_actions.SlabAction]) -> None:
        """Queue slab actions to apply before the next write."""
        self._actions += actions
        if actions:
            self._work.set()

    def mark_stale(self, slot: cache_slot.Slot) -> None:
        """Queue a slot whose record on disk is outdated."""
        if slot not in self._dirty:
            self._mark((slot,))

    def _mark(self, slots: Sequence[cache_slot.Slot]) -> None:
        self._dirty.update(dict.fromkeys(slots, disk_io.deferred_stream()))
        self._core.hold_all(slots)
        self._work.set()
        if self._is_enough:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Write pending slots without gathering more."""
        self._enough.set()

    @property
    def _is_enough(self) -> bool:
        is_batch = len(self._dirty) >= self._limits.batch_jobs
        return is_batch or self.pending_bytes >= self._enough_bytes

    @property
    def has_room(self) -> bool:
        """Whether the chunks in memory are below their limit."""
        return self.pending_bytes < self._limits.pending_bytes

    async def wait_for_room(self) -> None:
        """Wait until the chunks in memory are below their limit."""
        while not self.has_room:
            await self._room.wait()

    async def run(self) -> None:
        """Write new chunks to disk until cancelled."""
        while True:
            await self._work.wait()
            with trio.move_on_after(self._limits.gather_s):
                await self._enough.wait()
            due = len(self._dirty)  # later slots gather again
            while self._dirty or self._actions:
                due -= await self._write_batch()
                if due <= 0:
                    break
            if not self._is_enough:
                self._enough = trio.Event()
                if not (self._dirty or self._actions):
                    self._work = trio.Event()

    async def flush(self) -> None:
        """Write all pending slots."""
        while self._dirty or self._actions:
            await self._write_batch()

    async def aclose(self) -> None:
        """Write pending slots and close the files; no reads afterwards."""
        with trio.CancelScope(shield=True):
            await self.flush()
            async with self._recovery.write_lock:
                self._files.close()

    async def _write_batch(self) -> int:
        with trio.CancelScope(shield=True):
            async with self._recovery.write_lock:
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
        """Return the oldest jobs and their bytes; of one stream if a scheduler is active."""
        jobs: list[slab_io.WriteJob] = []
        batch_bytes, is_scheduling = 0, self._io.is_scheduling
        for slot, its in self._dirty.items():
            if batch_bytes >= BATCH_BYTES or len(jobs) == self._limits.batch_jobs:
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
        """Release the slots, except those that changed during the write."""
        if failed:
            self._note_failures(jobs, unmade, failed)
            for slot, data, _, _ in jobs:
                failure = failed.get(slot)
                if failure is not None and data is not None and slot.slab not in unmade:
                    self._core.drop_chunk(slot, is_bad_block=failure.errno == errno.EIO)
        written = [job for job in jobs if job.slot.slab not in unmade] if unmade else jobs
        self._forget_bytes([job.slot for job in written])
        self._release(
            [
                slot
                for slot, _, keep_class, was_gone in written
                if (slot.is_gone is was_gone and slot.keep_class is keep_class) or slot in failed
            ]
        )
        for slab, exc in unmade.items():
            self._drop_slab(slab, exc)

    def _note_failures(
        self,
        jobs: list[slab_io.WriteJob],
        unmade: dict[cache_slot.Slab, OSError],
        failed: dict[cache_slot.Slot, OSError],
    ) -> None:
        self.errors += len(failed)
        tried = (job.slot for job in jobs if job.data is not None and job.slot.slab not in unmade)
        exc = next(iter(failed.values()))
        if all(slot in failed for slot in tried):
            self._recovery.record_fault(exc)
        else:
            LOG.warning("%d chunks cannot be written: %s", len(failed), exc)

    def _forget_bytes(self, slots: Sequence[cache_slot.Slot]) -> None:
        for slot in slots:
            if slot.data is not None:
                slot.data = None
                self.pending_bytes -= slot.length

    def _release(self, slots: Sequence[cache_slot.Slot]) -> None:
        for slot in slots:
            del self._dirty[slot]
        self._core.release_all(slots)

    def _drop_slab(self, slab: cache_slot.Slab, exc: OSError) -> None:
        """Drop a slab that could not be created, and store its chunks elsewhere."""
        self.errors += 1
        self._recovery.record_fault(exc, is_full=True)
        stranded = [slot for slot in self._dirty if slot.slab is slab]
        again = [(s.cid, s.data, s.keep_class) for s in stranded if not s.is_gone]
        self._core.lose_slab(slab)
        self._forget_bytes(stranded)
        self._release(stranded)
        for cid, data, keep_class in again:
            if data is not None:
                self._store(cid, data, keep_class)
