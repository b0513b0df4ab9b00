# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_common.ring import location
from acstor_decision.core import threshold

CALM = threshold.SwitchLoad(80, 100)
BUSY = threshold.SwitchLoad(81, 100)
ALL = threshold.EVERYWHERE


@pytest.mark.parametrize(
    ("levels", "wanted"),
    [
        ([], ()),
        ([[], [], []], ()),
        ([[CALM] * 4, [CALM] * 2, [CALM]], ()),
        ([[CALM] * 4, [CALM] * 2, [BUSY]], (2,)),
        ([[CALM] * 4, [BUSY, CALM], [CALM]], ()),
        ([[CALM] * 4, [BUSY, BUSY, CALM], [CALM]], (1,)),
        ([[CALM] * 4, [BUSY, BUSY, CALM], [BUSY]], (1, 2)),
        ([[BUSY] * 4, [BUSY] * 2, [CALM], [BUSY], [BUSY]], (1, 3, 4)),
        ([[BUSY] * 4, [CALM] * 2, [CALM]], (threshold.NEAREST,)),
        ([[threshold.SwitchLoad(1, 0)]], (threshold.NEAREST,)),
        ([[CALM]] * location.MAX_LEVELS + [[BUSY]], (location.MAX_LEVELS,)),
        ([[CALM]] * ALL + [[BUSY]], ()),  # higher than locations can be
    ],
)
def test_level_is_busy_when_more_than_half_of_its_switches_are(levels, wanted):
    assert threshold.busy_levels(levels) == wanted


def places(*hosts_of_racks: int, levels: int = 2) -> list[location.Levels]:
    """Return racks with the given numbers of hosts, two racks per pod."""
    return [
        tuple(f"{rack >> (levels - depth - 1)}" for depth in range(levels))
        for rack, hosts in enumerate(hosts_of_racks)
        for _ in range(hosts)
    ]


@pytest.mark.parametrize(
    ("where", "busy", "wanted"),
    [
        ([], (), (None, None)),
        ([()] * 9, (1,), (None, None)),  # no host has a location
        (places(8), (), (None, None)),  # all in one rack
        (places(8, 8), (), (1, ALL)),
        (places(8, 8, 8), (1,), (1, ALL)),
        (places(8, 8, 8), (2,), (1, 2)),
        (places(8, 8, 8), (1, 2, 3), (1, 2)),
        (places(1, 1, 1, 1), (), (2, ALL)),  # racks have one host each, pods have two
        (places(1, 1), (), (None, None)),
        (places(2, 1, 1), (), (2, ALL)),  # only half of the hosts share a rack
        (places(2, 2, 1), (), (1, ALL)),
        (places(1, 1, 1, 1), (2, 3), (2, 3)),
        ([(str(n),) for n in range(9)], (), (None, None)),  # places of one host, no wider ones
    ],
)
def test_group_threshold_is_the_nearest_place_that_most_hosts_share(where, busy, wanted):
    assert threshold.thresholds_for(where, busy) == wanted
