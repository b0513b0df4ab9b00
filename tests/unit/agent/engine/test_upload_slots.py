# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_agent.engine import upload_scheduler

FEW, MANY = upload_scheduler.FEW, upload_scheduler.MANY
LATE_S, QUICK_S, QUICK_ONES = (
    upload_scheduler.LATE_S,
    upload_scheduler.QUICK_S,
    upload_scheduler.QUICK_ONES,
)


@pytest.fixture
def few():
    places = upload_scheduler.UploadSlots()
    places.answer_delivered(took_s=2 * LATE_S)
    assert places.count == FEW
    return places


def test_overdue_undelivered_response_reduces_the_slots():
    places = upload_scheduler.UploadSlots()
    places.note_unanswered(LATE_S)
    assert places.count == MANY
    places.note_unanswered(1.01 * LATE_S)
    assert places.count == FEW


def test_few_initial_slots_grow_after_quick_deliveries():
    places = upload_scheduler.UploadSlots(FEW)
    for count in (FEW,) * QUICK_ONES + (MANY,):
        assert places.count == count
        places.answer_delivered(0.0)


@pytest.mark.parametrize("between_s", [QUICK_S, 2 * LATE_S])
def test_only_consecutive_quick_deliveries_restore_the_slots(few, between_s):
    for took_s in [0.0] * (QUICK_ONES - 1) + [between_s] + [0.0] * (QUICK_ONES - 1):
        few.answer_delivered(took_s)
    assert few.count == FEW
    few.answer_delivered(0.0)
    assert few.count == MANY
