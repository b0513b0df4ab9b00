# SPDX-License-Identifier: Apache-2.0
"""Reads blobs from a folder: NFS, CephFS, or the folder of a file store.

The folder has <image_id>.raw (or .qcow2) and <image_id>.acmap, each a regular file; in a file store
of Glance only images, called <image_id>. Symbolic links are refused, so that writers of the folder
cannot make the agent read elsewhere. Every call, also close, may hang with the file server, so all
run in threads of the source's own (blocking_threads.py).
"""

import collections
import contextlib
import errno
import os
import stat
import threading
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import TypeVar

import trio
from oslo_config import cfg

from acstor_agent.sources import base
from acstor_agent.sources import blocking_threads
from acstor_agent.sources import driver
from acstor_common import errors
from acstor_common.util import lru_table

T = TypeVar("T")

OPEN_FILES_LIMIT = 64
MAX_HUNG_PER_BLOB = base.DEFAULT_CONCURRENT_READS // 2
"""Calls about one blob that may hang, so that the rest of the file system stays usable."""
ORDER_S = 0.1
REMEMBERED = 64  # reads that others may follow: more than are under way
HINT_BYTES = 128 * 1024  # readahead of one hint, unless the kernel's limit is lower
CLOSE_S = 1.0  # time that closing waits for the file server

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NOT_THERE = {
    errno.ENOENT: "there is no such file",
    errno.ENOTDIR: "the folder is not a folder",
    errno.ELOOP: "it is a symbolic link",
    errno.ENXIO: "it is not a regular file",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENAMETOOLONG: "the name is too long",
}
"""Permanent errors; all others (EIO, ESTALE, ENFILE, …) are transient."""
_REFUSED = frozenset({errno.ENOTDIR, errno.EACCES, errno.EPERM})
"""Errors that say nothing of the file."""
_IMAGES = (base.BlobKind.IMAGE, base.BlobKind.QCOW2)
EMPTY = "there is no such file, and nothing else in the folder: is its file system mounted?"


class _OpenFile:
    """One open file; ``to_close`` gets the descriptor after the last use, in any thread."""

    def __init__(self, path: str, to_close: collections.deque[int]) -> None:
        self.fd = os.open(path, _FLAGS)
        weakref.finalize(self, to_close.append, self.fd)
        found = os.fstat(self.fd)
        self.is_regular = stat.S_ISREG(found.st_mode)
        self.identity = (found.st_dev, found.st_ino)


class _OpenFiles:
    """The files used last, by path; thread-safe."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._files = lru_table.LruTable[str, _OpenFile](limit)
        self._to_close: collections.deque[int] = collections.deque()

    def get(self, path: str) -> _OpenFile:
        self.close_some()
        now = os.lstat(path)
        with self._lock:
            file = self._files.get_as_used(path)
            if file is not None and file.identity == (now.st_dev, now.st_ino):
                return file
        file = _OpenFile(path, self._to_close)
        with self._lock:
            self._files[path] = file
        self.close_some()
        return file

    def forget(self, path: str) -> None:
        with self._lock:
            self._files.pop(path, None)

    def clear(self) -> None:
        with self._lock:
            self._files.clear()

    def close_some(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                fd = self._to_close.popleft()
                with contextlib.suppress(OSError):  # nothing was written
                    os.close(fd)


class _Turn:
    """The turn of a read, after the read that ends where it begins."""

    def __init__(self, before: threading.Event | None, order_s: float) -> None:
        self._before, self._order_s = before, order_s
        self.ended = threading.Event()

    @property
    def follows(self) -> bool:
        return self._before is not None

    def wait(self) -> None:
        if self._before is not None:
            self._before.wait(self._order_s)

    def end(self) -> None:
        self.ended.set()


class _Order:
    """Makes sequential reads reach the kernel in order, to avoid seeks.

    Only a read that follows another gives a readahead hint, which disables the kernel's own.
    """

    def __init__(self, order_s: float) -> None:
        self._order_s = order_s
        self._latest = lru_table.LruTable[tuple[base.Blob, int], _Turn](REMEMBERED)  # by their ends
        self._in_flight: collections.Counter[base.Blob] = collections.Counter()

    @contextlib.contextmanager
    def turn(self, run: driver.BlobRun) -> Iterator[_Turn]:
        """Yield the turn of a read; it ends with the block at the latest."""
        blob, end = run.blob, (run.blob, run.offset + run.length)
        before = self._latest.get((blob, run.offset)) if self._in_flight[blob] else None
        turn = _Turn(before.ended if before else None, self._order_s)
        self._latest[end] = turn
        self._in_flight[blob] += 1
        try:
            yield turn
        finally:
            turn.end()
            self._in_flight[blob] -= 1
            if not self._in_flight[blob]:
                del self._in_flight[blob]


class FileSource(driver.Driver):
    """The blobs in ``folder``; up to ``open_files_limit`` files stay open between reads.

    :param order_s: how long a read waits for the read before it to reach the kernel
    """

    def __init__(
        self, folder: str, open_files_limit: int = OPEN_FILES_LIMIT, order_s: float = ORDER_S
    ) -> None:
        self._folder = folder
        self._files = _OpenFiles(open_files_limit)
        self._order = _Order(order_s)
        self._threads = blocking_threads.BlockingThreads(
            folder, self.max_concurrent_reads, MAX_HUNG_PER_BLOB
        )

    @classmethod
    def options(cls) -> list[cfg.Opt]:
        """Return the options of the group ``source_file``."""
        return [
            cfg.StrOpt(
                "folder",
                help="Folder with <image id>.raw, or <image id>.qcow2, and <image id>.acmap, for "
                "example a mounted NFS export or CephFS; or the folder of a file store of "
                "Glance's, where images are called <image id>. Symbolic links in it are not "
                "followed.",
            )
        ]

    @classmethod
    def from_conf(cls, group: cfg.ConfigOpts.GroupAttr) -> "FileSource":
        """Create the source from the group ``source_file``."""
        if not group.folder or not os.path.isabs(group.folder):
            raise errors.Unusable(
                "[source_file] folder", f"{group.folder!r} is not an absolute path", "Set it"
            )
        return cls(group.folder)

    @property
    def location(self) -> str:
        """The folder."""
        return self._folder

    async def size_bytes(self, blob: base.Blob) -> int:
        """Return the file's length."""

        def size(file: _OpenFile) -> int:
            return os.fstat(file.fd).st_size

        return await self._in_thread(blob, f"the size of {blob.file_name}", size)

    async def fill_run(self, run: driver.BlobRun) -> None:
        """Read and verify in one thread."""

        def fill(file: _OpenFile) -> tuple[int, int]:
            turn.wait()
            if turn.follows:
                _hint(file.fd, run.offset, run.length)
                turn.end()
            count_bytes = _preadv_fully(file.fd, run.buffers, run.offset)
            turn.end()
            run.check_pieces(count_bytes)
            return count_bytes, os.fstat(file.fd).st_size if count_bytes < run.length else 0

        with self._order.turn(run) as turn:
            count_bytes, size_bytes = await self._in_thread(run.blob, run.description, fill)
        run.pieces_filled(count_bytes)
        if count_bytes < run.length:
            why = f"the file ends at byte {size_bytes}"
            raise errors.ChunkMissing(run.description, self._path(run.blob), why)

    def source_health(self) -> base.Health:
        """Return how many calls hang."""
        hanging = self._threads.hanging
        return base.Health(hanging.calls, hanging.for_s)

    async def aclose(self) -> None:
        """Close the files when their readers are gone; abandon close calls that hang."""
        self._files.clear()
        with trio.move_on_after(CLOSE_S), contextlib.suppress(errors.SourceUnreachable):
            await self._threads.run("closing files", None, self._files.close_some)

    def _path(self, blob: base.Blob) -> str:
        return os.path.join(self._folder, blob.file_name)

    def _open(self, blob: base.Blob, path: str) -> _OpenFile:
        try:
            return self._files.get(path)
        except FileNotFoundError:
            self._files.forget(path)
            if blob.kind not in _IMAGES:
                raise
        return self._files.get(os.path.join(self._folder, blob.image_id))

    async def _in_thread(self, blob: base.Blob, what: str, use: Callable[[_OpenFile], T]) -> T:
        path = self._path(blob)

        def work() -> T:
            try:
                file = self._open(blob, path)
                if not file.is_regular:
                    raise errors.ChunkMissing(what, path, "it is not a regular file")
                return use(file)
            except OSError as error:
                self._files.forget(path)
                raise _translated(error, what, path) from error

        return await self._threads.run(what, blob, work)


def _hint(fd: int, offset: int, length: int) -> None:
    """Hint readahead to the kernel; ignore file systems that do not support it."""
    with contextlib.suppress(OSError):
        for done in range(0, length, HINT_BYTES):
            part = min(length - done, HINT_BYTES)
            os.posix_fadvise(fd, offset + done, part, os.POSIX_FADV_WILLNEED)


def _preadv_fully(fd: int, buffers: Sequence[bytearray], offset: int) -> int:
    count_bytes = 0
    while left := driver.rest_of(buffers, count_bytes):
        got = os.preadv(fd, left, offset + count_bytes)
        if not got:
            break
        count_bytes += got
    return count_bytes


def _translated(error: OSError, what: str, path: str) -> errors.ChunkUnavailable:
    reason = _NOT_THERE.get(error.errno or 0)
    if reason is None:
        return errors.SourceUnreachable(what, path, error.strerror or str(error))
    if error.errno in _REFUSED:
        return errors.ChunkRefused(what, path, reason)
    if error.errno == errno.ENOENT and not _holds_anything(os.path.dirname(path)):
        return errors.ChunkRefused(what, path, EMPTY)
    return errors.ChunkMissing(what, path, reason)


def _holds_anything(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False
