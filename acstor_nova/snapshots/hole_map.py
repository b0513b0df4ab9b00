# SPDX-License-Identifier: Apache-2.0
"""Writes a qcow2 file with an image's zeros that refers to the mirror for data.

qemu-img asks raw files for their holes, but FUSE_LSEEK does not reach the agent. This file takes
the place of the raw file: the mirror is its *external data file*, with each cluster at its own
offset, and clusters of zero chunks are unallocated. Format: QEMU's ``docs/interop/qcow2.txt``.
"""

import struct
from collections.abc import Callable
from typing import BinaryIO

from acstor_common.model import geometry

MAX_CLUSTER_BYTES = 64 * geometry.KIB

# Magic, version, backing file (offset, length of its name), cluster bits, disk bytes, encryption,
# L1 table (entries, offset), reference counts (offset, clusters), snapshots (count, offset),
# features (incompatible, compatible, autoclear), bits of a count, header length.
_HEADER = struct.Struct(">4sIQIIQIIQQIIQQQQII")
_EXTERNAL_DATA_FILE = 1 << 2
_ALLOCATED = 1 << 63
_ENTRY_BYTES = 8
_SECTOR_BYTES = 512


def write_hole_map(file: BinaryIO, cut: geometry.Geometry, is_zero: Callable[[int], bool]) -> None:
    """Write the hole map of an image to an empty file; ``is_zero`` takes a chunk_no."""
    cluster_bytes = min(cut.chunk_bytes, MAX_CLUSTER_BYTES)
    clusters = -(-cut.size_bytes // cluster_bytes)
    in_table = cluster_bytes // _ENTRY_BYTES
    tables = -(-clusters // in_table)
    l1_offset = 2 * cluster_bytes  # after the header and an empty reference count table
    end = l1_offset + -(-tables * _ENTRY_BYTES // cluster_bytes) * cluster_bytes
    file.write(_header(cut.size_bytes, cluster_bytes, tables, l1_offset))
    for table_no in range(tables):
        first = table_no * in_table
        entries = [
            0 if is_zero(no * cluster_bytes // cut.chunk_bytes) else no * cluster_bytes | _ALLOCATED
            for no in range(first, min(first + in_table, clusters))
        ]
        if any(entries):
            file.seek(l1_offset + table_no * _ENTRY_BYTES)
            file.write(struct.pack(">Q", end | _ALLOCATED))
            file.seek(end)
            file.write(struct.pack(f">{len(entries)}Q", *entries))
            end += cluster_bytes
    file.truncate(end)


def _header(size_bytes: int, cluster_bytes: int, tables: int, l1_offset: int) -> bytes:
    return _HEADER.pack(
        *(b"QFI\xfb", 3, 0, 0, cluster_bytes.bit_length() - 1),
        -(-size_bytes // _SECTOR_BYTES) * _SECTOR_BYTES,  # reads beyond the image's end give zeros
        *(0, tables, l1_offset, cluster_bytes, 1, 0, 0),
        *(_EXTERNAL_DATA_FILE, 0, 0, 4, _HEADER.size),
    )
