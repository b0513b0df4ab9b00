# SPDX-License-Identifier: Apache-2.0
"""A qcow2 file is read as QEMU reads it or refused with a reason."""

import dataclasses
import pickle
import struct
import threading
import time
import tracemalloc
from typing import Any

import pytest

from acstor_common import errors
from acstor_common.disks import qcow2
from acstor_common.disks import qcow2_header
from acstor_common.disks.qcow2_header import Feature
from acstor_common.disks.qcow2_header import RefusalReason
from acstor_common.formats import layout
from acstor_common.model import geometry
from tests.fakes import qcow2_files
from tests.fakes.qcow2_files import COMPRESSED
from tests.fakes.qcow2_files import Bytes
from tests.fakes.qcow2_files import File

CLUSTER = 4096
DATA = 4 * CLUSTER  # where the data of a File begins
STORED, DEFLATE = layout.Codec.STORED, layout.Codec.DEFLATE


def opened(file: File) -> qcow2.Qcow2:
    return qcow2.Qcow2(Bytes(file.pack()))


def part_of(disk: qcow2.Qcow2, start: int = 0, stop: int | None = None) -> qcow2.DiskPart:
    cut = geometry.Geometry(disk.virtual_size, geometry.DEFAULT_CHUNK_BYTES)
    return disk.part_reader(start, disk.virtual_size if stop is None else stop, cut)


def read(file: File) -> bytes:
    disk = opened(file)
    data = bytearray(b"\xaa" * disk.virtual_size)
    if not part_of(disk).fill_buffer(memoryview(data), 0):
        assert data == b"\xaa" * disk.virtual_size
        return bytes(disk.virtual_size)
    return bytes(data)


def refused(file: File) -> qcow2_header.Refused:
    with pytest.raises(qcow2_header.Refused) as caught:
        read(file)
    return caught.value


def test_clusters_of_all_kinds_are_read() -> None:
    packed = qcow2_files.deflated(b"c" * CLUSTER)
    at = DATA + 2 * CLUSTER + 100
    file = File(
        size=8 * CLUSTER,
        l2_entries=[
            DATA + CLUSTER,
            0,
            qcow2_files.ZERO | DATA,
            qcow2_files.compressed_entry(at, len(packed)),
            DATA | qcow2_files.COPIED,
            DATA + CLUSTER,
        ],
        data=b"a" * CLUSTER + b"b" * CLUSTER + bytes(100) + packed,
    )
    a, b, c, zero = (bytes([n]) * CLUSTER for n in b"abc\0")
    assert read(file) == b + zero + zero + c + a + b + zero + zero
    assert part_of(opened(file)).extents == [
        layout.Extent(0, CLUSTER, STORED, DATA + CLUSTER, CLUSTER),
        layout.Extent(3 * CLUSTER, CLUSTER, DEFLATE, at, len(packed)),
        layout.Extent(4 * CLUSTER, 2 * CLUSTER, STORED, DATA, 2 * CLUSTER),
    ]


def test_file_that_ends_within_a_cluster_is_padded_with_zeros() -> None:
    file = File(size=2 * CLUSTER, l2_entries=[DATA, DATA + CLUSTER], data=b"a" * (CLUSTER + 7))
    assert read(file) == (b"a" * (CLUSTER + 7)).ljust(2 * CLUSTER, b"\0")
    cut = dataclasses.replace(file, data=b"a" * CLUSTER)
    assert refused(cut).reason is RefusalReason.TRUNCATED


def test_disk_that_ends_within_a_cluster_is_read_to_its_end() -> None:
    packed = qcow2_files.deflated(b"ab" * (CLUSTER // 2))
    entry = qcow2_files.compressed_entry(DATA, len(packed))
    file = File(size=CLUSTER + 512, l2_entries=[0, entry], data=packed)
    assert read(file) == bytes(CLUSTER) + b"ab" * 256
    assert [extent.length for extent in opened(file).iter_extents()] == [512]


@pytest.mark.parametrize("start", [0, 2, 5])
def test_part_of_the_disk_is_read_separately(start: int) -> None:
    entries = [DATA + number % 3 * CLUSTER for number in range(8)]
    file = File(
        size=8 * CLUSTER, l2_entries=entries, data=b"".join(bytes([n]) * CLUSTER for n in b"abc")
    )
    view = memoryview(bytearray(2 * CLUSTER))
    assert part_of(opened(file), start * CLUSTER).fill_buffer(view, start * CLUSTER)
    assert view == read(file)[start * CLUSTER : (start + 2) * CLUSTER]


def test_adjacent_compressed_clusters_have_exact_lengths() -> None:
    packed = [qcow2_files.deflated(bytes([n]) * 700 + bytes(CLUSTER - 700)) for n in b"abc"]
    entries, at = [], DATA
    for one in packed:
        entries.append(qcow2_files.compressed_entry(at, len(one)))
        at += len(one)
    file = File(size=3 * CLUSTER, l2_entries=entries, data=b"".join(packed))
    assert [extent.stored_bytes for extent in opened(file).iter_extents()] == [*map(len, packed)]
    assert read(file)[CLUSTER : CLUSTER + 700] == b"b" * 700


@pytest.mark.parametrize("says_its_size", [True, False])
def test_zstd_is_read_with_and_without_a_content_size(says_its_size: bool) -> None:
    packed = qcow2_files.zstandard_of(b"z" * CLUSTER, says_its_size=says_its_size)
    file = File(
        size=CLUSTER, incompatible=Feature.COMPRESSION, compression=1, data=packed,
        l2_entries=[qcow2_files.compressed_entry(DATA, len(packed))],
    )  # fmt: skip
    assert read(file) == b"z" * CLUSTER


def with_subclusters(bitmap: int, offset: int = 4 << 14) -> File:
    data = b"".join(bytes([part + 1]) * 512 for part in range(32))
    return File(
        cluster_bits=14, size=1 << 14, incompatible=Feature.EXTENDED_L2,
        l2_entries=[offset, bitmap], data=data,
    )  # fmt: skip


def test_subclusters_are_stored_or_zero_individually() -> None:
    got = read(with_subclusters(1 << 40 | 0b1011 | 1 << 31))
    parts = [got[at] for at in range(0, len(got), 512)]
    assert parts == [1, 2, 0, 4, *[0] * 27, 32]
    assert read(with_subclusters(0)) == bytes(1 << 14)
    assert read(with_subclusters(1 << 63, 0)) == bytes(1 << 14)


@pytest.mark.parametrize(("bitmap", "offset"), [(1 << 32 | 1, 4 << 14), (2, 0)])
def test_contradictory_subclusters_are_refused(bitmap: int, offset: int) -> None:
    assert refused(with_subclusters(bitmap, offset)).reason is RefusalReason.TABLES


DATA_NAME = struct.pack(">II", 0x44415441, 3) + b"abc".ljust(8, b"\0")
CRYPT_HEADER = struct.pack(">II", 0x0537BE77, 16) + bytes(16)
LONG_EXTENSION = struct.pack(">II", 0x12345678, 1 << 31)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 1}, RefusalReason.VERSION),
        ({"version": 4}, RefusalReason.VERSION),
        ({"backing_offset": 200, "backing_length": 5}, RefusalReason.BACKING_FILE),
        ({"backing_offset": 200}, RefusalReason.BACKING_FILE),
        ({"version": 2, "backing_offset": 1 << 63}, RefusalReason.BACKING_FILE),
        ({"crypt_method": 1}, RefusalReason.ENCRYPTED),
        ({"crypt_method": 2}, RefusalReason.ENCRYPTED),
        ({"crypt_method": 77}, RefusalReason.ENCRYPTED),
        ({"version": 2, "crypt_method": 1}, RefusalReason.ENCRYPTED),
        ({"extensions": CRYPT_HEADER}, RefusalReason.ENCRYPTED),
        ({"incompatible": Feature.EXTERNAL_DATA}, RefusalReason.EXTERNAL_DATA),
        ({"extensions": DATA_NAME}, RefusalReason.EXTERNAL_DATA),
        ({"autoclear": 2}, RefusalReason.EXTERNAL_DATA),
        ({"version": 2, "extensions": DATA_NAME}, RefusalReason.EXTERNAL_DATA),
        ({"incompatible": Feature.CORRUPT}, RefusalReason.CORRUPT),
        ({"incompatible": Feature.CORRUPT | Feature.DIRTY}, RefusalReason.CORRUPT),
        ({"incompatible": 32}, RefusalReason.FEATURES),
        ({"incompatible": 1 << 63}, RefusalReason.FEATURES),
        ({"compression": 1}, RefusalReason.HEADER),
        ({"incompatible": Feature.COMPRESSION}, RefusalReason.HEADER),
        ({"compression": 2, "incompatible": Feature.COMPRESSION}, RefusalReason.FEATURES),
        ({"extensions": LONG_EXTENSION}, RefusalReason.HEADER),
        ({"extensions": struct.pack(">II", 0, CLUSTER)}, RefusalReason.HEADER),
        ({"refcount_order": 7}, RefusalReason.HEADER),
        ({"header_length": 103}, RefusalReason.HEADER),
        ({"header_length": CLUSTER + 1}, RefusalReason.HEADER),
        ({"header_length": (1 << 32) - 1}, RefusalReason.HEADER),
        ({"incompatible": Feature.EXTENDED_L2}, RefusalReason.HEADER),
        ({"size": 1000}, RefusalReason.HEADER),
        ({"size": (1 << 44) + 512}, RefusalReason.TOO_LARGE),
        ({"size": 1 << 60}, RefusalReason.TOO_LARGE),
        ({"size": (1 << 64) - 512}, RefusalReason.TOO_LARGE),
        ({"size": 3 << 20}, RefusalReason.TABLES),
        ({"l1_size": 0}, RefusalReason.TABLES),
        ({"l1_size": (1 << 22) + 1}, RefusalReason.TABLES),
        ({"l1_size": (1 << 32) - 1}, RefusalReason.TABLES),
        ({"l1_size": 1 << 22}, RefusalReason.TABLES_OUTSIDE),
        ({"l1_offset": CLUSTER + 8}, RefusalReason.TABLES),
        ({"l1_offset": 1 << 40}, RefusalReason.TABLES_OUTSIDE),
        ({"l1_offset": (1 << 64) - CLUSTER}, RefusalReason.TABLES_OUTSIDE),
        ({"l1_offset": 0}, RefusalReason.TABLES_OVERLAP),
        ({"l1_offset": 2 * CLUSTER}, RefusalReason.TABLES_OVERLAP),
        ({"refcount_offset": 0}, RefusalReason.TABLES_OVERLAP),
        ({"refcount_offset": 1 << 50}, RefusalReason.TABLES_OUTSIDE),
        ({"refcount_clusters": 0}, RefusalReason.TABLES),
        ({"snapshot_offset": 77}, RefusalReason.TABLES),
        ({"refcount_clusters": (1 << 32) - 1}, RefusalReason.TABLES),
        ({"snapshots": 1, "snapshot_offset": 0}, RefusalReason.TABLES_OVERLAP),
        ({"snapshots": 1, "snapshot_offset": 1 << 50}, RefusalReason.TABLES_OUTSIDE),
        ({"snapshots": 65537, "snapshot_offset": DATA}, RefusalReason.TABLES),
        ({"l1_entries": [0x200]}, RefusalReason.TABLES),
        ({"l1_entries": [CLUSTER]}, RefusalReason.TABLES_OVERLAP),
        ({"l1_entries": [2 * CLUSTER]}, RefusalReason.TABLES_OVERLAP),
        ({"l1_entries": [DATA]}, RefusalReason.TABLES_OUTSIDE),
        ({"l1_entries": [1 << 55]}, RefusalReason.TABLES_OUTSIDE),
        ({"size": 4 << 20, "l1_entries": [3 * CLUSTER] * 2}, RefusalReason.TABLES_OVERLAP),
        ({"l2_entries": [DATA]}, RefusalReason.TRUNCATED),
        ({"l2_entries": [1 << 55]}, RefusalReason.TRUNCATED),
        ({"l2_entries": [3 * CLUSTER + 512]}, RefusalReason.TABLES),
        ({"l2_entries": [3 * CLUSTER + 512 | qcow2_files.ZERO]}, RefusalReason.TABLES),
        ({"l2_entries": [COMPRESSED | DATA]}, RefusalReason.TRUNCATED),
        ({"l2_entries": [COMPRESSED | (1 << 58) - 1]}, RefusalReason.TRUNCATED),
        ({"version": 2, "l2_entries": [1]}, RefusalReason.TABLES),
        ({"l2_entries": [COMPRESSED | 2 * CLUSTER]}, RefusalReason.DATA),
        ({"cluster_bits": 8}, RefusalReason.HEADER),
        ({"cluster_bits": 22}, RefusalReason.HEADER),
    ],
)  # fmt: skip
def test_unsupported_file_is_refused_with_its_reason(
    changes: dict[str, Any], reason: RefusalReason
) -> None:
    exc = refused(File(**changes))
    assert exc.reason is reason
    assert str(reason) in str(exc) and str(exc).startswith("image: ")
    assert isinstance(exc, errors.NotRaw)
    assert str(pickle.loads(pickle.dumps(exc))) == str(exc)


@pytest.mark.parametrize("bits", [(1 << 32) - 1, 1 << 31, 63])
def test_invalid_cluster_sizes_are_refused(bits: int) -> None:
    data = bytearray(File().pack())
    data[20:24] = bits.to_bytes(4, "big")
    with pytest.raises(qcow2_header.Refused) as caught:
        qcow2.Qcow2(Bytes(bytes(data)))
    assert caught.value.reason is RefusalReason.HEADER


def test_valid_files_are_accepted() -> None:
    """Checks that the refusals above are due to the changed fields."""
    for changes in (
        {},
        {"version": 2},
        {"incompatible": Feature.DIRTY},
        {"header_length": 104},
        {"extensions": struct.pack(">II", 0x12345678, 5) + bytes(8)},
        {"extensions": struct.pack(">II", 0, 5) + b"\xff" * 100},
        {"extensions": b""},
        {"size": 0, "l1_size": 0, "l1_offset": 0},
        {"snapshots": 2, "snapshot_offset": DATA, "data": bytes(100)},
        {"size": 4 << 20, "l1_entries": [0, 3 * CLUSTER]},
        {"l1_entries": [3 * CLUSTER, 12345]},  # the state of a snapshot, past the end of the disk
    ):
        assert not any(read(File(**changes)))


@pytest.mark.parametrize("length", [0, 3, 4, 71, 72, 100, 104, 111, 112, 4095, 3 * CLUSTER])
def test_truncated_file_is_refused(length: int) -> None:
    with pytest.raises(qcow2_header.Refused):
        qcow2.Qcow2(Bytes(File().pack()[:length]))


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xff" * 600,
        qcow2_files.deflated(b"a" * (CLUSTER - 1)),
        qcow2_files.deflated(b"a" * CLUSTER)[:-8],
    ],
    ids=["nothing", "noise", "short", "cut"],
)
def test_invalid_compressed_cluster_is_refused(packed: bytes) -> None:
    entry = qcow2_files.compressed_entry(DATA, max(1, len(packed)))
    file = File(size=CLUSTER, l2_entries=[entry], data=packed.ljust(600, b"\xff"))
    assert refused(file).reason is RefusalReason.DATA


def peak_bytes(work: Any) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bomb(codec: layout.Codec) -> File:
    """Return a cluster of 64 KiB that decompresses to 64 MiB of zeros."""
    zeros = bytes(64 << 20)
    is_zstd = codec is layout.Codec.ZSTD
    packed = qcow2_files.zstandard_of(zeros) if is_zstd else qcow2_files.deflated(zeros)
    assert len(packed) < 1 << 17
    return File(
        cluster_bits=16, size=1 << 16, data=packed,
        compression=int(is_zstd), incompatible=Feature.COMPRESSION * is_zstd,
        l2_entries=[qcow2_files.compressed_entry(4 << 16, len(packed), 16)],
    )  # fmt: skip


def test_decompression_bomb_takes_no_more_memory_than_a_cluster() -> None:
    file = bomb(DEFLATE)
    assert peak_bytes(lambda: read(file)) < 2 << 20
    assert read(file) == bytes(1 << 16)
    file = bomb(layout.Codec.ZSTD)
    assert peak_bytes(lambda: refused(file)) < 2 << 20
    assert refused(file).reason is RefusalReason.DATA, "as QEMU, which reads only whole frames"


def test_zstd_frame_with_a_huge_window_is_refused() -> None:
    frame = b"\x28\xb5\x2f\xfd\x00\xa8" + bytes(100)  # a window of 2 GiB
    entry = qcow2_files.compressed_entry(DATA, len(frame))
    file = File(size=CLUSTER, incompatible=Feature.COMPRESSION, compression=1, data=frame,
                l2_entries=[entry])  # fmt: skip
    assert refused(file).reason is RefusalReason.DATA


def test_huge_empty_disk_is_cheap_to_open() -> None:
    """The L1 table of 16 TiB, with clusters of 64 KiB, has 32768 entries."""
    entries = 1 << 15
    cluster = 1 << 16
    file = File(cluster_bits=16, size=16 << 40, l1_entries=[0] * entries,
                refcount_offset=5 * cluster, data=bytes(2 * cluster), l1_size=entries)  # fmt: skip
    packed = file.pack()
    began_s = time.monotonic()
    source = Bytes(packed)
    assert peak_bytes(lambda: list(qcow2.Qcow2(source).iter_extents())) < 4 << 20
    assert list(qcow2.Qcow2(source).iter_extents()) == []
    assert time.monotonic() - began_s < 5


def test_largest_l1_table_is_checked_in_little_memory() -> None:
    """Of 4 million L2 tables one is used twice; the check keeps no list of all in memory."""
    entries, cluster = 1 << 22, 512
    first = (1 << 25) + 4 * cluster
    file = File(cluster_bits=9, size=128 << 30, l1_entries=[], l1_size=entries,
                l1_offset=4 * cluster, refcount_offset=2 * cluster)  # fmt: skip
    head = file.pack()[: 4 * cluster]
    offsets = [first + number * cluster for number in range(1 << 16)]
    table = struct.pack(f">{1 << 16}Q", *offsets) + bytes(8 * (entries - (1 << 16)) - 8)
    source = Bytes(head + table + struct.pack(">Q", offsets[5]), first + (1 << 16) * cluster)

    def check() -> None:
        with pytest.raises(qcow2_header.Refused) as caught:
            qcow2.Qcow2(source)
        assert caught.value.reason is RefusalReason.TABLES_OVERLAP

    assert peak_bytes(check) < 8 << 20


def test_l2_tables_are_read_only_as_needed() -> None:
    cluster = 1 << 21
    file = File(cluster_bits=21, size=256 << 30, l2_entries=[0] * 100_000 + [4 * cluster],
                data=b"x" * cluster)  # fmt: skip
    source = Bytes(file.pack())
    disk = qcow2.Qcow2(source)
    before = source.read_bytes
    assert not list(disk.iter_extents(0, 32 << 20))
    assert list(disk.iter_extents(100_000 * cluster, 100_001 * cluster))
    assert source.read_bytes - before < 1000


def test_read_error_of_the_file_is_raised() -> None:
    class Broken(Bytes):
        def read_into(self, view: memoryview, offset: int) -> None:
            if offset:
                raise errors.Unusable(self.name, "Input/output error")
            super().read_into(view, offset)

    with pytest.raises(errors.Unusable, match="Input/output error"):
        qcow2.Qcow2(Broken(File().pack()))


def test_concurrent_threads_read_the_same_data() -> None:
    packed = [qcow2_files.zstandard_of(bytes([n]) * CLUSTER) for n in range(64)]
    entries = [qcow2_files.compressed_entry(DATA + n * 512, 512) for n in range(64)]
    file = File(size=64 * CLUSTER, l2_entries=entries, compression=1,
                incompatible=Feature.COMPRESSION,
                data=b"".join(one.ljust(512, b"\0") for one in packed))  # fmt: skip
    expected, disk, wrong = read(file), opened(file), []

    def read_all() -> None:
        data = bytearray(len(expected))
        for at in range(0, len(data), CLUSTER):
            part_of(disk, at, at + CLUSTER).fill_buffer(memoryview(data)[at : at + CLUSTER], at)
        if data != expected:
            wrong.append(data)

    threads = [threading.Thread(target=read_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert expected == b"".join(bytes([n]) * CLUSTER for n in range(64)) and not wrong
