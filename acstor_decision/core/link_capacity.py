# SPDX-License-Identifier: Apache-2.0
"""Estimates the slowness of each location from the waits of hosts elsewhere.

A location behind a congested link delivers late however idle its hosts are. Its slowness relative
to its *siblings*, the other locations of the same parent, sets its share of the v-nodes.

A host's waits for its peers are divided by their median, so neither a slow nor a lying reader makes
a location look slow. The slowness of a location is the median over all pairs of a reader elsewhere
and a host there, of ``QUORUM`` readers or more.
"""

import collections
import itertools
import statistics
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import NamedTuple

from acstor_common.model import ids
from acstor_common.ring import location
from acstor_common.wire import decision_messages

QUORUM = 3  # among three readers, one liar cannot move the median past an honest one
READERS = 1024  # hosts evaluated in one collection, in turn, to bound the work
PEERS = 256  # peers of one host that are evaluated; agents report no more

SHORTEST, LONGEST = 1e-12, 1e3  # bounds in seconds a byte; they keep figures positive and finite

Wait = dict[ids.HostId, float]  # seconds a byte from each peer took


class PeerWaits(NamedTuple):
    """Recent waits of one host for peers and sources, in seconds a byte."""

    levels: location.Levels
    wait: Wait
    source: float | None = None


WaitsByHost = Mapping[ids.HostId, PeerWaits]


def peer_waits(levels: location.Levels, sample: decision_messages.Sample) -> PeerWaits:
    """Return the waits that a host's sample reports."""
    peers = itertools.islice(sample.peers.items(), PEERS)
    waits = {ids.HostId(peer): _wait(exchanged.timed) for peer, exchanged in peers}
    known = {peer: wait for peer, wait in waits.items() if wait is not None}
    return PeerWaits(levels, known, _wait(sample.source))


def _wait(timed: decision_messages.TimedTraffic) -> float | None:
    if not timed.took_s:
        return None
    if not timed.received:
        return LONGEST
    return min(max(timed.took_s / timed.received, SHORTEST), LONGEST)


def select_hosts(hosts: list[ids.HostId], collection: int) -> list[ids.HostId]:
    """Return the hosts to evaluate in a collection: all, or the next ``READERS``.

    >>> hosts = [ids.HostId(f"h{n}") for n in range(3000)]
    >>> len({host for collection in range(3) for host in select_hosts(hosts, collection)})
    3000
    """
    if len(hosts) <= READERS:
        return hosts
    first = collection * READERS % len(hosts)
    return (hosts + hosts)[first : first + READERS]


def slowness(
    readers: WaitsByHost, levels: Mapping[ids.HostId, location.Levels]
) -> dict[str, float]:
    """Return the wait of locations with ``QUORUM`` readers, relative to their median sibling."""
    votes: dict[location.Levels, list[float]] = collections.defaultdict(list)
    voters: collections.Counter[location.Levels] = collections.Counter()
    for reader in readers.values():
        for siblings in _families(reader, levels):
            middle = statistics.median_low(wait for waits in siblings.values() for wait in waits)
            for place, waits in siblings.items():
                votes[place] += [wait / middle for wait in waits]
                voters[place] += 1
    return {
        "/".join(place): statistics.median(votes[place])
        for place, count in voters.items()
        if count >= QUORUM
    }


def _families(
    waits: PeerWaits, levels: Mapping[ids.HostId, location.Levels]
) -> Iterator[dict[location.Levels, list[float]]]:
    """Yield groups of sibling locations, with the reader's waits for hosts there."""
    families: dict[location.Levels, dict[location.Levels, list[float]]] = {}
    for peer, wait in waits.wait.items():
        if (where := levels.get(peer)) is None:
            continue
        for depth in range(location.common_levels(waits.levels, where) + 1, len(where) + 1):
            family = families.setdefault(where[: depth - 1], {})
            family.setdefault(where[:depth], []).append(wait)
    yield from (family for family in families.values() if len(family) > 1)


def group_waits(
    group: WaitsByHost,
    levels: Mapping[ids.HostId, location.Levels],
    near: int,  # hosts below this distance belong to the group
    outers: Iterable[int],  # thresholds to evaluate
) -> dict[int, float]:
    """Return a group's wait for homes below each threshold, in seconds a byte; 0 is the source."""
    found: dict[int, list[float]] = collections.defaultdict(list)
    for reader in group.values():
        if reader.source is not None:
            found[0].append(reader.source)
        far = [
            (location.distance(reader.levels, where), wait)
            for peer, wait in reader.wait.items()
            if (where := levels.get(peer)) is not None
        ]
        for outer in outers:
            if waits := [wait for distance, wait in far if near <= distance < outer]:
                found[outer].append(statistics.median(waits))
    quorum = min(QUORUM, len(group))
    return {
        outer: statistics.median(waits) for outer, waits in found.items() if len(waits) >= quorum
    }
