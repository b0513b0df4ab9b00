# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_common.ring import location_policies
from acstor_decision.core import location_tuning

NEEDED = 2
USUAL = 9
RACK = "pod1/rack1"
NAMES = [f"pod1/rack{n}" for n in range(2000)]


def shares(of: location_tuning.LocationTuner) -> dict[str, int]:
    return {place: rule.share for place, rule in of.make_policies(NAMES, (), 1).items()}


def outers(of: location_tuning.LocationTuner) -> dict[str, int | None]:
    return {place: rule.outer_threshold for place, rule in of.make_policies((), NAMES, 1).items()}


@pytest.fixture
def of() -> location_tuning.LocationTuner:
    return location_tuning.LocationTuner(NEEDED, {})


def test_place_that_stays_slow_gives_less_and_is_asked_for_something_still(of):
    of.record_slowness({RACK: 8.0})
    assert shares(of) == {}
    of.record_slowness({RACK: 4.0})
    assert shares(of) == {RACK: 25}, "the milder of the two figures"
    for _ in range(9):
        of.record_slowness({RACK: 1e9})
    assert shares(of) == {RACK: location_tuning.LEAST_SHARE}


def test_small_differences_and_bursts_move_nothing(of):
    for _ in range(20):
        of.record_slowness({RACK: 1.9})
        of.record_slowness({RACK: 40.0})
    assert shares(of) == {}


def test_place_gives_more_again_by_and_by(of):
    for _ in range(NEEDED):
        of.record_slowness({RACK: 5.0})
    seen = []
    for _ in range(3 * location_tuning.RAISE_AFTER):
        of.record_slowness({RACK: 1.0})
        seen.append(shares(of).get(RACK, location_policies.FULL_SHARE))
    assert sorted(seen) == seen
    assert [seen.index(share) + 1 for share in (40, 80, 100)] == [
        location_tuning.RAISE_AFTER * n for n in (1, 2, 3)
    ]


def test_place_of_which_nothing_is_heard_is_tried_again(of):
    for _ in range(NEEDED):
        of.record_slowness({RACK: 2.0})
    for _ in range(location_tuning.FORGET_AFTER - 1):
        of.record_slowness({})
    assert shares(of) == {RACK: 50}
    of.record_slowness({})
    assert shares(of) == {}


def test_traffic_that_flaps_with_any_period_makes_few_tables(of):
    for period in (1, 2, 3, 5, 8):
        before, changes = shares(of), 0
        for collection in range(240):
            of.record_slowness({RACK: 10.0 if collection // period % 2 else 1.0})
            changes += shares(of) != before
            before = shares(of)
        assert changes <= 240 / location_tuning.RAISE_AFTER + 1, period


@given(st.lists(st.dictionaries(st.sampled_from(NAMES[:4]), st.floats(1e-15, 1e15)), max_size=150))
def test_whatever_is_measured_shares_are_shares_and_change_at_most_every_other_time(rounds):
    of = location_tuning.LocationTuner(NEEDED, {})
    before, changes = shares(of), dict.fromkeys(NAMES[:4], 0)
    for slowness in rounds:
        of.record_slowness(slowness)
        now = shares(of)
        for place in NAMES[:4]:
            changes[place] += now.get(place) != before.get(place)
        assert all(
            location_tuning.LEAST_SHARE <= share < location_policies.FULL_SHARE
            for share in now.values()
        )
        before = now
    assert all(count <= len(rounds) / NEEDED for count in changes.values())


@pytest.mark.parametrize(
    ("waits", "outer"),
    [
        ({USUAL: 4.0, 2: 3.0, 0: 3.0}, None),
        ({USUAL: 4.0, 2: 1.0, 0: 3.0}, 2),
        ({USUAL: 4.0, 2: 3.0, 0: 1.0}, location_policies.FROM_SOURCE),
        ({USUAL: 4.0, 2: 1.0, 0: 1.0}, 2),
        ({2: 1.0, 0: 1.0}, None),  # nobody knows what the usual way costs
    ],
)
def test_group_takes_another_way_where_that_is_markedly_faster_twice(of, waits, outer):
    of.record_waits(USUAL, {RACK: waits})
    assert outers(of) == {}
    of.record_waits(USUAL, {RACK: waits})
    assert outers(of) == ({} if outer is None else {RACK: outer})


def test_group_that_wavers_between_two_better_ways_stays(of):
    for _ in range(9):
        of.record_waits(USUAL, {RACK: {USUAL: 4.0, 2: 1.0, 0: 2.0}})
        of.record_waits(USUAL, {RACK: {USUAL: 4.0, 2: 2.0, 0: 1.0}})
    assert outers(of) == {}


def test_group_tries_the_usual_way_again_after_a_while(of):
    for _ in range(NEEDED):
        of.record_waits(USUAL, {RACK: {USUAL: 4.0, 2: 1.0}})
    for _ in range(location_tuning.HOLD - 1):
        of.record_waits(USUAL, {})
        assert outers(of) == {RACK: 2}
    of.record_waits(USUAL, {})
    assert outers(of) == {}


def test_group_goes_back_where_its_way_got_no_better_than_the_usual_one_was(of):
    for _ in range(NEEDED):
        of.record_waits(USUAL, {RACK: {USUAL: 4.0, 0: 1.0}})
    for _ in range(NEEDED - 1):
        of.record_waits(USUAL, {RACK: {0: 4.0}})
        assert outers(of) == {RACK: 0}
    of.record_waits(USUAL, {RACK: {0: 4.0}})
    assert outers(of) == {}


def test_groups_turn_to_the_source_a_quarter_at_a_time_those_that_gain_most_first(of):
    waits = {NAMES[n]: {USUAL: 4.0 + n, 0: 1.0} for n in range(8)}
    seen = []
    for _ in range(NEEDED + 2):
        of.record_waits(USUAL, waits)
        seen.append(sorted(outers(of)))
    assert [len(groups) for groups in seen] == [0, 2, 4, 6]
    assert seen[1] == [NAMES[6], NAMES[7]]


def test_table_says_something_of_so_many_places_at_most_those_that_give_least(of):
    for _ in range(NEEDED):
        of.record_slowness({name: 2.0 + number for number, name in enumerate(NAMES)})
    found = shares(of)
    assert len(found) == location_tuning.MAX_LOCATIONS
    assert max(found.values()) == location_tuning.LEAST_SHARE
    assert location_tuning.MAX_LOCATIONS <= len(NAMES)


def test_places_that_are_no_more_are_not_spoken_of(of):
    for _ in range(NEEDED):
        of.record_slowness({RACK: 8.0, "gone": 8.0})
        of.record_waits(USUAL, {RACK: {USUAL: 4.0, 2: 1.0}, "gone": {USUAL: 4.0, 2: 1.0}})
    assert of.make_policies({RACK}, {RACK}, 1) == {RACK: location_policies.LocationPolicy(12, 2)}
    assert of.make_policies({RACK}, (), 1) == {RACK: location_policies.LocationPolicy(12)}
    assert of.make_policies((), (), 1) == {}
    assert of.make_policies((), {RACK}, 2) == {}, "a way that is not above the threshold any more"


def test_what_another_instance_published_is_gone_on_from():
    said = {RACK: location_policies.LocationPolicy(12, 2)}
    of = location_tuning.LocationTuner(NEEDED, said)
    assert of.make_policies({RACK}, {RACK}, 1) == said
    of.load_policies({RACK: location_policies.LocationPolicy(50)})
    assert of.make_policies({RACK}, {RACK}, 1) == {RACK: location_policies.LocationPolicy(50)}
    for _ in range(location_tuning.RAISE_AFTER):
        of.record_slowness({RACK: 1.0})
    assert of.make_policies({RACK}, {RACK}, 1) == {}
