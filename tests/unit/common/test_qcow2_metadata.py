# SPDX-License-Identifier: Apache-2.0
"""A qcow2 file is refused if and only if QEMU does not load its snapshots or bitmaps."""

import dataclasses
import struct
import time
from typing import Any

import pytest
import zstandard

from acstor_common.disks import qcow2
from acstor_common.disks import qcow2_header
from acstor_common.disks import qcow2_metadata
from acstor_common.disks.qcow2_header import Feature
from acstor_common.disks.qcow2_header import RefusalReason
from acstor_common.formats import layout
from tests.fakes import qcow2_files
from tests.fakes.qcow2_files import Bytes
from tests.fakes.qcow2_files import File

CLUSTER = 4096
DATA = 4 * CLUSTER  # where the data of a File begins
SIZE = 1 << 20
TABLES, OUTSIDE = RefusalReason.TABLES, RefusalReason.TABLES_OUTSIDE
HEADER = RefusalReason.HEADER
BITMAPS, BACKING_FORMAT = 0x23852875, 0xE2792ACA


def refusal(file: File) -> RefusalReason | None:
    """Return why a file is refused; None if it is not."""
    try:
        qcow2.Qcow2(Bytes(file.pack()))
    except qcow2_header.Refused as refused:
        return refused.reason
    return None


def snapshot(extra: int = 16, id_length: int = 1, name_length: int = 3) -> bytes:
    """Return a padded entry of the snapshot table."""
    fields = struct.pack(">QIHH20xI", CLUSTER, 1, id_length, name_length, extra)
    entry = fields + bytes(extra) + b"1" * id_length + b"n" * name_length
    return entry + bytes(-len(entry) % 8)


def with_snapshots(count: int, data: bytes) -> File:
    return File(snapshots=count, snapshot_offset=DATA, data=data)


def test_snapshots_that_qemu_loads_are_accepted() -> None:
    assert refusal(with_snapshots(2, snapshot() + snapshot(extra=0, id_length=0))) is None
    assert refusal(with_snapshots(1, snapshot(extra=1024))) is None
    assert refusal(with_snapshots(1, snapshot(name_length=65535))) is None


@pytest.mark.parametrize(
    ("count", "data", "reason"),
    [
        (1, snapshot(extra=1025), TABLES),
        (2, snapshot() + snapshot(extra=1025), TABLES),
        (1, snapshot(extra=(1 << 32) - 1 & 1023).replace(struct.pack(">I", 1023), b"\xff" * 4),
         TABLES),
        (1, snapshot(name_length=200)[:-100], OUTSIDE),
        (2, snapshot(name_length=200), OUTSIDE),
        (1, snapshot(extra=64)[:50], OUTSIDE),
    ],
)  # fmt: skip
def test_snapshots_that_qemu_does_not_load_are_refused(
    count: int, data: bytes, reason: RefusalReason
) -> None:
    assert refusal(with_snapshots(count, data)) is reason


def test_empty_snapshot_table_needs_a_valid_offset() -> None:
    assert refusal(File(snapshots=0, snapshot_offset=(1 << 63) - CLUSTER)) is None
    assert refusal(File(snapshots=0, snapshot_offset=1 << 63)) is TABLES
    assert refusal(File(snapshots=0, snapshot_offset=DATA + 8)) is TABLES


def test_snapshot_table_is_limited_like_in_qemu() -> None:
    """QEMU reads at most 64 MiB; an entry has at most 128 KiB."""
    stride = 40 + 2 * 65535 + 2  # a multiple of 8
    head = struct.pack(">QIHH20xI", 0, 0, 65535, 65535, 0)
    data = b"".join(head.ljust(stride, b"\0") for _ in range(512))
    assert refusal(with_snapshots(511, data)) is None
    assert refusal(with_snapshots(512, data)) is TABLES


@dataclasses.dataclass
class Bitmap:
    """An entry of the bitmap directory."""

    table_offset: int = DATA + CLUSTER
    entries: int = 1
    flags: int = 2
    kind: int = 1
    granularity: int = 16
    name: bytes = b"b0"
    name_length: int | None = None
    extra: int = 0

    def pack(self) -> bytes:
        """Return its bytes, padded."""
        length = len(self.name) if self.name_length is None else self.name_length
        entry = struct.pack(
            ">QIIBBHI", self.table_offset, self.entries, self.flags, self.kind, self.granularity,
            length, self.extra,
        ) + self.name  # fmt: skip
        return entry + bytes(-len(entry) % 8)


def extension(kind: int, data: bytes) -> bytes:
    return struct.pack(">II", kind, len(data)) + data.ljust(-(-len(data) // 8) * 8, b"\0")


def with_bitmaps(*bitmaps: Bitmap, table: bytes = bytes(8), **changes: Any) -> File:
    """Return a file that has the bitmap directory and, in the next cluster, a bitmap's table.

    :param changes: of the extension's fields
    """
    directory = b"".join(bitmap.pack() for bitmap in bitmaps)
    fields = {"count": len(bitmaps), "reserved": 0, "length": len(directory), "offset": DATA}
    packed = struct.pack(">IIQQ", *(fields | changes).values())
    return File(autoclear=1, extensions=extension(BITMAPS, packed) + bytes(8),
                data=directory.ljust(CLUSTER, b"\0") + table)  # fmt: skip


def test_bitmaps_that_qemu_loads_are_accepted() -> None:
    assert refusal(with_bitmaps(Bitmap(), Bitmap(name=b"b1"))) is None
    assert refusal(with_bitmaps(Bitmap(name=b""))) is None
    assert refusal(with_bitmaps(Bitmap(name=b"n" * 1023))) is None
    for entry in (1, 2 * CLUSTER):
        assert refusal(with_bitmaps(Bitmap(), table=struct.pack(">Q", entry))) is None
    unsaved = Bitmap(flags=3, entries=7, table_offset=1 << 40)
    assert refusal(with_bitmaps(unsaved, unsaved)) is None, "QEMU does not read its table"


def test_bitmaps_are_ignored_without_the_autoclear_bit() -> None:
    file = with_bitmaps(Bitmap(kind=7), count=9)
    assert refusal(dataclasses.replace(file, autoclear=0)) is None
    old = dataclasses.replace(file, version=2, autoclear=0)
    assert refusal(old) is None


def test_bitmap_needs_the_number_of_entries_of_its_disk() -> None:
    """A disk of 256 MiB has 524,288 sectors: 64 KiB of bits, 16 clusters."""
    large = {"size": 256 << 20, "l1_entries": [0] * 128, "l2_entries": []}
    for entries, reason in ((15, TABLES), (16, None), (17, TABLES)):
        bitmap = Bitmap(granularity=9, entries=entries)
        file = with_bitmaps(bitmap, table=bytes(8 * entries))
        assert refusal(dataclasses.replace(file, **large)) is reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": 0}, TABLES),
        ({"kind": 2}, TABLES),
        ({"flags": 4}, TABLES),
        ({"flags": 1 << 31}, TABLES),
        ({"granularity": 8}, TABLES),
        ({"granularity": 32}, TABLES),
        ({"granularity": 255, "flags": 1}, TABLES),
        ({"entries": 0}, TABLES),
        ({"entries": 0, "flags": 1}, TABLES),
        ({"entries": 2}, TABLES),
        ({"entries": (512 << 20) // CLUSTER + 1, "flags": 1}, TABLES),
        ({"entries": (1 << 32) - 1, "flags": 1}, TABLES),
        ({"table_offset": 0}, TABLES),
        ({"table_offset": DATA + 8}, TABLES),
        ({"table_offset": 1 << 40}, OUTSIDE),
        ({"name": b"n" * 1024}, TABLES),
        ({"name_length": 9}, TABLES),
        ({"extra": 8}, TABLES),
        ({"extra": (1 << 32) - 1}, TABLES),
    ],
)
def test_bitmap_that_qemu_does_not_load_is_refused(
    changes: dict[str, Any], reason: RefusalReason
) -> None:
    assert refusal(with_bitmaps(Bitmap(**changes))) is reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"count": 0}, HEADER),
        ({"count": 65536}, HEADER),
        ({"count": 2}, TABLES),
        ({"reserved": 1}, HEADER),
        ({"length": 0}, HEADER),
        ({"length": 1024 * 65535 + 1}, HEADER),
        ({"length": 24}, TABLES),
        ({"length": 40}, TABLES),
        ({"offset": DATA + 8}, HEADER),
        ({"offset": 1 << 40}, OUTSIDE),
        ({"offset": (1 << 64) - CLUSTER}, OUTSIDE),
        ({"offset": 0}, TABLES),
    ],
)
def test_bitmap_directory_that_qemu_does_not_load_is_refused(
    changes: dict[str, int], reason: RefusalReason
) -> None:
    assert refusal(with_bitmaps(Bitmap(), **changes)) is reason


@pytest.mark.parametrize("entry", [2, 1 << 63, 2 * CLUSTER | 1, CLUSTER + 512, 1 << 8])
def test_bitmap_table_that_qemu_does_not_load_is_refused(entry: int) -> None:
    assert refusal(with_bitmaps(Bitmap(), table=struct.pack(">Q", entry))) is TABLES


def test_bitmaps_with_the_same_name_are_refused_like_in_qemu() -> None:
    assert refusal(with_bitmaps(Bitmap(), Bitmap())) is TABLES
    assert refusal(with_bitmaps(Bitmap(), Bitmap(name=b"b0\0more"))) is TABLES
    assert refusal(with_bitmaps(Bitmap(flags=1), Bitmap())) is TABLES
    assert refusal(with_bitmaps(Bitmap(), Bitmap(flags=1))) is None


@pytest.mark.parametrize(
    ("extensions", "reason"),
    [
        (extension(BITMAPS, bytes(23)), HEADER),
        (extension(BITMAPS, bytes(32)), HEADER),
        (extension(BACKING_FORMAT, b"f" * 16), HEADER),
        (extension(BACKING_FORMAT, b"f" * 15) + bytes(8), None),
        (struct.pack(">II", 77, CLUSTER - 112 - 8), None),
        (struct.pack(">II", 77, CLUSTER - 112 - 7), HEADER),
        (struct.pack(">II", 77, CLUSTER - 112 - 16), None),
    ],
)
def test_header_extensions_are_bounded_like_in_qemu(
    extensions: bytes, reason: RefusalReason | None
) -> None:
    assert refusal(File(extensions=extensions)) is reason


@pytest.mark.parametrize(("padding", "reason"), [(5, HEADER), (8, None), (0, None)])
def test_extension_that_begins_too_late_is_refused(
    padding: int, reason: RefusalReason | None
) -> None:
    """QEMU reads another extension header even if a single byte is left."""
    header_length = CLUSTER - 24 - padding
    fill = bytes(header_length - 112)
    file = File(header_length=header_length, extensions=fill + extension(77, bytes(16)))
    assert refusal(file) is reason


def header_of(size: int, bitmaps: int, directory_bytes: int) -> qcow2_header.Header:
    """Return the header of a disk with bitmaps, whose L1 table is not in the file."""
    return qcow2_header.Header(
        3, 12, size, CLUSTER, layout.Codec.DEFLATE, False, False, (), (0, 0),
        qcow2_header.Bitmaps(bitmaps, directory_bytes, DATA),
    )  # fmt: skip


@pytest.mark.parametrize(("count", "stride"), [(4096, 0), (512, CLUSTER), (512, 1 << 20)])
def test_bitmap_tables_are_read_once_if_shared_or_overlapping_or_apart(
    count: int, stride: int
) -> None:
    entries = 1024  # two clusters
    tables = DATA + count * 32
    directory = b"".join(
        Bitmap(tables + n * stride, entries, granularity=9, name=b"%08d" % n).pack()
        for n in reversed(range(count))
    )
    table_bytes = min(stride, 8 * entries) * (count - 1) + 8 * entries
    size_bytes = tables + stride * (count - 1) + 8 * entries
    source = Bytes(File(data=directory).pack(), size_bytes)
    size = entries * CLUSTER * 8 * 512
    qcow2_metadata.check_metadata(source, header_of(size, count, len(directory)))
    assert table_bytes < source.read_bytes < 2 * (table_bytes + len(directory))


def test_bytes_read_for_bitmap_tables_are_limited() -> None:
    """A hundred bitmaps share one table in a 1 MiB file; QEMU would read it a hundred times."""
    entries = (512 << 20) // CLUSTER
    directory = [Bitmap(granularity=9, entries=entries, name=b"%d" % n) for n in range(100)]
    file = with_bitmaps(*directory, table=bytes(8 * entries))
    l1_entries = 1 << 20
    size = entries * CLUSTER * 8 * 512
    file = dataclasses.replace(file, cluster_bits=12, size=size, l1_size=l1_entries)
    source = Bytes(file.pack())
    header = header_of(size, 100, sum(len(one.pack()) for one in directory))
    began_s = time.monotonic()
    with pytest.raises(qcow2_header.Refused, match="more than 33554432 bytes"):
        qcow2_metadata.check_metadata(source, header)
    assert source.read_bytes < 40 << 20
    assert time.monotonic() - began_s < 20


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (qcow2_files.zstandard_of(b"z" * CLUSTER), None),
        (qcow2_files.zstandard_of(b"z" * CLUSTER, says_its_size=False), None),
        (qcow2_files.zstandard_of(b"z" * (CLUSTER + 1)), RefusalReason.DATA),
        (qcow2_files.zstandard_of(b"z" * (CLUSTER + 1), says_its_size=False), RefusalReason.DATA),
        (qcow2_files.zstandard_of(b"z" * (CLUSTER - 1)), RefusalReason.DATA),
        (zstandard.ZstdCompressor(write_content_size=False).compress(b"z" * CLUSTER)[:-1],
         RefusalReason.DATA),
    ],
)  # fmt: skip
def test_zstd_frame_must_end_with_its_cluster(frame: bytes, reason: RefusalReason | None) -> None:
    entry = qcow2_files.compressed_entry(DATA, len(frame))
    file = File(size=CLUSTER, incompatible=Feature.COMPRESSION, compression=1,
                l2_entries=[entry], data=frame)  # fmt: skip
    disk = qcow2.Qcow2(Bytes(file.pack()))
    got = bytearray(CLUSTER)
    if reason is None:
        disk.read_into(memoryview(got), 0)
        assert got == b"z" * CLUSTER
        return
    with pytest.raises(qcow2_header.Refused) as caught:
        disk.read_into(memoryview(got), 0)
    assert caught.value.reason is reason
