# SPDX-License-Identifier: Apache-2.0
"""Reads of one image: zeros and cached chunks at once, others when they arrive.

A hit costs one lookup per chunk and one pread per run. Its answer lies in a shared buffer: the
caller must use it before the next await.
"""

import collections
import contextlib
import math
import mmap
import threading
import time
from collections.abc import Container
from collections.abc import Sequence
from typing import NamedTuple

import trio

from acstor_agent.cache import cache_files
from acstor_agent.core import counters
from acstor_agent.core.boot import boot_recorder
from acstor_agent.core.boot import boot_set
from acstor_agent.core.cache import cache_slot
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.images import fill_order
from acstor_agent.core.images import read_plan
from acstor_agent.core.images import readahead
from acstor_agent.engine import chunk_ref
from acstor_agent.engine_io import exchange
from acstor_agent.engine_io import read_request
from acstor_agent.images.read import advertised_prefetch
from acstor_agent.images.read import boot_session
from acstor_agent.images.read import read_admission
from acstor_agent.images.read import read_timing
from acstor_agent.runtime import interpreter
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids

MAX_READ_BYTES = 1 * geometry.MIB  # the longest read that the kernel sends

_ZEROS = bytes(MAX_READ_BYTES)
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # a fork would write into a shared mapping
_SCRATCH = memoryview(mmap.mmap(-1, MAX_READ_BYTES, flags=_PRIVATE))
"""Buffer for the answer to a read that hits."""
_LOCAL_ORIGIN = {
    read_plan.StepKind.ZERO: counters.Origin.ZERO,
    read_plan.StepKind.MEMORY: counters.Origin.BOOT,
    read_plan.StepKind.CACHE: counters.Origin.CACHE,
}
_Step = read_plan.Step[cache_slot.Slot]
Via = read_timing.Via


class BufferPool:
    """Reusable buffers for reads that wait: fresh memory costs more than copying."""

    def __init__(self, limit: int = 32) -> None:
        self.free: list[memoryview] = []
        self._limit = limit

    def take_buffer(self) -> memoryview:
        """Return a buffer of MAX_READ_BYTES, which may hold bytes of a former read."""
        return self.free.pop() if self.free else memoryview(mmap.mmap(-1, MAX_READ_BYTES))

    def put_back(self, buffer: memoryview) -> None:
        """Keep a buffer for the next read, unless there are enough."""
        if len(self.free) < self._limit:
            self.free.append(buffer)


SHARED_BUFFERS = BufferPool()


class CachedBytes(NamedTuple):
    """Bytes of an image's chunks, without zeros; ``boot``: what a boot reads, None if unknown."""

    cached_bytes: int
    missing_bytes: int
    boot: boot_set.BootSet | None = None


_KEPT_TIMES, _SHORT_S = 10, 0.05  # a count that took less than _SHORT_S is not cached


class Mirror:
    """A host's view of one image."""

    def __init__(
        self,
        image_map: chunk_map.ChunkMap,
        *,
        cache: cache_files.CacheFiles,
        chunks: exchange.Exchange,
        ahead: readahead.Predictor,
        prefetch: advertised_prefetch.AdvertisedPrefetch,
        boots: boot_session.BootSession,
        reads: read_admission.ReadAdmission,
        total: counters.ReadCounters | None = None,
    ) -> None:
        self.buffers, self._reads = SHARED_BUFFERS, reads
        self.map = image_map
        self.prefetch = prefetch
        self.boots = boots
        self.recorder: boot_recorder.BootRecorder | None = None
        self.timelines: dict[requests.Stream, read_timing.Timing] = {}
        self.attached_s = (-math.inf, -math.inf)
        """Begin and end of the load of its chunk map, by the monotonic clock."""
        self.waited_for: collections.deque[int] = collections.deque(maxlen=fill_order.WAITS)
        """Last chunks of the latest reads that had to wait, oldest first."""
        self.counters = counters.ReadCounters(total)
        boots.watch_reads(self.counters.read)
        self._cache = cache
        self._chunks = chunks
        self._ahead = ahead
        self.size_bytes = image_map.geometry.size_bytes
        self._chunk_bytes = image_map.geometry.chunk_bytes
        self._counting = threading.Lock()
        self._held: CachedBytes | None = None
        self._count_again_s = 0.0

    def cached_bytes(self) -> int:
        """Return the cached bytes; see :meth:`count_cached`."""
        return self.count_cached().cached_bytes

    def count_cached(self) -> CachedBytes:
        """Count cached and missing bytes; blocks, call it in a thread.

        A million chunks take 0.2 s and as long in pauses; a result is reused for ten times as long.
        """
        with self._counting:
            began_s = time.perf_counter()
            if self._held is None or began_s >= self._count_again_s:
                self._held = self._count_held()
                ended_s = time.perf_counter()
                self._count_again_s = ended_s + _KEPT_TIMES * (ended_s - began_s - _SHORT_S)
            return self._held

    def _count_held(self) -> CachedBytes:
        held = missing = 0
        for cids, pages in self.map.iter_blocks(interpreter.release):
            named = [cid for cid in cids if cid != ids.ZERO_CID]
            of_block = sum(cid in self._cache for cid in named)
            held += of_block * pages
            missing += (len(named) - of_block) * pages
        cached_bytes = min(held * self._chunk_bytes, self.size_bytes)
        missing_bytes = min(missing * self._chunk_bytes, self.size_bytes - cached_bytes)
        head, found = self.boots.head, None
        if head is not None:
            found = boot_set.count(head, self.map.cid_of, self._cache, interpreter.release)
        return CachedBytes(cached_bytes, missing_bytes, found)

    def chunk_ref_of(self, chunk_no: int) -> chunk_ref.ChunkRef:
        """Return the reference to request a chunk of this image."""
        return self._chunks.chunk_ref_of(self.map, chunk_no)

    def content_at(self, offset: int, length: int) -> ids.Content | None:
        """Return the content at exactly this range; ZERO_CID if there is none, None if unknown."""
        if offset >= base.AT_BOOT_IMAGE:
            return self.boots.content_at(offset, length)
        chunk_no = self.map.geometry.chunk_at(offset, length)
        return ids.Content(ids.ZERO_CID) if chunk_no is None else self.map.content_of(chunk_no)

    def contents_of(self, request: chunk_ref.Request) -> list[ids.Content] | None:
        """Return a request's contents, fewer at the image's end; None if one is unknown here."""
        size = request.chunk_bytes
        if size != self._chunk_bytes:
            found = [self.content_at(offset, length) for offset, length in request.iter_ranges()]
            named = [content for content in found if content is not None]
            return named if len(named) == len(found) else None
        first, start = divmod(request.offset, size)
        end = request.offset + request.length
        if start or end > self.size_bytes or (end % size and end != self.size_bytes):
            return []
        keys = self.map.scope_keys
        return [ids.Content(cid, keys) for cid in self.map.cids_between(first, -(-end // size))]

    async def read_at(
        self, offset: int, length: int, guest: requests.Stream | None = None
    ) -> read_request.Bytes:
        """Return a range of the image, cut at its end; use it before the next await.

        :param guest: stream to charge a wait to; None if it is tracked already
        :raises errors.QueueFull, errors.ReaderKilled: as :meth:`.ReadAdmission.run_admitted`
        :raises errors.DeadlineExceeded: a chunk did not arrive in time
        :raises errors.ChunkLost: a chunk exists nowhere
        """
        began_s = time.perf_counter()
        if offset + length > self.size_bytes or length > MAX_READ_BYTES:
            length = max(0, min(length, self.size_bytes - offset, MAX_READ_BYTES))
        self._read_ahead(offset, length)  # before the wait, to run in parallel
        data: read_request.Bytes | None = self._read_chunk_nowait(offset, length)
        if data is None:
            steps = self._plan(offset, length)
            data = self._read_steps_nowait(steps, length)
            if data is None:
                data = await self._read(offset, length, guest, steps)
        self.prefetch.read_completed(offset, length)
        self.counters.count_read(time.perf_counter() - began_s)
        return data

    def _plan(self, offset: int, length: int) -> list[_Step]:
        size = self._chunk_bytes
        cids = (
            self.map.cids_between(offset // size, -(-(offset + length) // size)) if length else []
        )
        in_memory = self.boots.in_memory
        return read_plan.plan(offset, length, size, cids, self._cache.lookup_all(cids), in_memory)

    def _read_chunk_nowait(self, offset: int, length: int) -> memoryview | None:
        """Return a range of one cached chunk, the most common read; None if it is not."""
        chunk_no, start = divmod(offset, self._chunk_bytes)
        if not 0 < length <= self._chunk_bytes - start or self.boots.in_memory:
            return None
        slot, view = self._cache.lookup(self.map.cid_of(chunk_no)), _SCRATCH[:length]
        if slot is None or not self._cache.read_slots_nowait([(slot, start, start + length)], view):
            return None
        self._count(counters.Origin.CACHE, length)
        return view

    def _count(
        self, origin: counters.Origin, length: int, via: Via | None = None, chunks: int = 1
    ) -> None:
        self.counters.read.add(origin, length, chunks)
        if self.timelines:
            read_timing.note_origin(via or Via(origin.value), length, read_admission.wait_reason())

    def _read_steps_nowait(self, steps: list[_Step], length: int) -> memoryview | None:
        if len(steps) == 1 and steps[0].data is not None:
            self._count(counters.Origin.BOOT, length)
            return steps[0].data
        view = _SCRATCH[:length]
        if _is_missing(steps) or not all(self._put_nowait(step, view) for step in steps):
            return None
        for step in steps:
            self._count(_LOCAL_ORIGIN[step.kind], step.stop - step.start)
        return view

    def _put_nowait(self, step: _Step, view: memoryview) -> bool:
        part = view[step.start : step.stop]
        if step.parts is not None:
            return self._cache.read_slots_nowait(step.parts, part)
        part[:] = step.data if step.data is not None else _ZEROS[: len(part)]
        return True

    async def _read(
        self, offset: int, length: int, guest: requests.Stream | None, steps: list[_Step]
    ) -> memoryview:
        self.counters.count_waiting(1)
        try:
            if guest is None:
                return await self._filled(offset, length, steps)
            is_local = not _is_missing(steps)
            return await self._reads.run_admitted(
                guest, self._filled, offset, length, steps, is_local=is_local
            )
        except errors.ReaderKilled:
            raise
        except errors.AcstorError as e:
            self.counters.count_failed(isinstance(e, errors.ChunkLost))
            raise
        finally:
            self.counters.count_waiting(-1)

    async def _filled(self, offset: int, length: int, steps: list[_Step]) -> memoryview:
        if length <= geometry.DEFAULT_CHUNK_BYTES:
            view = memoryview(bytearray(length))
            await self._fill(offset, view, steps)
            return view
        buffer = self.buffers.take_buffer()
        await self._fill(offset, buffer[:length], steps)
        self.buffers.put_back(buffer)  # not after a failure: a thread may still write to it
        return buffer[:length]

    async def _fill(self, offset: int, view: memoryview, steps: list[_Step] | None = None) -> None:
        """Fill ``view`` from ``offset``; all missing chunks are requested before the first wait."""
        if steps is None or self._has_arrived(steps):
            steps = self._plan(offset, len(view))
        fetches = [fetch for step in steps for fetch in step.fetches()]
        missing = [no for no, cid in fetches if not self.boots.may_load_chunk(cid)]
        are_others = len(missing) < len(fetches) or any(step.cids is None for step in steps)
        if not missing:
            await self._fill_others(offset, view, steps)
            return
        with self._request_missing(missing) as request:
            if are_others:
                await self._fill_others(offset, view, steps, frozenset(missing))
            self._put_all(offset, view, missing, await request.wait())

    def _has_arrived(self, steps: list[_Step]) -> bool:
        cids = [cid for step in steps if step.cids is not None for cid in step.cids]
        return any(map(self._chunks.has_chunk, cids)) or any(
            map(self.boots.in_memory.__contains__, cids)
        )

    def _request_missing(self, numbers: list[int]) -> read_request.ReadRequest:
        self.prefetch.guest_requested(numbers)
        if numbers[-1] not in self.waited_for:
            self.waited_for.append(numbers[-1])
        refs, guest = self._chunks.chunk_refs_of(self.map, numbers), read_request.Priority.GUEST
        return self._chunks.submit_read(
            refs, guest, self._reads.deadline_s, read_admission.current_wait()
        )

    def _put_all(
        self,
        offset: int,
        view: memoryview,
        numbers: list[int],
        chunks: Sequence[read_request.FetchedChunk],
    ) -> None:
        lengths: dict[counters.Origin, list[int]] = {}
        for chunk_no, (data, origin) in zip(numbers, chunks, strict=True):
            lengths.setdefault(origin, []).append(self._put(offset, view, chunk_no, data))
        for origin, its in lengths.items():
            self._count(origin, sum(its), chunks=len(its))

    def _put(self, offset: int, view: memoryview, chunk_no: int, data: read_request.Bytes) -> int:
        start = chunk_no * self._chunk_bytes - offset
        if start < 0:
            data, start = memoryview(data)[-start:], 0
        if len(data) > len(view) - start:
            data = memoryview(data)[: len(view) - start]
        view[start : start + len(data)] = data
        return len(data)

    async def _fill_others(
        self,
        offset: int,
        view: memoryview,
        steps: list[_Step],
        missing: Container[int] = frozenset(),
    ) -> None:
        left: list[int] = []
        for step in steps:
            for chunk_no, cid in step.fetches():
                if chunk_no in missing:
                    continue
                fetched = await self.boots.load_chunk(cid)
                if fetched is None:
                    left.append(chunk_no)
                else:
                    length = self._put(offset, view, chunk_no, fetched.data)
                    self._count(fetched.origin, length, Via.FRAME)
            if step.cids is not None:
                continue
            part = view[step.start : step.stop]
            if not self._put_nowait(step, view):
                assert step.parts is not None
                if await self._cache.read_parts(step.parts, part):
                    await self._fill(offset + step.start, part)  # bad chunks were dropped
                    continue
            self._count(_LOCAL_ORIGIN[step.kind], len(part))
        if left:
            await self._fill_left(offset, view, left)

    async def _fill_left(self, offset: int, view: memoryview, numbers: list[int]) -> None:
        missing: list[int] = []
        local: list[int] = []
        for chunk_no in numbers:
            is_local = self._chunks.has_chunk(self.map.cid_of(chunk_no))
            (local if is_local else missing).append(chunk_no)
        with self._request_missing(missing) if missing else contextlib.nullcontext() as request:
            for chunk_no in local:
                start = max(0, chunk_no * self._chunk_bytes - offset)
                stop = min((chunk_no + 1) * self._chunk_bytes - offset, len(view))
                await self._fill(offset + start, view[start:stop])
            if request is not None:
                self._put_all(offset, view, missing, await request.wait())

    def _read_ahead(self, offset: int, length: int) -> None:
        start, stop = self._ahead.predict_range(offset, length, trio.current_time())
        if start == stop:
            return
        size = self._chunk_bytes
        guest_requested = range(offset // size, (offset + length - 1) // size + 1)
        numbers = [
            chunk_no
            for chunk_no in range(start // size, -(-min(stop, self.size_bytes) // size))
            if chunk_no not in guest_requested
        ]
        refs = [w for w in self._chunks.chunk_refs_of(self.map, numbers) if w.cid != ids.ZERO_CID]
        if not self.boots.covers_nothing:
            refs = [ref for ref in refs if not self.boots.covers_chunk(ref.cid)]
        self._chunks.prefetch_soon(refs)


def _is_missing(steps: list[_Step]) -> bool:
    return any([step.cids is not None for step in steps])
