# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_agent.engine.ring import ring_view
from acstor_common.model import ids
from acstor_policies import topologies

HOSTS = [ids.HostId(f"h{n}") for n in range(9)]


def test_ring_gives_each_host_two_mutual_neighbours():
    for count in range(2, 9):
        hosts = HOSTS[:count]
        reported = {host: ring_view.on_ring(hosts, host, {}) for host in hosts}
        for host, others in reported.items():
            assert len(others) == min(2, count - 1) and host not in others
            assert all(host in reported[other] for other in others)
    assert ring_view.on_ring(HOSTS, "h3", {}) == ("h4", "h2")


def test_full_topology_contains_all_other_hosts():
    assert set(topologies.all_hosts(HOSTS, "h3", {})) == set(HOSTS) - {"h3"}


def test_nearest_prefers_the_rack_then_the_site_then_the_ring():
    racks = ["s1/r1", "s1/r2", "s2/r1", "s1/r1", "s1/r2", "s2/r1", "s1/r1", "s1/r2", "s2/r1"]
    places = {host: f"{rack}/{host}" for host, rack in zip(HOSTS, racks, strict=True)}
    nearest = topologies.nearest(HOSTS, "h0", places, count=8)
    assert nearest == ("h3", "h6", "h1", "h7", "h4", "h8", "h2", "h5")
    assert topologies.nearest(HOSTS, "h0", places) == nearest[:4]


def test_nearest_without_locations_are_the_nearest_on_the_ring():
    four = topologies.nearest(HOSTS, "h0", {})
    assert four == ("h1", "h8", "h2", "h7")
    assert topologies.nearest(HOSTS, "h0", {"h4": "a/b/h4"}) == four


@pytest.mark.parametrize("topology", [ring_view.on_ring, topologies.nearest, topologies.all_hosts])
def test_single_or_unknown_host_has_no_neighbours(topology):
    assert topology(["h1"], "h1", {}) == ()
    assert topology(HOSTS, "x", {}) == ()
    assert topology([], "h1", {}) == ()
