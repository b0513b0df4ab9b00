# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_agent.core.exchange import uplink_places

FEW, MANY = uplink_places.FEW, uplink_places.MANY
LATE_S, QUICK_S, QUICK_ONES = (
    uplink_places.LATE_S,
    uplink_places.QUICK_S,
    uplink_places.QUICK_ONES,
)


@pytest.fixture
def few():
    places = uplink_places.UplinkPlaces()
    places.arrived(took_s=2 * LATE_S)
    assert places.count == FEW
    return places


def test_an_answer_that_is_still_under_way_tells_of_a_queue():
    places = uplink_places.UplinkPlaces()
    places.under_way(LATE_S)
    assert places.count == MANY
    places.under_way(1.01 * LATE_S)
    assert places.count == FEW


def test_places_may_be_few_until_answers_have_arrived_at_once():
    places = uplink_places.UplinkPlaces(FEW)
    for count in (FEW,) * QUICK_ONES + (MANY,):
        assert places.count == count
        places.arrived(0.0)


@pytest.mark.parametrize("between_s", [QUICK_S, 2 * LATE_S])
def test_only_quick_answers_in_a_row_make_places_many_again(few, between_s):
    for took_s in [0.0] * (QUICK_ONES - 1) + [between_s] + [0.0] * (QUICK_ONES - 1):
        few.arrived(took_s)
    assert few.count == FEW
    few.arrived(0.0)
    assert few.count == MANY
