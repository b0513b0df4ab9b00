# SPDX-License-Identifier: Apache-2.0
"""Targets of disk deltas: the delta stream, an overlay, and a base to flatten."""

import blake3

from acstor_common import errors
from acstor_common.disks import disk_delta
from acstor_common.disks import qcow2
from acstor_common.disks import qcow2_header
from tests.fakes import changed_disks
from tests.fakes import qcow2_files
from tests.security.fuzz import formats
from tests.security.fuzz.target import Target

DATA, ZERO = disk_delta.ExtentKind.DATA, disk_delta.ExtentKind.ZERO
DISK_BYTES = 16384
FOUND = [
    disk_delta.Extent(0, 512, DATA),
    disk_delta.Extent(512, 1024, ZERO),
    disk_delta.Extent(6144, 512, DATA),
]


def _stream(found: list[disk_delta.Extent]) -> bytes:
    table = disk_delta.ExtentTable.from_runs(found, DISK_BYTES)
    writer = disk_delta.Writer(DISK_BYTES, formats.IMAGE, formats.OS_HASH, table)
    data = b"x" * table.data_bytes
    writer.hash_data(data)
    return writer.front + data + writer.make_trailer()


def _received(data: bytes) -> tuple[disk_delta.Head, disk_delta.ExtentTable]:
    reader, at = disk_delta.Reader("stream", formats.QCOW2_LIMIT), disk_delta.HEADER_BYTES
    head = reader.read_head(data[:at])
    table = reader.read_table(data[at : at + head.table_bytes])
    at += head.table_bytes
    stop = max(at, len(data) - disk_delta.TRAILER_BYTES)
    reader.hash_data(data[at:stop])
    reader.verify_trailer(data[stop:])
    return head, table


def _check_stream(taken: tuple[disk_delta.Head, disk_delta.ExtentTable], data: bytes) -> None:
    """Check that no two changes overlap, and that it is written as it was read."""
    head, table = taken
    assert head.stream_bytes == len(data)
    assert [*disk_delta.overlay(table, [])] == [*table]
    again = disk_delta.Writer(head.virtual_size, head.base, head.os_hash, table)
    assert again.head == head and again.front == data[: len(again.front)]


def _fix_stream(data: bytearray) -> None:
    body = len(data) - disk_delta.TRAILER_BYTES
    if body > 0:
        data[body:] = blake3.blake3(bytes(data[:body])).digest()


CHANGES = Target(
    "changes",
    _received,
    (errors.DiskDeltaFormatError,),
    lambda: [_stream(FOUND), _stream([]), _stream(FOUND[:1])],
    _check_stream,
    _fix_stream,
)


def _changes_of(data: bytes) -> disk_delta.ExtentTable:
    """Return an overlay's extents, which always fit into a table, and read all of it."""
    source = qcow2_files.Bytes(data)
    overlay = qcow2.Qcow2(source, formats.QCOW2_LIMIT, may_have_backing=True)
    table = disk_delta.ExtentTable.from_runs(overlay.iter_changes(), overlay.virtual_size)
    window = memoryview(bytearray(1 << 21))
    for change in table:
        for at in range(change.at, change.stop if change.kind is DATA else 0, len(window)):
            overlay.read_into(window[: change.stop - at], at)
    return table


def _overlay_seeds() -> list[bytes]:
    at, name = 4 * 4096, {"backing_offset": 200, "backing_length": 5}
    packed = qcow2_files.deflated(b"abc" * 1365 + b"d")
    entries = [at, 0, qcow2_files.ZERO, qcow2_files.compressed_entry(at + 4096, len(packed))]
    return [
        qcow2_files.File(**name, l2_entries=entries, data=b"a" * 4096 + packed).pack(),
        qcow2_files.File(
            **name, cluster_bits=14, incompatible=16, l2_entries=[4 << 14, 1 << 40 | 3, 0, 1 << 32],
            data=bytes(1024),
        ).pack(),
        *formats.QCOW2.seeds(),
    ]  # fmt: skip


OVERLAY = Target(
    "qcow2_overlay",
    _changes_of,
    (qcow2_header.Refused,),
    _overlay_seeds,
    max_bytes=80_000,
    time_limit_s=10.0,
)

COMPOSED_LIMIT = 8 << 20


def _composed(data: bytes) -> bytes | None:
    """Flatten a file onto a base, unless it is long."""
    base = qcow2.Qcow2(qcow2_files.Bytes(data), COMPOSED_LIMIT)
    file = bytearray()
    for part in changed_disks.compose(_stream(FOUND), base, "qcow2"):
        file += part
        if len(file) > COMPOSED_LIMIT:
            return None
    return bytes(file)


def _check_composed(file: bytes | None, _data: bytes) -> None:
    if file is not None:
        disk = qcow2.Qcow2(qcow2_files.Bytes(file))
        assert disk.virtual_size == DISK_BYTES
        assert all(extent.length for extent in disk.iter_extents())


COMPOSED = Target(
    "composed_base",
    _composed,
    (qcow2_header.Refused,),
    formats.QCOW2.seeds,
    _check_composed,
    max_bytes=80_000,
    time_limit_s=10.0,
    floor_bytes=64 << 20,
)

ALL = (CHANGES, OVERLAY, COMPOSED)
