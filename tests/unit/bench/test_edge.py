# SPDX-License-Identifier: Apache-2.0
"""The edge site of E1: homes by its ring tables, and its figures."""

import json

import pytest

from acstor_agent.engine.ring import placement
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from evaluation.bench import e1_edge
from tests.lab import network

HOSTS = network.Network(len(e1_edge.SITES)).hosts
SITE_OF = {host.name: site for host, site in zip(HOSTS, e1_edge.SITES, strict=True)}
OIDS = [ids.Oid(n << 56) for n in range(256)]


def ring(way: str) -> hash_ring.Ring:
    return hash_ring.decode(json.dumps(e1_edge.table(HOSTS, way)).encode(), way)


@pytest.mark.parametrize("way", ["sites", "racks", "two stores"])
def test_hosts_with_a_location_have_their_homes_at_their_site(way: str) -> None:
    for host, site in SITE_OF.items():
        homes = {placement.home(ring(way), ids.HostId(host), oid) for oid in OIDS}
        assert {SITE_OF[home] for home in homes if home} == {site}
        assert len(homes) == (3 if way != "racks" else 1 if host in ("h3", "h6") else 2)


def test_hosts_without_locations_share_homes_of_both_sites() -> None:
    homes = {placement.home(ring("no locations"), ids.HostId("h1"), oid) for oid in OIDS}
    assert {SITE_OF[home] for home in homes if home} == {"central", "edge"}


@pytest.mark.parametrize(("way", "has_outer"), [("sites", True), ("no locations", False)])
def test_homes_have_outer_homes_at_both_sites_by_the_usual_table(way: str, has_outer: bool) -> None:
    table = ring(way)
    found = [
        placement.upstreams(table, None, home, oid)
        for oid in OIDS
        if (home := placement.home(table, ids.HostId("h6"), oid))
    ]
    assert any(found) == has_outer


def test_figures_are_ratios_to_the_minimum_of_the_links() -> None:
    wan_s = e1_edge.REGION_BYTES * 8e-6 / e1_edge.WAN_MBIT
    lan_s = wan_s * e1_edge.WAN_MBIT / e1_edge.LAN_MBIT

    def scene(took_s: dict[int, float], to_edge: float, from_edge: float) -> e1_edge.Outcome:
        return {"took_s": took_s, "to_edge": to_edge, "from_edge": from_edge}

    found = e1_edge.figures(
        {
            "download_s": 1.3 * wan_s,
            "at once": scene({3: wan_s, 4: 2 * wan_s, 5: wan_s}, 1.0, 0.25),
            "in turn": [
                scene({3: 3 * wan_s}, 1.0, 0.5),
                scene({4: 4 * lan_s}, 0.25, 0.0),
                scene({5: 5 * lan_s}, 0.25, 0.0),
            ],
            "both sites": scene({0: 6 * lan_s, **dict.fromkeys(e1_edge.EDGE, 7 * wan_s)}, 1.5, 0.5),
        }
    )
    assert found == pytest.approx(
        {
            "at once, bytes": 1.25,
            "at once": 2,
            "in turn, bytes": 2,
            "first": 3,
            "second": 4,
            "third": 5,
            "both, bytes to edge": 1.5,
            "both, bytes from edge": 0.5,
            "both, edge": 7,
            "both, central": 6,
            "download": 1.3,
        }
    )
