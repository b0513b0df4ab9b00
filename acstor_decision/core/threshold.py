# SPDX-License-Identifier: Apache-2.0
"""How near a home has to be, from where hosts stand and how busy the switches are.

Hosts that stand in one place, a rack, ask each other first, however idle the
switches seem: a way out of the place then carries a chunk once for all of them, and
what is idle before guests boot is not when they do.  The home of such a group asks
the home of all hosts before it reads the source.

Wu et al. 2017 (ACStor), Algorithm 2: where more than half of the switches of a level
are busy, requests are kept beneath that level.  The paper counts hops; a table
counts levels (doc/source/format/ring.rst), so its 2 * level + 1 is ``level`` here.
Where such a level lies above the groups, their homes ask the home beneath it instead
of that of all hosts.
"""

import collections
from collections.abc import Collection
from collections.abc import Sequence
from typing import NamedTuple

from acstor_common.ring import hash_ring
from acstor_common.ring import location

BUSY_SHARE = 0.8
BUSY_SWITCHES = 0.5
NEAREST = 1
"""Hosts in one place are as near as it gets; their switch carries what they read anyway."""
EVERYWHERE = hash_ring.MAX_THRESHOLD
"""All hosts are nearer than this."""


class Thresholds(NamedTuple):
    """How near homes have to be (a table's two thresholds); None: it does not matter.

    :param near: the home that a host asks
    :param outer: the home that this one asks before it reads the source; above ``near``
    """

    near: int | None = None
    outer: int | None = None


class SwitchLoad(NamedTuple):
    """What a switch carries, and what it can carry, in one unit."""

    traffic: float
    capacity: float


Levels = Sequence[Sequence[SwitchLoad]]
"""The switches of each level, those beside the hosts first."""


def busy_levels(levels: Levels) -> tuple[int, ...]:
    """Return the thresholds that keep requests beneath the levels whose switches are busy.

    >>> calm, busy = SwitchLoad(1, 10), SwitchLoad(9, 10)
    >>> busy_levels([[calm] * 8, [busy, busy, calm], [busy]])
    (1, 2)
    """
    known = enumerate(levels[:EVERYWHERE])  # locations have no more
    return tuple(sorted({max(level, NEAREST) for level, switches in known if _are_busy(switches)}))


def thresholds_for(places: Collection[location.Levels], busy: Collection[int]) -> Thresholds:
    """Return how near homes have to be.

    >>> racks = [(pod, rack) for pod in "ab" for rack in "cd" for host in range(8)]
    >>> thresholds_for(racks, ())
    Thresholds(near=1, outer=9)
    >>> thresholds_for(racks, (2,))
    Thresholds(near=1, outer=2)
    >>> thresholds_for([()] * 8, ()) == Thresholds()
    True

    :param places: where each host stands
    :param busy: levels, as :func:`busy_levels` returns them
    """
    near = _nearest_company(places)
    if near is None:
        return Thresholds()
    return Thresholds(near, min((level for level in busy if level > near), default=EVERYWHERE))


def _nearest_company(places: Collection[location.Levels]) -> int | None:
    """Return the threshold of the smallest groups in which most hosts have others beside them.

    None if those are all hosts: they need no groups.
    """
    deepest = max(map(len, places), default=0)
    for threshold in range(NEAREST, deepest + 1):
        groups = collections.Counter(location.ancestor(place, threshold) for place in places)
        if len(groups) == 1:
            return None
        if 2 * sum(size for size in groups.values() if size > 1) > len(places):
            return threshold
    return None


def _are_busy(switches: Sequence[SwitchLoad]) -> bool:
    busy = sum(switch.traffic > switch.capacity * BUSY_SHARE for switch in switches)
    return busy > len(switches) * BUSY_SWITCHES
