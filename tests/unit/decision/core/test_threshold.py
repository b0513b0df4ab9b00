# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_decision.core import threshold

CALM = threshold.SwitchLoad(80, 100)
BUSY = threshold.SwitchLoad(81, 100)


@pytest.mark.parametrize(
    ("levels", "wanted"),
    [
        ([], None),
        ([[], [], []], None),
        ([[CALM] * 4, [CALM] * 2, [CALM]], None),
        ([[CALM] * 4, [CALM] * 2, [BUSY]], 2),
        ([[CALM] * 4, [BUSY, CALM], [CALM]], None),
        ([[CALM] * 4, [BUSY, BUSY, CALM], [BUSY]], 1),
        ([[BUSY] * 4, [CALM] * 2, [CALM]], threshold.NEAREST),
        ([[threshold.SwitchLoad(1, 0)]], threshold.NEAREST),
    ],
)
def test_requests_stay_beneath_the_first_level_that_is_busy(levels, wanted):
    assert threshold.threshold_for(levels) == wanted
