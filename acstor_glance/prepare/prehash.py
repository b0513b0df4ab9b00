# SPDX-License-Identifier: Apache-2.0
"""Pre-hashing: makes the chunk map of an image file, in constant memory.

A chunk map appears complete or not at all. The file must not change meanwhile, and must have
Glance's hash if that is known. Threads hash records of 32 MiB (BLAKE3 and preadv release the GIL);
finished records go in order to a log (``MAP.part``), from which a killed run resumes.

Glance's hash is serial and slower than BLAKE3 (SHA-512: 0.7 of 2.5 GB/s). For a raw image the
caller's thread computes it from the buffers that the threads have read; for qcow2, whose chunks are
the disk's, it reads the file beside them.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import time
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
from concurrent import futures
from typing import IO
from typing import NamedTuple
from typing import TypeVar

from acstor_common import errors
from acstor_common.disks import qcow2
from acstor_common.disks import qcow2_header
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_writer
from acstor_common.formats import layout
from acstor_common.image import deduplication
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.util import atomic_file
from acstor_glance.prepare import chunk_hashing
from acstor_glance.prepare import image_file
from acstor_glance.prepare import preparation_budget
from acstor_glance.prepare import progress_log

MAX_DEFAULT_WORKERS = 8

Progress = Callable[[int], None]
_T = TypeVar("_T")


class BufferSizes(NamedTuple):
    """Bytes of the image that are handled together."""

    record: int = 32 * geometry.MIB  # for one task of a thread and one entry of the log
    read: int = 512 * geometry.KIB  # for one read
    piece: int = geometry.MIB  # passed at a time to the thread that computes Glance's hash


BUFFER_SIZES = BufferSizes()


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Result of a run; ``size_bytes`` is of the disk, ``stored_bytes`` of the file."""

    image_id: ids.ImageId
    map_path: str
    size_bytes: int
    chunk_bytes: int
    chunks: int
    zero_chunks: int
    resumed_chunks: int
    os_hash_algo: str
    os_hash_value: str
    disk_format: str
    stored_bytes: int
    seconds_s: float = 0.0


def prehash(
    image: str | os.PathLike[str] | IO[bytes],
    map_path: str | os.PathLike[str],
    image_id: ids.ImageId,
    *,
    disk_format: layout.DiskFormat = layout.DiskFormat.RAW,
    chunk_bytes: int = geometry.DEFAULT_CHUNK_BYTES,
    os_hash: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH,
    workers: int | None = None,
    progress: Progress | None = None,
    naming: deduplication.Naming = deduplication.PLAIN,
    max_virtual_bytes: int = qcow2_header.MAX_VIRTUAL_BYTES,
    budget: preparation_budget.PreparationBudget | None = None,
    sizes: BufferSizes = BUFFER_SIZES,
) -> Summary:
    """Write the chunk map of ``image`` to ``map_path``; resume a stopped run.

    :param image: a path, or an open file, whose position is restored
    :param os_hash: the file's hash in Glance, to compare; without value: compute it
    :param workers: threads; by default one per core, at most 8
    :param max_virtual_bytes: limit of a qcow2 image's disk
    :param budget: limits of the cost; None: only slow decoders are refused
    :raises errors.Unusable: the image or the map cannot be used, or another process makes the map;
        ContentMismatch, NotRaw and LimitExceeded: the image is faulty
    :raises ValueError: an invalid chunk size or hash, or an unknown algorithm
    """
    started_s = time.monotonic()
    path = pathlib.Path(map_path)
    with image_file.open_image(image) as source:
        source.check_format(disk_format)
        guest: image_file.ImageFile | qcow2.Qcow2 = source
        if disk_format is layout.DiskFormat.QCOW2:
            guest = qcow2.Qcow2(source, max_virtual_bytes)
        cut = geometry.Geometry(guest.virtual_size, chunk_bytes)
        if not cut.chunk_count:
            raise errors.NotRaw(source.name, "its disk is empty", "Upload one with data")
        budget = budget or preparation_budget.PreparationBudget(source.name)
        job = _Job(source, guest, cut, naming, budget, sizes, workers or default_workers())
        made = _make_map(job, path, image_id, os_hash, progress or (lambda done_bytes: None))
    return dataclasses.replace(made, seconds_s=time.monotonic() - started_s)


def default_workers() -> int:
    """Return one per available core, at most 8: then the disk is the limit."""
    return min(len(os.sched_getaffinity(0)), MAX_DEFAULT_WORKERS)


class _Job(NamedTuple):
    source: image_file.ImageFile
    guest: image_file.ImageFile | qcow2.Qcow2
    cut: geometry.Geometry
    naming: deduplication.Naming
    budget: preparation_budget.PreparationBudget
    sizes: BufferSizes
    workers: int

    @property
    def disk_format(self) -> layout.DiskFormat:
        is_raw = self.guest is self.source
        return layout.DiskFormat.RAW if is_raw else layout.DiskFormat.QCOW2


def _make_map(
    job: _Job,
    path: pathlib.Path,
    image_id: ids.ImageId,
    os_hash: chunk_map.OsHash,
    progress: Progress,
) -> Summary:
    source, cut = job.source, job.cut
    hasher = hashlib.new(os_hash.algo) if os_hash.algo else None
    log_path = path.with_name(path.name + ".part")
    source.check_apart_from(path, log_path)
    with _open_log(log_path, job) as log:
        resumed_chunks = log.chunk_count
        os_hash = _hash(job, log, os_hash, hasher, progress)
        stored = _stored(job.disk_format, source, log)
        subject = chunk_map.Subject(image_id, cut, os_hash, job.naming.scope_keys, stored)
        zero_chunks = _write_map(path, subject, log)
        log.remove()
    return Summary(
        image_id=image_id,
        map_path=str(path),
        size_bytes=cut.size_bytes,
        chunk_bytes=cut.chunk_bytes,
        chunks=cut.chunk_count,
        zero_chunks=zero_chunks,
        resumed_chunks=resumed_chunks,
        os_hash_algo=os_hash.algo,
        os_hash_value=os_hash.value.hex(),
        disk_format=job.disk_format.glance_name,
        stored_bytes=source.size_bytes,
    )


def _hash(
    job: _Job,
    log: progress_log.ProgressLog,
    os_hash: chunk_map.OsHash,
    hasher: "hashlib._Hash | None",
    progress: Progress,
) -> chunk_map.OsHash:
    """Hash chunks and file; remove the log if another run cannot continue it."""
    try:
        if hasher is not None and job.guest is job.source:
            _hash_whole(job, log, hasher, progress)
        else:
            _hash_rest(job, log, hasher, progress)
        job.source.check_unchanged()
        if hasher is None:
            return os_hash
        if os_hash.value and hasher.digest() != os_hash.value:
            raise image_file.hash_mismatch(job.source.name, os_hash)
        return chunk_map.OsHash(os_hash.algo, hasher.digest())
    except (
        image_file.ImageChanged,
        errors.ContentMismatch,
        errors.NotRaw,
        errors.LimitExceeded,
    ):
        log.remove()
        raise


def _hash_rest(
    job: _Job,
    log: progress_log.ProgressLog,
    hasher: "hashlib._Hash | None",
    progress: Progress,
) -> None:
    size_bytes, file_bytes = job.cut.size_bytes, job.source.size_bytes
    file_hash = image_file.FileHash(job.source, hasher)
    first = log.chunk_count * job.cut.chunk_bytes
    progress(min(first, size_bytes) * file_bytes // max(1, size_bytes))
    tasks = (
        functools.partial(_hash_record, job, start, min(start + job.sizes.record, size_bytes))
        for start in range(first, size_bytes, job.sizes.record)
    )
    with contextlib.closing(_in_order(tasks, job.workers)) as records:
        for record in records:
            with image_file.translate_os_errors(log.path):
                log.append_record(record)
            done_bytes = min(log.chunk_count * job.cut.chunk_bytes, size_bytes)
            share = done_bytes * file_bytes // size_bytes
            file_hash.hash_until(share)
            progress(share)
    file_hash.hash_until(file_bytes)


def _in_order(tasks: Iterator[Callable[[], _T]], workers: int) -> Generator[_T, None, None]:
    """Yield the results of tasks in order; starts at most ``2 * workers + 1`` ahead."""
    pool = futures.ThreadPoolExecutor(workers, "acstor-prehash")
    pending: collections.deque[futures.Future[_T]] = collections.deque()
    try:
        for task in tasks:
            pending.append(pool.submit(task))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _hash_record(job: _Job, start: int, stop: int) -> progress_log.HashedRecord:
    job.budget.check_time()
    part = job.guest.part_reader(start, stop, job.cut)
    if part.is_hole:
        return progress_log.HashedRecord(_zero_cids(job, stop - start))
    buffer = bytearray(max(job.sizes.read, job.cut.chunk_bytes, job.guest.cluster_bytes))
    cids = bytearray()
    for offset in range(start, stop, len(buffer)):
        _hash_piece(job, part, buffer, offset, min(offset + len(buffer), stop), cids)
    return progress_log.HashedRecord(bytes(cids), b"".join(map(layout.pack, part.extents)))


def _hash_piece(
    job: _Job,
    part: image_file.ImageFile | qcow2.DiskPart,
    buffer: bytearray,
    start: int,
    stop: int,
    cids: bytearray,
) -> bool:
    """Append the CIDs of some chunks; return whether ``buffer`` has data, not a hole."""
    chunk_bytes, length = job.cut.chunk_bytes, stop - start
    if part is job.source:
        count = part.fill_buffer(memoryview(buffer)[:length], start)
        job.budget.check_time()  # the disk of a raw image is as long as its file
    else:
        began_s = time.thread_time()
        count = part.fill_buffer(memoryview(buffer)[:length], start)
        job.budget.charge_decoded(count, time.thread_time() - began_s)
    if not count:
        cids += _zero_cids(job, length)
        return False
    chunk_no = start // chunk_bytes
    chunk_hashing.append_cids(buffer, length, chunk_bytes, cids, job.naming, chunk_no)
    return True


def _zero_cids(job: _Job, length: int) -> bytes:
    return bytes(-(-length // job.cut.chunk_bytes) * ids.CID_BYTES)


class _Piece(NamedTuple):
    """A part of the image up to byte ``stop``; ``data`` is empty for a hole."""

    stop: int
    length: int
    buffer: bytearray
    data: memoryview
    cids: bytearray


def _hash_whole(
    job: _Job,
    log: progress_log.ProgressLog,
    hasher: "hashlib._Hash",
    progress: Progress,
) -> None:
    size_bytes = job.cut.size_bytes
    zeros = bytes(job.sizes.piece)
    cids = bytearray()
    free: list[bytearray] = []  # buffers that are hashed
    progress(0)
    first = log.chunk_count * job.cut.chunk_bytes
    tasks = _piece_tasks(job, first, free)
    with contextlib.closing(_in_order(tasks, max(1, job.workers - 1))) as pieces:
        for piece in pieces:
            if piece.data:
                hasher.update(piece.data)
            else:
                for at in range(0, piece.length, len(zeros)):
                    hasher.update(zeros[: piece.length - at])
            free.append(piece.buffer)
            cids += piece.cids
            is_record = piece.stop % job.sizes.record == 0 or piece.stop == size_bytes
            if cids and is_record:
                with image_file.translate_os_errors(log.path):
                    log.append_record(progress_log.HashedRecord(bytes(cids)))
                cids.clear()
            progress(piece.stop)


def _piece_tasks(job: _Job, first: int, free: list[bytearray]) -> Iterator[Callable[[], _Piece]]:
    """Yield tasks that read and name a piece each; before ``first`` they only read."""
    size_bytes = job.cut.size_bytes
    piece_bytes = min(max(job.sizes.piece, job.cut.chunk_bytes), job.sizes.record)
    for start in range(0, size_bytes, piece_bytes):
        buffer = free.pop() if free else bytearray(piece_bytes)
        stop = min(start + piece_bytes, size_bytes)
        yield functools.partial(_read_piece, job, buffer, start, stop, start >= first)


def _read_piece(job: _Job, buffer: bytearray, start: int, stop: int, is_new: bool) -> _Piece:
    cids = bytearray()
    has_data = True
    if is_new:
        has_data = _hash_piece(job, job.source, buffer, start, stop, cids)
    else:
        job.source.read_into(memoryview(buffer)[: stop - start], start)
    data = memoryview(buffer)[: stop - start if has_data else 0]
    return _Piece(stop, stop - start, buffer, data, cids)


def _stored(
    disk_format: layout.DiskFormat, source: image_file.ImageFile, log: progress_log.ProgressLog
) -> layout.StoredFile:
    if disk_format is layout.DiskFormat.RAW:
        return layout.raw_file(source.size_bytes)
    entry_bytes = sum(len(record.entries) for record in log.iter_records())
    return layout.StoredFile(disk_format, source.size_bytes, entry_bytes // layout.ENTRY_BYTES)


def _write_map(
    path: pathlib.Path,
    subject: chunk_map.Subject,
    log: progress_log.ProgressLog,
) -> int:
    atomic_file.remove_leftovers(path.parent, path.name)  # the log's lock protects the map
    mode = 0o600 if subject.scope_keys else 0o644
    zero_chunks = 0

    def cids() -> Iterator[bytes]:
        nonlocal zero_chunks
        for record in log.iter_records():
            zero_chunks += _count_zeros(record.cids)
            yield record.cids

    entries = (record.entries for record in log.iter_records()) if subject.stored.entries else ()
    with image_file.translate_os_errors(path), atomic_file.atomic_write(path, mode) as file:
        file.writelines(chunk_map_writer.write_map(subject, cids(), entries, path.parent))
    return zero_chunks


def _count_zeros(cids: bytes) -> int:
    if cids.find(ids.ZERO_CID) < 0:
        return 0
    if cids == bytes(len(cids)):
        return len(cids) // ids.CID_BYTES
    starts = range(0, len(cids), ids.CID_BYTES)
    return sum(cids.startswith(ids.ZERO_CID, start) for start in starts)


def _open_log(path: pathlib.Path, job: _Job) -> progress_log.ProgressLog:
    header = progress_log.header_bytes(
        job.cut,
        job.source.mtime_ns,
        job.source.inode,
        job.sizes.record,
        job.disk_format,
        job.naming.fingerprint,
    )
    with image_file.translate_os_errors(path):
        return progress_log.ProgressLog(path, job.cut, job.sizes.record, header)
