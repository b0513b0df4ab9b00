# SPDX-License-Identifier: Apache-2.0
"""A tree of switches: the links and the distance between two hosts.

Racks of hosts (edge switches), pods of racks (aggregate switches) and one root, with the storage.
Distance counts switches as in Wu 2017: 1 in a rack, 3 in a pod, 5 across the root.
"""

import dataclasses

from acstor_decision.core import threshold
from acstor_simulator.model import network

GBIT = 1e9 / 8


@dataclasses.dataclass(frozen=True)
class Shape:
    """Size of the tree, and link rates in bytes a second; default: Wu 2017, section 5.8."""

    pods: int = 4
    racks: int = 8
    rack_hosts: int = 8
    host_rate: float = GBIT
    edge_rate: float = GBIT
    aggregate_rate: float = 10 * GBIT
    storage_rate: float = GBIT
    storage_s: float = 0.007  # latency of a range request to the image store (measured on Glance)

    @property
    def host_count(self) -> int:
        """Return the number of hosts."""
        return self.pods * self.racks * self.rack_hosts


ONE_SWITCH = Shape(pods=1, racks=1, rack_hosts=32)
"""The cluster of Wu 2017, section 5.1: 32 hosts on one switch."""


class _Cable:
    def __init__(self, name: str, rate: float) -> None:
        self.up = network.NetworkLink(f"{name} up", rate)
        self.down = network.NetworkLink(f"{name} down", rate)

    def load(self) -> threshold.SwitchLoad:
        return threshold.SwitchLoad(max(self.up.others, self.down.others), self.up.capacity)


class Tree:
    """The links of a cloud.

    >>> tree = Tree(Shape(pods=2, racks=2, rack_hosts=2))
    >>> [tree.distance(0, other) for other in range(8)]
    [0, 1, 3, 3, 5, 5, 5, 5]
    >>> [link.name for link in tree.links_between(0, 2)]
    ['host 0 up', 'edge 0 up', 'edge 1 down', 'host 2 down']
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        racks = shape.pods * shape.racks
        self._hosts = [_Cable(f"host {n}", shape.host_rate) for n in range(shape.host_count)]
        self._edges = [_Cable(f"edge {n}", shape.edge_rate) for n in range(racks)]
        self._pods = [_Cable(f"aggregate {n}", shape.aggregate_rate) for n in range(shape.pods)]
        self.storage = network.NetworkLink("storage up", shape.storage_rate)
        self._paths: dict[tuple[int, int], tuple[network.NetworkLink, ...]] = {}

    def rack_of(self, host: int) -> int:
        """Return the number of a host's rack."""
        return host // self.shape.rack_hosts

    def pod_of(self, host: int) -> int:
        """Return the number of a host's pod."""
        return self.rack_of(host) // self.shape.racks

    def location_of(self, host: int) -> str:
        """Return a host's location as in v-node tables."""
        return f"pod{self.pod_of(host)}/rack{self.rack_of(host)}"

    def distance(self, first: int, other: int) -> int:
        """Return the number of switches between two hosts."""
        if first == other:
            return 0
        if self.rack_of(first) == self.rack_of(other):
            return 1
        return 3 if self.pod_of(first) == self.pod_of(other) else 5

    def hosts_within(self, host: int, reach: int) -> range:
        """Return the hosts within a distance of a host, including itself."""
        size = {1: self.shape.rack_hosts, 3: self.shape.racks * self.shape.rack_hosts}.get(
            reach, self.shape.host_count
        )
        first = host - host % size
        return range(first, first + size)

    def links_between(self, sender: int, receiver: int) -> list[network.NetworkLink]:
        """Return the links from one host to another, in order."""
        sender_at, receiver_at = self._hosts[sender], self._hosts[receiver]
        if sender == receiver:
            return []
        return [
            sender_at.up,
            *self._between(self.rack_of(sender), self.rack_of(receiver)),
            receiver_at.down,
        ]

    def _between(self, rack: int, other: int) -> tuple[network.NetworkLink, ...]:
        found = self._paths.get((rack, other))
        if found is None:
            ends = [(self._edges[rack], self._edges[other])] if rack != other else []
            pod, other_pod = rack // self.shape.racks, other // self.shape.racks
            ends += [(self._pods[pod], self._pods[other_pod])] if pod != other_pod else []
            ups, downs = [cable.up for cable, _ in ends], [cable.down for _, cable in ends[::-1]]
            found = self._paths[rack, other] = (*ups, *downs)
        return found

    def links_from_storage(self, receiver: int) -> list[network.NetworkLink]:
        """Return the links from the storage to a host, in order."""
        if self.shape.pods * self.shape.racks == 1:
            return [self.storage, self._hosts[receiver].down]
        return [
            self.storage,
            self._pods[self.pod_of(receiver)].down,
            self._edges[self.rack_of(receiver)].down,
            self._hosts[receiver].down,
        ]

    def host_links(self, host: int) -> tuple[network.NetworkLink, network.NetworkLink]:
        """Return a host's own links: sending, receiving."""
        return self._hosts[host].up, self._hosts[host].down

    def rack_uplinks(self) -> list[network.NetworkLink]:
        """Return the links between racks and pods, both directions."""
        return [link for cable in self._edges for link in (cable.up, cable.down)]

    def load(self, share: float) -> None:
        """Add other traffic to all links but the storage's, as a share of capacity."""
        cables = (*self._hosts, *self._edges, *self._pods)
        for link in (link for cable in cables for link in (cable.up, cable.down)):
            link.others += share * link.capacity

    def switch_loads(self) -> list[list[threshold.SwitchLoad]]:
        """Return the switch loads of each level, from the hosts up.

        A switch's load is that of its uplink's busier direction; the root's is the busiest pod's.
        """
        edges, pods = ([cable.load() for cable in level] for level in (self._edges, self._pods))
        return [edges, pods, [max(pods, key=lambda load: load.traffic / load.capacity)]]
