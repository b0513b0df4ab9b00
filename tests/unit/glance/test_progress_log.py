# SPDX-License-Identifier: Apache-2.0
"""The log of a pre-hash run grows with the image's data, not with its claimed size."""

import pathlib

import pytest

from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.prepare import progress_log

CUT = geometry.Geometry(5 * geometry.MIB - 100, 16 * geometry.KIB)
RECORD_BYTES = geometry.MIB
PER_RECORD = RECORD_BYTES // CUT.chunk_bytes
ENTRY = layout.pack(layout.Extent(0, 4096, layout.Codec.STORED, 512, 4096))
ZEROS = bytes(PER_RECORD * ids.CID_BYTES)
NAMED = b"".join(ids.cid_of(b"%d" % n) for n in range(PER_RECORD))
RECORDS = [
    progress_log.HashedRecord(ZEROS),
    progress_log.HashedRecord(NAMED, ENTRY),
    progress_log.HashedRecord(ZEROS, ENTRY),
    progress_log.HashedRecord(NAMED),
    progress_log.HashedRecord(ZEROS),
]


def opened(path: pathlib.Path) -> progress_log.ProgressLog:
    header = progress_log.header_bytes(CUT, 1, 2, RECORD_BYTES, layout.DiskFormat.RAW, bytes(32))
    return progress_log.ProgressLog(path, CUT, RECORD_BYTES, header)


def test_records_of_zeros_take_little_space_and_are_read_back(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    with opened(path) as log:
        empty_bytes = path.stat().st_size
        log.append_record(RECORDS[0])
        assert path.stat().st_size - empty_bytes < 40
        for record in RECORDS[1:]:
            log.append_record(record)
    with opened(path) as log:
        assert list(log.iter_records()) == RECORDS
        assert log.chunk_count == CUT.chunk_count


@pytest.mark.parametrize("bit", [7, 31])
def test_record_with_a_changed_length_is_dropped(tmp_path: pathlib.Path, bit: int) -> None:
    path = tmp_path / "log"
    with opened(path) as log:
        at = path.stat().st_size
        log.append_record(RECORDS[0])
        log.append_record(RECORDS[1])
    raw = bytearray(path.read_bytes())
    raw[at + bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)
    with opened(path) as log:
        assert log.chunk_count == 0
