# SPDX-License-Identifier: Apache-2.0
"""Who is the home of a chunk: the product's ring, and the decisions that change it.

A collection is handed to the cores of the decision service as the samples that
agents would cast; what they decide is the ring from then on.
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple
from typing import Protocol

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
    :param peers: what it waited for, by who gave it
    """

    others: decision_api.Traffic
    peers: dict[ids.HostId, decision_api.Timed]
    source: decision_api.Timed


class Holding(Protocol):
    """A host that holds chunks."""

    @property
    def cache(self) -> Collection[ids.Cid]:
        """What it holds."""


class Table:
    """A ring of equal hosts, which no traffic changes.

    :param near: homes are nearer to the reader than this many levels (S4, Algorithm 1)
    """

    def __init__(self, tree: topology.Tree, near: int | None = None) -> None:
        self.remaps = 0
        self.hosts = [ids.HostId(f"h{number}") for number in range(tree.shape.hosts)]
        self._tree = tree
        vnodes = max(1, min(VNODES, ring.MAX_POINTS // len(self.hosts)))
        hosts = (
            ring.RingHost(host, self.address(number), vnodes, tree.location_of(number))
            for number, host in enumerate(self.hosts)
        )
        self.ring = ring.Ring(1, tuple(hosts), near)

    def address(self, number: int) -> str:
        """Return where the agent of a host would listen."""
        return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:7201"

    def collected(
        self, collection: int, figures: Sequence[Figures], interval_s: float
    ) -> ring.Ring | None:
        """Note a collection: what each host would tell of it; return the new ring, if any."""
        return None


class TrafficTable(Table):
    """The ring that the decision service makes of the traffic.

    :param held: the hosts, which say what chunks they hold
    :param follows_switches: whether busy switches shorten the ways (S4, Algorithm 2)
    """

    def __init__(
        self,
        tree: topology.Tree,
        held: Mapping[ids.HostId, Holding],
        follows_switches: bool = False,
    ) -> None:
        super().__init__(tree)
        self._held = held
        self._follows_switches = follows_switches
        self._members = members.Members(members.Limits())
        self._decider = decider.Decider(
            decider.Policy(), self._members, decision_table.from_ring(self.ring)
        )

    def collected(
        self, collection: int, figures: Sequence[Figures], interval_s: float
    ) -> ring.Ring | None:
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
                sketch=sketch.make(self._held[host].cache),
                peers={
                    peer: decision_api.Exchanged(timed.received, 0, timed)
                    for peer, timed in told.peers.items()
                },
                source=told.source,
            )
            self._members.hear(sample, now_s, now_s)
        loads = self._tree.switch_loads() if self._follows_switches else []
        self._decider.observe(threshold.busy_levels(loads))
        decision = self._decider.decide(now_s)
        if decision is None:
            return None
        self._decider.adopt(decision)
        self.ring = decision_table.to_ring(decision.table, self.ring.epoch + 1)
        self.remaps += 1
        return self.ring
