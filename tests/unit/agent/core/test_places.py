# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.exchange import places
from acstor_agent.core.exchange.places import SOURCE
from acstor_agent.core.exchange.places import Place

HOSTS = [f"h{n}" for n in range(1, 9)]


def all_usable(_host):
    return True


def test_home_is_asked_first_then_the_next_host_then_the_source():
    found = places.places(HOSTS, "h9", all_usable)
    assert found[:3] == [Place("h1"), Place("h2"), SOURCE]


def test_home_itself_goes_to_the_source():
    assert places.places(HOSTS, "h1", all_usable)[0] == SOURCE


def test_host_that_takes_a_dead_homes_part_goes_to_the_source():
    assert places.places(HOSTS, "h2", lambda host: host != "h1")[0] == SOURCE


def test_hosts_behind_the_source_are_never_made_to_read_it():
    found = places.places(HOSTS, "h9", all_usable)
    assert all(not place.may_read_source for place in found[found.index(SOURCE) + 1 :])


@pytest.mark.parametrize("owners", [[], ["h9"]])
def test_host_that_is_alone_asks_the_source_only(owners):
    assert places.places(owners, "h9", all_usable) == [SOURCE]


@given(
    st.lists(st.sampled_from(HOSTS), unique=True),
    st.sampled_from(HOSTS),
    st.sets(st.sampled_from(HOSTS)),
)
def test_source_is_always_asked_once_and_nobody_asks_itself(owners, here, dead):
    found = places.places(owners, here, lambda host: host not in dead)
    hosts = [place.host for place in found]
    assert hosts.count(None) == 1
    assert here not in hosts
    assert not dead & set(hosts)
    assert len(set(hosts)) == len(hosts)
