# SPDX-License-Identifier: Apache-2.0
"""Pre-hashing: the file of a raw image becomes its chunk map.

The one rule: a map appears whole or not at all, and only of an image that did
not change while it was read.

Memory is constant whatever the image's size.  Threads hash records of 32 MiB, a
few at a time; holes of sparse files are not read.  Finished records go, in the
image's order, to a log beside the map (``MAP.part``), so that a run that was
killed goes on where it stopped.

Threads, because BLAKE3 and preadv leave the interpreter lock: measured from page
cache with chunks of 64 KiB on one core, preadv into a reused buffer of 256 to
1024 KiB gave 6.6 GB/s, pread 6.1, mmap 4.2 (page faults); on two cores two
threads gave 12.4 GB/s and two processes 11.7.
"""

import collections
import contextlib
import dataclasses
import errno
import hashlib
import os
import pathlib
import stat
import time
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
from concurrent import futures
from typing import IO

from acstor_common import chunk_map
from acstor_common import errors
from acstor_common import geometry
from acstor_common import ids
from acstor_common import whole_file
from acstor_glance import chunk_hashing
from acstor_glance import progress_log
from acstor_glance import raw_format

RECORD_BYTES = 32 * geometry.MIB
"""Bytes of the image that one thread hashes at a time, and that one entry of the log stands for."""

READ_BYTES = 512 * geometry.KIB
MAX_DEFAULT_WORKERS = 8

Progress = Callable[[int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What a run did; ``resumed_chunks`` of the chunks are an earlier run's work."""

    image_id: ids.ImageId
    map_path: str
    size_bytes: int
    chunk_bytes: int
    chunks: int
    zero_chunks: int
    resumed_chunks: int
    os_hash_algo: str
    os_hash_value: str
    seconds_s: float


def prehash(
    image: str | os.PathLike[str] | IO[bytes],
    map_path: str | os.PathLike[str],
    image_id: ids.ImageId,
    *,
    chunk_bytes: int = geometry.DEFAULT_CHUNK_BYTES,
    os_hash: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Write the chunk map of ``image`` to ``map_path``; go on where a stopped run ended.

    :param image: a path, or an open file, whose position stays as it is
    :param os_hash: the image's hash as Glance knows it.  An algorithm without a value: compute it,
        which reads the image a second time
    :param workers: threads; by default one a core, at most 8
    :param progress: told how many bytes are done, first what an earlier run did, at last the
        image's size (twice that, if the image's hash is computed)
    :raises errors.Unusable: the image cannot be read, is not raw or changed meanwhile; the map
        cannot be written; another process makes the same map
    :raises ValueError: a chunk size or a hash that no map can have
    """
    started_s = time.monotonic()
    progress = progress or (lambda done_bytes: None)
    path = pathlib.Path(map_path)
    with _opened(image) as source:
        cut = geometry.Geometry(source.size_bytes, chunk_bytes)
        source.check_raw()
        source.check_apart_from(path, _log_path(path))
        with _open_log(_log_path(path), source, cut) as log:
            resumed_chunks = log.chunk_count
            try:
                _hash_rest(source, cut, log, workers or default_workers(), progress)
                os_hash = _complete(os_hash, source, progress)
                source.check_unchanged()
            except _Changed:
                log.remove()
                raise
            builder = chunk_map.MapBuilder(image_id, cut, os_hash)
            zero_chunks = _write_map(path, builder, log)
            log.remove()
    return Summary(
        image_id=image_id,
        map_path=str(path),
        size_bytes=cut.size_bytes,
        chunk_bytes=chunk_bytes,
        chunks=cut.chunk_count,
        zero_chunks=zero_chunks,
        resumed_chunks=resumed_chunks,
        os_hash_algo=os_hash.algo,
        os_hash_value=os_hash.value.hex(),
        seconds_s=time.monotonic() - started_s,
    )


def default_workers() -> int:
    """Return one a core that this process may use, at most 8: then the disk is the limit."""
    return min(len(os.sched_getaffinity(0)), MAX_DEFAULT_WORKERS)


class _Changed(errors.Unusable):
    """Somebody wrote to the image while it was read."""


class _Image:
    """The open file of an image, and what tells that it changed."""

    def __init__(self, file: IO[bytes]) -> None:
        self.fd = file.fileno()
        self.name = str(file.name)
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            raise errors.Unusable(self.name, "not a regular file")
        self.size_bytes, self.mtime_ns = status.st_size, status.st_mtime_ns
        self.inode, self._device = status.st_ino, status.st_dev

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill ``view`` from ``offset`` on."""
        done = 0
        while done < len(view):
            with _named(self.name):
                count = os.preadv(self.fd, [view[done:]], offset + done)
            if count == 0:
                raise self._changed()
            done += count

    def data_from(self, offset: int, stop: int) -> int:
        """Return where the next byte that is not in a hole lies, ``stop`` at most."""
        try:
            return min(os.lseek(self.fd, offset, os.SEEK_DATA), stop)
        except OSError as exc:
            if exc.errno == errno.ENXIO:  # only a hole from here to the end
                return stop
            raise errors.Unusable(self.name, str(exc.strerror)) from exc

    def check_unchanged(self) -> None:
        """Raise if somebody wrote to the image since it was opened."""
        status = os.fstat(self.fd)
        if (status.st_size, status.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
            raise self._changed()

    def check_raw(self) -> None:
        """Raise if the image is qcow2 or another format that a guest cannot read as it is."""
        head = bytearray(min(raw_format.INSPECTED_BYTES, self.size_bytes))
        self.read_into(memoryview(head), 0)
        why = raw_format.why_not_raw(bytes(head))
        if why:
            raise errors.NotRaw(self.name, why, "Convert it first (qemu-img convert -O raw)")

    def check_apart_from(self, *paths: pathlib.Path) -> None:
        """Raise if writing to one of ``paths`` would destroy the image."""
        for path in paths:
            with _named(path):
                if not path.exists():
                    continue
                status = path.stat()
            if (status.st_ino, status.st_dev) == (self.inode, self._device):
                raise errors.Unusable(str(path), "is the image itself; give the map another name")
            if not stat.S_ISREG(status.st_mode):
                raise errors.Unusable(str(path), "is in the way and not a regular file")

    def _changed(self) -> _Changed:
        return _Changed(
            self.name, "changed while it was read", "Run again when nobody writes to it"
        )


def _hash_rest(
    source: _Image,
    cut: geometry.Geometry,
    log: progress_log.ProgressLog,
    workers: int,
    progress: Progress,
) -> None:
    """Hash what is not in the log yet, and keep it there record by record."""
    progress(min(log.chunk_count * cut.chunk_bytes, cut.size_bytes))
    with contextlib.closing(_hashed_records(source, cut, log.chunk_count, workers)) as records:
        for cids in records:
            with _named(log.path):
                log.append(cids)
            progress(min(log.chunk_count * cut.chunk_bytes, cut.size_bytes))


def _hashed_records(
    source: _Image, cut: geometry.Geometry, first_chunk: int, workers: int
) -> Generator[bytes, None, None]:
    """Yield the CIDs of each record in order while ``workers`` threads hash the next ones."""
    pool = futures.ThreadPoolExecutor(workers, "acstor-prehash")
    pending: collections.deque[futures.Future[bytes]] = collections.deque()
    try:
        for start in range(first_chunk * cut.chunk_bytes, cut.size_bytes, RECORD_BYTES):
            stop = min(start + RECORD_BYTES, cut.size_bytes)
            pending.append(pool.submit(_hash_record, source, cut.chunk_bytes, start, stop))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _hash_record(source: _Image, chunk_bytes: int, start: int, stop: int) -> bytes:
    """Return the CIDs of the chunks from byte ``start`` to ``stop`` of the image."""
    buffer = bytearray(max(READ_BYTES, chunk_bytes))
    window = memoryview(buffer)
    cids = bytearray()
    for offset in range(start, stop, len(buffer)):
        length = min(len(buffer), stop - offset)
        if source.data_from(offset, offset + length) == offset + length:
            cids += bytes(-(-length // chunk_bytes) * ids.CID_BYTES)  # ZERO_CIDs for a hole
        else:
            source.read_into(window[:length], offset)
            chunk_hashing.append_cids(buffer, length, chunk_bytes, cids)
    return bytes(cids)


def _complete(os_hash: chunk_map.OsHash, source: _Image, progress: Progress) -> chunk_map.OsHash:
    """Return ``os_hash``, with the value computed if only the algorithm is given."""
    if os_hash.value or not os_hash.algo:
        return os_hash
    hasher = hashlib.new(os_hash.algo)
    window = memoryview(bytearray(READ_BYTES))
    for offset in range(0, source.size_bytes, READ_BYTES):
        piece = window[: min(READ_BYTES, source.size_bytes - offset)]
        source.read_into(piece, offset)
        hasher.update(piece)
        if offset % RECORD_BYTES == 0:
            progress(source.size_bytes + offset)
    progress(2 * source.size_bytes)
    return chunk_map.OsHash(os_hash.algo, hasher.digest())


def _write_map(
    path: pathlib.Path, builder: chunk_map.MapBuilder, log: progress_log.ProgressLog
) -> int:
    """Make the map from the finished records, in one step for whoever looks; return its zeros."""
    zero_chunks = 0
    whole_file.remove_leftovers(path.parent, path.name)  # who has the log has the map too
    with _named(path), whole_file.written(path) as file:
        file.write(builder.header)
        for cids in log.records():
            zero_chunks += _count_zeros(cids)
            file.write(builder.feed(cids))
        file.write(builder.trailer())
    return zero_chunks


def _count_zeros(cids: bytes) -> int:
    starts = range(0, len(cids), ids.CID_BYTES)
    return sum(cids.startswith(ids.ZERO_CID, start) for start in starts)


@contextlib.contextmanager
def _opened(image: str | os.PathLike[str] | IO[bytes]) -> Iterator[_Image]:
    if not isinstance(image, (str, os.PathLike)):
        position = os.lseek(image.fileno(), 0, os.SEEK_CUR)
        try:
            yield _Image(image)
        finally:
            os.lseek(image.fileno(), position, os.SEEK_SET)
        return
    with _named(image):
        file = open(image, "rb", buffering=0)
    with file:
        yield _Image(file)


def _open_log(
    path: pathlib.Path, source: _Image, cut: geometry.Geometry
) -> progress_log.ProgressLog:
    header = progress_log.header_bytes(cut, source.mtime_ns, source.inode, RECORD_BYTES)
    with _named(path):
        return progress_log.ProgressLog(path, cut, RECORD_BYTES, header)


def _log_path(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(path.name + ".part")


@contextlib.contextmanager
def _named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make an error of the family from an error of the system about ``path``."""
    try:
        yield
    except OSError as exc:
        raise errors.Unusable(os.fspath(path), exc.strerror or str(exc)) from exc
