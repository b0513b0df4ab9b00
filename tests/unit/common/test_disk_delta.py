# SPDX-License-Identifier: Apache-2.0
"""Disk deltas: damage is detected, and each byte has one state in the table."""

import hashlib
import itertools
import pathlib
import struct

import blake3
import hypothesis
import pytest
from hypothesis import strategies

from acstor_common import errors
from acstor_common.disks import disk_delta
from acstor_common.disks.disk_delta import Extent
from acstor_common.disks.disk_delta import ExtentKind
from acstor_common.formats import chunk_map
from acstor_common.model import ids

BASE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
GOLDEN = pathlib.Path(__file__).parents[2] / "data" / "delta-v1.acdelta"
OS_HASH = chunk_map.OsHash("sha512", hashlib.sha512(b"base").digest())
DATA, ZERO = ExtentKind.DATA, ExtentKind.ZERO
SIZE = 8192
CHANGES = [
    Extent(0, 512, DATA),
    Extent(512, 1024, ZERO),
    Extent(4096, 1024, DATA),
    Extent(7680, 512, ZERO),
]
TEXT = [(b"what a server wrote\n" * 26)[:512], (b"and wrote later on\n" * 54)[:1024]]


def stream(
    found: list[Extent] | None = None, data: bytes = b"".join(TEXT), size: int = SIZE
) -> bytes:
    table = disk_delta.ExtentTable.from_runs(CHANGES if found is None else found, size)
    writer = disk_delta.Writer(size, BASE_ID, OS_HASH, table)
    writer.hash_data(data[:100])
    writer.hash_data(data[100:])
    return writer.front + data + writer.make_trailer()


def received(raw: bytes) -> tuple[disk_delta.Head, list[Extent], bytes]:
    """Read as a service that knows the length of the stream from elsewhere."""
    reader, at = disk_delta.Reader("it"), disk_delta.HEADER_BYTES
    head = reader.read_head(raw[:at])
    table = reader.read_table(raw[at : at + head.table_bytes])
    at += head.table_bytes
    data = raw[at : max(at, len(raw) - disk_delta.TRAILER_BYTES)]
    for start in range(0, len(data), 700):
        reader.hash_data(data[start : start + 700])
    reader.verify_trailer(raw[at + len(data) :])
    return head, list(table), data


def refusal(raw: bytes) -> errors.DiskDeltaFormatError:
    with pytest.raises(errors.DiskDeltaFormatError) as caught:
        received(raw)
    assert caught.value.what == "it"
    return caught.value


def sealed(body: bytes) -> bytes:
    return body + blake3.blake3(body).digest()


def test_golden_stream_of_version_1_is_read_and_written() -> None:
    raw = GOLDEN.read_bytes()
    assert received(raw) == (
        disk_delta.Head(SIZE, BASE_ID, OS_HASH, change_count=4, data_bytes=1536),
        CHANGES,
        b"".join(TEXT),
    )
    assert stream() == raw


def test_header_gives_the_length_of_the_stream() -> None:
    for found, data in ((CHANGES, b"".join(TEXT)), ([], b""), (CHANGES[:1], TEXT[0])):
        raw = stream(found, data)
        assert len(raw) == received(raw)[0].stream_bytes


def test_flipped_byte_is_detected() -> None:
    raw = stream()
    for at in range(len(raw)):
        refusal(raw[:at] + bytes([raw[at] ^ 0x40]) + raw[at + 1 :])


def test_truncation_and_extra_bytes_are_detected() -> None:
    raw = stream()
    for length in range(len(raw)):
        refusal(raw[:length])
    refusal(raw + b"\0")
    refusal(raw[:-32] + bytes(512) + raw[-32:])


FIELDS = [
    (0, "B", 0, "not a disk delta"),
    (8, "H", 2, "format version 2 is not known"),
    (10, "H", 65, "an image hash of 65 bytes"),
    (10, "H", 0, "an image hash of 0 bytes"),
    (12, "I", 3, "bytes of data are announced|more bytes than in the table"),
    (12, "I", disk_delta.MAX_EXTENTS + 1, "2097153 changes are too many"),
    (12, "I", 1000, "truncated in the table"),
    (16, "Q", 8191, "not of whole sectors"),
    (16, "Q", 4096, "the change at 4096 is not on the disk"),
    (16, "Q", (64 << 40) + 512, "are allowed"),
    (24, "Q", 1024, "1024 bytes of data are announced, but 1536 have changed"),
    (24, "Q", 1 << 63, "do not fit on the disk"),
    (48, "16s", b"sha 512", "not the name of a hash algorithm"),
    (48, "16s", b"", "needs both an algorithm and a value"),
    (128, "Q", 1, "not of whole sectors"),
    (128, "Q", 512, "the change at 512 is not after the one before it"),
    (136, "I", 0, "a change of 0 bytes"),
    (136, "I", 511, "not of whole sectors"),
    (136, "I", (1 << 30) + 512, "a change of 1073742336 bytes"),
    (136, "I", 1024, "the change at 512 is not after"),
    (140, "I", 0, "a change of the kind 0"),
    (140, "I", 3, "a change of the kind 3"),
    (140, "I", 2, "1536 bytes of data are announced, but 1024 have changed"),
    (176, "Q", 1 << 63, "the change at 9223372036854775808 is not on the disk"),
]


@pytest.mark.parametrize(("at", "code", "value", "why"), FIELDS)
def test_invalid_field_with_a_valid_trailer_is_refused(
    at: int, code: str, value: object, why: str
) -> None:
    forged = bytearray(stream()[:-32])
    struct.pack_into("<" + code, forged, at, value)
    with pytest.raises(errors.DiskDeltaFormatError, match=why):
        received(sealed(bytes(forged)))


def test_reader_refuses_a_disk_above_its_limit() -> None:
    header = stream()[: disk_delta.HEADER_BYTES]
    assert disk_delta.Reader("it", SIZE).read_head(header).virtual_size == SIZE
    with pytest.raises(errors.DiskDeltaFormatError, match="8192 bytes, and 7680 are allowed"):
        disk_delta.Reader("it", SIZE - 512).read_head(header)


@hypothesis.given(strategies.binary(max_size=400))
def test_random_bytes_are_no_delta(rubbish: bytes) -> None:
    refusal(rubbish)
    refusal(sealed(disk_delta.MAGIC + rubbish))
    refusal(sealed(stream()[: disk_delta.HEADER_BYTES] + rubbish))


def test_writer_requires_exactly_the_bytes_of_the_table() -> None:
    writer = disk_delta.Writer(
        SIZE, BASE_ID, OS_HASH, disk_delta.ExtentTable.from_runs(CHANGES, SIZE)
    )
    with pytest.raises(ValueError, match="1536 bytes less"):
        writer.make_trailer()
    with pytest.raises(ValueError, match="1 bytes more"):
        writer.hash_data(bytes(1537))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ([Extent(100, 512, DATA)], "not of whole sectors"),
        ([Extent(512, 0, DATA)], "a change of 0 bytes"),
        ([Extent(512, 512, ZERO), Extent(0, 512, DATA)], "not after the one before it"),
        ([Extent(7680, 1024, ZERO)], "not on the disk"),
    ],
)
def test_invalid_extents_are_not_written(found: list[Extent], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        disk_delta.ExtentTable.from_runs(found, SIZE)


@pytest.mark.parametrize("size", [-512, 511, (64 << 40) + 512])
def test_disk_of_invalid_size_is_not_written(size: int) -> None:
    with pytest.raises(ValueError, match="a disk of"):
        disk_delta.Writer(size, BASE_ID, OS_HASH, disk_delta.ExtentTable.from_runs([], size))


def test_number_of_extents_is_limited() -> None:
    assert len(disk_delta.ExtentTable.from_runs(CHANGES[:3], SIZE, max_extents=3)) == 3
    with pytest.raises(disk_delta.TooManyExtents):
        disk_delta.ExtentTable.from_runs(CHANGES, SIZE, max_extents=3)


def test_adjacent_runs_are_merged_up_to_the_largest_extent() -> None:
    gib = disk_delta.MAX_EXTENT_BYTES
    parts = [Extent(at, 1 << 29, ZERO) for at in range(0, 5 << 29, 1 << 29)]
    assert list(disk_delta.merge_adjacent(parts)) == [
        Extent(0, gib, ZERO),
        Extent(gib, gib, ZERO),
        Extent(2 * gib, gib // 2, ZERO),
    ]
    apart = [Extent(0, 512, ZERO), Extent(512, 512, DATA), Extent(1536, 512, DATA)]
    assert list(disk_delta.merge_adjacent(apart)) == apart


SECTORS = 40


@strategies.composite
def disk_changes(draw: strategies.DrawFn) -> list[Extent]:
    """Draw the changes of a disk of SECTORS sectors; adjacent ones may have the same kind."""
    edges = draw(strategies.lists(strategies.integers(0, SECTORS), max_size=14, unique=True))
    edges.sort()
    found = []
    for first, last in itertools.pairwise(edges):
        if kind := draw(strategies.sampled_from([None, DATA, ZERO])):
            found.append(Extent(first * 512, (last - first) * 512, kind))
    return found


def by_sector(found: list[Extent]) -> dict[int, ExtentKind]:
    return {at: change.kind for change in found for at in range(change.at, change.stop, 512)}


@hypothesis.given(disk_changes(), disk_changes())
def test_overlay_hides_only_the_covered_lower_changes(
    upper: list[Extent], lower: list[Extent]
) -> None:
    found = list(disk_delta.overlay(upper, lower))
    assert by_sector(found) == by_sector(lower) | by_sector(upper)
    disk_delta.ExtentTable.from_runs(found, SECTORS * 512)  # ordered and disjoint


@hypothesis.given(disk_changes())
def test_extent_table_round_trips(found: list[Extent]) -> None:
    length = sum(change.length for change in found if change.kind is DATA)
    data = bytes(range(256)) * (length // 256)
    head, table, got = received(stream(found, data, SECTORS * 512))
    assert table == list(disk_delta.merge_adjacent(found)) and by_sector(table) == by_sector(found)
    assert got == data and head.data_bytes == length
