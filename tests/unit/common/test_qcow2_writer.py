# SPDX-License-Identifier: Apache-2.0
"""A qcow2 file written as a stream has the planned length and reads back correctly."""

import json
import random
import struct
import subprocess
import tracemalloc
from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis import strategies

from acstor_common.disks import disk_delta
from acstor_common.disks import qcow2
from acstor_common.disks import qcow2_writer
from acstor_common.disks.qcow2_writer import DiskRun
from acstor_common.formats import codecs
from acstor_common.formats import layout
from tests.fakes import qcow2_files
from tests.fakes import qcow2_readers
from tests.fakes.qcow2_files import Bytes

STORED, DEFLATE, ZSTD = layout.Codec.STORED, layout.Codec.DEFLATE, layout.Codec.ZSTD
KIB64 = 64 * 1024
PACK = {DEFLATE: qcow2_files.deflated, ZSTD: qcow2_files.zstandard_of}


def written(
    size: int, cluster: int, codec: layout.Codec, clusters: list[tuple[int, int, bytes]]
) -> bytes:
    """Write clusters: first number, count, and packed bytes or one byte to fill with."""
    runs = [
        DiskRun(first * cluster, count * cluster, len(data) if len(data) > 1 else 0)
        for first, count, data in clusters
    ]
    plan = qcow2_writer.Plan(size, cluster, codec, lambda: runs)
    stored = iter(
        data if len(data) > 1 else data * (count * cluster) for _, count, data in clusters
    )
    raw = b"".join(plan.iter_parts(lambda run: [next(stored)]))
    assert len(raw) == plan.file_bytes
    return raw


def read(raw: bytes) -> bytes:
    disk = qcow2.Qcow2(Bytes(raw), 64 << 40)
    data = memoryview(bytearray(disk.virtual_size))
    disk.read_into(data, 0)
    return bytes(data)


def fault_of_refcounts(raw: bytes) -> str:
    """Compare the refcounts with the clusters in use, as ``qemu-img check`` does."""
    (bits,) = struct.unpack_from(">I", raw, 20)
    l1_entries, l1_at, table_at, table_clusters = struct.unpack_from(">IQQI", raw, 36)
    cluster = 1 << bits
    counts = [0] * (len(raw) // cluster)

    def use(at: int, length: int) -> None:
        for number in range(at // cluster, -(-(at + length) // cluster)):
            counts[number] += 1

    use(0, cluster)
    use(table_at, table_clusters * cluster)
    use(l1_at, l1_entries * 8)
    blocks = [
        block
        for (block,) in struct.iter_unpack(">Q", raw[table_at:][: table_clusters * cluster])
        if block
    ]
    for block in blocks:
        use(block, cluster)
    for (entry,) in struct.iter_unpack(">Q", raw[l1_at : l1_at + l1_entries * 8]):
        if l2_at := entry & ~(1 << 63):
            use(l2_at, cluster)
            for (word,) in struct.iter_unpack(">Q", raw[l2_at : l2_at + cluster]):
                if word >> 62 & 1:
                    shift = 62 - (bits - 8)
                    at = word & (1 << shift) - 1
                    sectors = (word & (1 << 62) - 1) >> shift
                    use(at, (sectors + 1) * 512 - at % 512)
                elif word:
                    use(word & ~(1 << 63), cluster)
    said = [n for block in blocks for (n,) in struct.iter_unpack(">H", raw[block:][:cluster])]
    assert not any(said[len(counts) :])
    return "" if said[: len(counts)] == counts else f"{said[: len(counts)]} instead of {counts}"


@strategies.composite
def disks(draw: strategies.DrawFn) -> tuple[int, int, layout.Codec, list[tuple[int, int, bytes]]]:
    """Draw a disk: its size, cluster size, codec and clusters."""
    bits = draw(strategies.sampled_from([9, 9, 10, 12, 14]))
    codec = draw(strategies.sampled_from([STORED, DEFLATE, ZSTD]))
    cluster, at, clusters = 1 << bits, 0, []
    for _ in range(draw(strategies.integers(0, 12))):
        at += draw(strategies.sampled_from([0, 0, 1, 3, 70]))
        if codec is not STORED and draw(strategies.booleans()):
            data = PACK[codec](
                draw(strategies.binary(min_size=1, max_size=90)).ljust(cluster, b"a")
            )
            clusters.append((at, 1, data))
            at += 1
        else:
            count = draw(strategies.integers(1, 9))
            clusters.append((at, count, draw(strategies.binary(min_size=1, max_size=1))))
            at += count
    size = max(0, at * cluster - draw(strategies.integers(0, cluster // 512 - 1)) * 512)
    return size, cluster, codec, clusters


@hypothesis.given(disks())
def test_written_disk_reads_back_with_correct_refcounts(
    disk: tuple[int, int, layout.Codec, list[tuple[int, int, bytes]]],
) -> None:
    size, cluster, codec, clusters = disk
    expected = bytearray(size + cluster)
    for first, count, data in clusters:
        if len(data) > 1:
            data = bytes(codecs.decode(codec, data, cluster))
        at, length = first * cluster, count * cluster
        expected[at : at + length] = data * (length // len(data))
    raw = written(size, cluster, codec, clusters)
    assert read(raw) == expected[:size]
    assert fault_of_refcounts(raw) == ""


def test_compressed_clusters_are_packed_without_gaps() -> None:
    packed = [PACK[ZSTD](bytes([n]) * 300 + bytes(range(250)) + bytes(65536 - 550)) for n in b"abc"]
    raw = written(3 << 16, 1 << 16, ZSTD, [(n, 1, data) for n, data in enumerate(packed)])
    first, second, third = qcow2.Qcow2(Bytes(raw)).iter_extents()
    assert first.offset + len(packed[0]) == second.offset
    assert second.offset + len(packed[1]) == third.offset


def test_refcounts_of_tiny_compressed_clusters_do_not_overflow() -> None:
    """A hostile file may have one-byte clusters; QEMU's refcounts end at 65535."""
    count = (2 << 20) // 64 + 10
    runs = [DiskRun(number << 21, 1 << 21, 1) for number in range(count)]
    plan = qcow2_writer.Plan(count << 21, 1 << 21, ZSTD, lambda: runs)
    tables = b"".join(plan.iter_parts(lambda run: [b"x"]))
    blocks = [n for (n,) in struct.iter_unpack(">H", tables[2 << 21 : 3 << 21])]
    assert [n for n in blocks if n > 1] == [(2 << 20) // 64, 10]


def test_disk_of_64_tebibytes_takes_little_memory() -> None:
    runs = [DiskRun(n << 40, 1 << 16) for n in range(64)]
    tracemalloc.start()
    try:
        plan = qcow2_writer.Plan(64 << 40, 1 << 16, STORED, lambda: runs)
        length = sum(len(part) for part in plan.iter_parts(lambda run: [bytes(1 << 16)]))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert length == plan.file_bytes < 12 << 20


@pytest.mark.parametrize(
    ("size", "cluster", "runs", "why"),
    [
        (511, 512, [], "not of whole sectors"),
        (512, 256, [], "clusters of 256 bytes"),
        (512, 4 << 20, [], "clusters of 4194304 bytes"),
        (512, 1000, [], "clusters of 1000 bytes"),
        ((128 << 30) + 512, 512, [], "in clusters of 512"),
        (8192, 4096, [DiskRun(512, 4096)], "not a run of clusters"),
        (8192, 4096, [DiskRun(0, 512)], "not a run of clusters"),
        (8192, 4096, [DiskRun(0, 0)], "not a run of clusters"),
        (
            8192,
            4096,
            [DiskRun(4096, 4096), DiskRun(0, 4096)],
            "not a run of clusters behind 8192",
        ),
        (8192, 4096, [DiskRun(8192, 4096)], "not on the disk"),
        (8192, 4096, [DiskRun(0, 8192, 100)], "not a compressed cluster"),
        (8192, 4096, [DiskRun(0, 4096, 4097)], "not a compressed cluster"),
    ],
)
def test_invalid_plan_is_refused(size: int, cluster: int, runs: list[DiskRun], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        qcow2_writer.Plan(size, cluster, DEFLATE, lambda: runs)


def test_compressed_run_without_a_codec_is_refused() -> None:
    with pytest.raises(ValueError, match="not a compressed cluster"):
        qcow2_writer.Plan(4096, 4096, STORED, lambda: [DiskRun(0, 4096, 100)])


@pytest.mark.parametrize("length", [4095, 4097])
def test_run_with_a_wrong_number_of_bytes_is_an_error(length: int) -> None:
    plan = qcow2_writer.Plan(4096, 4096, STORED, lambda: [DiskRun(0, 4096)])

    def read_wrong(run: DiskRun) -> Iterator[bytes]:
        yield bytes(length)

    with pytest.raises(ValueError, match="1 bytes too few or too many at 0"):
        list(plan.iter_parts(read_wrong))


def overlay(backing: str, *runs: DiskRun) -> qcow2_writer.Plan:
    return qcow2_writer.Plan(20 * KIB64 - 512, KIB64, STORED, lambda: runs, backing)


def test_file_with_a_backing_file_is_valid_for_qemu(tmp_path) -> None:
    base = random.Random(1).randbytes(9 * KIB64 - 1024)
    (tmp_path / "base").write_bytes(base)
    runs = (
        DiskRun(0, KIB64, is_zero=True),
        DiskRun(2 * KIB64, 2 * KIB64),
        DiskRun(4 * KIB64, KIB64, is_zero=True),
        DiskRun(19 * KIB64, KIB64),  # it ends past the end of the disk
    )
    data = {run.at: random.Random(run.at).randbytes(run.length) for run in runs if not run.is_zero}
    plan = overlay(str(tmp_path / "base"), *runs)
    raw = b"".join(plan.iter_parts(lambda run: [data[run.at]]))
    assert len(raw) == plan.file_bytes == plan.data_at + 3 * KIB64
    (tmp_path / "disk").write_bytes(raw)
    expected = bytearray(base.ljust(20 * KIB64, b"\0"))
    for run in runs:
        expected[run.at : run.at + run.length] = data.get(run.at, bytes(run.length))
    subprocess.run(["qemu-img", "check", "-q", tmp_path / "disk"], check=True)
    reported = subprocess.run(
        ["qemu-img", "info", "--output=json", tmp_path / "disk"], check=True, capture_output=True
    )
    info = json.loads(reported.stdout)
    assert info["backing-filename"] == str(tmp_path / "base")
    assert info["backing-filename-format"] == "raw"
    convert = ["qemu-img", "convert", "-f", "qcow2", "-O", "raw"]
    subprocess.run([*convert, tmp_path / "disk", tmp_path / "raw"], check=True)
    assert (tmp_path / "raw").read_bytes() == expected[:-512]
    qcow2_readers.check(tmp_path / "disk", bytes(expected[:-512]))
    kinds = [
        change.kind for change in qcow2.Qcow2(Bytes(raw), may_have_backing=True).iter_changes()
    ]
    assert kinds == [
        disk_delta.ExtentKind.ZERO,
        disk_delta.ExtentKind.DATA,
        disk_delta.ExtentKind.ZERO,
        disk_delta.ExtentKind.DATA,
    ]


def test_long_backing_file_name_is_refused() -> None:
    assert overlay("/" + "x" * 1022).file_bytes
    with pytest.raises(ValueError, match="1024 bytes"):
        overlay("/" + "x" * 1023)
    with pytest.raises(ValueError, match="backing file has 400"):
        qcow2_writer.Plan(512, 512, STORED, lambda: (), "/" + "x" * 399)


def test_compressed_zero_run_is_refused() -> None:
    with pytest.raises(ValueError, match="not a compressed cluster"):
        qcow2_writer.Plan(KIB64, KIB64, ZSTD, lambda: [DiskRun(0, KIB64, 5, is_zero=True)])
