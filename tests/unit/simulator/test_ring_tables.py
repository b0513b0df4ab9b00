# SPDX-License-Identifier: Apache-2.0
"""The product's rules decide on the requests of simulated hosts."""

import collections
from typing import NamedTuple

from acstor_agent.engine.ring import placement
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages
from acstor_decision.core import decider
from acstor_decision.core import vnode_counts
from acstor_simulator.model import background_traffic
from acstor_simulator.model import ring_tables
from acstor_simulator.model import topology

CIDS = [ids.cid_of(b"%d" % n) for n in range(300)]
TREE = topology.Tree(topology.Shape(pods=2, racks=4, rack_hosts=4))
SLOW_RACK = 5
COLLECTION_S = 5.0


class Empty(NamedTuple):
    """A host without chunks."""

    cache: tuple[ids.Cid, ...] = ()


def make_table() -> ring_tables.TrafficTable:
    return ring_tables.TrafficTable(TREE, collections.defaultdict(Empty), decider.RemapPolicy())


def home_of(table: hash_ring.Ring, cid: ids.Cid, reader: int) -> int:
    home = placement.home(table, ids.HostId(f"h{reader}"), ids.oid_of(cid))
    assert home is not None
    return int(home.removeprefix("h"))


def upstreams(table: hash_ring.Ring, cid: ids.Cid, home: int) -> list[int]:
    found = placement.upstreams(table, None, ids.HostId(f"h{home}"), ids.oid_of(cid))
    return [int(upstream.removeprefix("h")) for upstream in found]


def collect(of: ring_tables.TrafficTable, times: int, first: int = 1) -> None:
    """Let all hosts report that chunks of one rack take ten times as long as others."""
    hosts = range(TREE.shape.host_count)
    for collection in range(first, first + times):
        figures = [
            ring_tables.Figures(
                decision_messages.TrafficBytes(),
                {
                    of.hosts[peer]: decision_messages.TimedTraffic(
                        100, 10.0 if TREE.rack_of(peer) == SLOW_RACK else 1.0
                    )
                    for peer in hosts
                    if peer != host
                },
                decision_messages.TimedTraffic(),
            )
            for host in hosts
        ]
        of.end_collection(collection, figures, COLLECTION_S)


def test_slow_rack_gets_fewer_requests_of_other_racks_and_serves_itself() -> None:
    of = make_table()
    collect(of, 3)
    assert (of.ring.threshold, of.ring.outer_threshold) == (1, hash_ring.MAX_THRESHOLD)
    before = sum(TREE.rack_of(up) == SLOW_RACK for cid in CIDS for up in upstreams(of.ring, cid, 0))
    collect(of, 3, first=4)
    assert {place: rule.share for place, rule in of.ring.policies.items()} == {"pod1/rack5": 10}
    after = sum(TREE.rack_of(up) == SLOW_RACK for cid in CIDS for up in upstreams(of.ring, cid, 0))
    assert after < before / 3
    reader = SLOW_RACK * TREE.shape.rack_hosts
    placement = {home_of(of.ring, cid, reader) for cid in CIDS}
    assert placement == set(TREE.hosts_within(reader, 1)), "those of its own rack ask it as ever"


def test_outer_home_requests_only_from_the_storage() -> None:
    of = make_table()
    collect(of, 6)
    for cid in CIDS:
        [upstream] = upstreams(of.ring, cid, 0) or [0]
        assert upstreams(of.ring, cid, upstream) == []
        assert home_of(of.ring, cid, upstream) == upstream


def report_full_link(
    of: ring_tables.TrafficTable, busy: int, times: int, first: int = 1
) -> list[hash_ring.Ring]:
    """Let one host report a full link; return the published tables."""
    full = int(TREE.shape.host_rate * COLLECTION_S)
    made = []
    for collection in range(first, first + times):
        figures = [
            ring_tables.Figures(
                decision_messages.TrafficBytes(full if host == busy else 0, 0),
                {},
                decision_messages.TimedTraffic(),
            )
            for host in range(TREE.shape.host_count)
        ]
        made.append(of.end_collection(collection, figures, COLLECTION_S))
    return [table for table in made if table is not None]


def test_printed_rules_give_the_vnodes_of_equation_1() -> None:
    table = ring_tables.PrintedTable(TREE, collections.defaultdict(Empty), 2.0)
    [made] = report_full_link(table, busy=3, times=4)
    exact = vnode_counts.equation_1(
        {host: 1.0 if n == 3 else 0.1 for n, host in enumerate(table.hosts)}, 2.0
    )
    assert {host.host: host.vnodes for host in made.hosts} == exact
    assert table.remaps == 1


def test_printed_rules_use_no_groups_and_keep_requests_below_busy_switches() -> None:
    tree = topology.Tree(TREE.shape)
    table = ring_tables.PrintedTable(tree, collections.defaultdict(Empty), 1.67)
    assert (table.ring.threshold, table.ring.outer_threshold) == (None, None)
    background_traffic.put(
        tree,
        [
            background_traffic.Flow(rack * 4, (rack * 4 + 4) % 32, 0.9 * topology.GBIT)
            for rack in range(TREE.shape.pods * TREE.shape.racks)
        ],
    )
    [made, _] = report_full_link(table, busy=-1, times=3)  # then one of longer segments
    assert (made.threshold, made.outer_threshold, table.remaps) == (1, None, 0)
