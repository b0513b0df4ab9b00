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


def test_place_that_stays_slow_gets_a_smaller_share_never_zero(of):
    of.record_slowness({RACK: 8.0})
    assert shares(of) == {}
    of.record_slowness({RACK: 4.0})
    assert shares(of) == {RACK: 25}, "the milder of the two figures"
    for _ in range(9):
        of.record_slowness({RACK: 1e9})
    assert shares(of) == {RACK: location_tuning.LEAST_SHARE}


def test_bursts_and_small_differences_change_no_share(of):
    for _ in range(20):
        of.record_slowness({RACK: 1.9})
        of.record_slowness({RACK: 40.0})
    assert shares(of) == {}


def test_share_rises_again_in_steps(of):
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


def test_share_is_reset_when_reports_stop(of):
    for _ in range(NEEDED):
        of.record_slowness({RACK: 2.0})
    for _ in range(location_tuning.FORGET_AFTER - 1):
        of.record_slowness({})
    assert shares(of) == {RACK: 50}
    of.record_slowness({})
    assert shares(of) == {}


def test_flapping_traffic_makes_few_tables(of):
    for period in (1, 2, 3, 5, 8):
        before, changes = shares(of), 0
        for collection in range(240):
            of.record_slowness({RACK: 10.0 if collection // period % 2 else 1.0})
            changes += shares(of) != before
            before = shares(of)
        assert changes <= 240 / location_tuning.RAISE_AFTER + 1, period


@given(st.lists(st.dictionaries(st.sampled_from(NAMES[:4]), st.floats(1e-15, 1e15)), max_size=150))
def test_shares_stay_in_range_and_change_at_most_every_other_time(rounds):
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
        ({2: 1.0, 0: 1.0}, None),  # no report about the usual threshold
    ],
)
def test_group_switches_to_a_markedly_faster_way_after_two_reports(of, waits, outer):
    of.record_waits(USUAL, {RACK: waits})
    assert outers(of) == {}
    of.record_waits(USUAL, {RACK: waits})
    assert outers(of) == ({} if outer is None else {RACK: outer})


def test_alternating_best_ways_change_nothing(of):
    for _ in range(9):
        of.record_waits(USUAL, {RACK: {USUAL: 4.0, 2: 1.0, 0: 2.0}})
        of.record_waits(USUAL, {RACK: {USUAL: 4.0, 2: 2.0, 0: 1.0}})
    assert outers(of) == {}


def test_group_returns_to_the_usual_way_after_a_while(of):
    for _ in range(NEEDED):
        of.record_waits(USUAL, {RACK: {USUAL: 4.0, 2: 1.0}})
    for _ in range(location_tuning.HOLD - 1):
        of.record_waits(USUAL, {})
        assert outers(of) == {RACK: 2}
    of.record_waits(USUAL, {})
    assert outers(of) == {}


def test_group_returns_early_when_its_way_is_no_faster(of):
    for _ in range(NEEDED):
        of.record_waits(USUAL, {RACK: {USUAL: 4.0, 0: 1.0}})
    for _ in range(NEEDED - 1):
        of.record_waits(USUAL, {RACK: {0: 4.0}})
        assert outers(of) == {RACK: 0}
    of.record_waits(USUAL, {RACK: {0: 4.0}})
    assert outers(of) == {}


def test_groups_switch_to_the_source_a_quarter_at_a_time_best_gain_first(of):
    waits = {NAMES[n]: {USUAL: 4.0 + n, 0: 1.0} for n in range(8)}
    seen = []
    for _ in range(NEEDED + 2):
        of.record_waits(USUAL, waits)
        seen.append(sorted(outers(of)))
    assert [len(groups) for groups in seen] == [0, 2, 4, 6]
    assert seen[1] == [NAMES[6], NAMES[7]]


def test_policies_are_limited_to_the_places_with_the_lowest_shares(of):
    for _ in range(NEEDED):
        of.record_slowness({name: 2.0 + number for number, name in enumerate(NAMES)})
    found = shares(of)
    assert len(found) == location_tuning.MAX_LOCATIONS
    assert max(found.values()) == location_tuning.LEAST_SHARE
    assert location_tuning.MAX_LOCATIONS <= len(NAMES)


def test_vanished_places_get_no_policy(of):
    for _ in range(NEEDED):
        of.record_slowness({RACK: 8.0, "gone": 8.0})
        of.record_waits(USUAL, {RACK: {USUAL: 4.0, 2: 1.0}, "gone": {USUAL: 4.0, 2: 1.0}})
    assert of.make_policies({RACK}, {RACK}, 1) == {RACK: location_policies.LocationPolicy(12, 2)}
    assert of.make_policies({RACK}, (), 1) == {RACK: location_policies.LocationPolicy(12)}
    assert of.make_policies((), (), 1) == {}
    assert of.make_policies((), {RACK}, 2) == {}, "a way that is not above the threshold any more"


def test_policies_of_another_instance_are_continued():
    said = {RACK: location_policies.LocationPolicy(12, 2)}
    of = location_tuning.LocationTuner(NEEDED, said)
    assert of.make_policies({RACK}, {RACK}, 1) == said
    of.load_policies({RACK: location_policies.LocationPolicy(50)})
    assert of.make_policies({RACK}, {RACK}, 1) == {RACK: location_policies.LocationPolicy(50)}
    for _ in range(location_tuning.RAISE_AFTER):
        of.record_slowness({RACK: 1.0})
    assert of.make_policies({RACK}, {RACK}, 1) == {}
