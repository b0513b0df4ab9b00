# SPDX-License-Identifier: Apache-2.0
"""The head of an image's boot image (its list of frames), from disk or source."""

import contextlib
import logging
import pathlib
from collections.abc import Iterable

import trio

from acstor_agent.images.maps import detached_maps
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_common.util import atomic_file

LOG = logging.getLogger(__name__)


class BootHead:
    """A boot image's head after :meth:`load`; ``frames``, by chunk CID, stay until the next one."""

    def __init__(
        self, image_map: chunk_map.ChunkMap, path: pathlib.Path, source: base.Source, what: str
    ) -> None:
        self.path = path
        self.head: boot_image.Head | None = None
        self.frames: dict[ids.Cid, boot_image.Frame] = {}
        self._map, self._source, self._what = image_map, source, what
        self._extents: dict[detached_maps.Extent, ids.Cid] = {}

    def content_at(self, offset: int, length: int) -> ids.Content | None:
        """Return the content of the frame at this range; None if unknown, as in other revisions."""
        cid = None if self.head is None else self._extents.get((offset, length))
        return None if cid is None else ids.Content(cid, self._map.scope_keys)

    async def load(self) -> None:
        """Load the head from disk or the source; raise ChunkUnavailable or BootImageFormatError."""
        if self.head is None:
            try:
                await self._take(self.path.read_bytes(), str(self.path))
            except (OSError, errors.BootImageFormatError):
                await self._download()

    async def check_for_newer(self) -> None:
        """Forget the head if the source has a newer revision, for the next boot."""
        with contextlib.suppress(errors.ChunkUnavailable):
            header = await self._read_header()
            if self.head is not None and header.revision > self.head.header.revision:
                LOG.info("%s: the source has revision %d", self._what, header.revision)
                self.forget_head()

    def forget_head(self) -> None:
        """Forget the head, so the next boot loads it from the source."""
        self.head = None
        unlink(self.path)

    async def _download(self) -> None:
        header = await self._read_header()
        raw = await self._read_source(0, header.head_bytes)
        await self._take(raw, self._what)
        try:
            with atomic_file.atomic_write(self.path, is_durable=False) as file:
                file.write(raw)
        except OSError as e:  # the disk may be full; the next worker reads the source
            LOG.warning("%s: its head cannot be stored: %s", self._what, e.strerror)

    async def _read_header(self) -> boot_image.Header:
        raw = await self._read_source(0, boot_image.HEADER_BYTES)
        header = boot_image.parse_header(raw, self._what)
        self._check(header)
        return header

    async def _read_source(self, offset: int, length: int) -> bytes:
        blob = base.Blob(self._map.image_id, base.BlobKind.BOOT_IMAGE)
        return await self._source.read(blob, offset, length)

    def _check(self, header: boot_image.Header) -> None:
        boot_image.check_binding(header, boot_image.Binding.from_map(self._map), self._what)

    async def _take(self, raw: bytes, what: str) -> None:
        head, self.frames = await trio.to_thread.run_sync(self._parse, raw, what)
        self.head, self._extents = head, detached_maps.boot_extents(head)

    def _parse(
        self, raw: bytes, what: str
    ) -> tuple[boot_image.Head, dict[ids.Cid, boot_image.Frame]]:
        head = boot_image.parse_head(raw, what)
        self._check(head.header)
        return head, frames_by_cid(self._map, head.frames)


def frames_by_cid(
    image_map: chunk_map.ChunkMap, frames: Iterable[boot_image.Frame]
) -> dict[ids.Cid, boot_image.Frame]:
    """Return the frame of each chunk; the first of several."""
    found: dict[ids.Cid, boot_image.Frame] = {}
    for frame in frames:
        for chunk_no in frame.chunk_nos:
            found.setdefault(image_map.cid_of(chunk_no), frame)
    return found


def unlink(path: pathlib.Path) -> None:
    """Delete a head; a failure is only logged, because heads are checked when read."""
    try:
        path.unlink(missing_ok=True)
    except OSError as e:
        LOG.warning("%s: %s", path, e.strerror)
