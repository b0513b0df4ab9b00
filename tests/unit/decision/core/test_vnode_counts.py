# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_common.model import ids
from acstor_decision.core import vnode_counts

HOSTS = [ids.HostId(f"h{n}") for n in range(12)]
TRAFFIC = st.dictionaries(
    st.sampled_from(HOSTS), st.floats(1e-3, 2.0) | st.sampled_from([0.1, 2.0]), min_size=1
)


def test_equation_1_matches_the_paper():
    traffic = {HOSTS[0]: 10.0, HOSTS[1]: 20.0, HOSTS[2]: 70.0}
    assert vnode_counts.equation_1(traffic) == {HOSTS[0]: 16, HOSTS[1]: 8, HOSTS[2]: 2}


def test_counts_match_the_equation_up_to_scale():
    """With a lambda at which no count is rounded or bounded, both results are equal."""
    traffic = {HOSTS[0]: 10.0, HOSTS[1]: 20.0, HOSTS[2]: 40.0}
    exact = vnode_counts.equation_1(traffic, 400 / 7)
    assert exact == {HOSTS[0]: 400, HOSTS[1]: 200, HOSTS[2]: 100}
    assert vnode_counts.bounded_counts(traffic, 700, 1000) == exact


def test_printed_counts_are_bounded():
    traffic = {HOSTS[0]: 0.001, HOSTS[1]: 20.0, HOSTS[2]: 2000.0}
    assert vnode_counts.printed_counts(traffic, 1.0, most=50) == {
        HOSTS[0]: 50,
        HOSTS[1]: 50,
        HOSTS[2]: 1,
    }


@given(TRAFFIC, st.integers(0, 3000), st.integers(1, 1000))
def test_counts_add_up_within_bounds_and_fall_with_traffic(traffic, total, most):
    counts = vnode_counts.bounded_counts(traffic, total, most)
    assert counts.keys() == traffic.keys()
    assert sum(counts.values()) == min(max(total, len(traffic)), len(traffic) * most)
    assert all(1 <= count <= most for count in counts.values())
    for one, other in itertools.permutations(traffic, 2):
        if traffic[one] < traffic[other]:
            assert counts[one] >= counts[other] - 1  # rounding may favour either


@pytest.mark.parametrize("total", [12, 100, 1201])
def test_even_traffic_gives_even_counts(total):
    counts = vnode_counts.bounded_counts(dict.fromkeys(HOSTS, 0.3), total, 1000)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_no_hosts_give_no_counts():
    assert vnode_counts.bounded_counts({}, 100, 10) == {}


def test_hosts_that_rounding_reduced_most_get_the_remaining_v_nodes():
    traffic = {ids.HostId("a"): 1.0, ids.HostId("b"): 1 / 1.9, ids.HostId("c"): 1 / 3.2}
    assert vnode_counts.bounded_counts(traffic, 6, 1000) == {"a": 1, "b": 2, "c": 3}
    traffic = {ids.HostId("a"): 1 / 5.1, ids.HostId("b"): 1 / 1.9}
    assert vnode_counts.bounded_counts(traffic, 7, 1000) == {"a": 5, "b": 2}
