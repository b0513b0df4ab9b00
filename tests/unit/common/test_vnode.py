# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_common.model import ids
from acstor_common.ring import vnode

NAMES = st.frozensets(
    st.builds(
        vnode.VNode,
        st.sampled_from([ids.HostId(name) for name in ("h1", "h2", "gone-3")]),
        st.integers(0, 40) | st.integers(0, vnode.MAX_NUMBER - 1),
    )
)


@given(NAMES)
def test_v_node_names_round_trip(names):
    assert frozenset(vnode.unpack(vnode.pack(names))) == names


@given(st.text(st.sampled_from("0123456789,-"), max_size=12))
def test_runs_are_ascending_numbers_or_are_refused(text):
    try:
        numbers = list(vnode.parse_runs(text))
    except ValueError:
        return
    assert numbers and numbers == sorted(set(numbers)) and numbers[-1] < vnode.MAX_NUMBER


@pytest.mark.parametrize(
    "text", ["", "a", "1,", "-1", "2-1", "1,1", "1-3,3", "0-1048576", "\u0663"]
)
def test_malformed_runs_are_refused(text):
    with pytest.raises(ValueError, match="v-nodes"):
        list(vnode.parse_runs(text))
