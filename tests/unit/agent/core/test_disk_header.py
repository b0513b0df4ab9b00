# SPDX-License-Identifier: Apache-2.0
"""The state file of a disk: round trips, and refusal of damage."""

import itertools
import pathlib

import hypothesis
import pytest
from hypothesis import strategies as st

from acstor_agent.core.disks import disk_header
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids

GOLDEN = pathlib.Path(__file__).parents[3] / "data" / "disk-v1.acdisk"
DISK = disk_header.parse_disk_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
BOOT = bytes(range(16))
HEADER = disk_header.DiskHeader(DISK, IMAGE, geometry.Geometry(300_000, 65536), 200_000)


def test_header_round_trips():
    raw = disk_header.pack(HEADER, BOOT)
    assert len(raw) == disk_header.AT_MARKS
    assert disk_header.unpack(raw, "x") == (HEADER, BOOT)


def test_golden_file_of_version_1_is_read():
    raw = GOLDEN.read_bytes()
    assert disk_header.unpack(raw[: disk_header.AT_MARKS], "x") == (HEADER, BOOT)
    marks = raw[disk_header.AT_MARKS :]
    disk_header.check_marks(marks, HEADER, "x")
    assert list(disk_header.marked(marks, disk_header.UNSYNCED)) == [3]
    assert list(disk_header.marked(marks, disk_header.WRITTEN)) == [0, 1]
    assert raw == disk_header.pack(HEADER, BOOT) + bytes([2, 2, 0, 1, 0])


@pytest.mark.parametrize("bit", range(0, disk_header.HEADER_BYTES * 8, 5))
def test_header_with_a_flipped_bit_is_refused(bit):
    raw = bytearray(disk_header.pack(HEADER, BOOT))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(errors.FormatError, match=r"the-disk"):
        disk_header.unpack(bytes(raw), "the-disk")


@pytest.mark.parametrize("length", [0, 8, 100, 4095])
def test_truncated_file_is_refused(length):
    with pytest.raises(errors.FormatError, match="ends inside its header"):
        disk_header.unpack(disk_header.pack(HEADER, BOOT)[:length], "x")


@pytest.mark.parametrize(
    ("marks", "at"), [(bytes(4), 4100), (bytes(6), 4101), (b"\0\1\3\0\0", 4098)]
)
def test_invalid_marks_are_refused(marks, at):
    with pytest.raises(errors.FormatError) as caught:
        disk_header.check_marks(marks, HEADER, "x")
    assert caught.value.offset == at


@pytest.mark.parametrize(
    ("size_bytes", "image_bytes"), [(10, 11), (65536 * disk_header.MAX_CHUNKS + 1, 0)]
)
def test_impossible_disk_size_is_refused(size_bytes, image_bytes):
    with pytest.raises(ValueError, match=str(size_bytes)):
        disk_header.DiskHeader(DISK, IMAGE, geometry.Geometry(size_bytes, 65536), image_bytes)


@pytest.mark.parametrize("text", ["", "x", DISK[:-1], DISK.replace("-", "")])
def test_invalid_disk_id_is_refused(text):
    with pytest.raises(ValueError, match="not a disk id"):
        disk_header.parse_disk_id(text)


@hypothesis.given(st.binary(max_size=60))
def test_marked_finds_every_mark_once(marks):
    assert list(disk_header.marked(marks, 1)) == [n for n, mark in enumerate(marks) if mark == 1]


@hypothesis.given(st.sets(st.integers(0, 40)))
def test_runs_cover_the_chunks_and_are_not_adjacent(chunks):
    runs = list(disk_header.runs(chunks))
    assert [n for first, count in runs for n in range(first, first + count)] == sorted(chunks)
    assert all(a + n < b for (a, n), (b, _) in itertools.pairwise(runs))
