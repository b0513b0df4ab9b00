# SPDX-License-Identifier: Apache-2.0
import random
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.exchange import content_index
from acstor_common import ids

FEW_CIDS = [ids.ZERO_CID, *(ids.Cid(bytes([n]) * 32) for n in range(1, 6))]


@given(st.lists(st.sampled_from(FEW_CIDS), max_size=30))
def test_parent_is_the_first_chunk_with_the_content_and_is_what_its_prefix_finds(cids):
    index = content_index.ContentIndex(iter(cids))
    assert len(index) == len(cids)
    for chunk_no, cid in enumerate(cids):
        assert index.parent(chunk_no) == cids.index(cid)
        if cid != ids.ZERO_CID:
            assert index.find(ids.oid_of(cid)) == cids.index(cid)
    assert index.find(ids.oid_of(ids.Cid(b"\x99" * 32))) is None
    assert index.find(ids.oid_of(ids.ZERO_CID)) is None


def test_contents_that_share_a_prefix_keep_their_own_parents():
    one, other = (ids.Cid(bytes(8 * [7]) + bytes(23) + bytes([n])) for n in (1, 2))
    index = content_index.ContentIndex([other, one, one, other])
    assert [index.parent(n) for n in range(4)] == [0, 1, 1, 0]
    assert index.find(ids.oid_of(one)) in (0, 1)


def test_content_is_found_in_images_at_different_offsets():
    rng = random.Random(1)
    common = [ids.Cid(rng.randbytes(32)) for _ in range(50)]
    own = [ids.Cid(rng.randbytes(32)) for _ in range(17)]
    ours, theirs = content_index.ContentIndex(own + common), content_index.ContentIndex(common)
    for n, cid in enumerate(common):
        assert theirs.find(ids.oid_of(cid)) == n
        assert ours.find(ids.oid_of(cid)) == n + 17


def test_index_of_one_gib_is_small_and_quick_to_build():
    rng = random.Random(2)
    cids = [ids.Cid(rng.randbytes(32)) for _ in range(16_384)]
    began_s = time.thread_time()
    index = content_index.ContentIndex(cids)
    taken_s = time.thread_time() - began_s
    arrays = (index._parents, index._prefixes, index._chunk_nos)
    assert sum(map(sys.getsizeof, arrays)) <= 17 * len(cids)
    assert taken_s < 0.2  # 10 ms on an idle machine


def test_chunk_that_the_image_has_not_is_no_parent():
    with pytest.raises(IndexError):
        content_index.ContentIndex(FEW_CIDS).parent(6)
