# SPDX-License-Identifier: Apache-2.0
"""Pre-hashes an image that streams from Glance; a qcow2 image is copied to a file first."""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_writer
from acstor_common.formats import layout
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_glance import mapped_file
from acstor_glance.prepare import chunk_hashing
from acstor_glance.prepare import format_check
from acstor_glance.prepare import image_file
from acstor_glance.prepare import service_hashing

BUFFER_BYTES = 4 * geometry.MIB  # a multiple of every chunk size, and at least INSPECTED_BYTES

WORK_PREFIX = "copy-"  # prefix of folders for copies of qcow2 images; a kill leaves an empty one


def write_map(
    image: image_record.Image,
    pieces: Iterator[bytes],
    file: IO[bytes],
    hashing: service_hashing.ServiceHashing,
    folder: pathlib.Path | None = None,  # None: the system's temporary one
    bytes_hash: chunk_map.OsHash | None = None,
) -> None:
    """Write the chunk map of ``image`` to ``file``.

    :param bytes_hash: Glance's hash of a conversion, if ``pieces`` are of one
    :raises errors.Unusable: as in :func:`prehash.prehash`, or space is missing
    :raises errors.ImageServiceUnreachable: the stream has another length than Glance states
    """
    pieces = hashing.enforce_deadline(pieces)
    if format_check.parse_disk_format(image.disk_format) is layout.DiskFormat.QCOW2:
        with work_folder(folder) as work, tempfile.TemporaryFile(dir=work) as copied:
            copy_stream(image, pieces, copied, bytes_hash)
            write_map_of_file(image, copied, work, file, hashing, is_hashed=bytes_hash is not None)
    else:
        subject = chunk_map.Subject(
            image.id,
            geometry.Geometry(image.size_bytes, hashing.chunk_bytes),
            image.os_hash,
            hashing.naming.scope_keys,
            layout.raw_file(image.size_bytes),
        )
        cids = _cids_on_the_way(image, subject, pieces, hashing)
        file.writelines(chunk_map_writer.write_map(subject, cids, folder=folder))


@contextlib.contextmanager
def work_folder(folder: pathlib.Path | None) -> Iterator[pathlib.Path]:
    """Yield a folder that is deleted after the block."""
    with tempfile.TemporaryDirectory(prefix=WORK_PREFIX, dir=folder) as work:
        with image_file.translate_os_errors(work):
            yield pathlib.Path(work)


def write_map_of_file(
    image: image_record.Image,  # of the stored bytes (:func:`artefacts.as_read`)
    stored: IO[bytes],
    work: pathlib.Path,
    file: IO[bytes],
    hashing: service_hashing.ServiceHashing,
    *,
    is_hashed: bool,  # the bytes were verified, and are a conversion's
) -> None:
    """Write the chunk map of an image in the file ``stored`` to ``file``."""
    map_path = work / "map"
    os_hash = chunk_map.UNKNOWN_OS_HASH if is_hashed else image.os_hash
    hashing.hash_file(stored, map_path, dataclasses.replace(image, os_hash=os_hash))
    with map_path.open("rb") as made:
        if not is_hashed:
            shutil.copyfileobj(made, file, BUFFER_BYTES)
            return
        with mapped_file.map_file(made) as view:
            found = chunk_map.ChunkMap.parse(view, str(map_path))
            file.writelines(chunk_map_writer.with_os_hash(found, view, image.os_hash))


def copy_stream(
    image: image_record.Image,
    pieces: Iterator[bytes],
    copied: IO[bytes],
    bytes_hash: chunk_map.OsHash | None = None,
) -> None:
    """Write the stream to ``copied``; check the hash if one is expected."""
    name, size_bytes = f"image {image.id}", image.size_bytes
    space = os.statvfs(copied.fileno())
    if size_bytes > space.f_bavail * space.f_frsize:
        raise errors.Unusable(name, f"there is no space for its {size_bytes} bytes",
                              "Give [acstor_glance] state_dir more space")  # fmt: skip
    hasher = _hasher(name, bytes_hash.algo) if bytes_hash else None
    done_bytes = 0
    for piece in pieces:
        done_bytes += len(piece)
        if done_bytes > size_bytes:
            raise _differs(name, f"more than {size_bytes}")
        copied.write(piece)
        if hasher is not None:
            hasher.update(piece)
    if done_bytes < size_bytes:
        raise _differs(name, f"{done_bytes} of {size_bytes}")
    copied.flush()
    if hasher is not None and bytes_hash is not None and hasher.digest() != bytes_hash.value:
        raise image_file.hash_mismatch(name, bytes_hash)


def _cids_on_the_way(
    image: image_record.Image,
    subject: chunk_map.Subject,
    pieces: Iterator[bytes],
    hashing: service_hashing.ServiceHashing,
) -> Iterator[bytes]:
    os_hash, cut = subject.os_hash, subject.geometry
    name = f"image {image.id}"
    hasher = _hasher(name, os_hash.algo)
    done_bytes = 0
    for buffer, length in _buffers(pieces):
        if done_bytes == 0:
            _check_raw(name, bytes(buffer[: min(length, format_check.INSPECTED_BYTES)]))
        if done_bytes + length > cut.size_bytes:
            raise _differs(name, f"more than {cut.size_bytes}")
        hasher.update(memoryview(buffer)[:length])
        cids = bytearray()
        chunk_no = done_bytes // cut.chunk_bytes
        chunk_hashing.append_cids(buffer, length, cut.chunk_bytes, cids, hashing.naming, chunk_no)
        yield bytes(cids)
        done_bytes += length
        hashing.progress(done_bytes)
    if done_bytes < cut.size_bytes:
        raise _differs(name, f"{done_bytes} of {cut.size_bytes}")
    if hasher.digest() != os_hash.value:
        raise image_file.hash_mismatch(name, os_hash)


def _buffers(pieces: Iterator[bytes]) -> Iterator[tuple[bytearray, int]]:
    buffer, filled = bytearray(BUFFER_BYTES), 0
    for piece in pieces:
        view = memoryview(piece)
        while view:
            taken = min(len(view), BUFFER_BYTES - filled)
            buffer[filled : filled + taken] = view[:taken]
            filled, view = filled + taken, view[taken:]
            if filled == BUFFER_BYTES:
                yield buffer, filled
                filled = 0
    if filled:
        yield buffer, filled


def _hasher(name: str, algo: str) -> "hashlib._Hash":
    try:
        return hashlib.new(algo)
    except ValueError as exc:
        raise errors.Unusable(name, f"the hash algorithm {algo} in Glance is unsupported") from exc


def _check_raw(name: str, head: bytes) -> None:
    why = format_check.why_not_raw(head)
    if why:
        raise errors.NotRaw(name, why, "Upload it under its own disk format, or convert it")


def _differs(name: str, came: str) -> errors.ImageServiceUnreachable:
    return errors.ImageServiceUnreachable(f"bytes of {name}", f"received {came} bytes")
