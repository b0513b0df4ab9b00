# SPDX-License-Identifier: Apache-2.0
"""The boots of one image, and its boot image in memory while they last.

The head comes from the source (and is kept on disk); frames come like chunks, by the exchange. A
chunk enters memory when it hashes to its CID in the chunk map. A guest that needs a chunk of a
missing frame raises the frame's priority. A bad boot image is ignored.
"""

import dataclasses
import enum
import logging
import math
import pathlib
import time
from collections.abc import Collection

import trio

from acstor_agent.cache import cache_files
from acstor_agent.core import counters
from acstor_agent.core.boot import boot_memory
from acstor_agent.core.boot import load_record
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.engine_io import exchange
from acstor_agent.engine_io import read_request
from acstor_agent.images.read import boot_head
from acstor_agent.images.read import limited_concurrency
from acstor_agent.runtime import disk_io
from acstor_agent.runtime import heap
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.formats import boot_frames
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import atomic_file

LOG = logging.getLogger(__name__)

MAX_IN_FLIGHT = 8
HEAD_TIMEOUT_S = 1.0  # how long a guest's read waits to learn whether the boot image has its chunk
RECHECK_S = 60.0  # least time before an image without a usable boot image is examined again
TICK_S = 1.0
UNAVAILABLE = (errors.ChunkUnavailable, errors.DeadlineExceeded)
"""Failures after which chunks are fetched one by one."""
FAILURES = (*UNAVAILABLE, errors.BootImageFormatError)


class State(enum.Enum):
    """State of an image's boot image; the values are shown by ``status``."""

    UNKNOWN = "unknown"  # no guest has booted since the start
    LOADING = "loading"
    READY = "ready"  # all needed frames are in memory, also those of the guests' profiles
    DROPPED = "dropped"
    NONE = "none"  # there is none
    IGNORED = "ignored"  # it is damaged, or was made of other data
    REFUSED = "refused"  # memory is short
    FAILED = "failed"  # the source did not provide it


@dataclasses.dataclass(slots=True)
class BootCounters:
    """Counters of all boot images of this host; the names are shown by ``status``."""

    loaded: int = 0
    dropped: int = 0
    ignored: int = 0
    refused: int = 0
    failed: int = 0
    recorded: int = 0
    prefetched: int = 0
    prefetched_bytes: int = 0
    prefetched_used_bytes: int = 0  # needed by guests later


class BootSessions:
    """State shared by the boots of all images."""

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        source: base.Source,
        chunks: exchange.Exchange,
        cache: cache_files.CacheFiles,
        nursery: trio.Nursery,
        memory: boot_memory.BootMemory,
        frame_timeout_s: float,
        clock: clocks.Clock = time,
    ) -> None:
        self.folder = folder
        self.source = source
        self.chunks = chunks
        self.cache = cache
        self.nursery = nursery
        self.memory = memory
        self.frame_timeout_s = frame_timeout_s
        self.clock = clock.monotonic
        self.counters = BootCounters()
        self._images: dict[ids.ImageId, BootSession] = {}
        atomic_file.remove_leftovers(folder)

    def boots_of(self, image_map: chunk_map.ChunkMap) -> "BootSession":
        """Return the boot session of an image that was attached now."""
        made = self._images[image_map.image_id] = BootSession(image_map, self)
        return made

    def reserve_memory(self, image_id: ids.ImageId, size_bytes: int) -> bool:
        """Reserve memory for a boot image; return whether there was enough."""
        dropped = self.memory.reserve(image_id, size_bytes, self.clock())
        for other in dropped or ():
            self._images[other].drop()
        return dropped is not None

    def forget_image(self, image_id: ids.ImageId) -> None:
        """Forget a detached image, and delete the head of its boot image."""
        gone = self._images.pop(image_id, None)
        if gone is not None:
            gone.end_session()
        else:
            boot_head.unlink(self.path_of(image_id))

    def delete_other_heads(self, attached: Collection[ids.ImageId]) -> None:
        """Delete heads of detached images, which a killed worker may have left."""
        wanted = {self.path_of(image_id) for image_id in attached}
        for path in self.folder.glob(f"*{base.BlobKind.BOOT_IMAGE.value}"):
            if path not in wanted:
                boot_head.unlink(path)

    def frame_cids(self, image_id: ids.ImageId) -> list[ids.Cid]:
        """Return the CIDs of a boot image's frames; none if its head is unknown."""
        image = self._images.get(image_id)
        return [frame.cid for frame in image.head.frames] if image and image.head else []

    def path_of(self, image_id: ids.ImageId) -> pathlib.Path:
        """Return the path of a boot image's head."""
        return self.folder / base.Blob(image_id, base.BlobKind.BOOT_IMAGE).file_name

    async def run(self) -> None:
        """Drop boot images whose boots are over, until cancelled."""
        while True:
            await trio.sleep(TICK_S)
            now_s = self.clock()
            for image_id, image in self._images.items():
                if image.note_reads():
                    self.memory.note_use(image_id, now_s)
            if due := self.memory.take_due(now_s):
                for image_id in due:
                    self._images[image_id].drop()
                await trio.to_thread.run_sync(heap.return_freed_memory)


class BootSession:
    """The boots of one image; ``in_memory`` has its boot image's chunks while guests boot."""

    def __init__(self, image_map: chunk_map.ChunkMap, host: BootSessions) -> None:
        self.in_memory: dict[ids.Cid, memoryview] = {}
        self.state = State.UNKNOWN
        self.begun_s = -math.inf
        self.loading = load_record.LoadRecord(-math.inf)
        self._profiles: set[ids.ProfileKey] = set()  # of guests that began to boot
        self._loaded: set[ids.ProfileKey] = set()  # whose frames are in memory; NO_PROFILE first
        self._reserved: set[int] = set()  # numbers of frames that have memory
        self._frames: dict[ids.Cid, boot_image.Frame] = {}  # these frames, by chunk
        self._map = image_map
        self._host = host
        self._what = f"boot image of image {image_map.image_id}"
        path = host.path_of(image_map.image_id)
        self._head = boot_head.BootHead(image_map, path, host.source, self._what)
        self._is_head_known, self._scope = trio.Event(), trio.CancelScope()
        self._look_again_s = 0.0
        self._tally = counters.Tally()
        self._requests_seen = 0

    @property
    def head(self) -> boot_image.Head | None:
        """The head of the boot image, if it is known here."""
        return self._head.head

    def content_at(self, offset: int, length: int) -> ids.Content | None:
        """Return the content of a frame; see :meth:`boot_head.BootHead.content_at`."""
        return self._head.content_at(offset, length)

    def watch_reads(self, tally: counters.Tally) -> None:
        """Set the counters that show whether guests read the boot image."""
        self._tally = tally

    def begin_boot(self, profile: ids.ProfileKey = ids.NO_PROFILE) -> None:
        """Load the boot image for a guest that is about to boot, with the chunks of its profile."""
        host = self._host
        self.begun_s = host.clock()
        host.memory.note_boot(self._map.image_id, self.begun_s)
        if self.state is State.LOADING:
            self._profiles.add(profile)
            return
        more = self.head.parts.keys() - self._loaded if self.head else set()
        is_enough = self.state is State.READY and profile not in more
        if is_enough or host.clock() < self._look_again_s or not host.memory.limit_bytes:
            return
        self._profiles.add(profile)
        self.state = State.LOADING
        self.loading = load_record.LoadRecord(self.begun_s)
        self._is_head_known, self._scope = trio.Event(), trio.CancelScope()
        guest = requests.Stream(requests.Klass.GUEST, self._map.image_id)
        with disk_io.use_stream(guest):  # the booting guest waits for the head
            host.nursery.start_soon(self._load, self._scope)

    def covers_chunk(self, cid: ids.Cid) -> bool:
        """Return whether a chunk is in memory, or in a frame that is loading."""
        return cid in self.in_memory or (self.state is State.LOADING and cid in self._frames)

    @property
    def covers_nothing(self) -> bool:
        """Return whether :meth:`covers_chunk` is False for every chunk."""
        return not self.in_memory and self.state is not State.LOADING

    def may_load_chunk(self, cid: ids.Cid) -> bool:
        """Return whether :meth:`load_chunk` may find a chunk."""
        if self.state is State.LOADING and not self._is_head_known.is_set():
            return True
        return self._frame_of(cid) is not None

    def _frame_of(self, cid: ids.Cid) -> boot_image.Frame | None:
        """Return the frame that is loading with a chunk, or one that is in the cache."""
        if self.state is State.LOADING and (frame := self._frames.get(cid)):
            return frame
        frame = self._head.frames.get(cid)
        return frame if frame is not None and self._is_local(frame) else None

    async def load_chunk(self, cid: ids.Cid) -> read_request.FetchedChunk | None:
        """Return a chunk from the boot image; None if it is not in it or does not arrive."""
        if self.state is State.LOADING and not self._is_head_known.is_set():
            with trio.move_on_after(HEAD_TIMEOUT_S):
                await self._is_head_known.wait()
        frame = self._frame_of(cid)
        if frame is None:
            return None
        try:
            with trio.move_on_after(self._host.frame_timeout_s):
                chunks, origin = await self._fetch_frame(frame, read_request.Priority.GUEST)
                return read_request.FetchedChunk(chunks[cid], origin) if cid in chunks else None
        except errors.BootImageFormatError as e:
            self._ignore(e)
        except UNAVAILABLE as e:
            LOG.debug("%s: %s", self._what, e)
        return None

    def note_reads(self) -> bool:
        """Record the reads of the boot image; return whether there were any since the last call."""
        requests = self._tally.requests[counters.Origin.BOOT]
        was_read, self._requests_seen = requests != self._requests_seen, requests
        return was_read

    def drop(self) -> None:
        """Release the memory at the end of a boot."""
        self._scope.cancel()
        self._end(State.DROPPED)
        self._host.counters.dropped += 1
        LOG.info("%s: dropped from memory", self._what)

    def end_session(self) -> None:
        """End all loading; the image is not mirrored here any more."""
        self._scope.cancel()
        self._end(State.NONE)
        self._head.frames = {}
        boot_head.unlink(self._head.path)

    def _end(self, state: State) -> None:
        self._loading_ended(state)
        self.in_memory = {}
        self._profiles.clear()
        self._loaded, self._reserved, self._frames = set(), set(), {}
        self._is_head_known.set()
        self._host.memory.release_bytes(self._map.image_id)

    def _loading_ended(self, state: State) -> None:
        self.state = state
        now_s = self._host.clock()
        self.loading.head_s = self.loading.head_s or now_s
        self.loading.ended_s = self.loading.ended_s or now_s

    async def _load(self, scope: trio.CancelScope) -> None:
        with scope:
            try:
                await self._load_head()
                await self._load_frames()
                await self._head.check_for_newer()
            except errors.BootImageFormatError as e:
                self._ignore(e)
            except errors.ChunkMissing as e:
                self._head.forget_head()
                self._give_up(State.NONE, e)
            except UNAVAILABLE as e:
                if isinstance(e, errors.ChunkInvalid):
                    self._head.forget_head()
                self._host.counters.failed += 1
                self._give_up(State.FAILED, e)

    def _give_up(self, state: State, why: errors.AcstorError) -> None:
        self._look_again_s = self._host.clock() + RECHECK_S
        LOG.info("%s: not used: %s", self._what, why)
        self._end(state)

    def _ignore(self, why: errors.BootImageFormatError) -> None:
        if self.state is State.IGNORED:
            return
        LOG.warning("%s; ignored; guests boot without it", why)
        self._host.counters.ignored += 1
        self._scope.cancel()
        self._end(State.IGNORED)
        self._look_again_s = self._host.clock() + RECHECK_S
        self._head.frames = {}
        self._head.forget_head()

    async def _load_head(self) -> None:
        await self._head.load()
        self.loading.head_s = self._host.clock()
        self._is_head_known.set()

    async def _load_frames(self) -> None:
        head = self.head
        if head is None:
            return
        if ids.NO_PROFILE not in self._loaded:
            if not await self._load_part(head, ids.NO_PROFILE):
                self._end(State.REFUSED)
                return
        while more := self._profiles & head.parts.keys() - self._loaded:
            profile = more.pop()  # guests of others may begin meanwhile
            try:
                is_loaded = await self._load_part(head, profile)
            except UNAVAILABLE as e:
                is_loaded = False
                LOG.info("%s: not all chunks of a profile are in memory: %s", self._what, e)
            await trio.lowlevel.checkpoint_if_cancelled()
            if not is_loaded:
                self._profiles.discard(profile)
        self._loading_ended(State.READY)
        self._host.counters.loaded += 1
        LOG.info("%s: revision %d is in memory", self._what, head.header.revision)

    async def _load_part(self, head: boot_image.Head, profile: ids.ProfileKey) -> bool:
        """Load the frames of a profile; return whether there was memory for them."""
        await trio.lowlevel.checkpoint_if_cancelled()  # a thread may outlast the image
        frames = list(head.frames_of({*self._loaded, profile}))
        reserved = self._reserved | {frame.number for frame in frames}
        raw_bytes = sum(head.frames[number].raw_bytes for number in reserved)
        if not self._host.reserve_memory(self._map.image_id, raw_bytes):
            self._host.counters.refused += 1
            LOG.warning("%s: no space for %d bytes in memory", self._what, raw_bytes)
            return False
        self._reserved = reserved
        self._frames = {**boot_head.frames_by_cid(self._map, frames), **self._frames}
        work = self._load_frame
        await limited_concurrency.run_for_each(frames, work, MAX_IN_FLIGHT, FAILURES)
        await trio.lowlevel.checkpoint_if_cancelled()
        self._loaded.add(profile)
        return True

    async def _load_frame(self, frame: boot_image.Frame) -> None:
        if self._is_needed(frame):
            await self._fetch_frame(frame, read_request.Priority.READAHEAD)

    def _is_needed(self, frame: boot_image.Frame) -> bool:
        """Return whether a frame has a chunk that is not readable here otherwise."""
        cids = [self._map.cid_of(chunk_no) for chunk_no in frame.chunk_nos]
        if all(cid in self.in_memory for cid in cids):
            return False
        return self._is_local(frame) or not all(map(self._host.chunks.has_chunk, cids))

    def _is_local(self, frame: boot_image.Frame) -> bool:
        return self._host.chunks.has_chunk(frame.cid)

    async def _fetch_frame(
        self, frame: boot_image.Frame, priority: read_request.Priority
    ) -> tuple[dict[ids.Cid, memoryview], counters.Origin]:
        chunks, offset = self._host.chunks, base.AT_BOOT_IMAGE + frame.offset
        of = self._map.image_id, self._map.scope_keys
        ref = chunks.chunk_ref_at(*of, offset, frame.stored_bytes, frame.cid)
        loading, timeout_s = self.loading, self._host.frame_timeout_s
        fetched = await chunks.fetch_chunk(ref, priority, timeout_s, is_retried=False)
        loading.frame_arrived(frame, fetched.origin)
        found = await trio.to_thread.run_sync(
            boot_frames.unpack_checked, self._map, frame, fetched.data, self._what
        )
        if self._host.cache.keep_for_boot(frame.cid):
            self._host.counters.prefetched_used_bytes += frame.stored_bytes
        if frame.number in self._reserved:
            self.in_memory.update(found)
        else:
            for cid, data in found.items():
                self._host.cache.store_chunk(cid, bytes(data))
        return found, fetched.origin
