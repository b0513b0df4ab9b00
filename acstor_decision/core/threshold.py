# SPDX-License-Identifier: Apache-2.0
"""How near a home has to be, from how busy the switches are.

Wu et al. 2017 (ACStor), Algorithm 2: where more than half of the switches of a level
are busy, requests are kept beneath that level.  The paper counts hops; a table
counts levels (doc/source/format/ring.rst), so its 2 * level + 1 is ``level`` here.

Requests that are kept near would make every group of near hosts read the source
for itself.  So the rule is used once more, from there upwards: the home of a group
asks the home beneath the next busy level, or that of all hosts, before it reads the
source.  A busy level then carries a chunk once for each group, not for each host.
"""

from collections.abc import Sequence
from typing import NamedTuple

from acstor_common import ring

BUSY_SHARE = 0.8
BUSY_SWITCHES = 0.5
NEAREST = 1
"""Hosts in one place are as near as it gets; their switch carries what they read anyway."""
EVERYWHERE = ring.MAX_THRESHOLD
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


def thresholds_for(levels: Levels) -> Thresholds:
    """Return how near homes have to be.

    >>> calm, busy = SwitchLoad(1, 10), SwitchLoad(9, 10)
    >>> thresholds_for([[calm] * 8, [busy, busy, calm], [busy]])
    Thresholds(near=1, outer=2)
    >>> thresholds_for([[calm] * 8, [calm] * 3, [busy]])
    Thresholds(near=2, outer=9)
    >>> thresholds_for([[calm], [calm]]) == thresholds_for([]) == Thresholds()
    True
    """
    known = enumerate(levels[:EVERYWHERE])  # locations have no more
    busy = [max(level, NEAREST) for level, switches in known if _are_busy(switches)]
    if not busy:
        return Thresholds()
    above = (level for level in busy if level > busy[0])
    return Thresholds(busy[0], next(above, EVERYWHERE))


def _are_busy(switches: Sequence[SwitchLoad]) -> bool:
    busy = sum(switch.traffic > switch.capacity * BUSY_SHARE for switch in switches)
    return busy > len(switches) * BUSY_SWITCHES
