# SPDX-License-Identifier: Apache-2.0
"""Frames of a boot image: verified by the table's CIDs, decompressed, split into chunks."""

from collections.abc import Iterable
from collections.abc import Iterator

import zstandard

from acstor_common import errors
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids


def unpack_frame(
    cut: geometry.Geometry,
    frame: boot_image.Frame,
    stored: boot_image.Buffer,
    what: str,
    keys: chunk_map.ScopeKeys = (),
) -> list[tuple[int, memoryview]]:
    """Return a frame's chunks, ``(chunk_no, bytes)``, in order of first touch; 1 ms per MiB.

    Callers must verify them by the chunk map.  BootImageFormatError: not the frame's bytes.
    """
    if len(stored) != frame.stored_bytes or not ids.Content(frame.cid, keys).matches_data(stored):
        raise _fault(what, frame.offset, f"frame {frame.number} does not match its checksum")
    raw = memoryview(_decompressed(frame, stored, what))
    return list(_cut(cut, frame, raw))


def _decompressed(
    frame: boot_image.Frame, stored: boot_image.Buffer, what: str
) -> boot_image.Buffer:
    if frame.stored_bytes == frame.raw_bytes:
        return stored
    try:
        if zstandard.frame_content_size(stored) != frame.raw_bytes:
            raise _fault(what, frame.offset, f"frame {frame.number} decompresses to another length")
        return zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as e:
        raise _fault(what, frame.offset, f"frame {frame.number}: {e}") from e


def _cut(
    cut: geometry.Geometry, frame: boot_image.Frame, raw: memoryview
) -> Iterator[tuple[int, memoryview]]:
    at = 0
    for chunk_no in frame.chunk_nos:
        length = cut.chunk_length(chunk_no)
        yield chunk_no, raw[at : at + length]
        at += length


def unpack_checked(
    image_map: chunk_map.ChunkMap, frame: boot_image.Frame, stored: boot_image.Buffer, what: str
) -> dict[ids.Cid, memoryview]:
    """Return a frame's chunks by CID, all verified, or raise BootImageFormatError."""
    by_cid = {}
    cut, keys = image_map.geometry, image_map.scope_keys
    for chunk_no, data in unpack_frame(cut, frame, stored, what, keys):
        content = image_map.content_of(chunk_no)
        if not content.matches_data(data):
            raise _fault(what, frame.offset, f"chunk {chunk_no} does not match the chunk map")
        by_cid[content.cid] = data
    return by_cid


def check_boot_image(
    parts: Iterable[boot_image.Buffer], what: str, keys: chunk_map.ScopeKeys = ()
) -> boot_image.Head:
    """Verify all of a boot image; return its head, or raise BootImageFormatError."""
    buffer = b"".join(parts)
    head = boot_image.parse_head(buffer, what)
    if len(buffer) != head.size_bytes:
        raise _fault(what, len(buffer), f"{head.size_bytes} bytes are expected")
    for frame in head.frames:
        stored = buffer[frame.offset : frame.offset + frame.stored_bytes]
        unpack_frame(head.header.binding.cut, frame, stored, what, keys)
    return head


def _fault(what: str, offset: int, why: str) -> errors.BootImageFormatError:
    return errors.BootImageFormatError(what, offset, why)
