# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_common import location
from acstor_decision.core import threshold

CALM = threshold.SwitchLoad(80, 100)
BUSY = threshold.SwitchLoad(81, 100)
ALL = threshold.EVERYWHERE


@pytest.mark.parametrize(
    ("levels", "wanted"),
    [
        ([], (None, None)),
        ([[], [], []], (None, None)),
        ([[CALM] * 4, [CALM] * 2, [CALM]], (None, None)),
        ([[CALM] * 4, [CALM] * 2, [BUSY]], (2, ALL)),
        ([[CALM] * 4, [BUSY, CALM], [CALM]], (None, None)),
        ([[CALM] * 4, [BUSY, BUSY, CALM], [CALM]], (1, ALL)),
        ([[CALM] * 4, [BUSY, BUSY, CALM], [BUSY]], (1, 2)),
        ([[BUSY] * 4, [BUSY] * 2, [CALM], [BUSY], [BUSY]], (1, 3)),
        ([[BUSY] * 4, [CALM] * 2, [CALM]], (threshold.NEAREST, ALL)),
        ([[threshold.SwitchLoad(1, 0)]], (threshold.NEAREST, ALL)),
        ([[CALM]] * location.MAX_LEVELS + [[BUSY]], (location.MAX_LEVELS, ALL)),
        ([[CALM]] * ALL + [[BUSY]], (None, None)),  # higher than locations can be
    ],
)
def test_requests_stay_beneath_the_first_busy_level_and_homes_beneath_the_next(levels, wanted):
    assert threshold.thresholds_for(levels) == wanted
