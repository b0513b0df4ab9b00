# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_common.model import geometry

CHUNK_SIZES = [2**k for k in range(14, 23)]
sizes = st.sampled_from(CHUNK_SIZES)


@given(st.integers(0, 1 << 50), sizes)
def test_chunks_cover_the_image_and_only_the_last_is_short(size, chunk_bytes):
    cut = geometry.Geometry(size, chunk_bytes)
    if not size:
        assert cut.chunk_count == 0
        return
    last = cut.chunk_count - 1
    assert cut.chunk_offset(last) + cut.chunk_length(last) == size
    assert 1 <= cut.chunk_length(last) <= chunk_bytes
    assert last == 0 or cut.chunk_length(last - 1) == chunk_bytes


@given(st.integers(0, 1 << 20), st.integers(0, 1 << 21), st.integers(0, 1 << 20), sizes)
def test_split_range_covers_the_range_within_the_image(size, offset, length, chunk_bytes):
    cut = geometry.Geometry(size, chunk_bytes)
    at = offset
    for piece in cut.split_range(offset, length):
        assert cut.chunk_offset(piece.chunk_no) + piece.start == at
        assert 0 <= piece.start < piece.stop <= cut.chunk_length(piece.chunk_no)
        at += piece.stop - piece.start
    assert at == max(offset, min(offset + length, size))


def test_chunk_sizes_are_powers_of_two_from_16_kib_to_4_mib():
    assert [n for n in range(1, 1 << 23, 4096) if geometry.is_chunk_size(n)] == []
    assert [2**k for k in range(30) if geometry.is_chunk_size(2**k)] == CHUNK_SIZES


@pytest.mark.parametrize(("size", "chunk_bytes"), [(-1, 65536), (1, 0), (1, 8192), (1, 65537)])
def test_invalid_geometry_is_refused(size, chunk_bytes):
    with pytest.raises(ValueError, match="an image cannot be divided like this"):
        geometry.Geometry(size, chunk_bytes)
