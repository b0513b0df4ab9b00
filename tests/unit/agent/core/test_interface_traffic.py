# SPDX-License-Identifier: Apache-2.0
import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.cloud import interface_traffic

Link = interface_traffic.NetworkInterface
Carried = interface_traffic.TrafficBytes


def link(index: int, kind: str = "", lower: int = 0, master: int = 0) -> Link:
    return Link(index, f"if{index}", kind, lower, master, 100 * index, 10 * index)


ETH0, ETH1 = link(1, master=3), link(2, master=3)
BOND = link(3, "bond", master=6)
VLAN, VLAN_ON_VLAN = link(4, "vlan", lower=3), link(5, "vlan", lower=4)
BRIDGE = link(6, "bridge")
TAP, VETH = link(7, "tun", master=6), link(8, "veth", master=6)
LONE_BRIDGE, ITS_TAP = link(9, "bridge"), link(10, "tun", master=9)
ALL = [ETH0, ETH1, BOND, VLAN, VLAN_ON_VLAN, BRIDGE, TAP, VETH, LONE_BRIDGE, ITS_TAP]


@pytest.mark.parametrize(
    ("wanted", "counted"),
    [
        ({1}, [1]),
        ({3}, [1, 2]),
        ({4}, [1, 2]),
        ({5, 4, 3, 1}, [1, 2]),
        ({6}, [1, 2]),
        ({7}, [7]),
        ({9}, [9]),
        ({77}, []),
        (set(), []),
    ],
)
def test_lowest_interfaces_are_counted_once_each(wanted, counted):
    assert [found.index for found in interface_traffic.lowest_interfaces(ALL, wanted)] == counted


def test_circular_stack_of_interfaces_yields_none():
    one, two = link(1, "vlan", lower=2), link(2, "vlan", lower=1)
    assert interface_traffic.lowest_interfaces([one, two], {1}) == []


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=6),
    st.sets(st.integers(1, 6)),
    st.sampled_from(["vlan", "bond", "bridge", "tun", ""]),
)
def test_no_counted_interface_is_stacked_on_another_counted_one(shape, wanted, kind):
    every = [link(n, kind, lower, master) for n, (lower, master) in enumerate(shape, 1)]
    counted = interface_traffic.lowest_interfaces(every, wanted)
    known = {one.index: one for one in every}
    assert len({one.index for one in counted}) == len(counted)
    for one, other in itertools.permutations(counted, 2):
        assert other.index not in interface_traffic._below(one, known)


def test_traffic_is_the_difference_of_two_samples():
    later = [dataclasses.replace(ETH0, received=150, sent=30), ETH1]
    assert interface_traffic.traffic_between([ETH0, ETH1], later) == Carried(50, 20)


@pytest.mark.parametrize(
    "later",
    [
        dataclasses.replace(ETH0, received=5),
        dataclasses.replace(ETH0, received=1000, sent=0),
        dataclasses.replace(ETH0, name="other", received=1000),
        dataclasses.replace(ETH0, index=99, received=1000),
    ],
    ids=["wrapped", "one-wrapped", "renamed", "made-anew"],
)
def test_reset_or_new_counter_counts_only_from_the_next_sample(later):
    assert interface_traffic.traffic_between([ETH0], [later]) == Carried(0, 0)
    more = dataclasses.replace(later, received=later.received + 7)
    assert interface_traffic.traffic_between([later], [more]) == Carried(7, 0)


@given(
    st.builds(Carried, *[st.integers(0, 10**12)] * 2),
    st.builds(Carried, *[st.integers(0, 10**12)] * 2),
)
def test_chunk_bytes_on_the_wire_never_exceed_the_total(chunks, total):
    taken = interface_traffic.bytes_on_wire(chunks, total)
    assert 0 <= taken.received <= total.received and 0 <= taken.sent <= total.sent
