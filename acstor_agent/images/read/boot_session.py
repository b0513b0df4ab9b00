# SPDX-License-Identifier: Apache-2.0
"""The boots of one image: its boot image, in memory before guests ask and dropped after it.

The head of the boot image comes from the source (and is kept on disk); its frames come like chunks,
through the cache, other hosts and the source, each frame once.  A chunk enters memory when it
hashes to its CID in the chunk map, and can be read from that moment; a guest that needs a chunk
whose frame is not there yet has that frame hurried instead of fetching the chunk beside it.
Whatever is wrong with a boot image, the guest reads on without it.
"""

import enum
import logging
import math
import pathlib
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator

import trio

from acstor_agent.cache import cache_files
from acstor_agent.core import counters
from acstor_agent.core.boot import boot_memory
from acstor_agent.core.boot import load_record
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.engine_io import exchange
from acstor_agent.engine_io import read_request
from acstor_agent.images.read import boot_head
from acstor_agent.runtime import disk_io
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.formats import boot_frames
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_common.util import atomic_file

LOG = logging.getLogger(__name__)

UNDER_WAY = 8
"""Frames of one boot image that are being loaded at a time."""
HEAD_PATIENCE_S = 1.0
"""How long a guest's read waits to learn whether its chunk is in the boot image."""
LOOK_AGAIN_S = 60.0
"""An image without a boot image, or with a bad one, is not looked at again for this long."""
TICK_S = 1.0
UNAVAILABLE = (errors.ChunkUnavailable, errors.DeadlineExceeded)
"""What ends the wait for a frame, or for the head: its chunks come one by one."""


class State(enum.Enum):
    """What has become of an image's boot image; the values are shown by ``status``."""

    UNKNOWN = "unknown"  # no guest has begun since the start
    LOADING = "loading"
    READY = "ready"  # all of it that is of use is in memory
    DROPPED = "dropped"  # the boot is over
    NONE = "none"  # there is none
    IGNORED = "ignored"  # it is damaged, or of other bytes
    REFUSED = "refused"  # there is no room in memory
    FAILED = "failed"  # it could not be had


class BootCounters:
    """What is counted of all boot images of this host.

    ``ahead`` came before a guest asked for them, with ``ahead_bytes``; ``ahead_used_bytes`` of
    what came so were needed by a guest later.
    """

    __slots__ = (
        *("dropped", "failed", "ignored", "loaded", "recorded", "refused"),
        *("ahead", "ahead_bytes", "ahead_used_bytes"),
    )

    def __init__(self) -> None:
        self.loaded = self.dropped = self.ignored = self.refused = self.failed = 0
        self.recorded = self.ahead = self.ahead_bytes = self.ahead_used_bytes = 0


class BootSessions:
    """What the boots of all images share.

    :param folder: where heads of boot images are kept
    :param frame_patience_s: how long a read waits for a frame before it fetches its chunk alone
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        source: base.Source,
        chunks: exchange.Exchange,
        cache: cache_files.CacheFiles,
        nursery: trio.Nursery,
        memory: boot_memory.BootMemory,
        frame_patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.source = source
        self.chunks = chunks
        self.cache = cache
        self.nursery = nursery
        self.memory = memory
        self.frame_patience_s = frame_patience_s
        self.clock = clock
        self.counters = BootCounters()
        self._images: dict[ids.ImageId, BootSession] = {}
        atomic_file.remove_leftovers(folder)

    def boots_of(self, image_map: chunk_map.ChunkMap) -> "BootSession":
        """Return the boots of an image that is attached now."""
        made = self._images[image_map.image_id] = BootSession(image_map, self)
        return made

    def make_room(self, image_id: ids.ImageId, size_bytes: int) -> bool:
        """Take memory for a boot image; say whether there is room."""
        dropped = self.memory.reserve(image_id, size_bytes, self.clock())
        for other in dropped or ():
            self._images[other].drop()
        return dropped is not None

    def forget_image(self, image_id: ids.ImageId) -> None:
        """Let go of an image that was dropped from this host, whether it was used or not."""
        gone = self._images.pop(image_id, None)
        if gone is not None:
            gone.end_session()
        else:
            boot_head.unlink(self.path_of(image_id))

    def forget_others(self, attached: Collection[ids.ImageId]) -> None:
        """Delete heads of images that are not attached: a killed worker may have left them."""
        wanted = {self.path_of(image_id) for image_id in attached}
        for path in self.folder.glob(f"*{base.BlobKind.BOOT_IMAGE.value}"):
            if path not in wanted:
                boot_head.unlink(path)

    def frame_cids(self, image_id: ids.ImageId) -> list[ids.Cid]:
        """Return what the frames of an image's boot image are, as far as its head is known."""
        image = self._images.get(image_id)
        return [frame.cid for frame in image.head.frames] if image and image.head else []

    def path_of(self, image_id: ids.ImageId) -> pathlib.Path:
        """Return where the head of a boot image is kept."""
        return self.folder / base.Blob(image_id, base.BlobKind.BOOT_IMAGE).name

    async def run(self) -> None:
        """Drop boot images whose boots are over, for ever."""
        while True:
            await trio.sleep(TICK_S)
            now_s = self.clock()
            for image_id, image in self._images.items():
                if image.was_read():
                    self.memory.note_use(image_id, now_s)
            for image_id in self.memory.take_due(now_s):
                self._images[image_id].drop()


class BootSession:
    """The boots of one image.

    ``in_memory`` has the chunks of the boot image by CID; it is empty except while guests boot.
    """

    def __init__(self, image_map: chunk_map.ChunkMap, host: BootSessions) -> None:
        self.in_memory: dict[ids.Cid, memoryview] = {}
        self.state = State.UNKNOWN
        self.begun_s = -math.inf
        """When a guest was about to boot last."""
        self.loading = load_record.LoadRecord(-math.inf)
        self._map = image_map
        self._host = host
        self._what = f"boot image of image {image_map.image_id}"
        path = host.path_of(image_map.image_id)
        self._head = boot_head.BootHead(image_map, path, host.source, self._what)
        self._is_head_known = trio.Event()
        self._scope = trio.CancelScope()
        self._look_again_s = 0.0
        self._tally = counters.Tally()
        self._requests_seen = 0

    @property
    def head(self) -> boot_image.Head | None:
        """Return the head of the boot image, if it is known here."""
        return self._head.head

    def content_at(self, offset: int, length: int) -> ids.Content | None:
        """Return what a frame is; see :meth:`boot_head.BootHead.content_at`."""
        return self._head.content_at(offset, length)

    def watch_reads(self, tally: counters.Tally) -> None:
        """Let the reads that ``tally`` counts show whether the boot image is of use."""
        self._tally = tally

    # What guests do

    def begin_boot(self) -> None:
        """Note that a guest is about to boot: have the boot image in memory."""
        host = self._host
        self.begun_s = host.clock()
        host.memory.note_boot(self._map.image_id, self.begun_s)
        if self.state in (State.LOADING, State.READY) or host.clock() < self._look_again_s:
            return
        if not host.memory.limit_bytes:
            return
        self.state = State.LOADING
        self.loading = load_record.LoadRecord(self.begun_s)
        self._is_head_known = trio.Event()
        self._scope = trio.CancelScope()
        guest = requests.Stream(requests.Klass.GUEST, self._map.image_id)
        with disk_io.use_stream(guest):  # who boots waits for the head
            host.nursery.start_soon(self._load, self._scope)

    def covers_chunk(self, cid: ids.Cid) -> bool:
        """Say whether a chunk is in memory or comes with a frame that is being loaded."""
        return cid in self.in_memory or (self.state is State.LOADING and cid in self._head.frames)

    @property
    def covers_nothing(self) -> bool:
        """Say that :meth:`covers_chunk` says no of each chunk."""
        return not self.in_memory and self.state is not State.LOADING

    def may_bring(self, cid: ids.Cid) -> bool:
        """Say whether :meth:`load_chunk` is worth a call."""
        if self.state is State.LOADING and not self._is_head_known.is_set():
            return True
        frame = self._head.frames.get(cid)
        return frame is not None and (self.state is State.LOADING or self._is_local(frame))

    async def load_chunk(self, cid: ids.Cid) -> read_request.FetchedChunk | None:
        """Return a chunk that a guest waits for if the boot image has it; None if it has not."""
        if self.state is State.LOADING and not self._is_head_known.is_set():
            with trio.move_on_after(HEAD_PATIENCE_S):
                await self._is_head_known.wait()
        frame = self._head.frames.get(cid)
        if frame is None or (self.state is not State.LOADING and not self._is_local(frame)):
            return None
        try:
            with trio.move_on_after(self._host.frame_patience_s):
                chunks, origin = await self._unpacked(frame, read_request.Priority.GUEST)
                self._keep(chunks)
                return read_request.FetchedChunk(chunks[cid], origin) if cid in chunks else None
        except errors.BootImageFormatError as e:
            self._ignore(e)
        except UNAVAILABLE as e:
            LOG.debug("%s: %s", self._what, e)
        return None

    def was_read(self) -> bool:
        """Say whether guests have read of it since the last time that this was asked."""
        requests = self._tally.requests[counters.Origin.BOOT]
        was_read, self._requests_seen = requests != self._requests_seen, requests
        return was_read

    def drop(self) -> None:
        """Give the memory back: the boot is over."""
        self._scope.cancel()
        self._end(State.DROPPED)
        self._host.counters.dropped += 1
        LOG.info("%s: dropped from memory", self._what)

    def end_session(self) -> None:
        """Stop everything; the image is not mirrored here any more."""
        self._scope.cancel()
        self._end(State.NONE)
        self._head.frames = {}
        boot_head.unlink(self._head.path)

    def _end(self, state: State) -> None:
        self._loaded(state)
        self.in_memory = {}
        self._is_head_known.set()
        self._host.memory.release_bytes(self._map.image_id)

    # Loading

    def _loaded(self, state: State) -> None:
        self.state = state
        now_s = self._host.clock()
        self.loading.head_s = self.loading.head_s or now_s
        self.loading.ended_s = self.loading.ended_s or now_s

    async def _load(self, scope: trio.CancelScope) -> None:
        with scope:
            try:
                await self._load_head()
                await self._load_frames()
                await self._head.look_for_newer()
            except errors.BootImageFormatError as e:
                self._ignore(e)
            except errors.ChunkMissing as e:
                self._head.forget_head()
                self._give_up(State.NONE, e)
            except UNAVAILABLE as e:
                if isinstance(e, errors.ChunkInvalid):  # another one has taken its place
                    self._head.forget_head()
                self._host.counters.failed += 1
                self._give_up(State.FAILED, e)

    def _give_up(self, state: State, why: errors.AcstorError) -> None:
        self._look_again_s = self._host.clock() + LOOK_AGAIN_S
        LOG.info("%s: not used: %s", self._what, why)
        self._end(state)

    def _ignore(self, why: errors.BootImageFormatError) -> None:
        """Use nothing of a boot image that is damaged, and say so."""
        if self.state is State.IGNORED:
            return
        LOG.warning("%s; ignored; guests boot without it", why)
        self._host.counters.ignored += 1
        self._scope.cancel()
        self._end(State.IGNORED)
        self._look_again_s = self._host.clock() + LOOK_AGAIN_S
        self._head.frames = {}
        self._head.forget_head()

    async def _load_head(self) -> None:
        await self._head.load()
        self.loading.head_s = self._host.clock()
        self._is_head_known.set()

    async def _load_frames(self) -> None:
        head = self.head
        await trio.lowlevel.checkpoint_if_cancelled()  # a thread may have outlasted the image
        if head is None:
            return
        if not self._host.make_room(self._map.image_id, head.raw_bytes):
            self._host.counters.refused += 1
            LOG.warning("%s: no space for %d bytes in memory", self._what, head.raw_bytes)
            self._end(State.REFUSED)
            return
        left = iter(head.frames)
        failures: list[errors.AcstorError] = []
        async with trio.open_nursery() as nursery:
            for _ in range(UNDER_WAY):
                nursery.start_soon(self._load_some, left, failures, nursery.cancel_scope)
        if failures:
            raise failures[0]
        self._loaded(State.READY)
        self._host.counters.loaded += 1
        LOG.info("%s: revision %d is in memory", self._what, head.header.revision)

    async def _load_some(
        self,
        left: Iterator[boot_image.Frame],
        failures: list[errors.AcstorError],
        scope: trio.CancelScope,
    ) -> None:
        """Load one frame after the other until none is left; one failure ends it for all."""
        try:
            for frame in left:
                if self._is_needed(frame):
                    chunks, _ = await self._unpacked(frame, read_request.Priority.SOON)
                    self._keep(chunks)
        except (*UNAVAILABLE, errors.BootImageFormatError) as e:
            failures.append(e)
            scope.cancel()

    def _is_needed(self, frame: boot_image.Frame) -> bool:
        """Say whether a frame has something that cannot be read here without it."""
        cids = [self._map.cid_of(chunk_no) for chunk_no in frame.chunk_nos]
        if all(cid in self.in_memory for cid in cids):
            return False
        return self._is_local(frame) or not all(map(self._host.chunks.has_chunk, cids))

    def _is_local(self, frame: boot_image.Frame) -> bool:
        return self._host.chunks.has_chunk(frame.cid)

    async def _unpacked(
        self, frame: boot_image.Frame, priority: read_request.Priority
    ) -> tuple[dict[ids.Cid, memoryview], counters.Origin]:
        """Return the chunks of a frame, each checked, and where the frame came from."""
        chunks, offset = self._host.chunks, base.AT_BOOT_IMAGE + frame.offset
        of = self._map.image_id, self._map.scope_keys
        want = chunks.want_at(*of, offset, frame.stored_bytes, frame.cid)
        patience_s = self._host.frame_patience_s
        under_way = self.loading
        fetched = await chunks.fetch_chunk(want, priority, patience_s, is_patient=False)
        under_way.frame_arrived(frame, fetched.origin)
        found = await trio.to_thread.run_sync(
            boot_frames.unpack_checked, self._map, frame, fetched.data, self._what
        )
        if self._host.cache.keep_for_boot(frame.cid):
            self._host.counters.ahead_used_bytes += frame.stored_bytes
        return found, fetched.origin

    def _keep(self, chunks: dict[ids.Cid, memoryview]) -> None:
        """Keep chunks in memory while guests boot; afterwards the cache is their place."""
        if self.state in (State.LOADING, State.READY):
            self.in_memory.update(chunks)
            return
        for cid, data in chunks.items():
            self._host.cache.store_chunk(cid, bytes(data))
