# SPDX-License-Identifier: Apache-2.0
"""Format of a disk's state file (doc/source/format/disk.rst); invalid ones are never repaired."""

import dataclasses
import uuid
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NewType

from acstor_common import errors
from acstor_common.formats import file_header
from acstor_common.model import geometry
from acstor_common.model import ids

DiskId = NewType("DiskId", str)  # a disk's ID: a UUID, lower case, with dashes

MAGIC = b"\x89acdsk\r\n"
VERSION = 1
MAX_CHUNKS = 1 << 27  # 8 TiB of 64 KiB chunks: a disk in use takes two bytes of memory per chunk

AT_BOOT_ID = 512
BOOT_ID_BYTES = 16
AT_MARKS = 4096

UNWRITTEN, UNSYNCED, WRITTEN = 0, 1, 2
"""Marks: the image's bytes; written since the boot named in the file; written and synced."""

_HEADER = file_header.FileHeader(
    "the state of a disk", MAGIC, VERSION, "HIQQ16s16s", errors.FormatError
)
HEADER_BYTES = _HEADER.size_bytes


def parse_disk_id(text: str) -> DiskId:
    """Return ``text`` as a disk ID, or raise ValueError if it is no UUID with dashes."""
    try:
        return DiskId(ids.parse_image_id(text))
    except ValueError:
        raise ValueError(f"not a disk id (a UUID is expected): {text[:64]!r}") from None


@dataclasses.dataclass(frozen=True, slots=True)
class DiskHeader:
    """Immutable description of a disk."""

    disk_id: DiskId
    image_id: ids.ImageId
    cut: geometry.Geometry  # the disk's own size and chunks
    image_bytes: int  # length of its base image; zeros follow

    def __post_init__(self) -> None:
        if not 0 <= self.image_bytes <= self.cut.size_bytes:
            raise ValueError(
                f"a disk of {self.cut.size_bytes} bytes cannot hold an image of {self.image_bytes}"
            )
        if self.cut.chunk_count > MAX_CHUNKS:
            raise ValueError(
                f"a disk of {self.cut.size_bytes} bytes is too large: "
                f"{MAX_CHUNKS} chunks of {self.cut.chunk_bytes} bytes are the limit"
            )

    @property
    def file_bytes(self) -> int:
        """Length of the state file."""
        return AT_MARKS + self.cut.chunk_count


def pack(header: DiskHeader, boot_id: bytes) -> bytes:
    """Return the beginning of a new state file, up to its marks."""
    packed = _HEADER.pack(
        0,
        header.cut.chunk_bytes,
        header.cut.size_bytes,
        header.image_bytes,
        uuid.UUID(header.disk_id).bytes,
        ids.image_id_bytes(header.image_id),
    )
    return (packed.ljust(AT_BOOT_ID, b"\0") + boot_id).ljust(AT_MARKS, b"\0")


def unpack(raw: bytes, what: str) -> tuple[DiskHeader, bytes]:
    """Return header and boot ID from the beginning of the file ``what``, or raise FormatError."""
    if len(raw) < AT_MARKS:
        raise errors.FormatError(what, len(raw), "the file ends inside its header")
    _, chunk_bytes, size_bytes, image_bytes, disk, image = _HEADER.unpack(raw, what)
    try:
        header = DiskHeader(
            DiskId(str(uuid.UUID(bytes=disk))),
            ids.image_id_from_bytes(image),
            geometry.Geometry(size_bytes, chunk_bytes),
            image_bytes,
        )
    except ValueError as e:
        raise errors.FormatError(what, 12, str(e)) from e
    return header, raw[AT_BOOT_ID : AT_BOOT_ID + BOOT_ID_BYTES]


def check_marks(marks: bytes, header: DiskHeader, what: str) -> None:
    """Raise FormatError unless there is exactly one valid mark for each chunk."""
    if len(marks) != header.cut.chunk_count:
        raise errors.FormatError(
            what,
            AT_MARKS + min(len(marks), header.cut.chunk_count),
            f"{len(marks)} marks for {header.cut.chunk_count} chunks",
        )
    known = bytes((UNWRITTEN, UNSYNCED, WRITTEN))
    if odd := marks.translate(None, known):
        at = AT_MARKS + marks.index(odd[0])
        raise errors.FormatError(what, at, f"a flag of {odd[0]} is invalid")


def marked(marks: bytes, mark: int) -> Iterator[int]:
    """Yield the chunks that have ``mark``, in order.

    >>> list(marked(bytes([1, 0, 2, 1]), UNSYNCED))
    [0, 3]
    """
    at = marks.find(mark)
    while at >= 0:
        yield at
        at = marks.find(mark, at + 1)


def runs(chunk_nos: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, count) for each run of consecutive chunks.

    >>> list(runs([7, 1, 2, 3]))
    [(1, 3), (7, 1)]
    """
    first = count = 0
    for chunk_no in sorted(chunk_nos):
        if count and chunk_no == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = chunk_no, 1
    if count:
        yield first, count
