# SPDX-License-Identifier: Apache-2.0
"""How fast chunks come out of each place, from what hosts elsewhere waited for them.

A rack behind a link that other traffic fills gives everything late, however idle
its hosts are; so do the racks of a pod behind such a link.  How many times slower a
place is than its *siblings*, the other places of the same wider place, is what the
table's share of its v-nodes follows, level by level.

Nobody's word counts for more than that of one of many.  A host says only how long
*it* waited for each of its peers; its figures are divided by what is usual for it,
so that neither a slow reader nor one who lies about all of them makes anybody look
slow; and of a place counts the median over all pairs of a reader elsewhere and a
host there, of ``QUORUM`` readers or more.
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

QUORUM = 3
"""Hosts whose word it takes: of three a liar cannot move the median past an honest one."""
READERS = 1024
"""Hosts that are looked at in one collection, in turn: 10,000 with 256 peers each are 2.6 million
figures."""
PEERS = 256
"""Peers of one host that are looked at: agents name no more."""

SHORTEST, LONGEST = 1e-12, 1e3
"""Seconds a byte: what is outside no network gives, and no figure may be 0 or endless."""

Wait = dict[ids.HostId, float]
"""Seconds that a byte of each peer took."""


class PeerWaits(NamedTuple):
    """What one host waited for of late.

    :param levels: where it stands, by the table
    :param wait: for its peers
    :param source: for the sources; None: it read none of them
    """

    levels: location.Levels
    wait: Wait
    source: float | None = None


WaitsByHost = Mapping[ids.HostId, PeerWaits]


def peer_waits(levels: location.Levels, sample: decision_messages.Sample) -> PeerWaits:
    """Return what a host's sample says."""
    peers = itertools.islice(sample.peers.items(), PEERS)
    waits = {ids.HostId(peer): _wait(exchanged.timed) for peer, exchanged in peers}
    known = {peer: wait for peer, wait in waits.items() if wait is not None}
    return PeerWaits(levels, known, _wait(sample.source))


def _wait(timed: decision_messages.TimedTraffic) -> float | None:
    """Return the seconds that a byte took; of a peer that was always given up, the longest."""
    if not timed.took_s:
        return None
    if not timed.received:
        return LONGEST
    return min(max(timed.took_s / timed.received, SHORTEST), LONGEST)


def select_hosts(hosts: list[ids.HostId], collection: int) -> list[ids.HostId]:
    """Return the hosts that are looked at in a collection: all, or ``READERS`` after the others.

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
    """Return how many times longer chunks of each place take than those of its usual sibling.

    A place that too few can compare with a sibling is left out.

    :param levels: where all hosts stand
    """
    votes: dict[location.Levels, list[float]] = collections.defaultdict(list)
    voters: collections.Counter[location.Levels] = collections.Counter()
    for one in readers.values():
        for siblings in _families(one, levels):
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
    one: PeerWaits, levels: Mapping[ids.HostId, location.Levels]
) -> Iterator[dict[location.Levels, list[float]]]:
    """Yield the places that a reader can compare, with what it waited for each host there."""
    families: dict[location.Levels, dict[location.Levels, list[float]]] = {}
    for peer, wait in one.wait.items():
        if (where := levels.get(peer)) is None:
            continue
        for depth in range(location.common_levels(one.levels, where) + 1, len(where) + 1):
            family = families.setdefault(where[: depth - 1], {})
            family.setdefault(where[:depth], []).append(wait)
    yield from (family for family in families.values() if len(family) > 1)


def group_waits(
    group: WaitsByHost,
    levels: Mapping[ids.HostId, location.Levels],
    near: int,
    outers: Iterable[int],
) -> dict[int, float]:
    """Return what a byte costs the hosts of a group from the homes beneath each level, in seconds.

    :param near: the threshold beneath which hosts are of the group
    :param outers: thresholds to look at; the source is always looked at, as threshold 0
    """
    found: dict[int, list[float]] = collections.defaultdict(list)
    for one in group.values():
        if one.source is not None:
            found[0].append(one.source)
        far = [
            (location.distance(one.levels, where), wait)
            for peer, wait in one.wait.items()
            if (where := levels.get(peer)) is not None
        ]
        for outer in outers:
            if waits := [wait for distance, wait in far if near <= distance < outer]:
                found[outer].append(statistics.median(waits))
    quorum = min(QUORUM, len(group))
    return {
        outer: statistics.median(waits) for outer, waits in found.items() if len(waits) >= quorum
    }
