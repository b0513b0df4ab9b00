# SPDX-License-Identifier: Apache-2.0
"""The public cache of this host: chunks by CID, on the local disk.

Bytes are verified before they are stored, and by checksums at each read. A full or broken disk
costs chunks, never an answer. A new chunk is served from memory until it is on disk
(write_behind.py). Methods without ``async`` but ``in`` belong to the event loop's thread.
"""

import os
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import trio
from oslo_log import log as logging

from acstor_agent.cache import folder_recovery
from acstor_agent.cache import slab_files
from acstor_agent.cache import slab_io
from acstor_agent.cache import write_behind
from acstor_agent.core.cache import cache_actions
from acstor_agent.core.cache import cache_pins
from acstor_agent.core.cache import cache_slot
from acstor_agent.core.cache import folder_health
from acstor_agent.core.cache import public_cache
from acstor_agent.runtime import disk_io
from acstor_common import errors
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

READ_THREADS = 32


Pin = Callable[[ids.Cid, int], None]


class CacheFiles:
    """Chunks by CID on the local disk: :meth:`open` it, keep :meth:`run` running, and close it."""

    def __init__(
        self,
        files: slab_files.SlabFiles,
        recovery: folder_recovery.FolderRecovery,
        io: disk_io.DiskIo | None = None,
        write_limits: write_behind.WriteLimits = write_behind.WRITE_LIMITS,
    ) -> None:
        self._files = files
        self._io = io or disk_io.DiskIo()
        self._core = core = recovery.core
        self._recovery = recovery
        self.lookup, self.lookup_all = core.lookup, core.lookup_all
        """Return slots of CIDs, valid until the next checkpoint; counts as a use."""
        self.contents = core.contents  # a live view of the CIDs in the cache; event loop only
        self.read_slots_nowait = files.io.read_slots_nowait
        self._write_behind = write_behind.WriteBehind(
            files, recovery, self._io, self.store_chunk, write_limits
        )
        self.wait_for_room = self._write_behind.wait_for_room
        self._corrupt_chunks = self._rejected_chunks = 0
        self._reader_threads = trio.CapacityLimiter(READ_THREADS)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        limit_bytes: int,
        slab_bytes: int,
        order: type[cache_slot.Order] = cache_slot.LruOrder,
        io: disk_io.DiskIo | None = None,
        pins: cache_pins.Pins | None = None,
        write_limits: write_behind.WriteLimits = write_behind.WRITE_LIMITS,
        checks: folder_health.CheckIntervals = folder_health.CHECK_INTERVALS,
    ) -> "CacheFiles":
        """Open the cache in ``folder`` with the chunks of a former run; blocks for 3 us per chunk.

        An unusable or read-only folder is a ``fault``: chunks are not cached until it recovers.

        :param io: the way to the disk; None: one without a scheduler
        :raises errors.Unusable: another process has the folder
        """
        files = slab_files.SlabFiles(pathlib.Path(folder), min(slab_bytes, limit_bytes))
        pins = cache_pins.Pins() if pins is None else pins
        recovery = folder_recovery.FolderRecovery(
            files, lambda: public_cache.PublicCache(limit_bytes, slab_bytes, order, pins), checks
        )
        recovery.open()
        return cls(files, recovery, io, write_limits)

    @property
    def fault(self) -> folder_health.FolderFault | None:
        """The folder's fault, None if there is none."""
        return self._recovery.fault

    def __contains__(self, cid: object) -> bool:
        """Return whether the chunk is in the cache; any thread may call it."""
        return cid in self._core

    def is_written(self, cid: ids.Cid) -> bool:
        """Return whether the chunk is in the cache and on disk."""
        slot = self._core.slot_of(cid)
        return slot is not None and slot.data is None

    def iter_cids(self) -> Iterator[ids.Cid]:
        """Iterate over the CIDs in the cache now; any thread may call it."""
        return iter(self._core.cids())

    @property
    def statistics(self) -> cache_actions.Statistics:
        """The cache in numbers."""
        core = self._core
        names = [keep_class.name.lower() for keep_class in public_cache.KeepClass]
        return cache_actions.Statistics(
            chunks=len(core),
            stored_bytes=sum(core.usage.class_bytes),
            disk_bytes=core.disk_bytes,
            limit_bytes=core.limit_bytes,
            slabs=core.slab_count,
            evictions=core.evictions,
            corrupt_chunks=self._corrupt_chunks,
            rejected_chunks=self._rejected_chunks,
            write_errors=self._write_behind.errors,
            pending_bytes=self._write_behind.pending_bytes,
            pinned_bytes=core.usage.pinned_bytes,
            reserved_bytes=core.pins.slot_bytes,
            pinned_missing_chunks=self.pinned_missing,
            chunks_by_class=dict(zip(names, core.usage.class_chunks, strict=True)),
            bytes_by_class=dict(zip(names, core.usage.class_bytes, strict=True)),
        )

    async def read_parts(self, parts: Sequence[slab_io.Part], buffer: memoryview) -> list[ids.Cid]:
        """Fill ``buffer`` with ``parts``, back to back, in a thread.

        :return: bad or evicted chunks, now not in the cache; if any, the buffer is invalid
        """
        slots = [slot for slot, _, _ in parts]
        gone = [slot.cid for slot in slots if slot.is_gone]
        if gone:
            return gone
        wanted = [slab_io.ReadPart(slot, slot.data, start, stop) for slot, start, stop in parts]
        for slot in slots:
            self._core.hold_slot(slot)
        try:
            bad = await self._io.run(
                self._io.address_of(*slab_io.where(slots[0])),
                len(buffer),
                False,
                self._files.io.read_slots,
                wanted,
                buffer,
                limiter=self._reader_threads,
            )
            for slot in bad:
                self._drop_corrupt(slot)
        finally:
            for slot in slots:
                self._core.release(slot)
        return list(dict.fromkeys(slot.cid for slot in bad))

    def read_chunk_nowait(self, cid: ids.Cid) -> cache_slot.Data | None:
        """Return the immutable bytes of a chunk; None if absent or it would wait."""
        slot = self._core.lookup(cid)
        if slot is None:
            return None
        if slot.data is not None:
            return slot.data
        buffer = bytearray(slot.length)
        is_read = self.read_slots_nowait([(slot, 0, slot.length)], memoryview(buffer))
        return buffer if is_read else None

    def read_chunks_nowait(self, cids: Sequence[ids.Cid | None]) -> list[cache_slot.Data | None]:
        """Return the bytes of chunks; None as in :meth:`read_chunk_nowait`, and for None."""
        slots = [self._core.lookup(cid) if cid is not None else None for cid in cids]
        found: list[cache_slot.Data | None] = [slot.data if slot else None for slot in slots]
        parts = [(slot, 0, slot.length) for slot in slots if slot and slot.data is None]
        if len(parts) <= 1:
            return [
                self.read_chunk_nowait(slot.cid) if slot and data is None else data
                for slot, data in zip(slots, found, strict=True)
            ]
        view = memoryview(bytearray(sum([length for _, _, length in parts])))
        if not self.read_slots_nowait(parts, view):
            return [self.read_chunk_nowait(slot.cid) if slot else None for slot in slots]
        begin = 0
        for index, slot in enumerate(slots):
            if slot and found[index] is None:
                found[index] = view[begin : begin + slot.length]
                begin += slot.length
        return found

    def read_run_nowait(self, cids: Sequence[ids.Cid]) -> memoryview | None:
        """Return the bytes of chunks, back to back; None unless all are available at once."""
        slots = self._core.lookup_all(cids)
        parts = [(slot, 0, slot.length) for slot in slots if slot is not None]
        if len(parts) < len(slots):
            return None
        view = memoryview(bytearray(sum([stop for _, _, stop in parts])))
        return view if self.read_slots_nowait(parts, view) else None

    async def read_chunk(self, cid: ids.Cid) -> cache_slot.Data | None:
        """Return the immutable bytes of a chunk, None if it is not in the cache."""
        data = self.read_chunk_nowait(cid)
        slot = self._core.lookup(cid)
        if data is not None or slot is None:
            return data
        buffer = bytearray(slot.length)
        bad = await self.read_parts([(slot, 0, slot.length)], memoryview(buffer))
        return None if bad else buffer

    def _drop_corrupt(self, slot: cache_slot.Slot) -> None:
        if slot.is_gone:
            return
        LOG.warning(
            "Chunk %s is damaged in slab file %d; dropped", slot.cid.hex(), slot.slab.number
        )
        self._corrupt_chunks += 1
        self._drop(slot)

    def store_chunk(
        self,
        cid: ids.Cid,
        data: cache_slot.Data,
        keep_class: public_cache.KeepClass = public_cache.KeepClass.BORROWED,
    ) -> bool:
        """Store a chunk with verified, immutable ``data``; raise the class of one here.

        :return: False if it was not stored, because it is all zeros or there is no capacity
        """
        if cid == ids.ZERO_CID:
            return False
        if cid in self._core:
            return self.promote_chunk(cid, keep_class)
        if not (self._recovery.takes_chunks and self._write_behind.can_take(len(data))):
            self._rejected_chunks += 1
            return False
        try:
            slot, actions = self._core.allocate_slot(cid, len(data), keep_class)
        except errors.CacheFull:
            self._write_behind.flush_soon()  # queued chunks hold their slots until written
            self._rejected_chunks += 1
            return False
        slot.data = data
        self._write_behind.add((slot,), actions)
        return True

    def store_all(
        self,
        chunks: Sequence[tuple[ids.Cid, cache_slot.Data]],
        keep_class: public_cache.KeepClass = public_cache.KeepClass.BORROWED,
    ) -> list[bool]:
        """Store chunks as :meth:`store_chunk` does, in adjacent slots if possible."""
        stored: list[bool] = []
        while len(stored) < len(chunks):
            placed = self._store_some(chunks[len(stored) :], keep_class)
            stored += [True] * placed
            if not placed:
                stored.append(self.store_chunk(*chunks[len(stored)], keep_class))
        return stored

    def _store_some(
        self, chunks: Sequence[tuple[ids.Cid, cache_slot.Data]], keep_class: public_cache.KeepClass
    ) -> int:
        """Store the first chunks in free slots; return how many, 0 if one needs care."""
        length = len(chunks[0][1])
        is_one_length = all([len(data) == length for _, data in chunks])
        if len(chunks) == 1 or not is_one_length or not self._recovery.takes_chunks:
            return 0
        if not self._write_behind.can_take(length * len(chunks)):
            return 0
        slots = self._core.allocate_adjacent([cid for cid, _ in chunks], length, keep_class)
        for slot, (_, data) in zip(slots, chunks, strict=False):
            slot.data = data
        if slots:
            self._write_behind.add(slots, ())
        return len(slots)

    def promote_chunk(self, cid: ids.Cid, keep_class: public_cache.KeepClass) -> bool:
        """Raise the class of a chunk; return whether it is in the cache."""
        slot = self._core.slot_of(cid)
        if slot is None:
            return False
        if self._core.promote_chunk(slot, keep_class):
            self._write_behind.mark_stale(slot)
        return True

    def keep_for_boot(self, cid: ids.Cid) -> bool:
        """Keep a part of a boot image longer than other chunks (see ``PublicCache.bound_boot``).

        :return: whether it is the first use of a part that :meth:`keep_prefetched` kept
        """
        slot = self._core.slot_of(cid)
        was_prefetched = slot is not None and slot.keep_class is public_cache.KeepClass.PREFETCHED
        self.promote_chunk(cid, public_cache.KeepClass.BOOT)
        self._core.bound_boot()
        return was_prefetched

    def keep_prefetched(self, cid: ids.Cid) -> bool:
        """Keep a prefetched part of a boot image, after those in use; return whether it is here."""
        is_here = self.promote_chunk(cid, public_cache.KeepClass.PREFETCHED)
        self._core.bound_boot()
        return is_here

    @property
    def prefetched_limit_bytes(self) -> int:
        """Most bytes that :meth:`keep_prefetched` keeps, beside pins and boot images in use."""
        core, share = self._core, public_cache.BOOT_SHARES[public_cache.KeepClass.PREFETCHED]
        taken = core.pins.slot_bytes + core.usage.class_bytes[public_cache.KeepClass.BOOT]
        return max(0, min(core.limit_bytes // share, core.limit_bytes - taken))

    def pin_chunk(self, cid: ids.Cid, length: int) -> None:
        """Pin a chunk, present or not."""
        self._core.pin_chunk(cid, length)

    def is_pinned(self, cid: ids.Cid) -> bool:
        """Return whether a chunk is pinned, present or not."""
        return cid in self._core.pins

    def can_store_pinned(self, length: int) -> bool:
        """Return whether a pinned chunk of this length would be stored now."""
        return self._recovery.takes_chunks and self._core.can_store_pinned(length)

    def unpin_chunk(self, cid: ids.Cid, length: int) -> None:
        """Undo one :meth:`pin_chunk`, or raise KeyError if it is not pinned."""
        self._core.unpin_chunk(cid, length)

    @property
    def pinned_missing(self) -> int:
        """Number of pinned chunks that are missing."""
        return len(self._core.pins) - self._core.usage.pinned_chunks

    @property
    def pinned_lost(self) -> int:
        """Number of losses of pinned chunks; never decreases."""
        return self._core.pinned_lost

    def lacking_bytes(self, more: Mapping[int, int]) -> int:
        """Return the bytes that the limit lacks for all pins and ``more`` slots by size."""
        return self._core.lacking_bytes(more)

    def shrink_to_limit(self) -> None:
        """Evict what exceeds the limit and is not pinned any more."""
        self._write_behind.add_slab_actions(self._core.shrink_to_limit())

    def set_evicted_callback(self, callback: Callable[[ids.Cid], object]) -> None:
        """Set a callback for each chunk that leaves the cache, called in the event loop."""
        self._core.gone = callback

    def demote_chunk(self, cid: ids.Cid) -> bool:
        """Make a BORROWED chunk the next victim; return whether it is one."""
        return (slot := self._core.slot_of(cid)) is not None and self._core.demote_chunk(slot)

    def drop_chunk(self, cid: ids.Cid) -> bool:
        """Remove a chunk from the cache; return whether it was there."""
        if (slot := self._core.slot_of(cid)) is not None:
            self._drop(slot)
        return slot is not None

    def _drop(self, slot: cache_slot.Slot) -> None:
        self._write_behind.mark_stale(slot)  # clear the record before the slot is reused
        self._core.drop_chunk(slot)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write new chunks to disk and watch the folder until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_behind.run)
            nursery.start_soon(self._recovery.run)
            task_status.started()

    @property
    def has_room(self) -> bool:
        """Whether the chunks in memory are below their limit."""
        return self._write_behind.has_room

    async def aclose(self) -> None:
        """Write pending chunks and close the files; no reads afterwards."""
        await self._write_behind.aclose()
