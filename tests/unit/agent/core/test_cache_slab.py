# SPDX-License-Identifier: Apache-2.0
"""The slab file format: round trips, and refusal of damaged records."""

import pathlib
import struct

import blake3
import hypothesis
import pytest
from hypothesis import strategies as st

from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import checksums
from acstor_common import errors
from acstor_common.model import ids

GOLDEN = pathlib.Path(__file__).parents[3] / "data" / "cache_slab-v3.acslab"
LAYOUT = cache_slab.SlabLayout(4096, 3)
CID = ids.cid_of(b"acstor")


@hypothesis.given(st.integers(0, 2**34), st.integers(12, 22))
def test_slab_has_as_many_slots_as_fit(slab_bytes, exponent):
    layout = cache_slab.SlabLayout.largest_within(slab_bytes, 1 << exponent)
    one_more = cache_slab.SlabLayout(layout.slot_bytes, layout.slot_count + 1)
    assert layout.slot_count == 0 or layout.file_bytes <= slab_bytes
    assert one_more.file_bytes > slab_bytes
    assert layout.sums_offset % 4096 == 0 and layout.sums_offset >= layout.table_bytes
    sums_bytes = layout.slot_count * checksums.table_bytes(1 << exponent)
    assert layout.data_offset % 4096 == 0
    assert layout.data_offset >= layout.sums_offset + sums_bytes


@hypothesis.given(st.integers(1, 4 << 20))
def test_slot_is_the_smallest_power_of_two_that_holds_the_chunk(length):
    size = cache_slab.slot_bytes_for(length)
    assert size >= max(length, 4096) and size & (size - 1) == 0
    assert size == 4096 or size // 2 < length


@pytest.mark.parametrize("length", [-1, 0, (4 << 20) + 1])
def test_slot_size_of_an_invalid_chunk_length_raises_an_error(length):
    with pytest.raises(ValueError, match="a chunk cannot have"):
        cache_slab.slot_bytes_for(length)


def test_header_round_trips():
    raw = cache_slab.pack_header(LAYOUT)
    assert len(raw) == 64
    assert cache_slab.unpack_header(raw, LAYOUT.file_bytes, "x") == LAYOUT


@pytest.mark.parametrize("bit", range(0, 64 * 8, 7))
def test_header_with_a_flipped_bit_is_refused(bit):
    raw = bytearray(cache_slab.pack_header(LAYOUT))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(errors.CacheFormatError, match=r"slab-00001"):
        cache_slab.unpack_header(bytes(raw), LAYOUT.file_bytes, "slab-00001")


def forge(version=3, slot_bytes=4096, slot_count=3) -> bytes:
    raw = struct.pack("<8sH2xII12x", cache_slab.MAGIC, version, slot_bytes, slot_count)
    return raw + blake3.blake3(raw).digest()


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (forge(version=2), "version 2 is not known"),
        (forge(version=4), "version 4 is not known"),
        (forge(slot_bytes=5000), "a slot cannot have 5000 bytes"),
        (forge(slot_bytes=2048), "a slot cannot have 2048 bytes"),
        (forge(slot_bytes=0), "a slot cannot have 0 bytes"),
        (forge(slot_bytes=8 << 20), "a slot cannot have"),
        (forge(slot_count=0), "0 slots do not fit"),
        (forge(slot_count=4), "4 slots do not fit"),
        (forge(slot_count=2**32 - 1), "do not fit"),
        (forge()[:63], "truncated in the header"),
        (b"", "not a slab file"),
    ],
)
def test_invalid_header_is_refused(header, why):
    with pytest.raises(errors.CacheFormatError, match=why):
        cache_slab.unpack_header(header, LAYOUT.file_bytes, "x")


def test_records_round_trip():
    record = cache_slab.pack_record(CID, 77, 4000, 2)
    assert len(record) == 64
    table = bytes(64) + record + bytes(64)
    assert list(cache_slab.unpack_records(table, 4096)) == [
        cache_slab.SlotRecord(1, CID, 77, 4000, 2)
    ]


@hypothesis.given(st.integers(0, 64 * 8 - 1))
def test_record_with_a_flipped_bit_is_a_free_slot(bit):
    raw = bytearray(cache_slab.pack_record(CID, 77, 4000, 2))
    raw[bit // 8] ^= 1 << bit % 8
    assert list(cache_slab.unpack_records(bytes(raw), 4096)) == []


@pytest.mark.parametrize(
    ("cid", "sequence", "length", "keep_class"),
    [
        (ids.ZERO_CID, 1, 4000, 0),
        (CID, 2**63, 4000, 0),
        (CID, 1, 0, 0),
        (CID, 1, 4097, 0),
        (CID, 1, 4000, 4),
    ],
)
def test_invalid_record_is_a_free_slot(cid, sequence, length, keep_class):
    raw = cache_slab.pack_record(cid, sequence, length, keep_class)
    assert list(cache_slab.unpack_records(raw, 4096)) == []


@hypothesis.given(st.binary(min_size=640, max_size=640))
def test_random_bytes_yield_no_record(table):
    assert list(cache_slab.unpack_records(table, 4096)) == []


def test_golden_file_of_version_3_is_read():
    raw = GOLDEN.read_bytes()
    layout = cache_slab.unpack_header(raw[:64], len(raw), GOLDEN.name)
    assert layout == cache_slab.SlabLayout(slot_bytes=8192, slot_count=3)
    records = list(cache_slab.unpack_records(raw[64 : layout.table_bytes], layout.slot_bytes))
    assert [(r.slot_no, r.sequence, r.length, r.keep_class) for r in records] == [
        (0, 1, 8192, 0),
        (2, 3, 5000, 2),
    ]
    for record in records:
        begin = layout.data_offset + record.slot_no * layout.slot_bytes
        data = raw[begin : begin + record.length]
        assert blake3.blake3(data).digest() == record.cid
        begin = layout.sums_offset + record.slot_no * 24
        assert raw[begin : begin + 24] == checksums.table_of(data, record.cid, 8192)
