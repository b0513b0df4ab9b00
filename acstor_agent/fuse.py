# SPDX-License-Identifier: Apache-2.0
"""The mirror as a file system: ``images/<image id>.raw``, read-only.

A guest's disk outlives the process behind it, so nothing here may depend on
what a former worker knew: inode numbers and file handles are made from image
ids, and a look-up attaches the image by itself.

What Nova and libvirt do to a base file is answered as follows: utime is
accepted and kept (Nova tells in this way that the image is in use), chown and
chmod are refused with EPERM and resizing or opening for writing with EROFS,
which libvirt takes for an answer; ENOSYS would make it refuse to start a guest.
"""

import errno
import functools
import logging
import os
import stat
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import ParamSpec
from typing import TypeVar

import pyfuse3
import trio
import xxhash

from acstor_agent import cache_files
from acstor_agent import fetcher
from acstor_agent import mirror
from acstor_agent import mirrors
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common import ids

LOG = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

ATTRIBUTES_LAST_S = 10.0
"""How long the kernel may believe sizes and block counts; the latter grow while chunks arrive."""

_IMAGES = pyfuse3.InodeT(2)
_IMAGES_NAME = b"images"
_ENDING = base.BlobKind.IMAGE.value
_STAT_BLOCK_BYTES = 512


def inode_of(image_id: ids.ImageId) -> pyfuse3.InodeT:
    """Return the inode number of a mirror: the same for every worker and after every restart."""
    return pyfuse3.InodeT(xxhash.xxh3_64_intdigest(ids.image_id_bytes(image_id)) | 1 << 63)


def _answers_errors(operation: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Turn every error of an operation into an errno; this is the only place that does.

    pyfuse3 ends its main loop at an error of any other kind, and the kernel would send the same
    request to the next worker: one bad request must not take every guest's disk away.
    """

    @functools.wraps(operation)
    async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await operation(*args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except errors.AcstorError as e:
            LOG.warning("%s %s: %s", operation.__name__, args[1:3], e)
            raise pyfuse3.FUSEError(errno.EIO) from e
        except OSError as e:
            LOG.warning("%s %s: %s", operation.__name__, args[1:3], e)
            raise pyfuse3.FUSEError(e.errno or errno.EIO) from e
        except Exception as e:
            LOG.exception("%s %s", operation.__name__, args[1:3])
            raise pyfuse3.FUSEError(errno.EIO) from e

    return guarded


class MirrorOperations(pyfuse3.Operations):
    """pyfuse3's requests, answered from the mirrors of this host.

    :param attach_deadline_s: how long a look-up may wait for an image's chunk map
    """

    enable_writeback_cache = False

    def __init__(
        self,
        images: mirrors.Mirrors,
        cache: cache_files.CacheFiles,
        attach_deadline_s: float,
    ) -> None:
        super().__init__()
        self._images = images
        self._cache = cache
        self._attach_deadline_s = attach_deadline_s
        self._image_ids: dict[int, ids.ImageId] = {}
        self._attached()

    @_answers_errors
    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Find a name; an image that is not attached yet is attached now."""
        if parent_inode == pyfuse3.ROOT_INODE and name == _IMAGES_NAME:
            return _folder_attributes(_IMAGES)
        if parent_inode != _IMAGES:
            raise pyfuse3.FUSEError(errno.ENOENT)
        try:
            stem, dot, ending = name.decode("ascii").rpartition(".")
            image_id = ids.parse_image_id(stem)
        except ValueError:
            raise pyfuse3.FUSEError(errno.ENOENT) from None
        if dot + ending != _ENDING or stem != image_id:
            raise pyfuse3.FUSEError(errno.ENOENT)
        await self._attach(image_id)
        return await self.getattr(inode_of(image_id), ctx)

    @_answers_errors
    async def getattr(
        self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Return what stat() shows; the blocks are those that are really cached."""
        if inode in (pyfuse3.ROOT_INODE, _IMAGES):
            return _folder_attributes(inode)
        found = await self._mirror(inode)
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = pyfuse3.ModeT(stat.S_IFREG | 0o444)
        entry.st_nlink = 1
        entry.st_size = found.size_bytes
        entry.st_blksize = found.map.geometry.chunk_bytes
        entry.st_blocks = await trio.to_thread.run_sync(found.cached_bytes) // _STAT_BLOCK_BYTES
        touched_ns = self._images.touched_ns(found.map.image_id)
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = touched_ns
        entry.attr_timeout = entry.entry_timeout = ATTRIBUTES_LAST_S
        return entry

    @_answers_errors
    async def setattr(
        self,
        inode: pyfuse3.InodeT,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: pyfuse3.FileHandleT | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Accept a new time stamp; refuse everything else."""
        if fields.update_size:
            raise pyfuse3.FUSEError(errno.EROFS)
        if fields.update_uid or fields.update_gid or fields.update_mode:
            raise pyfuse3.FUSEError(errno.EPERM)
        if fields.update_mtime and inode in self._image_ids:
            self._images.touch(self._image_ids[inode], attr.st_mtime_ns)
        return await self.getattr(inode, ctx)

    @_answers_errors
    async def open(
        self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.FileInfo:
        """Open an image for reading; its bytes never change, so the kernel may keep its pages."""
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            raise pyfuse3.FUSEError(errno.EROFS)
        await self._mirror(inode)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(inode), keep_cache=True)

    @_answers_errors
    async def read(self, fh: pyfuse3.FileHandleT, off: int, size: int) -> fetcher.Bytes:
        """Return bytes of an image; EIO when the deadline has passed."""
        image_id = self._image_ids.get(pyfuse3.InodeT(fh))
        found = self._images.get_nowait(image_id) if image_id else None
        if found is None:
            found = await self._mirror(pyfuse3.InodeT(fh))
        return await found.read(off, size)

    async def opendir(
        self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.FileHandleT:
        """Open one of the two folders."""
        return pyfuse3.FileHandleT(inode)

    @_answers_errors
    async def readdir(
        self, fh: pyfuse3.FileHandleT, start_id: int, token: pyfuse3.ReaddirToken
    ) -> None:
        """List ``images`` in the root, and the attached images in ``images``."""
        for number, (name, inode) in enumerate(self._entries(fh)[start_id:], start_id + 1):
            try:
                attributes = await self.getattr(inode, pyfuse3.RequestContext())
            except pyfuse3.FUSEError:
                continue
            if not pyfuse3.readdir_reply(token, pyfuse3.FileNameT(name), attributes, number):
                return

    def _entries(self, folder: int) -> Sequence[tuple[bytes, pyfuse3.InodeT]]:
        if folder == pyfuse3.ROOT_INODE:
            return [(_IMAGES_NAME, _IMAGES)]
        return [
            (f"{image_id}{_ENDING}".encode(), inode_of(image_id)) for image_id in self._attached()
        ]

    def _attached(self) -> list[ids.ImageId]:
        """Return the images that are attached, and know their inodes from now on."""
        attached = self._images.attached()
        self._image_ids.update((inode_of(image_id), image_id) for image_id in attached)
        return attached

    async def access(
        self, inode: pyfuse3.InodeT, mode: pyfuse3.ModeT, ctx: pyfuse3.RequestContext
    ) -> bool:
        """Everybody may look; the kernel checks the permission bits by itself."""
        return True

    @_answers_errors
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Show the public cache's size and what is left of it."""
        statistics = self._cache.statistics
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = answer.f_frsize = _STAT_BLOCK_BYTES
        answer.f_blocks = statistics.limit_bytes // _STAT_BLOCK_BYTES
        left = max(0, statistics.limit_bytes - statistics.disk_bytes)
        answer.f_bfree = answer.f_bavail = left // _STAT_BLOCK_BYTES
        answer.f_namemax = 255
        return answer

    async def _mirror(self, inode: pyfuse3.InodeT) -> mirror.Mirror:
        """Return the mirror of an inode, opened now if this worker has not met it yet."""
        image_id = self._image_ids.get(inode)
        if image_id is None:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return self._images.get_nowait(image_id) or await self._attach(image_id)

    async def _attach(self, image_id: ids.ImageId) -> mirror.Mirror:
        try:
            with trio.fail_after(self._attach_deadline_s):
                found = await self._images.attach(image_id)
        except trio.TooSlowError as e:
            raise errors.DeadlineExceeded(
                f"the chunk map of image {image_id}", self._attach_deadline_s
            ) from e
        except errors.ChunkMissing as e:
            LOG.info("%s", e)
            raise pyfuse3.FUSEError(errno.ENOENT) from e
        self._image_ids[inode_of(image_id)] = image_id
        return found


def _folder_attributes(inode: pyfuse3.InodeT) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = inode
    entry.st_mode = pyfuse3.ModeT(stat.S_IFDIR | 0o555)
    entry.st_nlink = 2
    entry.attr_timeout = entry.entry_timeout = ATTRIBUTES_LAST_S
    return entry
