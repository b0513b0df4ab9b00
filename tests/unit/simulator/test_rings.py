# SPDX-License-Identifier: Apache-2.0
"""The product's rules decide whom the simulated hosts ask."""

from acstor_common import decision_api
from acstor_common import ids
from acstor_common import ring
from acstor_simulator import rings
from acstor_simulator import topology

CIDS = [ids.cid_of(b"%d" % n) for n in range(300)]
TREE = topology.Tree(topology.Shape(pods=2, racks=4, rack_hosts=4))
SLOW_RACK = 5
COLLECTION_S = 5.0


def weighted(of: rings.Table, counts: dict[int, int]) -> ring.Ring:
    hosts = tuple(
        ring.RingHost(host.host, host.address, counts.get(number, 100), host.location)
        for number, host in enumerate(
            sorted(of.ring.hosts, key=lambda host: int(host.host.removeprefix("h")))
        )
    )
    return ring.Ring(2, hosts)


def test_former_home_that_traffic_took_v_nodes_from_is_not_asked() -> None:
    spared, heavier = rings.Table(TREE), rings.Table(TREE)
    before = {cid: spared.home_of(cid, 0) for cid in CIDS}
    spared.use(weighted(spared, {7: 5}))
    heavier.use(weighted(heavier, {8: 500}))
    for of, asked in ((spared, False), (heavier, True)):
        moved = [cid for cid in CIDS if of.home_of(cid, 0) != before[cid]]
        assert moved
        for cid in moved:
            upstreams = of.upstreams(cid, of.home_of(cid, 0), 0)
            assert upstreams == ([before[cid]] if asked else [])


def collect(of: rings.TrafficTable, times: int, first: int = 1) -> None:
    """Let all hosts tell that the chunks of one rack take ten times as long as others."""
    hosts = range(TREE.shape.hosts)
    for collection in range(first, first + times):
        figures = [
            rings.Figures(
                decision_api.Traffic(),
                {
                    peer: decision_api.Timed(100, 10.0 if TREE.rack_of(peer) == SLOW_RACK else 1.0)
                    for peer in hosts
                    if peer != host
                },
                decision_api.Timed(),
            )
            for host in hosts
        ]
        of.collected(collection, figures, COLLECTION_S)


def test_rack_that_gives_late_is_asked_for_less_by_the_others_and_serves_itself() -> None:
    of = rings.TrafficTable(TREE, [()] * TREE.shape.hosts)
    collect(of, 3)
    assert (of.ring.threshold, of.ring.outer_threshold) == (1, ring.MAX_THRESHOLD)
    before = sum(TREE.rack_of(up) == SLOW_RACK for cid in CIDS for up in of.upstreams(cid, 0, 0))
    collect(of, 3, first=4)
    assert {place: rule.share for place, rule in of.ring.outward.items()} == {"pod1/rack5": 10}
    after = sum(TREE.rack_of(up) == SLOW_RACK for cid in CIDS for up in of.upstreams(cid, 0, 0))
    assert after < before / 3
    reader = SLOW_RACK * TREE.shape.rack_hosts
    homes = {of.home_of(cid, reader) for cid in CIDS}
    assert homes == set(TREE.within(reader, 1)), "those of its own rack ask it as ever"


def test_host_that_is_the_clouds_home_asks_nobody_but_the_storage() -> None:
    of = rings.TrafficTable(TREE, [()] * TREE.shape.hosts)
    collect(of, 6)
    for cid in CIDS:
        [upstream] = of.upstreams(cid, 0, 0) or [0]
        assert of.upstreams(cid, upstream, 0) == []
        assert of.home_of(cid, upstream) == upstream
