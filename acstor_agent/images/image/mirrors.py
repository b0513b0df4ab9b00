# SPDX-License-Identifier: Apache-2.0
"""The images that this host mirrors, and their chunk maps on disk.

The time stamp of a map's file is the mirror's: Nova touches the mirrors of images in use.
"""

import contextlib
import hashlib
import logging
import os
import pathlib
import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator

import trio

from acstor_agent.core import counters
from acstor_agent.core.mount import inodes
from acstor_agent.images.maps import file_mapping
from acstor_agent.images.read import mirror
from acstor_agent.runtime import interpreter
from acstor_agent.runtime import keyed_locks
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.disks import local_file
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.util import atomic_file

LOG = logging.getLogger(__name__)

MAP_READ_BYTES = 1 * geometry.MIB
MAX_MAP_BYTES = 4096 * geometry.MIB  # a longer map is rejected: it would be of an image of 7 TiB
MAX_ALL_MAPS_BYTES = 16 * 1024 * geometry.MIB  # those of 28 TiB of distinct chunks


class Mirrors:
    """All mirrors of this host."""

    def __init__(
        self,
        folder: pathlib.Path,
        source: base.Source,
        inode_numbers: inodes.Inodes,
        max_all_maps_bytes: int = MAX_ALL_MAPS_BYTES,
    ) -> None:
        self.max_all_maps_bytes = max_all_maps_bytes
        self._folder = folder
        self._source = source
        self.inode_numbers = inode_numbers
        self._mirrors: dict[ids.ImageId, mirror.Mirror] = {}
        self._attaching = keyed_locks.KeyedLocks[ids.ImageId]()
        self.reads = counters.ReadCounters()  # counters of all images, detached ones included
        atomic_file.remove_leftovers(folder)
        self._attached = _images_in(folder, logging.WARNING)
        self._found: set[ids.ImageId] = set()
        self._new: set[ids.ImageId] = set()
        self._coming_bytes = 0  # of maps that are being downloaded
        self._subjects: dict[ids.ImageId, chunk_map.Subject] = {}  # of images that are not open

    def set_mirror_factory(
        self, make: Callable[[chunk_map.ChunkMap], Awaitable[mirror.Mirror]]
    ) -> None:
        """Set what makes the mirror of a chunk map, before any image is attached."""
        self._make = make

    def list_attached(self) -> list[ids.ImageId]:
        """Return the attached images, read since the start or not; from any thread."""
        return sorted(self._attached.copy())

    @property
    def attached_now(self) -> Collection[ids.ImageId]:
        """A live view of the attached images, in order of attachment."""
        return self._attached.keys()

    def size_bytes(self, image_id: ids.ImageId) -> int | None:
        """Return the size of an attached image, None if its map is unreadable; from any thread."""
        subject = self._subject(image_id)
        return None if subject is None else subject.geometry.size_bytes

    def stored_blob(self, image_id: ids.ImageId) -> base.Blob | None:
        """Return the source's blob of an attached image; None like :meth:`size_bytes`."""
        subject = self._subject(image_id)
        return subject and base.stored_blob(image_id, subject.stored.disk_format)

    def scope_keys(self, image_id: ids.ImageId) -> chunk_map.ScopeKeys:
        """Return the scope keys of an attached image; none like :meth:`size_bytes`."""
        subject = self._subject(image_id)
        return () if subject is None else subject.scope_keys

    def _subject(self, image_id: ids.ImageId) -> chunk_map.Subject | None:
        if (opened := self._mirrors.get(image_id)) is not None:
            return opened.map.subject
        if (known := self._subjects.get(image_id)) is not None:
            return known
        try:
            with self._path(image_id).open("rb") as file:
                head = file.read(chunk_map.HEADER_BYTES)
            found = chunk_map_header.subject_of(head, str(self._path(image_id)), image_id)
        except (OSError, errors.ChunkMapFormatError):
            return None
        self._subjects[image_id] = found
        if image_id not in self._attached:  # detached meanwhile, in another thread
            self._subjects.pop(image_id, None)
        return found

    async def attach_new_maps(self) -> None:
        """Attach images whose maps appeared since the start."""
        found = await trio.to_thread.run_sync(_images_in, self._folder, logging.DEBUG)
        for image_id in found.keys() - self._attached.keys():
            if self._path(image_id).exists():  # it may have been detached since
                self._attached[image_id] = found[image_id]
                self._found.add(image_id)
                LOG.info("image %s: attached with its stored map", image_id)

    def was_attached_by_map(self, image_id: ids.ImageId) -> bool:
        """Return whether :meth:`attach_new_maps` attached an image."""
        return image_id in self._found

    def note_open(self, image_id: ids.ImageId) -> bool:
        """Record an open; return whether the kernel may keep pages: not those of a former map."""
        is_new = image_id in self._new
        self._new.discard(image_id)
        return not is_new

    def open(self) -> list[mirror.Mirror]:
        """Return the mirrors whose maps are open."""
        return list(self._mirrors.values())

    def failed_reads(self) -> int:
        """Return the number of failed reads."""
        return self.reads.failed_reads

    def get_nowait(self, image_id: ids.ImageId) -> mirror.Mirror | None:
        """Return the mirror if the image is attached and its map is open."""
        return self._mirrors.get(image_id)

    def is_attached(self, image_id: ids.ImageId) -> bool:
        """Return whether this host mirrors an image."""
        return image_id in self._attached

    def content_at(self, image_id: ids.ImageId, offset: int, length: int) -> ids.Content | None:
        """Return the content at a range, if attached; see ``Mirror.content_at``."""
        image = self._mirrors.get(image_id)
        return None if image is None else image.content_at(offset, length)

    def cids_of(self, image_id: ids.ImageId) -> Iterator[ids.Cid]:
        """Yield the CIDs of an image, none if its map is damaged; blocks, and opens no image."""
        opened = self._mirrors.get(image_id)
        try:
            found = opened.map if opened else open_map(self._path(image_id), image_id)
        except (OSError, errors.ChunkMapFormatError):
            return
        for cids, _pages in found.iter_blocks(interpreter.release):
            yield from (cid for cid in cids if cid != ids.ZERO_CID)

    async def attach_image(
        self, image_id: ids.ImageId, max_map_bytes: int = MAX_MAP_BYTES
    ) -> mirror.Mirror:
        """Return the mirror of an image; attach it if needed.

        :raises errors.Unusable: the map is longer
        :raises errors.ChunkUnavailable: the source has no such image, or does not answer
        :raises errors.ChunkMapFormatError: the source's map is invalid or of another image
        :raises errors.NumberInUse: the inode number is in use
        """
        async with self._attaching.hold(image_id):
            if image_id not in self._mirrors:
                began_s = time.monotonic()
                made = await self._make(await self._map_of(image_id, max_map_bytes))
                made.attached_s = began_s, time.monotonic()
                self._mirrors[image_id] = made
            return self._mirrors[image_id]

    async def open_attached(self, image_id: ids.ImageId) -> bool:
        """Open the map of an attached image, not from the source; return whether that worked."""
        path = self._path(image_id)
        if image_id in self._mirrors or image_id not in self._attached:
            return False
        async with self._attaching.hold(image_id):
            if image_id not in self._mirrors:
                try:
                    kept = await trio.to_thread.run_sync(open_map, path, image_id)
                except (errors.ChunkMapFormatError, OSError) as e:
                    LOG.debug("%s", e)
                    return False
                self._mirrors[image_id] = await self._make(kept)
        return True

    def detach_image(self, image_id: ids.ImageId) -> None:
        """Detach an image, but keep its chunks; raise Unusable if it is not attached (yet)."""
        if image_id in self._attaching:  # the mirror would exist without its map
            raise errors.Unusable(f"image {image_id}", "is being attached")
        if image_id not in self._attached:
            raise errors.Unusable(f"image {image_id}", "is not attached here")
        self._path(image_id).unlink(missing_ok=True)
        self._attached.pop(image_id, None)
        self._found.discard(image_id)
        self._new.discard(image_id)
        self._subjects.pop(image_id, None)
        self._mirrors.pop(image_id, None)
        LOG.info("image %s: detached", image_id)

    def touched_ns(self, image_id: ids.ImageId) -> int:
        """Return the mirror's time stamp."""
        try:
            return self._path(image_id).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def save_time_stamp(self, image_id: ids.ImageId, mtime_ns: int) -> None:
        """Set the mirror's time stamp."""
        os.utime(self._path(image_id), ns=(mtime_ns, mtime_ns))

    def _path(self, image_id: ids.ImageId) -> pathlib.Path:
        return self._folder / base.Blob(image_id, base.BlobKind.CHUNK_MAP).file_name

    async def _map_of(self, image_id: ids.ImageId, max_map_bytes: int) -> chunk_map.ChunkMap:
        path = self._path(image_id)
        if path.exists():
            # The folder may have been unavailable at the start.
            self._attached.setdefault(image_id, path.stat().st_size)
            try:
                return await trio.to_thread.run_sync(open_map, path, image_id)
            except errors.ChunkMapFormatError as e:
                LOG.warning("%s; fetching it from the source again", e)
        incoming = await self._download_map(image_id, path, max_map_bytes)
        self._attached[image_id] = incoming.size_bytes
        self._new.add(image_id)
        LOG.info("image %s: attached", image_id)
        return incoming

    async def _download_map(
        self, image_id: ids.ImageId, path: pathlib.Path, max_map_bytes: int
    ) -> chunk_map.ChunkMap:
        """Download and check an image's map; name it only after the check."""
        blob = base.Blob(image_id, base.BlobKind.CHUNK_MAP)
        what = f"{blob.file_name} from {self._source.location}"
        size_bytes = await self._source.size_bytes(blob)
        if size_bytes > MAX_MAP_BYTES:
            raise errors.ChunkMapFormatError(what, 0, f"{size_bytes} bytes are too many for a map")
        if size_bytes > max_map_bytes:
            raise errors.Unusable(what, f"its {size_bytes} bytes exceed the limit")
        with self._room_for(size_bytes, what):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with atomic_file.atomic_write(path, 0o600, is_durable=False) as incoming:
                for offset in range(0, size_bytes, MAP_READ_BYTES):
                    length = min(MAP_READ_BYTES, size_bytes - offset)
                    incoming.write(await self._source.read(blob, offset, length))
                incoming.flush()
                written, os_hash = pathlib.Path(incoming.name), self._source.os_hash(blob)
                if os_hash.algo:
                    await trio.to_thread.run_sync(_check_hash, written, os_hash, what)
                incoming_map = await trio.to_thread.run_sync(open_map, written, image_id, what)
                await self._check_image(incoming_map)
                self.inode_numbers.register_image(image_id)
                await trio.to_thread.run_sync(os.fsync, incoming.fileno())
        return incoming_map

    @contextlib.contextmanager
    def _room_for(self, size_bytes: int, what: str) -> Iterator[None]:
        self._coming_bytes += size_bytes
        try:
            all_bytes = sum(self._attached.values()) + self._coming_bytes
            if all_bytes > self.max_all_maps_bytes:
                raise errors.Unusable(
                    what,
                    f"with it all chunk maps take {all_bytes} of {self.max_all_maps_bytes} bytes",
                    "Detach images that no guest uses",
                )
            yield
        finally:
            self._coming_bytes -= size_bytes

    async def _check_image(self, image_map: chunk_map.ChunkMap) -> None:
        stored = image_map.layout.stored
        blob = base.stored_blob(image_map.image_id, stored.disk_format)
        size_bytes = await self._source.size_bytes(blob)
        if size_bytes != stored.size_bytes:
            raise errors.ChunkMapFormatError(
                f"chunk map of image {image_map.image_id}",
                chunk_map_header.AT_STORED_BYTES,
                f"it is for {stored.size_bytes} bytes, but {blob.file_name} from "
                f"{self._source.location} has {size_bytes}",
            )


def _images_in(folder: pathlib.Path, level: int) -> dict[ids.ImageId, int]:
    found = {}
    try:
        for name in os.listdir(folder):
            path = folder / name
            if path.suffix != base.BlobKind.CHUNK_MAP.value:
                continue
            try:
                image_id = ids.parse_image_id(path.stem)
            except ValueError:
                LOG.log(level, "%s: not the name of a chunk map; ignored", path)
                continue
            with contextlib.suppress(FileNotFoundError):
                found[image_id] = path.stat().st_size
    except OSError as e:
        LOG.log(level, "%s: cannot be read: %s; trying again", folder, e.strerror)
    return found


def _check_hash(path: pathlib.Path, os_hash: chunk_map.OsHash, what: str) -> None:
    try:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, os_hash.algo).digest()
    except ValueError as e:
        raise errors.ChunkMapFormatError(
            what, 0, f"its hash {os_hash.algo} is unsupported: {e}"
        ) from e
    if actual != os_hash.value:
        why = (
            f"its {os_hash.algo} is {actual.hex()[:16]}… instead of {os_hash.value.hex()[:16]}…, "
            "which Glance has: it was changed in the store. Prepare the image again "
            "(openstack acstor image prepare --force), and find out what writes to the store"
        )
        raise errors.ChunkMapFormatError(what, 0, why)


def open_map(path: pathlib.Path, image_id: ids.ImageId, what: str = "") -> chunk_map.ChunkMap:
    """Map the file into memory and check all of it; blocks, call it in a thread."""
    what = what or str(path)
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if not size_bytes:
            raise errors.ChunkMapFormatError(what, 0, "is empty")
        _check_readable(file.fileno(), size_bytes, what)
        buffer = file_mapping.read_only(file.fileno(), size_bytes)
    return chunk_map.ChunkMap.parse(
        buffer, what, expected_image_id=image_id, pause=interpreter.release
    )


def _check_readable(fd: int, size_bytes: int, what: str) -> None:
    piece = memoryview(bytearray(MAP_READ_BYTES))
    for offset in range(0, size_bytes, MAP_READ_BYTES):
        try:
            local_file.read_into(fd, piece, offset)
        except OSError as e:  # in the mapping, it would kill this worker and the next (SIGBUS)
            raise errors.ChunkMapFormatError(what, offset, f"unreadable: {e.strerror}") from e
