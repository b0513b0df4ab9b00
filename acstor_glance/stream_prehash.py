# SPDX-License-Identifier: Apache-2.0
"""Pre-hashing an image that comes as a stream, from Glance's API.

The one rule: a map is made only of the bytes that Glance's hash of the image
stands for; that hash is computed on the way and compared before the map is whole.

Memory is constant: the map goes to a file, the image nowhere.  SHA-512 (0.6 GB/s
on one core) is the slowest part, and still faster than Glance answers.
"""

import hashlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import IO

from acstor_common import errors
from acstor_common import geometry
from acstor_common import image_record
from acstor_common import map_builder
from acstor_common import scope
from acstor_glance import chunk_hashing
from acstor_glance import raw_format

BUFFER_BYTES = 4 * geometry.MIB
"""A whole number of chunks of every size, and no less than what is inspected."""


def write_map(
    image: image_record.Record,
    pieces: Iterator[bytes],
    chunk_bytes: int,
    file: IO[bytes],
    progress: Callable[[int], None] = lambda done_bytes: None,
    naming: scope.Naming = scope.PLAIN,
) -> None:
    """Write the chunk map of ``image`` to ``file``.

    :param pieces: the image's bytes, in order, in pieces of any length
    :param progress: told how many bytes of the image are done
    :param naming: names the chunks
    :raises errors.Unusable: the bytes are not raw, or not those that Glance has a hash of
    """
    os_hash = image_record.os_hash_of(image)
    cut = geometry.Geometry(image_record.size_bytes_of(image), chunk_bytes)
    image_id = image_record.image_id_of(image)
    builder = map_builder.MapBuilder(image_id, cut, os_hash, naming.scope_keys)
    name = f"image {image['id']}"
    hasher = _hasher(name, os_hash.algo)
    file.write(builder.header)
    done_bytes = 0
    for buffer, length in _buffers(pieces):
        if done_bytes == 0:
            _check_raw(name, bytes(buffer[: min(length, raw_format.INSPECTED_BYTES)]))
        if done_bytes + length > cut.size_bytes:
            raise _differs(name, f"more than {cut.size_bytes}")
        hasher.update(memoryview(buffer)[:length])
        cids = bytearray()
        chunk_no = done_bytes // chunk_bytes
        chunk_hashing.append_cids(buffer, length, chunk_bytes, cids, naming, chunk_no)
        file.write(builder.feed(bytes(cids)))
        done_bytes += length
        progress(done_bytes)
    if done_bytes < cut.size_bytes:
        raise _differs(name, f"{done_bytes} of {cut.size_bytes}")
    if hasher.digest() != os_hash.value:
        raise errors.WrongBytes(name, f"its bytes do not have the {os_hash.algo} that Glance says")
    file.write(builder.end())


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
    why = raw_format.why_not_raw(head)
    if why:
        raise errors.NotRaw(name, why, "Upload it under its own disk format, or convert it")


def _differs(name: str, came: str) -> errors.ImageServiceUnreachable:
    """Return the error for a stream of the wrong length, which may be whole the next time."""
    return errors.ImageServiceUnreachable(f"bytes of {name}", f"{came} bytes came")
