# SPDX-License-Identifier: Apache-2.0
"""Overlays: opened only on request; their changes and zeros are listed."""

import dataclasses

import pytest

from acstor_common.disks import qcow2
from acstor_common.disks import qcow2_header
from acstor_common.disks.disk_delta import Extent
from acstor_common.disks.disk_delta import ExtentKind
from acstor_common.disks.qcow2_header import Feature
from acstor_common.disks.qcow2_header import RefusalReason
from tests.fakes import qcow2_files
from tests.fakes.qcow2_files import Bytes
from tests.fakes.qcow2_files import File

CLUSTER = 4096
AT_DATA = 4 * CLUSTER
DATA, ZERO = ExtentKind.DATA, ExtentKind.ZERO
NAME = {"backing_offset": 200, "backing_length": 20, "extensions": b"\0" * 88 + b"/base/" * 3}


def overlay(*l2_entries: int, data: bytes = b"", size: int = 8 * CLUSTER, **fields: object) -> File:
    # The backing file name lies where an extension would be.
    return File(size=size, l2_entries=list(l2_entries), data=data, **NAME | fields)  # type: ignore[arg-type]


def opened(file: File) -> qcow2.Qcow2:
    return qcow2.Qcow2(Bytes(file.pack()), may_have_backing=True)


def changes_of(file: File) -> list[Extent]:
    return list(opened(file).iter_changes())


def test_clusters_of_all_kinds_are_changes_and_missing_ones_are_not() -> None:
    packed = qcow2_files.deflated(b"c" * CLUSTER)
    entry = qcow2_files.compressed_entry(AT_DATA + CLUSTER, len(packed))
    file = overlay(
        0, AT_DATA, entry, qcow2_files.ZERO, qcow2_files.ZERO | AT_DATA, 0, AT_DATA,
        data=b"a" * CLUSTER + packed,
    )  # fmt: skip
    assert changes_of(file) == [
        Extent(CLUSTER, 2 * CLUSTER, DATA),
        Extent(3 * CLUSTER, 2 * CLUSTER, ZERO),
        Extent(6 * CLUSTER, CLUSTER, DATA),
    ]
    data = bytearray(b"\xaa" * 1024)
    opened(file).read_into(memoryview(data), 2 * CLUSTER - 512)
    assert data == b"a" * 512 + b"c" * 512
    opened(file).read_into(memoryview(data), 3 * CLUSTER - 512)
    assert data == b"c" * 512 + bytes(512)
    opened(file).read_into(memoryview(data), 5 * CLUSTER)
    assert data == bytes(1024)


def test_subclusters_are_listed_as_separate_changes() -> None:
    bitmap = 0b0011 | 0b1100 << 32 | 1 << 5
    file = overlay(
        4 << 14, bitmap, 0, 1 << 63, cluster_bits=14, size=2 << 14,
        incompatible=Feature.EXTENDED_L2, data=bytes(1 << 14),
    )  # fmt: skip
    assert changes_of(file) == [
        Extent(0, 1024, DATA),
        Extent(1024, 1024, ZERO),
        Extent(5 * 512, 512, DATA),
        Extent((2 << 14) - 512, 512, ZERO),
    ]


def test_changes_end_at_the_end_of_the_disk() -> None:
    file = overlay(0, AT_DATA, AT_DATA, data=b"a" * 700, size=2 * CLUSTER + 512)
    assert changes_of(file) == [Extent(CLUSTER, CLUSTER + 512, DATA)]
    data = bytearray(b"\xaa" * CLUSTER)
    opened(file).read_into(memoryview(data), CLUSTER)
    assert data == (b"a" * 700).ljust(CLUSTER, b"\0")


def test_file_without_a_backing_file_lists_the_whole_disk() -> None:
    file = File(size=8 * CLUSTER, l2_entries=[0, AT_DATA], data=b"a" * CLUSTER)
    assert changes_of(file) == [
        Extent(0, CLUSTER, ZERO),
        Extent(CLUSTER, CLUSTER, DATA),
        Extent(2 * CLUSTER, 6 * CLUSTER, ZERO),
    ]
    assert changes_of(File(size=0)) == []


def test_overlay_is_refused_unless_allowed() -> None:
    with pytest.raises(qcow2_header.Refused) as caught:
        qcow2.Qcow2(Bytes(overlay().pack()))
    assert caught.value.reason is RefusalReason.BACKING_FILE


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"backing_length": 1024}, RefusalReason.HEADER),
        ({"backing_length": CLUSTER - 199}, RefusalReason.HEADER),
        ({"backing_offset": CLUSTER}, RefusalReason.HEADER),
        ({"backing_offset": 1 << 63}, RefusalReason.HEADER),
        ({"cluster_bits": 63}, RefusalReason.HEADER),
        ({"incompatible": Feature.EXTERNAL_DATA}, RefusalReason.EXTERNAL_DATA),
        ({"autoclear": 2}, RefusalReason.EXTERNAL_DATA),
        ({"crypt_method": 1}, RefusalReason.ENCRYPTED),
        ({"incompatible": Feature.CORRUPT}, RefusalReason.CORRUPT),
        ({"l1_entries": [3 * CLUSTER, 3 * CLUSTER], "size": 4 << 20}, RefusalReason.TABLES_OVERLAP),
    ],
)
def test_overlay_with_unsupported_header_is_refused(
    fields: dict[str, object], reason: RefusalReason
) -> None:
    fields = dict(fields)
    bits = fields.pop("cluster_bits", 12)
    raw = bytearray(dataclasses.replace(overlay(), **fields).pack())  # type: ignore[arg-type]
    raw[20:24] = bits.to_bytes(4, "big")  # type: ignore[attr-defined]
    with pytest.raises(qcow2_header.Refused) as caught:
        qcow2.Qcow2(Bytes(bytes(raw)), may_have_backing=True)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("entry", "reason"),
    [(AT_DATA + 512, RefusalReason.TABLES), (100 * CLUSTER, RefusalReason.TRUNCATED)],
)
def test_invalid_table_entries_are_refused(entry: int, reason: RefusalReason) -> None:
    file = overlay(0, entry, data=b"a" * CLUSTER)
    with pytest.raises(qcow2_header.Refused) as caught:
        changes_of(file)
    assert caught.value.reason is reason
