# SPDX-License-Identifier: Apache-2.0
"""Block checksums: stored ranges pass; every range that contains a changed block fails."""

import random

import hypothesis
import pytest
import xxhash
from hypothesis import strategies as st

from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import checksums
from acstor_common.model import ids

KIB = 1024
DATA = random.Random(3).randbytes(200_000)
CID = ids.cid_of(DATA)
LENGTHS = (1, 4096, 4097, 65_535, 65_536, 65_537, 131_072, 200_000)


def is_right(data, cid, table, start, stop) -> bool:
    """Check a range as a reader does."""
    begin, end = checksums.widened(start, stop, len(data))
    assert begin <= start and end >= stop
    skip, until = checksums.table_range(begin, end)
    view = memoryview(data)[begin:end]
    return checksums.are_right(view, begin, len(data), cid, table[skip:until], 0)


@st.composite
def ranges(draw):
    length = draw(st.sampled_from(LENGTHS))
    start = draw(st.integers(0, length - 1))
    return length, start, draw(st.integers(start + 1, length))


@hypothesis.given(ranges(), st.integers(0, 2**31))
def test_flipped_bit_fails_exactly_the_reads_of_its_block(where, at):
    length, start, stop = where
    data = bytearray(DATA[:length])
    cid = ids.cid_of(data)
    table = checksums.table_of(data, cid, cache_slab.slot_bytes_for(length))
    assert is_right(data, cid, table, start, stop)
    at %= 8 * length
    data[at // 8] ^= 1 << at % 8
    begin, end = checksums.widened(start, stop, length)
    assert is_right(data, cid, table, start, stop) == (not begin <= at // 8 < end)


@hypothesis.given(ranges(), st.integers(0, 2**31))
def test_flipped_bit_in_the_checksums_does_not_validate_wrong_bytes(where, at):
    length, start, stop = where
    data = bytearray(DATA[:length])
    cid = ids.cid_of(data)
    table = bytearray(checksums.table_of(data, cid, cache_slab.slot_bytes_for(length)))
    at %= 8 * len(table)
    table[at // 8] ^= 1 << at % 8
    data[start] ^= 1
    assert not is_right(data, cid, table, start, stop)


@pytest.mark.parametrize("length", LENGTHS)
def test_checksums_of_another_chunk_do_not_match(length):
    data = DATA[:length]
    other = checksums.table_of(data, ids.cid_of(b"another"), cache_slab.slot_bytes_for(length))
    assert not is_right(data, ids.cid_of(data), other, 0, length)


@pytest.mark.parametrize("length", LENGTHS)
def test_swapped_blocks_fail_the_check(length):
    data = DATA[:length]
    table = checksums.table_of(data, ids.cid_of(data), cache_slab.slot_bytes_for(length))
    swapped = data[4096:8192] + data[:4096] + data[8192:]
    if length >= 8192:
        assert not is_right(swapped, ids.cid_of(data), table, 0, 4096)
        assert not is_right(swapped, ids.cid_of(data), table, 0, length)


def test_checksum_table_layout_matches_the_format_document():
    data = DATA[: 65_536 + 5000]
    table = checksums.table_of(data, CID, 128 * KIB)
    seed = int.from_bytes(CID[:8], "big")
    group, rest = data[:65_536], data[65_536:]
    parts = [group, *(group[at : at + 4096] for at in range(0, 65_536, 4096))]
    parts += [rest, rest[:4096], rest[4096:]]
    expected = b"".join(xxhash.xxh3_64(part, seed).intdigest().to_bytes(8, "big") for part in parts)
    assert table == expected.ljust(2 * 17 * 8, b"\0")
    assert len(checksums.table_of(b"x", CID, 4096)) == 16 == checksums.table_bytes(4096)


@pytest.mark.parametrize("slot_bytes", [4 * KIB << n for n in range(11)])
def test_checksums_take_at_most_a_250th_of_the_slot(slot_bytes):
    assert checksums.table_bytes(slot_bytes) <= slot_bytes / 250
