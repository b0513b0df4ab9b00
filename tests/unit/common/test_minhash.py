# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_common.model import ids
from acstor_common.model import minhash

CIDS = [ids.cid_of(b"chunk %d" % n) for n in range(4000)]


@pytest.mark.parametrize("common", [0, 500, 1000, 2000])
def test_similarity_estimates_the_jaccard_index(common):
    one, other = CIDS[:2000], CIDS[2000 - common : 4000 - common]
    real = common / (4000 - common)
    assert (
        abs(minhash.similarity(minhash.make_sketch(one), minhash.make_sketch(other)) - real) < 0.12
    )


def test_small_sets_are_compared_exactly():
    assert (
        minhash.similarity(minhash.make_sketch(CIDS[:30]), minhash.make_sketch(CIDS[20:60]))
        == 10 / 60
    )


@given(st.lists(st.sampled_from(CIDS)), st.lists(st.sampled_from(CIDS)))
def test_similarity_is_symmetric_and_between_0_and_1(one, other):
    ours, theirs = minhash.make_sketch(one), minhash.make_sketch(other)
    assert 0 <= minhash.similarity(ours, theirs) <= 1
    assert minhash.similarity(ours, theirs) == minhash.similarity(theirs, ours)
    assert minhash.similarity(ours, ours) == (1.0 if one else 0.0)
