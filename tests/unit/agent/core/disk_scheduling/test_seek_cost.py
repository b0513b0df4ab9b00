# SPDX-License-Identifier: Apache-2.0
import random
import statistics

import pytest

from acstor_agent.core.disk_scheduling import seek_cost

COST = seek_cost.SeekCost()


def test_positioning_is_a_seek_and_half_a_turn_and_free_where_the_arm_is():
    assert COST.positioning_s(0) == 0.0
    assert COST.positioning_s(1 << 30) == COST.seek_s(1 << 30) + COST.turn_s / 2


def test_mean_seek_between_random_places_is_the_average_of_the_disk():
    rng = random.Random(1)
    size = COST.size_bytes
    seeks = [COST.seek_s(rng.randrange(size) - rng.randrange(size)) for _ in range(20_000)]
    assert statistics.mean(seeks) == pytest.approx(COST.average_s, rel=0.01)


def test_seek_is_symmetric_and_no_longer_than_one_over_the_whole_disk():
    assert COST.seek_s(-5000) == COST.seek_s(5000) > COST.track_s
    assert COST.seek_s(3 * COST.size_bytes) == COST.seek_s(COST.size_bytes)
