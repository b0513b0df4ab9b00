# SPDX-License-Identifier: Apache-2.0
"""Who is the home of a chunk: the product's ring, and the decisions that change it.

A collection is handed to the cores of the decision service as the samples that
agents would cast; what they decide is the ring from then on.
"""

from collections.abc import Collection
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.core.exchange import homes
from acstor_common import decision_api
from acstor_common import ids
from acstor_common import ring
from acstor_common import sketch
from acstor_decision.core import decider
from acstor_decision.core import members
from acstor_decision.core import table as decision_table
from acstor_decision.core import threshold
from acstor_simulator import topology

VNODES = 100
POD = 2
"""Hosts of one pod are nearer than this, in levels of a location."""


class Figures(NamedTuple):
    """What a host tells of a collection.

    :param others: bytes that are not chunks
    :param peers: what it waited for, by the number of who gave it
    """

    others: decision_api.Traffic
    peers: dict[int, decision_api.Timed]
    source: decision_api.Timed


class Table:
    """A ring of equal hosts, which no traffic changes.

    :param near: homes are nearer to the reader than this many levels (S4, Algorithm 1)
    """

    def __init__(self, tree: topology.Tree, near: int | None = None) -> None:
        self.remaps = 0
        self.hosts = [ids.HostId(f"h{number}") for number in range(tree.shape.hosts)]
        self._numbers = {host: number for number, host in enumerate(self.hosts)}
        self._tree = tree
        vnodes = max(1, min(VNODES, ring.MAX_POINTS // len(self.hosts)))
        hosts = (
            ring.RingHost(host, self.address(number), vnodes, tree.location_of(number))
            for number, host in enumerate(self.hosts)
        )
        self.ring = ring.Ring(0, ())
        self.use(ring.Ring(1, tuple(hosts), near))
        self.former = self.ring

    def address(self, number: int) -> str:
        """Return where the agent of a host would listen."""
        return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:7201"

    def use(self, table: ring.Ring) -> None:
        """Find homes by this ring from now on, and remember the one before it."""
        self.former, self.ring = self.ring, table
        self._groups = [table.group_of(host) for host in self.hosts]
        self._homes: dict[tuple[int, ids.Cid], int] = {}

    def home_of(self, cid: ids.Cid, reader: int) -> int:
        """Return the home of a chunk for a reader."""
        group = self._groups[reader]
        key = (id(group), cid)  # the group is kept as long as its homes
        if key not in self._homes:
            self._homes[key] = self._numbers[group.owners_of(cid, 1)[0]]
        return self._homes[key]

    def upstreams(self, cid: ids.Cid, home: int, requester: int) -> list[int]:
        """Return whom a home asks before it reads the storage, as its agent would."""
        asked_by = None if requester == home else self.hosts[requester]
        found = homes.upstreams(self.ring, self.former, self.hosts[home], ids.oid_of(cid), asked_by)
        return [self._numbers[upstream.host] for upstream in found]

    def is_left_to(self, cid: ids.Cid, former: int, requester: int) -> bool:
        """Say whether a former home leaves the storage to the home that asks it."""
        return homes.is_left_to(
            self.ring, self.former, self.hosts[former], ids.oid_of(cid), self.hosts[requester]
        )

    def collected(self, collection: int, figures: Sequence[Figures], interval_s: float) -> None:
        """Note a collection: what each host would tell of it."""


class TrafficTable(Table):
    """The ring that the decision service makes of the traffic.

    :param caches: the chunks that each host holds
    :param follows_switches: whether busy switches shorten the ways (S4, Algorithm 2)
    """

    def __init__(
        self,
        tree: topology.Tree,
        caches: Sequence[Collection[ids.Cid]],
        follows_switches: bool = False,
    ) -> None:
        super().__init__(tree)
        self._caches = caches
        self._follows_switches = follows_switches
        self._members = members.Members(members.Limits())
        self._decider = decider.Decider(
            decider.Policy(), self._members, decision_table.from_ring(self.ring)
        )

    def collected(self, collection: int, figures: Sequence[Figures], interval_s: float) -> None:
        """Cast every host's sample to the cores, and use the table that they decide on."""
        now_s = collection * interval_s
        for number, host in enumerate(self.hosts):
            told = figures[number]
            sample = decision_api.Sample(
                host=host,
                address=self.address(number),
                location=self._tree.location_of(number),
                session=number,
                started_s=0.0,
                number=collection,
                sent_s=now_s,
                interval_s=interval_s,
                link_bytes_s=int(self._tree.shape.host_rate),
                total=told.others,
                sketch=sketch.make(self._caches[number]),
                peers={
                    self.hosts[peer]: decision_api.Exchanged(timed.received, 0, timed)
                    for peer, timed in told.peers.items()
                },
                source=told.source,
            )
            self._members.hear(sample, now_s, now_s)
        loads = self._tree.switch_loads() if self._follows_switches else []
        self._decider.observe(threshold.busy_levels(loads))
        decision = self._decider.decide(now_s)
        if decision is not None:
            self._decider.adopt(decision)
            self.use(decision_table.to_ring(decision.table, self.ring.epoch + 1))
            self.remaps += 1
