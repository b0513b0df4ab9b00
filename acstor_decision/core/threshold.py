# SPDX-License-Identifier: Apache-2.0
"""Chooses the thresholds of homes from hosts' locations and switch loads.

Hosts in one location, such as a rack, ask each other first, even if switches are idle, so that a
chunk crosses the uplink once for all. The home of such a group asks the home of all hosts before it
reads the source.

Wu et al. 2017 (ACStor), Algorithm 2: if more than half of the switches of a level are busy,
requests stay below that level. The paper counts hops and a table counts levels
(doc/source/format/ring.rst): its 2 * level + 1 is ``level`` here. If such a level is above the
groups, their homes ask the home below it instead of the home of all hosts.
"""

import collections
from collections.abc import Collection
from collections.abc import Sequence
from typing import NamedTuple

from acstor_common.ring import hash_ring
from acstor_common.ring import location

BUSY_SHARE = 0.8
BUSY_SWITCHES = 0.5
NEAREST = 1  # threshold of hosts in the same location
EVERYWHERE = hash_ring.MAX_THRESHOLD  # threshold that includes all hosts


class Thresholds(NamedTuple):
    """The two thresholds of a table; None: unlimited."""

    near: int | None = None  # for the home that a host asks
    outer: int | None = None  # for the home that this home asks before the source; above ``near``


class SwitchLoad(NamedTuple):
    """A switch's traffic and capacity, in the same unit."""

    traffic: float
    capacity: float


Levels = Sequence[Sequence[SwitchLoad]]
"""The switches of each level; the first level is next to the hosts."""


def busy_levels(levels: Levels) -> tuple[int, ...]:
    """Return the thresholds that keep requests below levels with busy switches.

    >>> calm, busy = SwitchLoad(1, 10), SwitchLoad(9, 10)
    >>> busy_levels([[calm] * 8, [busy, busy, calm], [busy]])
    (1, 2)
    """
    known = enumerate(levels[:EVERYWHERE])  # locations have no more levels
    return tuple(sorted({max(level, NEAREST) for level, switches in known if _are_busy(switches)}))


def thresholds_for(places: Collection[location.Levels], busy: Collection[int]) -> Thresholds:
    """Return the thresholds for hosts at these locations and these busy levels.

    >>> racks = [(pod, rack) for pod in "ab" for rack in "cd" for host in range(8)]
    >>> thresholds_for(racks, ())
    Thresholds(near=1, outer=9)
    >>> thresholds_for(racks, (2,))
    Thresholds(near=1, outer=2)
    >>> thresholds_for([()] * 8, ()) == Thresholds()
    True
    """
    near = _nearest_company(places)
    if near is None:
        return Thresholds()
    return Thresholds(near, min((level for level in busy if level > near), default=EVERYWHERE))


def _nearest_company(places: Collection[location.Levels]) -> int | None:
    """Return the threshold of the smallest groups in which most hosts have company."""
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
