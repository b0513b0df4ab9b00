# SPDX-License-Identifier: Apache-2.0
"""V-node tables: a fixed one, and those that the decision service's code makes of samples."""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple
from typing import Protocol

from acstor_common.model import ids
from acstor_common.model import minhash
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages
from acstor_decision.core import decider
from acstor_decision.core import ring_conversion
from acstor_decision.core import threshold
from acstor_decision.core.membership import members
from acstor_simulator.model import topology

VNODES = 100
POD = 2  # threshold of a pod, in levels of a location


class Figures(NamedTuple):
    """A host's figures of one collection."""

    others: decision_messages.TrafficBytes  # bytes besides chunks
    peers: dict[ids.HostId, decision_messages.TimedTraffic]  # waits by the peer that served them
    source: decision_messages.TimedTraffic


class Holding(Protocol):
    """A host with a cache."""

    @property
    def cache(self) -> Collection[ids.Cid]:
        """Return the CIDs in the cache."""


class FixedTable:
    """A fixed ring of equal hosts; ``near`` is the threshold of homes (Wu 2017, Algorithm 1)."""

    def __init__(self, tree: topology.Tree, near: int | None = None) -> None:
        self.remaps = 0  # tables that moved v-nodes
        self.hosts = [ids.HostId(f"h{number}") for number in range(tree.shape.host_count)]
        self._tree = tree
        vnodes = max(1, min(VNODES, hash_ring.MAX_POINTS // len(self.hosts)))
        hosts = (
            hash_ring.RingHost(host, self.agent_address(number), vnodes, tree.location_of(number))
            for number, host in enumerate(self.hosts)
        )
        self.ring = hash_ring.Ring(1, tuple(hosts), near)

    def agent_address(self, number: int) -> str:
        """Return a synthetic address for a host's agent."""
        return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:7201"

    def end_collection(
        self, collection: int, figures: Sequence[Figures], interval_s: float
    ) -> hash_ring.Ring | None:
        """Process the figures of a collection; return a new ring, if any."""
        return None


class TrafficTable(FixedTable):
    """The decision service's ring; busy switches may set thresholds (Wu 2017, Algorithm 2)."""

    def __init__(
        self,
        tree: topology.Tree,
        held: Mapping[ids.HostId, Holding],
        rules: decider.RemapPolicy,
        follows_switches: bool = False,
    ) -> None:
        super().__init__(tree)
        self._held = held
        self._follows_switches = follows_switches
        self._members = members.Members(members.MembershipLimits())
        first = ring_conversion.from_ring(self.ring)
        self._decider = decider.Decider(rules, self._members, first)

    def end_collection(
        self, collection: int, figures: Sequence[Figures], interval_s: float
    ) -> hash_ring.Ring | None:
        """Pass every host's sample to the decision code; return its new ring, if any."""
        now_s = collection * interval_s
        for number, figures_of_host in enumerate(figures):
            self._members.accept_sample(
                self._sample(number, figures_of_host, collection, interval_s), now_s, now_s
            )
        decision = self._decide(now_s)
        if decision is None:
            return None
        self._decider.commit_decision(decision)
        self.ring = self._publish(decision.table)
        self.remaps += decision.moved > 0
        return self.ring

    def _sample(
        self, number: int, figures_of_host: Figures, collection: int, interval_s: float
    ) -> decision_messages.Sample:
        host = self.hosts[number]
        return decision_messages.Sample(
            host=host,
            address=self.agent_address(number),
            location=self._place(number),
            session=number,
            started_s=0.0,
            number=collection,
            sent_s=collection * interval_s,
            interval_s=interval_s,
            link_bytes_s=int(self._tree.shape.host_rate),
            total=figures_of_host.others,
            sketch=minhash.make_sketch(self._held[host].cache),
            peers={
                peer: decision_messages.PeerTraffic(timed.received, 0, timed)
                for peer, timed in figures_of_host.peers.items()
            },
            source=figures_of_host.source,
        )

    def _place(self, number: int) -> str:
        return self._tree.location_of(number)

    def _decide(self, now_s: float) -> decider.Decision | None:
        loads = self._tree.switch_loads() if self._follows_switches else []
        self._decider.observe_loads(threshold.busy_levels(loads))
        return self._decider.decide_table(now_s)

    def _publish(self, table: decider.VNodeTable) -> hash_ring.Ring:
        return ring_conversion.to_ring(table, self.ring.epoch + 1)


class PrintedTable(TrafficTable):
    """The ring by the paper's printed rules (Wu 2017): lambda sets the number of v-nodes.

    There are no groups; if most switches of a level are busy, homes are below that level.
    """

    def __init__(
        self, tree: topology.Tree, held: Mapping[ids.HostId, Holding], factor: float
    ) -> None:
        rules = decider.RemapPolicy(factor=factor)
        super().__init__(tree, held, rules)
        self._near: int | None = None
        first = ring_conversion.from_ring(self.ring)
        places = {host: place._replace(location="") for host, place in first.hosts.items()}
        self._decider = decider.Decider(rules, self._members, first._replace(hosts=places))

    def end_collection(
        self, collection: int, figures: Sequence[Figures], interval_s: float
    ) -> hash_ring.Ring | None:
        """Process the figures of a collection; busy switches alone may change the ring."""
        before = self._near
        self._near = min(threshold.busy_levels(self._tree.switch_loads()), default=None)
        made = super().end_collection(collection, figures, interval_s)
        if made is None and self._near != before:
            made = self.ring = self._publish(self._decider.table)
        return made

    def _place(self, number: int) -> str:
        return ""

    def _publish(self, table: decider.VNodeTable) -> hash_ring.Ring:
        numbers = {host: number for number, host in enumerate(self.hosts)}
        places = {
            host: place._replace(location=self._tree.location_of(numbers[host]))
            for host, place in table.hosts.items()
        }
        near = threshold.Thresholds(self._near)
        return super()._publish(table._replace(hosts=places, thresholds=near))
