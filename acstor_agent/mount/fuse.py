# SPDX-License-Identifier: Apache-2.0
"""FUSE operations: ``images/<image id>.raw`` (read-only), ``disks/<disk id>.raw``.

A guest's open file outlives the worker, so nothing depends on a former worker's memory: inode
numbers and handles are computed from IDs, a lookup attaches the image, and writes are idempotent.

On images, utime is stored (Nova's sign of use); other changes fail with EROFS, which libvirt
tolerates (with ENOSYS it does not start the guest). On disks, chown, chmod and utime are carried
out; a change of length fails with EPERM.
"""

import errno
import functools
import logging
import os
import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Coroutine
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import NoReturn
from typing import ParamSpec
from typing import TypeVar

import pyfuse3
import trio

from acstor_agent.cache import cache_files
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.disks import disk_header
from acstor_agent.core.mount import inodes
from acstor_agent.disks import disk
from acstor_agent.disks import disks
from acstor_agent.engine_io import read_request
from acstor_agent.images.boot import boot_recording
from acstor_agent.images.boot import boot_timelines
from acstor_agent.images.image import mirrors
from acstor_agent.images.image import reattach
from acstor_agent.images.image import usage
from acstor_agent.images.read import mirror
from acstor_agent.mount import folder_entries
from acstor_agent.mount import fuse_attributes
from acstor_agent.mount import killed_guests
from acstor_agent.runtime import disk_io
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import log_limit

LOG = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_ENDING = base.BlobKind.IMAGE.value

LOG_INTERVAL_S = 10.0
_log_limit = log_limit.LogLimit(LOG_INTERVAL_S)


def _log_failure(what: str, args: tuple[object, ...], error: Exception) -> None:
    kind = what, args if what == "lookup" else args[:1], type(error)
    unlogged = _log_limit.take_line(kind, trio.current_time())
    if unlogged is not None:
        LOG.warning("%s %s: %s (and %d like it)", what, args, error, unlogged)


def _answers_errors(
    operation: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Turn every error into an errno; another exception would end this and the next worker."""

    @functools.wraps(operation)
    async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await operation(*args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        # Already logged, once for all. With EINTR a terminating QEMU would retry.
        except (errors.ReaderKilled, errors.QueueFull) as e:
            raise pyfuse3.FUSEError(errno.EIO) from e
        except errors.AcstorError as e:
            _log_failure(operation.__name__, args[1:3], e)
            raise pyfuse3.FUSEError(errno.EIO) from e
        except OSError as e:
            _log_failure(operation.__name__, args[1:3], e)
            raise pyfuse3.FUSEError(e.errno or errno.EIO) from e
        except Exception as e:
            LOG.exception("%s %s", operation.__name__, args[1:3])
            raise pyfuse3.FUSEError(errno.EIO) from e

    return guarded


class OpenObservers(NamedTuple):
    """Parts that are notified when a guest opens or closes an image."""

    usage: usage.ImageUsage
    recording: boot_recording.BootRecording | None
    timelines: boot_timelines.BootTimelines


class MirrorOperations(pyfuse3.Operations):
    """pyfuse3 operations on the mirrors and disks of this host."""

    enable_writeback_cache = False

    def __init__(
        self,
        images: mirrors.Mirrors,
        writable_disks: disks.Disks,
        cache: cache_files.CacheFiles,
        inode_numbers: inodes.Inodes,
        reattached: reattach.Reattach,
        observers: OpenObservers,
        attach_deadline_s: float,
        gid: int = 0,
    ) -> None:
        super().__init__()
        self._images, self._disks, self._cache = images, writable_disks, cache
        self._inodes, self._reattached, self._observers = inode_numbers, reattached, observers
        self._attach_deadline_s, self._gid = attach_deadline_s, gid
        self._entries = folder_entries.FolderEntries(images, writable_disks, inode_numbers)
        for taken in inode_numbers.register_all(images.list_attached(), self._list_disks()):
            LOG.error("%s; neither is served", taken)

    def _list_disks(self) -> list[disk_header.DiskId]:
        try:
            return self._disks.list_disks()
        except OSError as e:  # images are served without them
            LOG.error("%s", e)
            return []

    def name_guests(self, is_on: bool) -> None:
        """Switch the attribution of I/O to disks and openers of images, which has a cost."""
        for operation in ("read", "write", "fsync"):
            if is_on:
                self.__dict__[operation] = self._as_guest(getattr(type(self), operation))
            else:
                self.__dict__.pop(operation, None)

    def _as_guest(self, operation: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def named(fh: pyfuse3.FileHandleT, *args: object) -> T:
            with disk_io.use_stream(self._inodes.guest_of(fh)):
                return await operation(self, fh, *args)

        return named

    @_answers_errors
    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Look up a name; attach the image if needed."""
        if len(name) > fuse_attributes.NAME_MAX:  # the kernel lets names of 1,024 bytes through
            raise pyfuse3.FUSEError(errno.ENAMETOOLONG)
        if parent_inode == pyfuse3.ROOT_INODE:
            for inode, folder in folder_entries.FOLDERS.items():
                if name == folder:
                    return fuse_attributes.of_folder(inode, self._gid)
        if parent_inode not in folder_entries.FOLDERS:
            raise pyfuse3.FUSEError(errno.ENOENT)
        file_id, ending = _split(name)
        if parent_inode == folder_entries.IMAGES and ending == _ENDING:
            await self._attach(file_id)
            return await self.getattr(pyfuse3.InodeT(self._inodes.of_image(file_id)), ctx)
        disk_id = disk_header.DiskId(file_id)
        is_disk = parent_inode == folder_entries.DISKS
        if not (is_disk and self._disks.is_shown(disk_id, file_id + ending)):
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(pyfuse3.InodeT(self._inodes.register_disk(disk_id)), ctx)

    @_answers_errors
    async def getattr(
        self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Return the attributes of an inode."""
        if inode == pyfuse3.ROOT_INODE or inode in folder_entries.FOLDERS:
            return fuse_attributes.of_folder(inode, self._gid)
        if inode in self._inodes.disks:
            return fuse_attributes.of_disk(inode, await self._disk(inode))
        found = await self._mirror(inode)
        touched_ns = self._images.touched_ns(found.map.image_id)
        return fuse_attributes.of_image(inode, found, touched_ns, self._gid)

    @_answers_errors
    async def setattr(
        self,
        inode: pyfuse3.InodeT,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: pyfuse3.FileHandleT | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Set time stamps, and owner and mode of a disk; reject other changes."""
        if inode in self._inodes.disks:
            fuse_attributes.set_on_disk(await self._disk(inode), attr, fields)
            return await self.getattr(inode, ctx)
        if fields.update_size or fields.update_uid or fields.update_gid or fields.update_mode:
            raise pyfuse3.FUSEError(errno.EROFS)
        opening = self._inodes.opening_of(inode)
        if fields.update_mtime and opening is not None:
            self._images.save_time_stamp(opening.image_id, attr.st_mtime_ns)
        return await self.getattr(inode, ctx)

    async def _refuse_change(self, *_: object) -> NoReturn:
        raise pyfuse3.FUSEError(errno.EROFS)

    create = mknod = mkdir = symlink = link = _refuse_change  # type: ignore[assignment]
    rename = unlink = rmdir = _refuse_change  # type: ignore[assignment]

    @_answers_errors
    async def open(
        self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.FileInfo:
        """Open a disk, whose cached pages may be those of a former one, or an image for reading."""
        if inode in self._inodes.disks:
            if flags & os.O_TRUNC:
                raise pyfuse3.FUSEError(errno.EPERM)
            if (await self._disk(inode)).is_read_only and flags & (os.O_WRONLY | os.O_RDWR):
                raise pyfuse3.FUSEError(errno.EROFS)
            disk_handle = self._inodes.open_disk(inode, bool(flags & os.O_DSYNC))
            return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(disk_handle), keep_cache=False)
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            raise pyfuse3.FUSEError(errno.EROFS)
        image = await self._mirror(inode)
        image.boots.begin_boot()
        uses, recording, timelines = self._observers
        tag = killed_guests.tag_of_opener(ctx.pid, self._inodes.process_tag)
        opener = 0 if recording is None else recording.image_opened(image, ctx.pid)
        handle = self._inodes.open(inode, opener, tag)
        uses.image_opened(image.map.image_id)
        timelines.image_opened(image, self._inodes.guest_of(handle), ctx.pid)
        keep = self._images.note_open(image.map.image_id)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(handle), keep_cache=keep)

    @_answers_errors
    async def read(  # type: ignore[override]  # any buffer will do
        self, fh: pyfuse3.FileHandleT, off: int, size: int
    ) -> read_request.Bytes:
        """Return bytes of an image or a disk; EIO if they exist nowhere."""
        opening = self._inodes.openings.get(fh)
        found = self._images.get_nowait(opening.image_id) if opening else None
        if opening is not None and found is not None:
            if found.recorder is not None:
                found.recorder.record_guest_read(opening.opener, off, size, time.monotonic())
            if found.timelines and (timing := found.timelines.get(opening.guest)):
                return await timing.run_timed(found.read_at, off, size, opening.guest)
            return await found.read_at(off, size, opening.guest)
        if self._inodes.disk_of(fh):
            return await (await self._disk(fh)).read(off, size)
        opening = self._inodes.opening_of(fh)
        if opening is None:
            raise pyfuse3.FUSEError(errno.ESTALE)
        met = await self._reattached.get_mirror(opening.image_id, opening.guest)
        met.boots.begin_boot()  # a guest may have been booting during the restart
        return await met.read_at(off, size, opening.guest)

    @_answers_errors
    async def write(self, fh: pyfuse3.FileHandleT, off: int, buf: bytes) -> int:
        """Write to a disk; sync it, because the kernel does not after asynchronous writes."""
        found = await self._disk(fh)
        length = await found.write(off, buf)
        if inodes.is_synchronous(fh):
            await found.sync()
        return length

    @_answers_errors
    async def fsync(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:
        """Sync a disk; do nothing for an image, because ENOSYS disables fsync for all."""
        if self._inodes.disk_of(fh):
            await (await self._disk(fh)).sync()

    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        """Return ENOSYS, so the kernel never asks again: it would wait even in a killed process."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        """Release the state of a closed image."""
        opening = self._inodes.opening_of(fh)
        if opening is None:
            return
        self._observers.usage.image_closed(opening.image_id)
        self._observers.timelines.image_closed(opening.guest)
        found = self._images.get_nowait(opening.image_id)
        if found is not None and found.recorder is not None:
            found.recorder.close(opening.opener)
        self._inodes.handle_closed(fh)

    async def forget(self, inode_list: Sequence[tuple[pyfuse3.InodeT, int]]) -> None:
        """Forget numbers of detached images that the kernel forgot.

        It is never asked to forget: that takes the folder's lock, which a waiting lookup holds.
        """
        for inode, _ in inode_list:
            opening = self._inodes.opening_of(inode)
            if opening is not None and not self._images.is_attached(opening.image_id):
                self._inodes.forget_image(opening.image_id)

    async def opendir(
        self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.FileHandleT:
        """Open one of the folders."""
        return pyfuse3.FileHandleT(inode)

    @_answers_errors
    async def readdir(
        self, fh: pyfuse3.FileHandleT, start_id: int, token: pyfuse3.ReaddirToken
    ) -> None:
        """List a folder."""
        for number, (name, inode) in self._entries.list_entries(fh, start_id):
            try:
                attributes = await self.getattr(inode, pyfuse3.RequestContext())
            except pyfuse3.FUSEError:
                continue
            if not pyfuse3.readdir_reply(token, pyfuse3.FileNameT(name), attributes, number):
                return

    async def access(
        self, inode: pyfuse3.InodeT, mode: pyfuse3.ModeT, ctx: pyfuse3.RequestContext
    ) -> bool:
        """Allow: the kernel checks the permission bits."""
        return True

    @_answers_errors
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Return the public cache's size and free space."""
        return fuse_attributes.of_cache(self._cache.statistics)

    async def _mirror(self, inode: pyfuse3.InodeT) -> mirror.Mirror:
        opening = self._inodes.opening_of(inode)
        if opening is None:
            raise pyfuse3.FUSEError(errno.ESTALE)
        image_id = opening.image_id
        return self._images.get_nowait(image_id) or await self._attach(image_id)

    async def _disk(self, number: int) -> disk.Disk:
        disk_id = self._inodes.disk_of(number)
        if disk_id is None:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return self._disks.get_nowait(disk_id) or await self._disks.open(disk_id)

    async def _attach(self, image_id: ids.ImageId) -> mirror.Mirror:
        try:
            guest = requests.Stream(requests.Klass.GUEST, image_id)
            with trio.fail_after(self._attach_deadline_s), disk_io.use_stream(guest):
                found = await self._images.attach_image(image_id)
        except trio.TooSlowError as e:
            raise errors.DeadlineExceeded(
                f"the chunk map of image {image_id}", self._attach_deadline_s
            ) from e
        except errors.ChunkRefused:
            raise  # it may exist: not ENOENT
        except errors.ChunkMissing as e:
            LOG.info("%s", e)
            raise pyfuse3.FUSEError(errno.ENOENT) from e
        self._inodes.register_image(image_id)
        return found


def _split(name: bytes) -> tuple[ids.ImageId, str]:
    try:
        stem, dot, ending = name.decode("ascii").rpartition(".")
        if stem == (found := ids.parse_image_id(stem)):
            return found, dot + ending
    except ValueError:
        pass
    raise pyfuse3.FUSEError(errno.ENOENT)
