# SPDX-License-Identifier: Apache-2.0
"""A flattened disk equals its base with the delta applied, byte for byte."""

import hypothesis
import pytest
from hypothesis import strategies

from acstor_common import errors
from acstor_common.disks import disk_delta
from acstor_common.disks import qcow2
from acstor_common.disks import qcow2_writer
from acstor_common.disks.disk_delta import Extent
from acstor_common.disks.disk_delta import ExtentKind
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from tests.fakes import changed_disks
from tests.fakes import qcow2_files
from tests.fakes.qcow2_files import Bytes
from tests.unit.common import test_disk_delta

SECTORS = test_disk_delta.SECTORS
CLUSTER = 2048


def base_file(size: int, kinds: str, codec: layout.Codec) -> bytes:
    """Return a qcow2 file: each letter is a stored or packed cluster, or none (a dot)."""
    pack = qcow2_files.deflated if codec is layout.Codec.DEFLATE else qcow2_files.zstandard_of
    runs, stored = [], []
    for number, kind in enumerate(kinds):
        data = bytes([number + 1, 0, 77]) * (CLUSTER // 3) + b"ab"
        if kind != ".":
            data = pack(data) if kind == "p" else data
            runs.append(
                qcow2_writer.DiskRun(number * CLUSTER, CLUSTER, len(data) if kind == "p" else 0)
            )
            stored.append(data)
    plan, rest = qcow2_writer.Plan(size, CLUSTER, codec, lambda: runs), iter(stored)
    return b"".join(plan.iter_parts(lambda run: [next(rest)]))


@strategies.composite
def bases(draw: strategies.DrawFn) -> changed_disks.Base:
    """Draw a base that is shorter or longer than the disk."""
    if draw(strategies.booleans()):
        return changed_disks.RawBase(Bytes(draw(strategies.binary(max_size=300)) * 90))
    clusters = draw(strategies.integers(0, 14))
    size = max(0, clusters * CLUSTER - draw(strategies.integers(0, 3)) * 512)
    kinds = draw(strategies.text("sp.", min_size=clusters, max_size=clusters))
    codec = draw(strategies.sampled_from([layout.Codec.DEFLATE, layout.Codec.ZSTD]))
    return qcow2.Qcow2(Bytes(base_file(size, kinds, codec)))


def stream(found: list[Extent], size: int) -> tuple[bytes, bytes]:
    """Return a delta stream, and all bytes of the disk as if each had been written."""
    table = disk_delta.ExtentTable.from_runs(found, size)
    writer = disk_delta.Writer(size, changed_disks.BASE_ID, chunk_map.UNKNOWN_OS_HASH, table)
    disk = b"".join(bytes([n % 251 + 1]) * 512 for n in range(size // 512))
    data = b"".join(disk[c.at : c.stop] for c in table if c.kind is ExtentKind.DATA)
    writer.hash_data(data)
    return writer.front + data + writer.make_trailer(), disk


def expected(base: changed_disks.Base, found: list[Extent], written: bytes) -> bytes:
    size = len(written)
    disk = bytearray(base.virtual_size)
    base.read_into(memoryview(disk), 0)
    disk = disk[:size].ljust(size, b"\0")
    for at, length, kind in found:
        disk[at : at + length] = (
            written[at : at + length] if kind is ExtentKind.DATA else bytes(length)
        )
    return bytes(disk)


@hypothesis.given(
    bases(), test_disk_delta.disk_changes(), strategies.sampled_from(["raw", "qcow2"])
)
def test_flattened_disk_has_the_bytes_of_base_and_delta(
    base: changed_disks.Base, found: list[Extent], disk_format: str
) -> None:
    sent, written = stream(found, SECTORS * 512)
    got = b"".join(changed_disks.compose(sent, base, disk_format))
    if disk_format == "qcow2":
        disk = qcow2.Qcow2(Bytes(got))
        data = memoryview(bytearray(disk.virtual_size))
        disk.read_into(data, 0)
        got = bytes(data)
    assert got == expected(base, found, written)


def codecs_of(file: bytes) -> list[tuple[int, layout.Codec]]:
    extents = qcow2.Qcow2(Bytes(file)).iter_extents()
    return [(extent.at // CLUSTER, extent.codec) for extent in extents]


def test_unchanged_compressed_clusters_are_copied() -> None:
    deflate, stored = layout.Codec.DEFLATE, layout.Codec.STORED
    base = qcow2.Qcow2(Bytes(base_file(6 * CLUSTER, "pppp.s", deflate)))
    found = [
        Extent(CLUSTER + 512, 512, ExtentKind.DATA),
        Extent(2 * CLUSTER, CLUSTER, ExtentKind.ZERO),
    ]
    got = b"".join(changed_disks.compose(stream(found, 6 * CLUSTER)[0], base, "qcow2"))
    assert codecs_of(got) == [(0, deflate), (1, stored), (3, deflate), (5, stored)]


@pytest.mark.parametrize("size", [CLUSTER, CLUSTER - 512, 3 * CLUSTER])
def test_cluster_across_the_end_of_the_base_is_not_copied(size: int) -> None:
    """Past the end of the base the cluster may have any bytes, and the disk has zeros."""
    base = qcow2.Qcow2(Bytes(base_file(CLUSTER - 512, "p", layout.Codec.ZSTD)))
    got = b"".join(changed_disks.compose(stream([], size)[0], base, "qcow2"))
    assert codecs_of(got) == [(0, layout.Codec.STORED)]


def test_altered_delta_aborts_the_flatten() -> None:
    base = changed_disks.RawBase(Bytes(b"base" * 1000))
    sent, _ = stream([Extent(0, 4096, ExtentKind.DATA)], 8192)
    altered = sent[:200] + b"?" + sent[201:]
    with pytest.raises(errors.DiskDeltaFormatError, match="the trailer does not match"):
        list(changed_disks.compose(altered, base, "qcow2"))


def test_unreadable_base_aborts_the_flatten() -> None:
    class Broken(Bytes):
        def read_into(self, view: memoryview, offset: int) -> None:
            raise errors.Unusable(self.name, "it is gone")

    base = changed_disks.RawBase(Broken(bytes(8192)))
    with pytest.raises(errors.Unusable):
        list(changed_disks.compose(stream([], 8192)[0], base, "qcow2"))
