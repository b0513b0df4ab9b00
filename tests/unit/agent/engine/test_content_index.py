# SPDX-License-Identifier: Apache-2.0
import random
import struct

import blake3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.engine import content_index
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import chunk_maps

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
CHUNK = 16 * geometry.KIB
FEW_CIDS = [ids.ZERO_CID, *(ids.Cid(bytes([2 * n]) * 32) for n in range(1, 6))]


def map_of(cids):
    cut = geometry.Geometry(len(cids) * CHUNK, CHUNK)
    return chunk_maps.made(IMAGE, cut, cids)


def index_of(cids):
    image_map = chunk_map.ChunkMap.parse(map_of(cids), "a map")
    return content_index.ContentIndex(image_map)


@given(st.lists(st.sampled_from(FEW_CIDS), min_size=1, max_size=600))
def test_parent_is_the_first_chunk_with_equal_content(cids):
    index = index_of(cids)
    for chunk_no, cid in enumerate(cids):
        if cid == ids.ZERO_CID:
            assert index.parent_of(chunk_no) == chunk_no
        else:
            assert (
                index.find_parent(ids.oid_of(cid)) == index.parent_of(chunk_no) == cids.index(cid)
            )
    assert index.find_parent(ids.oid_of(ids.Cid(b"\x99" * 32))) is None
    assert index.find_parent(ids.oid_of(ids.ZERO_CID)) is None


def test_contents_that_share_a_prefix_keep_their_own_parents():
    one, other = (ids.Cid(bytes(8 * [7]) + bytes(23) + bytes([n])) for n in (2, 4))
    index = index_of([other, one, one, other])
    assert [index.parent_of(n) for n in range(4)] == [0, 1, 1, 0]
    assert index.find_parent(ids.oid_of(one)) in (0, 1)


def test_content_is_found_in_images_at_different_offsets():
    rng = random.Random(1)
    common, own = ([ids.cid_of(rng.randbytes(9)) for _ in range(n)] for n in (500, 17))
    ours, theirs = index_of(own + common), index_of(common)
    for n, cid in enumerate(common):
        assert theirs.find_parent(ids.oid_of(cid)) == n
        assert ours.find_parent(ids.oid_of(cid)) == n + 17


@pytest.mark.parametrize("seed", range(4))
def test_wrong_index_hides_chunks_but_never_confuses_them(seed):
    """The author of a map cannot make a host serve the bytes of one chunk for another."""
    cids = [ids.cid_of(b"%d" % (n // 2)) for n in range(600)]
    raw = bytearray(map_of(cids))
    right = chunk_map.ChunkMap.parse(bytes(raw), "right")
    at = chunk_map_header.sections(*right.subject[1::3], right.tables).firsts_at
    rng = random.Random(seed)
    wrong = [rng.randrange(600) for _ in range(right.tables.contents)]
    struct.pack_into(f"<{len(wrong)}I", raw, at, *wrong)
    raw[-chunk_map.TRAILER_BYTES :] = blake3.blake3(raw[: -chunk_map.TRAILER_BYTES]).digest()
    index = content_index.ContentIndex(chunk_map.ChunkMap.parse(bytes(raw), "wrong"))
    for chunk_no, cid in enumerate(cids):
        parent, found = index.parent_of(chunk_no), index.find_parent(ids.oid_of(cid))
        assert cids[parent] == cid and index.parent_of(parent) == parent
        assert found is None or cids[found] == cid


def test_parent_of_a_chunk_beyond_the_image_raises_an_error():
    with pytest.raises(IndexError):
        index_of(FEW_CIDS).parent_of(6)
