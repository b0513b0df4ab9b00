# SPDX-License-Identifier: Apache-2.0
import math

import hypothesis
import pytest
from hypothesis import strategies as st

from acstor_agent.core.images import image_usage
from acstor_common.model import ids

ONE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
TWO = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
THREE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a13")
HOUR_S = 3600.0
PASS_S = 40 * 60.0


def look(openings, found, attached=(ONE, TWO)):
    openings.begin_inspection()
    openings.note_open_files(found, attached)


def test_every_image_counts_as_open_before_the_first_inspection():
    openings = image_usage.Openings()
    assert openings.is_open(ONE) and openings.is_open(TWO)
    openings.image_opened(ONE)
    openings.image_closed(ONE)
    assert openings.is_open(ONE)


def test_image_opened_before_the_start_is_open_until_an_inspection():
    openings = image_usage.Openings()
    look(openings, [ONE])
    assert (openings.is_open(ONE), openings.is_open(TWO)) == (True, False)
    openings.image_closed(ONE)
    assert openings.is_open(ONE)  # another process may have it open
    assert openings.is_inspection_due([ONE])
    look(openings, [])
    assert not openings.is_open(ONE)
    assert not openings.is_inspection_due([ONE, TWO])


def test_inspected_image_is_counted_exactly():
    openings = image_usage.Openings()
    look(openings, [])
    for _ in range(2):
        openings.image_opened(ONE)
    openings.image_closed(ONE)
    assert openings.is_open(ONE)
    openings.image_closed(ONE)
    assert not openings.is_open(ONE)
    assert not openings.is_inspection_due([ONE])


def test_change_during_an_inspection_requires_another_one():
    openings = image_usage.Openings()
    openings.begin_inspection()
    openings.image_closed(
        ONE
    )  # one of two openings from before the start, closed before the inspection
    openings.note_open_files([], [ONE])
    assert openings.is_inspection_due([ONE])
    openings.begin_inspection()
    openings.note_open_files([ONE], [ONE])
    assert openings.is_open(ONE)


def test_counted_openings_need_no_inspection():
    openings = image_usage.Openings()
    openings.image_opened(ONE)
    assert not openings.is_inspection_due([ONE])


def test_excess_closes_do_not_hide_a_later_opening():
    """Openings from before the start are closed, and an inspection finds none left."""
    openings = image_usage.Openings()
    look(openings, [ONE])
    openings.image_closed(ONE)
    openings.image_closed(ONE)
    look(openings, [])
    openings.image_opened(ONE)
    assert openings.is_open(ONE)
    look(openings, [ONE])
    openings.image_closed(ONE)
    assert not openings.is_open(ONE)


def test_detached_image_is_forgotten():
    openings, touches = image_usage.Openings(), image_usage.Touches(0.0)
    for number in range(1000):
        image_id = ids.parse_image_id(f"7d2c1f9e-5d6b-4a5c-9c61-{number:012x}")
        openings.image_opened(image_id)
        openings.image_closed(image_id)
        openings.image_closed(image_id)
        touches.image_touched(image_id, float(number))
        look(openings, [], [image_id])
        touches.forget_others([image_id])
    assert (len(openings), len(touches)) == (1, 1)


@hypothesis.given(
    former=st.integers(0, 3),
    steps=st.lists(st.sampled_from(["open", "close", "look", "slow look"]), max_size=40),
)
def test_open_image_is_never_reported_as_closed(former, steps):
    openings, is_open = image_usage.Openings(), former
    for step in steps:
        if step == "open":
            is_open += 1
            openings.image_opened(ONE)
        elif step == "close" and is_open:
            is_open -= 1
            openings.image_closed(ONE)
        elif step == "look":
            look(openings, [ONE] if is_open else [], [ONE])
            assert openings.is_open(ONE) == bool(is_open)
        elif step == "slow look":
            openings.begin_inspection()
            found = [ONE] if is_open else []
            is_open += 1
            openings.image_opened(ONE)
            openings.note_open_files(found, [ONE])
        assert openings.is_open(ONE) or not is_open


def nova_passes(touches, image_ids, from_s, until_s):
    """Let Nova touch images periodically; return the time of the last touch."""
    at_s = from_s
    while at_s + PASS_S <= until_s:
        at_s += PASS_S
        for image_id in image_ids:
            touches.image_touched(image_id, at_s, is_by_nova=True)
    return at_s


def test_idle_time_is_counted_while_nova_touches_anything():
    touches = image_usage.Touches(0.0, [ONE])
    last_s = nova_passes(touches, [TWO], 0.0, 9 * HOUR_S)
    assert touches.idle_s(ONE, 9 * HOUR_S) == 9 * HOUR_S
    assert touches.idle_s(TWO, 9 * HOUR_S) == 9 * HOUR_S - last_s


def test_silence_of_nova_does_not_count_as_idle_time_for_a_week():
    touches = image_usage.Touches(0.0, [ONE])
    touches.image_touched(TWO, HOUR_S, is_by_nova=True)
    assert touches.idle_s(ONE, 48 * HOUR_S) == HOUR_S
    assert touches.idle_s(TWO, 48 * HOUR_S) == 0.0
    assert touches.idle_s(TWO, HOUR_S + image_usage.SILENCE_S + 1) == image_usage.SILENCE_S + 1


@pytest.mark.parametrize("away_s", [image_usage.SILENT_S + 1, 30 * HOUR_S, 20 * 24 * HOUR_S])
def test_idle_time_restarts_when_nova_returns(away_s):
    touches = image_usage.Touches(0.0, [ONE, TWO])
    last_s = nova_passes(touches, [ONE, TWO], 0.0, 9 * HOUR_S)
    touches.image_touched(THREE, last_s + away_s, is_by_nova=True)
    assert touches.idle_s(ONE, last_s + away_s) == 0.0
    assert touches.idle_s(ONE, last_s + away_s + PASS_S) == PASS_S
    last_s = nova_passes(touches, [TWO], last_s + away_s, last_s + away_s + 4 * HOUR_S)
    assert touches.idle_s(ONE, last_s) > image_usage.IN_USE_S


def test_touches_by_others_neither_end_nor_hide_the_silence_of_nova():
    touches = image_usage.Touches(0.0, [ONE, TWO])
    touches.image_touched(ONE, HOUR_S, is_by_nova=True)
    for hour in range(1, 48):
        touches.image_touched(TWO, hour * HOUR_S)
        assert touches.idle_s(ONE, (hour + 1) * HOUR_S) <= HOUR_S
    touches.image_touched(THREE, 48 * HOUR_S, is_by_nova=True)
    assert touches.idle_s(ONE, 48 * HOUR_S) == 0.0
    assert (
        touches.idle_s(TWO, 49 * HOUR_S) == HOUR_S
    )  # idle time counts from the end of the silence


def test_image_in_use_by_nova_stays_in_use_during_and_after_a_silence():
    """Also before the silence is detected, and whenever Nova touched another image."""
    touches = image_usage.Touches(0.0, [ONE, TWO])
    last_s = nova_passes(touches, [ONE], 0.0, 5 * HOUR_S)
    touches.image_touched(
        TWO, last_s + PASS_S - 1, is_by_nova=True
    )  # an instance is created, then nova-compute dies
    back_s = last_s + 30 * HOUR_S
    for minute in range(30 * 60):
        assert touches.idle_s(ONE, last_s + minute * 60.0) < image_usage.IN_USE_S
    touches.image_touched(TWO, back_s, is_by_nova=True)
    for minute in range(40):
        assert touches.idle_s(ONE, back_s + minute * 60.0) < image_usage.IN_USE_S


def test_images_count_as_touched_at_start_and_as_seen_once_touched():
    touches = image_usage.Touches(100.0, [ONE, TWO])
    assert [touches.idle_s(one, 160.0) for one in (ONE, TWO)] == [60.0, 60.0]
    touches.image_touched(ONE, 160.0)
    touches.image_touched(THREE, 160.0)
    assert [touches.is_seen(one) for one in (ONE, TWO, THREE)] == [True, False, True]
    touches.forget_image(ONE)
    touches.forget_others([THREE])
    assert [touches.is_seen(one) for one in (ONE, TWO, THREE)] == [False, False, True]


def test_image_never_touched_is_idle_forever():
    use = image_usage.UsageEvidence(False, False, image_usage.Touches(0.0).idle_s(ONE, 5.0))
    assert not use.is_used(within_s=1e12)


def test_each_kind_of_evidence_alone_shows_use():
    assert image_usage.UsageEvidence(True, False, 1e12).is_used()
    assert image_usage.UsageEvidence(False, True, 1e12).is_used()
    assert image_usage.UsageEvidence(False, False, image_usage.IN_USE_S - 1).is_used()
    assert not image_usage.UsageEvidence(False, False, image_usage.IN_USE_S).is_used()
    assert not image_usage.UsageEvidence(False, False, 60.0).is_used(within_s=30.0)


def test_replica_is_of_other_hosts_until_a_guest_here_touches_it():
    touches = image_usage.Touches(now_s=0.0)
    touches.image_attached(ONE, 5.0, is_replica=True)
    touches.image_attached(TWO, 5.0)
    assert (touches.is_replica(ONE), touches.is_replica(TWO)) == (True, False)
    assert not touches.is_seen(ONE)
    touches.image_touched(ONE, 6.0)
    assert (touches.is_replica(ONE), touches.is_seen(ONE)) == (False, True)
    touches.image_attached(ONE, 7.0, is_replica=True)  # known: attaching it again shows nothing
    assert not touches.is_replica(ONE)


def test_detached_images_are_forgotten_with_what_was_known_of_them():
    touches = image_usage.Touches(now_s=0.0)
    touches.image_attached(ONE, 5.0, is_replica=True)
    touches.image_touched(TWO, 5.0)
    touches.forget_others([TWO])
    assert len(touches) == 1
    assert touches.idle_s(ONE, 10.0) == math.inf
    assert not touches.is_replica(ONE)
    assert touches.idle_s(TWO, 10.0) == 5.0


def test_close_of_an_open_before_the_start_is_forgotten_with_the_image():
    openings = image_usage.Openings()
    openings.image_closed(ONE)
    openings.image_opened(TWO)
    openings.forget_others([])
    openings.image_opened(ONE)
    assert openings.is_open(ONE)  # the close of the former image does not count
    assert openings.is_open(TWO)  # though detached
