# SPDX-License-Identifier: Apache-2.0
import itertools

from hypothesis import given
from hypothesis import strategies as st

from acstor_common.ring import location

places = st.lists(st.sampled_from("ab"), min_size=3, max_size=3).map(tuple)


@given(places, places, places)
def test_distance_divides_hosts_into_disjoint_groups(one, two, three):
    for a, b, c in itertools.permutations([one, two, three]):
        assert location.distance(a, b) == location.distance(b, a)
        assert location.distance(a, c) <= max(location.distance(a, b), location.distance(b, c))
    assert location.distance(one, one) == 0


@given(places, places, st.integers(1, 5))
def test_hosts_share_an_ancestor_if_nearer_than_the_threshold(one, two, threshold):
    is_near = location.distance(one, two) < threshold
    assert (location.ancestor(one, threshold) == location.ancestor(two, threshold)) == is_near
