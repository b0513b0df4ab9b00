# SPDX-License-Identifier: Apache-2.0
"""Reads guest-visible bytes of images from their stored files, such as qcow2.

A wrapper around one place, so that wrong bytes count against that place. Pieces become reads of the
stored file (``core/sources/stored_reads.py``), and are verified against CIDs. Compressed clusters
are decoded in threads while the rest is read; the layout bounds their bytes. A cache keeps clusters
of which only a part was needed, and slow ones. A raw image is passed through.
"""

import collections
import time
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple
from typing import Protocol

import trio

from acstor_agent.core.sources import stored_reads
from acstor_agent.sources import base
from acstor_agent.sources import chunk_verification
from acstor_agent.sources import driver
from acstor_agent.sources.wrappers import decode_threads
from acstor_common import errors
from acstor_common.formats import cluster_cache
from acstor_common.formats import codecs
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids

REMEMBERED_BYTES = 8 * layout.MAX_CLUSTER_BYTES
"""Size of the cache of decoded clusters, for each place."""
AT_ONCE_BYTES = geometry.MIB
"""Bytes decoded in a thread before they are reported: some milliseconds."""
SLOW_S = 0.005


class Layout(Protocol):
    """Where the bytes of an image are stored: a ``layout.Layout`` or a part of it."""

    @property
    def stored(self) -> layout.StoredFile:
        """The stored file."""

    @property
    def size_bytes(self) -> int:
        """Length that the guest sees."""

    def find(self, start: int, stop: int) -> list[layout.Extent]:
        """Return the extents of a range, or raise ChunkUnavailable if they are unknown now."""


Steps = Generator[int, None, base.Buffer]
"""Generates bytes; yields the number of bytes after each step."""
LayoutOf = Callable[[ids.ImageId], Layout | None]
"""Returns the layout of an image; None if it is not known."""


class LayoutSource(base.Wrapper):
    """Reads images at one place by their layouts; places share ``decoding``.

    :param nursery: runs decoding; must outlive the source's use
    :param slow_s: clusters that take longer to decode are always cached
    """

    def __init__(
        self,
        inner: base.Source,
        layout_of: LayoutOf,
        nursery: trio.Nursery,
        decoding: decode_threads.DecodeThreads | None = None,
        slow_s: float = SLOW_S,
    ) -> None:
        super().__init__(inner)
        self._layout_of, self._nursery, self._slow_s = layout_of, nursery, slow_s
        self._remembered = cluster_cache.ClusterCache(REMEMBERED_BYTES)
        self._decoding = decoding or decode_threads.DecodeThreads(nursery)

    async def size_bytes(self, blob: base.Blob) -> int:
        """Return the length that the guest sees, if the stored file exists."""
        found = self._layout(blob)
        if found is None:
            return await self._inner.size_bytes(blob)
        await self._inner.size_bytes(self._stored(blob, found))
        return found.size_bytes

    async def find_blob(self, blob: base.Blob) -> base.BlobState:
        """Return the state of the stored file, with the length that the guest sees."""
        found = self._layout(blob)
        if found is None:
            return await self._inner.find_blob(blob)
        seen = await self._inner.find_blob(self._stored(blob, found))
        return seen._replace(size_bytes=found.size_bytes)

    async def read_pieces(self, request: base.PieceRequest) -> None:
        """Read pieces by the image's layout."""
        blob, is_image = request.blob, request.blob.kind is base.BlobKind.IMAGE
        found = self._layout_of(blob.image_id) if is_image else None
        if not is_image or (found is not None and found.stored.is_identity):
            await self._inner.read_pieces(request)
            return
        driver.check_pieces(blob, request.pieces)
        if found is None:
            why = "the layout of the image is no longer cached"
            error = errors.SourceOverloaded(f"image {blob.image_id}", self.location, why)
            request.report([(number, error) for number in range(len(request.pieces))])
            return
        reading = _Reading(self.location, request, self._remembered, self._slow_s)
        reading.plan(found)
        stored = self._stored(blob, found)
        await reading.run(self._inner, stored, self._nursery, self._decoding)

    def _layout(self, blob: base.Blob) -> Layout | None:
        found = self._layout_of(blob.image_id) if blob.kind is base.BlobKind.IMAGE else None
        return None if found is None or found.stored.is_identity else found

    def _stored(self, blob: base.Blob, found: Layout) -> base.Blob:
        return base.stored_blob(blob.image_id, found.stored.disk_format)


class _Wanted(NamedTuple):
    number: int
    piece: base.BlobPiece
    fragments: list[stored_reads.Fragment]
    runs: list[tuple[int, int]]


class _Reading:
    """One call: its pieces, the reads for them, and the bytes that have arrived."""

    def __init__(
        self,
        where: str,
        request: base.PieceRequest,
        remembered: cluster_cache.ClusterCache,
        slow_s: float,
    ) -> None:
        self._where, self._blob, self._pieces = where, request.blob, request.pieces
        self._report: base.ReportOutcomes | None = request.report
        self._requester = request.requester
        self._remembered, self._slow_s = remembered, slow_s
        self._known: dict[layout.Extent, base.Buffer] = {}
        self._wrong: set[layout.Extent] = set()  # extents with wrong bytes
        self._missing: dict[int, int] = {}  # missing tiles, by piece number
        self._users: list[list[_Wanted]] = []  # by tile
        self._direct: dict[int, int] = {}  # pieces that equal a tile, by tile
        self._ready: collections.deque[_Wanted] = collections.deque()
        self._is_decoding = False
        self._left = len(request.pieces)
        self._done = trio.Event()

    def plan(self, found: Layout) -> None:
        outcomes: list[tuple[int, base.Outcome]] = []
        wanted = []
        for number, piece in enumerate(self._pieces):
            try:
                chunk = self._wanted(found, number, piece)
            except errors.ChunkUnavailable as error:
                outcomes.append((number, error))
                continue
            wanted.append(chunk)
            if not chunk.runs:
                self._ready.append(chunk)
        self._tiles = stored_reads.Tiles(run for chunk in wanted for run in chunk.runs)
        self._users = [[] for _ in self._tiles.ranges]
        for chunk in wanted:
            numbers = {number for run in chunk.runs for number in self._tiles.tiles_of_run(run)}
            self._missing[chunk.number] = len(numbers)
            for number in numbers:
                self._users[number].append(chunk)
        self._report_outcomes(outcomes)

    def _wanted(self, found: Layout, number: int, piece: base.BlobPiece) -> _Wanted:
        offset, length, _ = piece
        if offset + length > found.size_bytes:
            why = f"the image ends at byte {found.size_bytes}"
            raise errors.ChunkMissing(self._blob.describe_range(offset, length), self._where, why)
        fragments = stored_reads.fragments(offset, length, found.find(offset, offset + length))
        spans = []
        for fragment in fragments:
            extent = fragment.extent
            if fragment.is_part and extent.codec is not layout.Codec.STORED:
                if (data := self._remembered.get(extent, self._blob.image_id)) is not None:
                    self._known[extent] = data
                    continue
            spans.append(fragment.span)
        return _Wanted(number, piece, fragments, stored_reads.runs(spans))

    async def run(
        self,
        inner: base.Source,
        stored: base.Blob,
        nursery: trio.Nursery,
        decoding: decode_threads.DecodeThreads,
    ) -> None:
        self._nursery, self._decoding = nursery, decoding
        try:
            self._decode_soon()
            if self._tiles.ranges:
                pieces = self._stored_pieces()
                await inner.read_pieces(
                    base.PieceRequest(stored, pieces, self._receive_tiles, self._requester)
                )
            await self._done.wait()
        finally:
            self._report = None  # do not report after cancellation
            self._ready.clear()

    def _stored_pieces(self) -> list[base.BlobPiece]:
        """Return the reads of the place, with the CID where a tile is a whole chunk."""
        pieces = []
        for number, (start, stop) in enumerate(self._tiles.ranges):
            content = None
            match self._users[number]:
                case [one] if self._is_stored_whole(one):
                    self._direct[number] = one.number
                    content = one.piece.content
            pieces.append(base.BlobPiece(start, stop - start, content))
        return pieces

    def _is_stored_whole(self, chunk: _Wanted) -> bool:
        return (
            self._missing[chunk.number] == 1
            and stored_reads.is_one_fragment(chunk.piece.length, chunk.fragments)
            and chunk.fragments[0].extent.codec is layout.Codec.STORED
        )

    def _receive_tiles(self, answers: base.Outcomes) -> None:
        outcomes: list[tuple[int, base.Outcome]] = []
        for at, outcome in answers:
            if (number := self._direct.get(at)) is not None:
                outcomes.append((number, outcome))
            elif isinstance(outcome, Exception):
                for chunk in self._users[at]:
                    if self._missing.pop(chunk.number, None) is not None:
                        outcomes.append((chunk.number, outcome))
            else:
                self._tiles.put(at, outcome)
                for chunk in self._users[at]:
                    self._count_tile(chunk)
        self._report_outcomes(outcomes)
        self._decode_soon()

    def _count_tile(self, chunk: _Wanted) -> None:
        if chunk.number not in self._missing:
            return  # failed because of another tile
        self._missing[chunk.number] -= 1
        if not self._missing[chunk.number]:
            self._ready.append(chunk)

    def _decode_soon(self) -> None:
        if self._ready and not self._is_decoding:
            self._is_decoding = True
            self._nursery.start_soon(self._decode)

    async def _decode(self) -> None:
        batch: list[_Wanted] = []
        try:
            while self._ready:
                length = 0
                while self._ready and length < AT_ONCE_BYTES:
                    batch.append(self._ready.popleft())
                    length += batch[-1].piece.length
                outcomes: list[tuple[int, base.Outcome]] = []
                steps = self._made(batch, outcomes)
                await self._decoding.run(self._blob.image_id, self._requester, steps)
                self._release_tiles(batch)
                batch = []
                self._report_outcomes(outcomes)
        finally:
            self._is_decoding = False
            if batch:  # this task is being cancelled
                error = errors.SourceUnreachable(
                    self._blob.file_name, self._where, "it is being closed"
                )
                self._report_outcomes([(chunk.number, error) for chunk in (*batch, *self._ready)])
                self._ready.clear()

    def _release_tiles(self, batch: Sequence[_Wanted]) -> None:
        for chunk in batch:
            for number in {
                number for run in chunk.runs for number in self._tiles.tiles_of_run(run)
            }:
                self._users[number].remove(chunk)
                if not self._users[number]:
                    self._tiles.drop(number)

    def _report_outcomes(self, outcomes: base.Outcomes) -> None:
        if outcomes and self._report is not None:
            self._left -= len(outcomes)
            self._report(outcomes)
        if not self._left:
            self._done.set()

    # In threads, by steps that yield the number of bytes made

    def _made(
        self, batch: Sequence[_Wanted], outcomes: list[tuple[int, base.Outcome]]
    ) -> Iterator[int]:
        for chunk in batch:
            try:
                outcomes.append((chunk.number, (yield from self._checked(chunk))))
            except Exception as error:  # reported to the caller, whatever it is
                outcomes.append((chunk.number, error))
            yield chunk.piece.length

    def _checked(self, chunk: _Wanted) -> Steps:
        """Return the verified bytes of a piece; raises ChunkInvalid."""
        offset, length, content = chunk.piece
        what = self._blob.describe_range(offset, length)
        try:
            data = yield from self._assembled(chunk)
            if content is not None:
                chunk_verification.check_chunk(data, content, what, self._where)
        except codecs.CodecError as error:
            why = f"it does not decompress: {error}"
            raise errors.ChunkInvalid(what, self._where, why) from error
        except errors.ChunkInvalid:
            for fragment in chunk.fragments:
                self._wrong.add(fragment.extent)
                self._remembered.forget(fragment.extent, self._blob.image_id)
            raise
        return data

    def _assembled(self, chunk: _Wanted) -> Steps:
        if stored_reads.is_one_fragment(chunk.piece.length, chunk.fragments):
            fragment = chunk.fragments[0]
            data = yield from self._decoded(fragment)
            if len(data) == fragment.length:
                return data
            return bytes(self._part(data, fragment))  # copied, to free the rest
        buffer = bytearray(chunk.piece.length)
        for fragment in chunk.fragments:
            stop = fragment.to + fragment.length
            data = yield from self._decoded(fragment)
            buffer[fragment.to : stop] = self._part(data, fragment)
        return buffer

    def _part(self, data: base.Buffer, fragment: stored_reads.Fragment) -> memoryview:
        if len(data) == fragment.length:
            return memoryview(data)
        return memoryview(data)[fragment.skip : fragment.skip + fragment.length]

    def _decoded(self, fragment: stored_reads.Fragment) -> Steps:
        """Return a whole extent, or the needed part of one that is not compressed."""
        extent = fragment.extent
        if extent.codec is layout.Codec.STORED:
            return self._tiles.bytes_of(fragment.span)
        image_id = self._blob.image_id
        if (known := self._known.get(extent)) is not None:
            return known
        if (known := self._remembered.get(extent, image_id)) is not None:
            return known
        stored = self._tiles.bytes_of(fragment.span)
        began_s = time.monotonic()
        data = yield from codecs.decode_steps(extent.codec, stored, extent.length)
        is_slow = time.monotonic() - began_s >= self._slow_s
        if (fragment.is_part or is_slow) and extent not in self._wrong:
            self._remembered.put(extent, data, image_id)
        return data
