# SPDX-License-Identifier: Apache-2.0
"""Selects the network interfaces of a host's traffic, and counts their bytes."""

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import NamedTuple
from typing import Protocol

STACKED_KINDS = frozenset({"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"})
"""Kinds of interfaces on top of a single lower interface."""
AGGREGATE_KINDS = frozenset({"bond", "team", "bridge"})
"""Kinds of interfaces that combine several others, their ports."""
GUEST_PORT_KINDS = frozenset({"tun", "veth"})  # kinds of ports that lead to guests and containers
HEADER_FACTOR = 1.03
"""Bytes on the link per byte of a chunk; drivers count frame headers differently."""
ACK_RATIO = 0.02  # bytes of acknowledgements in the other direction, per byte of a chunk


@dataclasses.dataclass(frozen=True)
class NetworkInterface:
    """One network interface, as the kernel shows it."""

    index: int
    name: str
    kind: str  # of a virtual interface, as ``ip link`` names it; empty for a physical one
    lower: int  # index of the interface below it, in this namespace; 0: none
    master: int  # index of the bond or bridge that it is a port of; 0: none
    received: int  # bytes since the interface exists, as ``sent``
    sent: int


class InterfaceSample(NamedTuple):
    """The counted interfaces at one moment."""

    at_s: float  # monotonic clock
    links: list[NetworkInterface]
    link_bytes_s: int  # their capacity in each direction


class InterfaceCounters(Protocol):
    """Reads the counters of network interfaces."""

    def read_counters(self) -> InterfaceSample:
        """Return the counters; blocks. Raise Unusable without such an interface, or if refused."""


@dataclasses.dataclass(frozen=True)
class TrafficBytes:
    """Bytes received and sent."""

    received: int
    sent: int


def lowest_interfaces(
    links: Iterable[NetworkInterface], wanted: Collection[int]
) -> list[NetworkInterface]:
    """Return the lowest interfaces under the ``wanted`` ones: all traffic passes them, once.

    >>> eth0 = NetworkInterface(2, "eth0", "", 0, 3, 10, 20)
    >>> bond0 = NetworkInterface(3, "bond0", "bond", 0, 0, 10, 20)
    >>> vlan5 = NetworkInterface(4, "vlan5", "vlan", 3, 0, 5, 5)
    >>> [link.name for link in lowest_interfaces([eth0, bond0, vlan5], {3, 4})]
    ['eth0']
    """
    known = {link.index: link for link in links}
    found: dict[int, NetworkInterface] = {}
    seen: set[int] = set()
    unvisited = [index for index in wanted if index in known]
    while unvisited:
        link = known[unvisited.pop()]
        if link.index in seen:
            continue
        seen.add(link.index)
        below = _below(link, known)
        unvisited += below
        if not below:
            found[link.index] = link
    return [found[index] for index in sorted(found)]


def _below(link: NetworkInterface, known: Mapping[int, NetworkInterface]) -> list[int]:
    if link.kind in STACKED_KINDS and link.lower in known:
        return [link.lower]
    if link.kind in AGGREGATE_KINDS:
        ports = [port for port in known.values() if port.master == link.index]
        return [port.index for port in ports if port.kind not in GUEST_PORT_KINDS]
    return []


def traffic_between(
    before: Iterable[NetworkInterface], after: Iterable[NetworkInterface]
) -> TrafficBytes:
    """Return the traffic between two samples; new or reset interfaces count from the next one."""
    old = {(link.index, link.name): link for link in before}
    received = sent = 0
    for link in after:
        was = old.get((link.index, link.name))
        if was is not None and was.received <= link.received and was.sent <= link.sent:
            received += link.received - was.received
            sent += link.sent - was.sent
    return TrafficBytes(received, sent)


def bytes_on_wire(chunks: TrafficBytes, total: TrafficBytes) -> TrafficBytes:
    """Estimate the part of ``total`` for chunks, with headers and acknowledgements.

    >>> bytes_on_wire(TrafficBytes(1000, 0), TrafficBytes(5000, 10))
    TrafficBytes(received=1030, sent=10)
    """
    received = int(chunks.received * HEADER_FACTOR + chunks.sent * ACK_RATIO)
    sent = int(chunks.sent * HEADER_FACTOR + chunks.received * ACK_RATIO)
    return TrafficBytes(min(received, total.received), min(sent, total.sent))
