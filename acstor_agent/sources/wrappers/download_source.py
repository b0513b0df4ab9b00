# SPDX-License-Identifier: Apache-2.0
"""Serves blobs from local copies, for stores without range reads.

A copy starts with the first read of a blob and completes independently of its readers. Each host
copies chunk maps for itself. One host copies an image, and its boot image, for all; others ask it
as a home (``engine/fetch/read_through.py``). Copies are bounded in number and disk space.
"""

import collections
import dataclasses
import logging
import math
import os
import pathlib
import random
from collections.abc import Callable

import trio

from acstor_agent.core.sources import attempt_timeout
from acstor_agent.sources import base
from acstor_agent.sources import driver
from acstor_agent.sources import glance
from acstor_agent.sources.wrappers import full_download
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

ARTEFACTS_AT_A_TIME, IMAGES_AT_A_TIME = 4, 2
THREADS = 4

DelegatedHost = Callable[[ids.ImageId], str]
"""Returns in words which other host copies an image for all; empty: this one does."""


@dataclasses.dataclass(frozen=True)
class DownloadLimits:
    """Limits of copies."""

    stream: full_download.StreamLimits = dataclasses.field(
        default_factory=full_download.StreamLimits
    )
    idle_expiry_s: float = 600.0  # after its last read
    sweep_interval_s: float = 30.0  # between looks for copies that are kept no longer
    retry_s: float = 10.0  # after a failure
    recheck_s: float = 60.0  # between looks in Glance for a new artefact
    lookup_s: float = dataclasses.field(default_factory=lambda: attempt_timeout.BASE_S)  # in Glance
    chunk_map_wait_s: float = 30.0  # of one read for the stream
    boot_image_wait_s: float = 8.0
    image_wait_s: float = 5.0  # less than a peer's timeout (10 s)
    near_bytes: int = 32 * geometry.MIB  # reads further ahead in an image's stream fail at once
    head_bytes: int = 4 * geometry.MIB  # frame list of a boot image that another host copies
    free_space_parts: int = 2  # a copy takes one of these of the free space at most

    def wait_s(self, kind: base.BlobKind) -> float:
        """Return how long one read waits for a stream."""
        match kind:
            case base.BlobKind.CHUNK_MAP:
                return self.chunk_map_wait_s
            case base.BlobKind.BOOT_IMAGE:
                return self.boot_image_wait_s
        return self.image_wait_s


class DownloadSource(base.Source):
    """The copies of this host, on the file system of ``folder``; streams run in ``nursery``."""

    def __init__(
        self,
        source: glance.GlanceSource,
        folder: pathlib.Path,
        nursery: trio.Nursery,
        rng: random.Random,
        delegated_host: DelegatedHost = lambda image_id: "",
        limits: DownloadLimits | None = None,
    ) -> None:
        self.limits = limits or DownloadLimits()
        self._source, self._folder, self._delegated_host = source, folder, delegated_host
        self._nursery, self._rng = nursery, rng
        self._copies: collections.OrderedDict[base.Blob, full_download.FullDownload] = (
            collections.OrderedDict()
        )
        self._artefact_turns = trio.CapacityLimiter(ARTEFACTS_AT_A_TIME)
        self._image_turns = trio.CapacityLimiter(IMAGES_AT_A_TIME)
        self._threads = trio.CapacityLimiter(THREADS)
        self._is_looking = False

    @property
    def location(self) -> str:
        """The place that streams come from."""
        return f"{self._source.location} (whole)"

    def can_serve(self, blob: base.Blob) -> bool:
        """Return whether a blob would be copied: Glance has it, but serves no ranges."""
        return any(map(self._source.lacks_ranges, base.stored_blobs(blob)))

    def has_copy(self, blob: base.Blob) -> bool:
        """Return whether a copy of the whole blob is here or under way."""
        copies = map(self._copies.get, base.stored_blobs(blob))
        return any(copy is not None and copy.is_complete_or_running for copy in copies)

    def begin_download(self, image_id: ids.ImageId) -> None:
        """Start the copy of an image, unless another host copies it."""
        if self._delegated_host(image_id):
            return
        for blob in base.stored_blobs(base.Blob(image_id, base.BlobKind.IMAGE)):
            if self._source.lacks_ranges(blob) and blob not in self._copies:
                self._nursery.start_soon(self._download_unasked, blob)

    async def size_bytes(self, blob: base.Blob) -> int:
        """Return the size in Glance's record."""
        return (await self._find(blob, is_in_use=False)).size_bytes

    async def find_blob(self, blob: base.Blob) -> base.BlobState:
        """Return the state in Glance's record, also of a deactivated image."""
        location = await self._find(blob)
        return base.BlobState(location.size_bytes, location.glance_id)

    def os_hash(self, blob: base.Blob) -> chunk_map.OsHash:
        """Return Glance's hash of the stored bytes."""
        return self._source.os_hash(blob)

    async def read_pieces(self, request: base.PieceRequest) -> None:
        """Read pieces of a copy, as far as it arrives in time."""
        until_s = trio.current_time() + self.limits.wait_s(request.blob.kind)
        runs = driver.runs_of(request, self.location)
        for run in sorted(runs, key=lambda run: run.offset):
            try:
                await self._fill(run, until_s)
            except errors.ChunkUnavailable as error:
                run.pieces_failed(error)

    async def aclose(self) -> None:
        """Remove all copies."""
        for blob, copy in list(self._copies.items()):
            self._drop(blob)
            await copy.wait_deleted()

    async def _fill(self, run: driver.BlobRun, until_s: float) -> None:
        copy = await self._copy_of(run)
        with copy.hold_open():
            count_bytes = 0
            for piece in run.pieces:
                stop = piece.offset + piece.length
                if run.offset + count_bytes >= stop:
                    continue  # it was read with the previous piece
                if stop > copy.location.size_bytes:
                    raise self._ended(run, copy.location)
                if copy.received_bytes < stop:
                    is_near = stop <= copy.received_bytes + self.limits.near_bytes
                    waits = is_near or _is_artefact(run.blob)
                    await copy.wait_for(stop, until_s if waits else -math.inf)
                count_bytes = await copy.read_into(run, count_bytes)
                run.pieces_filled(count_bytes)

    def _ended(self, run: driver.BlobRun, location: glance.BlobLocation) -> errors.ChunkMissing:
        why = f"it ends at byte {location.size_bytes}"
        return errors.ChunkMissing(run.description, self.location, why)

    async def _copy_of(self, run: driver.BlobRun) -> full_download.FullDownload:
        blob, stop = run.blob, run.offset + run.length
        location = await self._place_of(blob)
        stop = min(stop, location.size_bytes)
        if run.offset >= stop:
            raise self._ended(run, location)
        copy = self._copies.get(blob)
        if (
            copy is not None
            and copy.location.glance_id == location.glance_id
            and stop <= copy.end_bytes
        ):
            self._copies.move_to_end(blob)
            if copy.failure is None:
                return copy
            if trio.current_time() < copy.last_used_s + self.limits.retry_s:
                raise copy.new_failure(stop)
        end_bytes = location.size_bytes
        if blob.kind is not base.BlobKind.CHUNK_MAP and (
            why := self._delegated_host(blob.image_id)
        ):
            end_bytes = min(end_bytes, self.limits.head_bytes)
            if blob.kind is not base.BlobKind.BOOT_IMAGE or stop > end_bytes:
                raise errors.ChunkRefused(
                    run.description, self.location, f"it cannot be read in ranges; {why}"
                )
        return self._begin(blob, location, end_bytes)

    async def _place_of(self, blob: base.Blob) -> glance.BlobLocation:
        copy, location = self._copies.get(blob), self._source.cached_location(blob)
        if location is None:
            return await self._find(blob)
        if copy is None or not _is_artefact(blob):
            return location
        if copy.checked_s < trio.current_time() - self.limits.recheck_s:
            copy.checked_s = trio.current_time()
            try:
                return await self._find(blob)
            except errors.SourceUnreachable as error:
                LOG.debug("%s", error)
        return location

    async def _find(self, blob: base.Blob, *, is_in_use: bool = True) -> glance.BlobLocation:
        with trio.move_on_after(self.limits.lookup_s):
            return await self._source.find(blob, is_in_use=is_in_use)
        why = f"no answer within {self.limits.lookup_s:g} s"
        raise errors.SourceUnreachable(f"a look-up of {blob.file_name}", self.location, why)

    def _begin(
        self, blob: base.Blob, location: glance.BlobLocation, end_bytes: int
    ) -> full_download.FullDownload:
        self._drop(blob)
        copy = self._copies[blob] = full_download.FullDownload(
            blob, location, end_bytes, self.location, self._threads, self.limits.stream
        )
        self._nursery.start_soon(self._download, copy)
        if not self._is_looking:
            self._is_looking = True
            self._nursery.start_soon(self._sweep)
        return copy

    async def _download_unasked(self, blob: base.Blob) -> None:
        try:
            location = await self._find(blob)
        except errors.ChunkUnavailable as error:
            LOG.debug("%s", error)
            return
        if blob not in self._copies:
            self._begin(blob, location, location.size_bytes)

    async def _download(self, copy: full_download.FullDownload) -> None:
        name = copy.blob.file_name
        with copy.download_during():
            is_artefact = _is_artefact(copy.blob)
            async with self._artefact_turns if is_artefact else self._image_turns:
                await self._make_room(copy)
                LOG.info("%s: downloading all %d bytes", name, copy.end_bytes)
                await copy.download_all(self._folder, self._rng, self._pour_of(copy))
        if copy.failure is not None and not copy.is_dropped:
            LOG.warning("%s: download failed, %s: %s", name, copy.progress, copy.failure.why)

    def _pour_of(self, copy: full_download.FullDownload) -> full_download.StreamBlob:
        return lambda take: self._source.download_blob(copy.blob, copy.location, take)

    def _drop(self, blob: base.Blob) -> None:
        copy = self._copies.pop(blob, None)
        if copy is not None:
            copy.drop()

    async def _make_room(self, copy: full_download.FullDownload) -> None:
        """Remove idle copies until there is space for this one, and reserve it."""
        while True:
            free_bytes = await copy.in_thread(self._free_bytes)
            free_bytes -= sum(other.reserved_bytes for other in self._copies.values())
            if copy.end_bytes <= free_bytes // self.limits.free_space_parts:
                copy.has_reserved_space = True
                return
            unused = next((other for other in self._copies.values() if other.is_idle), None)
            if unused is None:
                why = (
                    f"its copy needs {copy.end_bytes} bytes, and {free_bytes} are free in "
                    f"{self._folder}, of which it may take half"
                )
                raise errors.ChunkRefused(copy.blob.file_name, self.location, why)
            self._drop(unused.blob)
            await unused.wait_deleted()

    def _free_bytes(self) -> int:
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize

    async def _sweep(self) -> None:
        while self._copies:
            await trio.sleep(self.limits.sweep_interval_s)
            before_s = trio.current_time() - self.limits.idle_expiry_s
            for blob, copy in list(self._copies.items()):
                if copy.is_idle and copy.last_used_s < before_s:
                    self._drop(blob)
        self._is_looking = False


def _is_artefact(blob: base.Blob) -> bool:
    return blob.kind in glance.ARTEFACTS
