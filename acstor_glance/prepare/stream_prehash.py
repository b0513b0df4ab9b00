# SPDX-License-Identifier: Apache-2.0
"""Pre-hashing an image that comes as a stream, from Glance's API.

The one rule: a map is made only of the bytes that Glance's hash of the image
stands for; that hash is computed on the way and compared before the map is whole.

Memory is constant: the map goes to a file, a raw image nowhere.  SHA-512 (0.6 GB/s
on one core) is the slowest part, and still faster than Glance answers.

The tables of a qcow2 image lie anywhere in it, before or behind what they lead to, so it
becomes a file without a name first, if there is room, which is pre-hashed then.
"""

import contextlib
import hashlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from typing import IO

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_writer
from acstor_common.formats import layout
from acstor_common.image import deduplication
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_glance import mapped_file
from acstor_glance.prepare import chunk_hashing
from acstor_glance.prepare import format_check
from acstor_glance.prepare import image_file
from acstor_glance.prepare import prehash
from acstor_glance.prepare import preparation_budget

BUFFER_BYTES = 4 * geometry.MIB
"""A whole number of chunks of every size, and no less than what is inspected."""

WORK_PREFIX = "copy-"
"""Of the names of folders in which qcow2 images become files; a kill leaves an empty one."""


def write_map(
    image: image_record.Record,
    pieces: Iterator[bytes],
    chunk_bytes: int,
    file: IO[bytes],
    progress: Callable[[int], None] = lambda done_bytes: None,
    naming: deduplication.Naming = deduplication.PLAIN,
    folder: pathlib.Path | None = None,
    bytes_hash: chunk_map.OsHash | None = None,
    budget: preparation_budget.PreparationBudget | None = None,
) -> None:
    """Write the chunk map of ``image`` to ``file``.

    :param pieces: the image's bytes, in order, in pieces of any length
    :param progress: told how many bytes of the image are done
    :param naming: names the chunks
    :param folder: where a qcow2 image becomes a file; None: the system's temporary folder
    :param bytes_hash: of what is read instead of the image, as Glance knows it; the map is bound to
        the image's own hash all the same
    :param budget: what it may cost; None: no more than slow decoders are refused
    :raises errors.LimitExceeded: it costs more
    :raises errors.NotRaw: the bytes are not of the format that Glance says, or never served
    :raises errors.Unusable: they are not those that Glance has a hash of; there is no room
    :raises errors.ImageServiceUnreachable: more bytes came than Glance says, or fewer
    """
    if budget is not None:
        pieces = budget.enforce_deadline(pieces)
    if _format_of(image) is layout.DiskFormat.QCOW2:
        with work_folder(folder) as work, tempfile.TemporaryFile(dir=work) as copied:
            copy_stream(image, pieces, copied, bytes_hash)
            is_hashed = bytes_hash is not None
            write_map_of_file(
                *(image, copied, work, file, chunk_bytes, progress, naming, is_hashed, budget)
            )
    else:
        size_bytes = image_record.size_bytes_of(image)
        subject = chunk_map.Subject(
            image_record.image_id_of(image),
            geometry.Geometry(size_bytes, chunk_bytes),
            image_record.os_hash_of(image),
            naming.scope_keys,
            layout.raw(size_bytes),
        )
        cids = _cids_on_the_way(image, subject, pieces, progress, naming)
        file.writelines(chunk_map_writer.write_map(subject, cids, folder=folder))


def _format_of(image: image_record.Record) -> layout.DiskFormat:
    return format_check.format_named(image_record.text_of(image, "disk_format"))


@contextlib.contextmanager
def work_folder(folder: pathlib.Path | None) -> Iterator[pathlib.Path]:
    """Yield a folder for files that go with the block.

    :raises errors.Unusable: it cannot be written
    """
    with tempfile.TemporaryDirectory(prefix=WORK_PREFIX, dir=folder) as work:
        with image_file.system_error(work):
            yield pathlib.Path(work)


def write_map_of_file(
    image: image_record.Record,
    stored: IO[bytes],
    work: pathlib.Path,
    file: IO[bytes],
    chunk_bytes: int,
    progress: Callable[[int], None] = lambda done_bytes: None,
    naming: deduplication.Naming = deduplication.PLAIN,
    is_hashed: bool = False,
    budget: preparation_budget.PreparationBudget | None = None,
) -> None:
    """Write the chunk map of an image whose bytes are in the file ``stored`` to ``file``.

    :param image: as it is read (:func:`artefacts.as_read`)
    :param work: a folder for what is made on the way
    :param is_hashed: these bytes were looked at, and are not those that Glance's hash is of
    :param budget: as of :func:`write_map`
    """
    map_path = work / "map"
    prehash.prehash(
        stored,
        map_path,
        image_record.image_id_of(image),
        disk_format=_format_of(image),
        chunk_bytes=chunk_bytes,
        os_hash=chunk_map.UNKNOWN_OS_HASH if is_hashed else image_record.os_hash_of(image),
        workers=prehash.SERVICE_THREADS,
        max_virtual_bytes=image_record.SERVED_VIRTUAL_BYTES,
        progress=progress,
        naming=naming,
        budget=budget,
    )
    with map_path.open("rb") as made:
        if not is_hashed:
            shutil.copyfileobj(made, file, BUFFER_BYTES)
            return
        with mapped_file.map_file(made) as view:
            found = chunk_map.ChunkMap.parse(view, str(map_path))
            os_hash = image_record.os_hash_of(image)
            file.writelines(chunk_map_writer.with_os_hash(found, view, os_hash))


def copy_stream(
    image: image_record.Record,
    pieces: Iterator[bytes],
    copied: IO[bytes],
    bytes_hash: chunk_map.OsHash | None = None,
) -> None:
    """Write the bytes of what is read of an image to ``copied``, if there is room for them.

    :param bytes_hash: what their hash must be; None: it is looked at elsewhere
    :raises errors.Unusable: there is none
    :raises errors.ContentMismatch: they have another hash
    """
    name, size_bytes = f"image {image['id']}", image_record.size_bytes_of(image)
    space = os.statvfs(copied.fileno())
    if size_bytes > space.f_bavail * space.f_frsize:
        raise errors.Unusable(name, f"there is no space for its {size_bytes} bytes",
                              "Give [acstor_glance] state_dir more")  # fmt: skip
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
        raise _wrong_bytes(name, bytes_hash)


def _cids_on_the_way(
    image: image_record.Record,
    subject: chunk_map.Subject,
    pieces: Iterator[bytes],
    progress: Callable[[int], None],
    naming: deduplication.Naming,
) -> Iterator[bytes]:
    """Yield the CIDs of a raw image while its bytes come, and check its hash at the end."""
    os_hash, cut = subject.os_hash, subject.geometry
    name = f"image {image['id']}"
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
        chunk_hashing.append_cids(buffer, length, cut.chunk_bytes, cids, naming, chunk_no)
        yield bytes(cids)
        done_bytes += length
        progress(done_bytes)
    if done_bytes < cut.size_bytes:
        raise _differs(name, f"{done_bytes} of {cut.size_bytes}")
    if hasher.digest() != os_hash.value:
        raise _wrong_bytes(name, os_hash)


def _buffers(pieces: Iterator[bytes]) -> Iterator[tuple[bytearray, int]]:
    """Yield the bytes in one buffer that is used again, filled but for the last time."""
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
        raise errors.Unusable(name, f"the hash {algo} of Glance is not known here") from exc


def _check_raw(name: str, head: bytes) -> None:
    why = format_check.why_not_raw(head)
    if why:
        raise errors.NotRaw(name, why, "Upload it under its own disk format, or convert it")


def _wrong_bytes(name: str, os_hash: chunk_map.OsHash) -> errors.ContentMismatch:
    why = f"its data does not have the {os_hash.algo} that Glance says"
    return errors.ContentMismatch(name, why)


def _differs(name: str, came: str) -> errors.ImageServiceUnreachable:
    """Return the error for a stream of the wrong length, which may be whole the next time."""
    return errors.ImageServiceUnreachable(f"bytes of {name}", f"{came} bytes came")
