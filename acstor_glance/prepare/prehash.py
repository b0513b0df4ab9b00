# SPDX-License-Identifier: Apache-2.0
"""Pre-hashing: the file of an image becomes its chunk map.

The one rule: a map appears whole or not at all, and only of an image that did
not change while it was read, and whose bytes are those that Glance has a hash of if
that hash is known.

Memory is constant whatever the image's size.  Threads hash records of 32 MiB, a
few at a time; holes of sparse files are not read.  Finished records go, in the
image's order, to a log beside the map (``MAP.part``), so that a run that was
killed goes on where it stopped.

Glance's hash (SHA-512 by default) is serial, and slower than BLAKE3: 0.7 GB/s against
2.5.  It runs in the caller's thread, over the same buffers that the threads have read
and named the chunks of, so nothing is read twice and it sets the pace.  It cannot be
saved: a run that goes on after a kill reads what is in the log once more for it, and
keeps the CIDs.  Holes are hashed as zeros.

Of a qcow2 image the chunks are those of the disk that a guest reads, which the threads
decompress, and Glance's hash is that of the file, which the caller's thread reads beside
them from its beginning to its end: the same bytes come from page cache twice.

Threads, because BLAKE3 and preadv leave the interpreter lock: measured from page
cache with chunks of 64 KiB on one core, preadv into a reused buffer of 256 to
1024 KiB gave 6.6 GB/s, pread 6.1, mmap 4.2 (page faults); on two cores two
threads gave 12.4 GB/s and two processes 11.7.
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
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_writer
from acstor_common.formats import layout
from acstor_common.formats import qcow2
from acstor_common.formats import qcow2_header
from acstor_common.image import deduplication
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.util import atomic_file
from acstor_glance.prepare import chunk_hashing
from acstor_glance.prepare import image_file
from acstor_glance.prepare import preparation_budget
from acstor_glance.prepare import progress_log

RECORD_BYTES = 32 * geometry.MIB
"""Bytes of the image that one thread hashes at a time, and that one entry of the log stands for."""

READ_BYTES = 512 * geometry.KIB
PIECE_BYTES = 1 * geometry.MIB
"""What is handed from the threads that name chunks to the one that computes the image's hash."""
MAX_DEFAULT_WORKERS = 8
SERVICE_CHUNK_BYTES = geometry.DEFAULT_CHUNK_BYTES
"""Of the images that a service prepares. All have one size, since images share content only with
those of the same."""
SERVICE_THREADS = 2
"""Threads that hash an image's file beside a service. One computes the hash that Glance has of it,
which takes longer than all else: naming the chunks beside it costs no time (benchmark P9c)."""

Progress = Callable[[int], None]
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What a run did; ``resumed_chunks`` of the chunks are an earlier run's work.

    ``size_bytes`` is what a guest reads, ``stored_bytes`` the length of the file.
    """

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
    seconds_s: float


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
) -> Summary:
    """Write the chunk map of ``image`` to ``map_path``; go on where a stopped run ended.

    :param image: a path, or an open file, whose position stays as it is
    :param disk_format: what the file is said to be; it is never guessed
    :param os_hash: the file's hash as Glance knows it, which is compared with the bytes'.  An
        algorithm without a value: compute it
    :param workers: threads; by default one a core, at most 8
    :param progress: told how many bytes of the file are done, first what an earlier run did
        (nothing, if a raw image's hash is computed), at last its size; of a qcow2 file the share
        of it that is done of the disk
    :param naming: names the chunks; a map with scope keys is for its owner's eyes only
    :param max_virtual_bytes: a qcow2 image of which a guest reads more is refused
    :param budget: what it may cost; None: no more than slow decoders are refused
    :raises errors.ContentMismatch: the image's bytes do not have ``os_hash``
    :raises errors.NotRaw: the file is of another format, or one that is never served, and why
    :raises errors.LimitExceeded: it costs more than ``budget`` allows
    :raises errors.Unusable: the image cannot be read or changed meanwhile; the map
        cannot be written; another process makes the same map
    :raises ValueError: a chunk size or a hash that no map can have, or an unknown algorithm
    """
    started_s = time.monotonic()
    progress = progress or (lambda done_bytes: None)
    path = pathlib.Path(map_path)
    hasher = hashlib.new(os_hash.algo) if os_hash.algo else None
    with image_file.open_image(image) as source:
        source.check_format(disk_format)
        guest: image_file.ImageFile | qcow2.Qcow2 = source
        if disk_format is layout.DiskFormat.QCOW2:
            guest = qcow2.Qcow2(source, max_virtual_bytes)
        cut = geometry.Geometry(guest.virtual_size, chunk_bytes)
        source.check_apart_from(path, _log_path(path))
        job = _Job(
            source, guest, cut, naming, budget or preparation_budget.PreparationBudget(source.name)
        )
        with _open_log(_log_path(path), job) as log:
            resumed_chunks = log.chunk_count
            try:
                if hasher is not None and guest is source:
                    _hash_whole(job, log, hasher, workers or default_workers(), progress)
                else:
                    _hash_rest(job, log, hasher, workers or default_workers(), progress)
                source.check_unchanged()
                os_hash = _checked(os_hash, hasher, source.name)
            except (
                image_file.ImageChanged,
                errors.ContentMismatch,
                errors.NotRaw,
                errors.LimitExceeded,
            ):
                log.remove()
                raise
            stored = _stored(disk_format, source, log)
            subject = chunk_map.Subject(image_id, cut, os_hash, naming.scope_keys, stored)
            zero_chunks = _write_map(path, subject, log)
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
        disk_format=disk_format.glance_name,
        stored_bytes=source.size_bytes,
        seconds_s=time.monotonic() - started_s,
    )


def default_workers() -> int:
    """Return one a core that this process may use, at most 8: then the disk is the limit."""
    return min(len(os.sched_getaffinity(0)), MAX_DEFAULT_WORKERS)


class _Job(NamedTuple):
    """An image that is hashed, what a guest reads of it, how its chunks are cut and named, and what
    that may cost."""

    source: image_file.ImageFile
    guest: image_file.ImageFile | qcow2.Qcow2
    cut: geometry.Geometry
    naming: deduplication.Naming
    budget: preparation_budget.PreparationBudget


def _hash_rest(
    job: _Job,
    log: progress_log.ProgressLog,
    hasher: "hashlib._Hash | None",
    workers: int,
    progress: Progress,
) -> None:
    """Hash what is not in the log yet, and keep it there record by record.

    With ``hasher`` the file is hashed meanwhile.
    """
    size_bytes, file_bytes = job.cut.size_bytes, job.source.size_bytes
    file_hash = image_file.FileHash(job.source, hasher)
    first = log.chunk_count * job.cut.chunk_bytes
    progress(min(first, size_bytes) * file_bytes // max(1, size_bytes))
    tasks = (
        functools.partial(_hash_record, job, start, min(start + RECORD_BYTES, size_bytes))
        for start in range(first, size_bytes, RECORD_BYTES)
    )
    with contextlib.closing(_in_order(tasks, workers)) as records:
        for record in records:
            with image_file.system_error(log.path):
                log.append_record(record)
            done_bytes = min(log.chunk_count * job.cut.chunk_bytes, size_bytes)
            share = done_bytes * file_bytes // size_bytes
            file_hash.hash_until(share)
            progress(share)
    file_hash.hash_until(file_bytes)


def _in_order(tasks: Iterator[Callable[[], _T]], workers: int) -> Generator[_T, None, None]:
    """Yield the results of tasks in order while ``workers`` threads do the next ones.

    At most ``2 * workers + 1`` are begun and not yielded.
    """
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


def _hash_record(job: _Job, start: int, stop: int) -> progress_log.Record:
    """Return the CIDs of the chunks from byte ``start`` to ``stop``, and where those bytes are."""
    job.budget.check_time()
    part = job.guest.part_reader(start, stop, job.cut)
    if part.is_hole:
        return progress_log.Record(_zero_cids(job, stop - start))
    buffer = bytearray(max(READ_BYTES, job.cut.chunk_bytes, job.guest.cluster_bytes))
    cids = bytearray()
    for offset in range(start, stop, len(buffer)):
        _hash_piece(job, part, buffer, offset, min(offset + len(buffer), stop), cids)
    return progress_log.Record(bytes(cids), b"".join(map(layout.pack, part.extents)))


def _hash_piece(
    job: _Job,
    part: image_file.ImageFile | qcow2.Part,
    buffer: bytearray,
    start: int,
    stop: int,
    cids: bytearray,
) -> bool:
    """Append the CIDs of some chunks; say whether their bytes are in ``buffer`` now, or a hole."""
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
    """Return the CIDs of the chunks of a hole."""
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
    workers: int,
    progress: Progress,
) -> None:
    """Hash what is not in the log yet, and with ``hasher`` the whole image, reading it once."""
    size_bytes = job.cut.size_bytes
    zeros = bytes(PIECE_BYTES)
    cids = bytearray()
    free: list[bytearray] = []  # buffers that the hash is done with
    progress(0)
    first = log.chunk_count * job.cut.chunk_bytes
    tasks = _piece_tasks(job, first, free)
    with contextlib.closing(_in_order(tasks, max(1, workers - 1))) as pieces:
        for piece in pieces:
            if piece.data:
                hasher.update(piece.data)
            else:
                for at in range(0, piece.length, PIECE_BYTES):
                    hasher.update(zeros[: piece.length - at])
            free.append(piece.buffer)
            cids += piece.cids
            is_record = piece.stop % RECORD_BYTES == 0 or piece.stop == size_bytes
            if cids and is_record:
                with image_file.system_error(log.path):
                    log.append_record(progress_log.Record(bytes(cids)))
                cids.clear()
            progress(piece.stop)


def _piece_tasks(job: _Job, first: int, free: list[bytearray]) -> Iterator[Callable[[], _Piece]]:
    """Yield what reads and names each piece of the image; those before ``first`` are only read."""
    size_bytes = job.cut.size_bytes
    piece_bytes = min(max(PIECE_BYTES, job.cut.chunk_bytes), RECORD_BYTES)
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


def _checked(
    os_hash: chunk_map.OsHash, hasher: "hashlib._Hash | None", name: str
) -> chunk_map.OsHash:
    """Return the image's hash as it was computed, if that is the one that Glance says."""
    if hasher is None:
        return os_hash
    if os_hash.value and hasher.digest() != os_hash.value:
        raise errors.ContentMismatch(
            name, f"its data does not have the {os_hash.algo} that Glance says"
        )
    return chunk_map.OsHash(os_hash.algo, hasher.digest())


def _stored(
    disk_format: layout.DiskFormat, source: image_file.ImageFile, log: progress_log.ProgressLog
) -> layout.Stored:
    """Return how the image is stored, when all of it is in the log."""
    if disk_format is layout.DiskFormat.RAW:
        return layout.raw(source.size_bytes)
    entry_bytes = sum(len(record.entries) for record in log.iter_records())
    return layout.Stored(disk_format, source.size_bytes, entry_bytes // layout.ENTRY_BYTES)


def _write_map(
    path: pathlib.Path,
    subject: chunk_map.Subject,
    log: progress_log.ProgressLog,
) -> int:
    """Make the map from the finished records, in one step for whoever looks; return its zeros."""
    atomic_file.remove_leftovers(path.parent, path.name)  # who has the log has the map too
    mode = 0o600 if subject.scope_keys else 0o644
    zero_chunks = 0

    def cids() -> Iterator[bytes]:
        nonlocal zero_chunks
        for record in log.iter_records():
            zero_chunks += _count_zeros(record.cids)
            yield record.cids

    entries = (record.entries for record in log.iter_records()) if subject.stored.entries else ()
    with image_file.system_error(path), atomic_file.atomic_write(path, mode) as file:
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
        RECORD_BYTES,
        layout.DiskFormat.RAW if job.guest is job.source else layout.DiskFormat.QCOW2,
        job.naming.fingerprint,
    )
    with image_file.system_error(path):
        return progress_log.ProgressLog(path, job.cut, RECORD_BYTES, header)


def _log_path(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(path.name + ".part")
