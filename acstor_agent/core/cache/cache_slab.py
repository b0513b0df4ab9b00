# SPDX-License-Identifier: Apache-2.0
"""Format of a slab file (doc/source/format/cache_slab.rst); invalid records count as free."""

import dataclasses
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from acstor_agent.core.cache import checksums
from acstor_common import errors
from acstor_common.formats import file_header
from acstor_common.model import geometry
from acstor_common.model import ids

MAGIC = b"ACSTSLAB"
VERSION = 3
ALIGNMENT_BYTES = 4096
MIN_SLOT_BYTES = 4096
MAX_SLOT_BYTES = geometry.MAX_CHUNK_BYTES
MAX_SEQUENCE = 2**63 - 1
KEEP_CLASS_COUNT = 4
LEAST_SLABS = 16
"""Least number of slabs that fit in a cache: whole slabs are freed for chunks of another size."""
MAX_SLAB_BYTES = 256 * geometry.MIB
"""Largest slab: the disk needs this much free space whenever the cache grows."""
MIN_SLAB_BYTES = geometry.MIB

_HEADER = file_header.FileHeader("a slab file", MAGIC, VERSION, "2xII12x", errors.CacheFormatError)
_RECORD = struct.Struct("<32sQIB15x")
_STORED_RECORD = struct.Struct("<32sQIB15xI")
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size_bytes
RECORD_BYTES = _STORED_RECORD.size
_FREE = bytes(ids.CID_BYTES)


def slab_bytes_for(limit_bytes: int) -> int:
    """Return the greatest length of a slab file of a cache, a power of two.

    >>> [slab_bytes_for(limit_mib << 20) >> 20 for limit_mib in (1, 20, 70, 1024, 1500, 20480)]
    [1, 1, 4, 64, 64, 256]

    :param limit_bytes: of the cache; below 128 MiB, slabs are too short for chunks of 4 MiB
    """
    share = max(MIN_SLAB_BYTES, limit_bytes // LEAST_SLABS)
    return min(MAX_SLAB_BYTES, 1 << (share.bit_length() - 1))


def slot_bytes_for(length: int) -> int:
    """Return the slot size for a chunk of ``length`` bytes, or raise ValueError if no chunk has it.

    >>> slot_bytes_for(65536), slot_bytes_for(65537), slot_bytes_for(1)
    (65536, 131072, 4096)
    """
    if not 0 < length <= MAX_SLOT_BYTES:
        raise ValueError(f"a chunk cannot have {length} bytes")
    return max(MIN_SLOT_BYTES, 1 << (length - 1).bit_length())


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class SlabLayout:
    """Offsets in a slab file.

    >>> layout = SlabLayout.largest_within(1 << 20, slot_bytes=65536)
    >>> layout.slot_count, layout.data_offset, layout.file_bytes
    (15, 8192, 991232)
    """

    slot_bytes: int
    slot_count: int

    @classmethod
    def largest_within(cls, slab_bytes: int, slot_bytes: int) -> "SlabLayout":
        """Return the layout with the most slots, possibly none, in ``slab_bytes``."""
        each = slot_bytes + RECORD_BYTES + checksums.table_bytes(slot_bytes)
        count = max(0, (slab_bytes - HEADER_BYTES) // each)
        while count and cls(slot_bytes, count).file_bytes > slab_bytes:
            count -= 1
        return cls(slot_bytes, count)

    @property
    def table_bytes(self) -> int:
        """Length of the header and all records."""
        return HEADER_BYTES + self.slot_count * RECORD_BYTES

    @property
    def sums_offset(self) -> int:
        """Offset of the checksums of slot 0."""
        return _align(self.table_bytes)

    @property
    def data_offset(self) -> int:
        """Offset of slot 0."""
        sums = self.slot_count * checksums.table_bytes(self.slot_bytes)
        return _align(self.sums_offset + sums)

    @property
    def file_bytes(self) -> int:
        """Length of the file."""
        return self.data_offset + self.slot_count * self.slot_bytes


class SlotRecord(NamedTuple):
    """The record of a slot in use."""

    slot_no: int
    cid: ids.Cid
    sequence: int
    length: int
    keep_class: int


def record_offset(slot_no: int) -> int:
    """Return the offset of a slot's record in the file."""
    return HEADER_BYTES + slot_no * RECORD_BYTES


def pack_header(layout: SlabLayout) -> bytes:
    """Return the header of a slab file."""
    return _HEADER.pack(layout.slot_bytes, layout.slot_count)


def unpack_header(raw: bytes, file_bytes: int, what: str) -> SlabLayout:
    """Return the layout in the header ``raw`` of a slab file, or raise CacheFormatError."""
    slot_bytes, slot_count = _HEADER.unpack(raw, what)
    is_power = slot_bytes & (slot_bytes - 1) == 0
    if not (is_power and MIN_SLOT_BYTES <= slot_bytes <= MAX_SLOT_BYTES):
        raise errors.CacheFormatError(what, 12, f"a slot cannot have {slot_bytes} bytes")
    layout = SlabLayout(slot_bytes, slot_count)
    if slot_count == 0 or layout.file_bytes > file_bytes:
        raise errors.CacheFormatError(
            what, 16, f"{slot_count} slots do not fit in a file of {file_bytes} bytes"
        )
    return layout


def pack_record(cid: ids.Cid, sequence: int, length: int, keep_class: int) -> bytes:
    """Return the record of a slot in use; that of a free one is all zeros."""
    raw = _RECORD.pack(cid, sequence, length, keep_class)
    return raw + _CRC.pack(zlib.crc32(raw))


def unpack_records(table: bytes, slot_bytes: int) -> Iterator[SlotRecord]:
    """Yield the slots in use of ``table``, all records without the header; skip invalid ones."""
    view = memoryview(table)
    for slot_no, (cid, sequence, length, keep_class, crc) in enumerate(
        _STORED_RECORD.iter_unpack(table)
    ):
        if cid == _FREE or not 0 < length <= slot_bytes or sequence > MAX_SEQUENCE:
            continue
        at = slot_no * RECORD_BYTES
        if keep_class < KEEP_CLASS_COUNT and crc == zlib.crc32(view[at : at + _RECORD.size]):
            yield SlotRecord(slot_no, cid, sequence, length, keep_class)
