# SPDX-License-Identifier: Apache-2.0
"""How near a home has to be, from how busy the switches are.

Wu et al. 2017 (ACStor), Algorithm 2: where more than half of the switches of a level
are busy, requests are kept beneath that level.  The paper counts hops; a table
counts levels (doc/source/format/ring.rst), so its 2 * level + 1 is ``level`` here.

Keeping requests near makes every group of near hosts read the source for itself.
Where the source is what is short, that costs more than the switches gain, so no
provider of loads is the default.
"""

from collections.abc import Sequence
from typing import NamedTuple

BUSY_SHARE = 0.8
BUSY_SWITCHES = 0.5
NEAREST = 1
"""Hosts in one place are as near as it gets; their switch carries what they read anyway."""


class SwitchLoad(NamedTuple):
    """What a switch carries, and what it can carry, in one unit."""

    traffic: float
    capacity: float


Levels = Sequence[Sequence[SwitchLoad]]
"""The switches of each level, those beside the hosts first."""


def threshold_for(levels: Levels) -> int | None:
    """Return how near a home has to be (a table's ``threshold``); None if that does not matter.

    >>> calm, busy = SwitchLoad(1, 10), SwitchLoad(9, 10)
    >>> threshold_for([[calm] * 8, [busy, busy, calm], [calm]])
    1
    >>> threshold_for([[calm] * 8, [calm] * 3, [busy]])
    2
    >>> threshold_for([[calm], [calm]]) is threshold_for([]) is None
    True
    """
    for level, switches in enumerate(levels):
        busy = sum(switch.traffic > switch.capacity * BUSY_SHARE for switch in switches)
        if busy > len(switches) * BUSY_SWITCHES:
            return max(level, NEAREST)
    return None
