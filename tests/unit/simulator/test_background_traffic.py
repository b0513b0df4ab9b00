# SPDX-License-Identifier: Apache-2.0
import random
import statistics

import pytest

from acstor_simulator.model import background_traffic
from acstor_simulator.model import topology

LIMIT = 250e6


@pytest.mark.parametrize("cv", [0.0, 0.4, 0.8, 1.2])
def test_loads_have_the_requested_mean_and_spread(cv: float) -> None:
    loads = background_traffic.draw_loads(256, 70e6, cv, LIMIT, random.Random(3))
    assert statistics.fmean(loads) == pytest.approx(70e6, rel=0.05)
    assert background_traffic.cv_of(loads) == pytest.approx(cv, rel=0.1, abs=1e-9)
    assert all(0 <= load <= LIMIT for load in loads)


def test_zero_load_leaves_every_link_free() -> None:
    tree = topology.Tree(topology.ONE_SWITCH)
    loads = background_traffic.draw_loads(32, 0.0, 1.2, LIMIT, random.Random(3))
    background_traffic.put(tree, background_traffic.flows(tree, loads, 4, 5, random.Random(3)))
    assert all(link.others == 0 for host in range(32) for link in tree.host_links(host))


def test_half_of_a_load_is_sent_and_all_of_that_is_received() -> None:
    tree = topology.Tree(topology.Shape(2, 2, 4))
    loads = background_traffic.draw_loads(16, 10e6, 0.8, LIMIT, random.Random(3))
    background_traffic.put(tree, background_traffic.flows(tree, loads, 8, 5, random.Random(3)))
    sent = [tree.host_links(host)[0].others for host in range(16)]
    assert sent == pytest.approx([load / 2 for load in loads])
    assert sum(tree.host_links(host)[1].others for host in range(16)) == pytest.approx(sum(sent))


@pytest.mark.parametrize(
    ("reach", "busy"), [(1, [False] * 3), (3, [True, False, False]), (5, [True] * 3)]
)
def test_partners_load_only_the_switches_between_them(reach: int, busy: list[bool]) -> None:
    tree = topology.Tree(topology.Shape(2, 2, 4))
    background_traffic.put(
        tree, background_traffic.flows(tree, [10e6] * 16, 8, reach, random.Random(3))
    )
    assert [any(load.traffic for load in level) for level in tree.switch_loads()] == busy


def test_single_host_of_a_rack_has_no_traffic_within_it() -> None:
    tree = topology.Tree(topology.Shape(1, 2, 1))
    background_traffic.put(tree, background_traffic.flows(tree, [10e6] * 2, 8, 1, random.Random(3)))
    assert all(link.others == 0 for host in range(2) for link in tree.host_links(host))
