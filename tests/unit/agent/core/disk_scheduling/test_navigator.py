# SPDX-License-Identifier: Apache-2.0
"""vNavigator: densities, units, intervals; the work per request does not grow."""

import math
from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis import strategies as st

from acstor_agent.core.disk_scheduling import navigator

ZONE = navigator.ZONE_BYTES
WINDOW = navigator.WINDOW_S
TOUCHES = st.lists(st.tuples(st.integers(0, 40), st.floats(0, 0.1)), max_size=80)


def touched(*zones: int, at_s: float = 0.0) -> navigator.Navigator:
    found = navigator.Navigator()
    for zone in zones:
        found.request_answered(zone * ZONE, at_s)
    return found


def test_density_halves_with_each_window() -> None:
    found = touched(5, 5, 5, 5)
    for windows in range(4):
        found.advance_time((windows + 0.5) * WINDOW)
        assert found.zone_density(5 * ZONE) == pytest.approx(4 / 2**windows)


def test_threshold_is_the_mean_of_densities_of_one_or_more() -> None:
    found = touched(1, 1, 1, 2)
    assert found.threshold == pytest.approx(2.0)
    found.advance_time(1.5 * WINDOW)  # zone 2 has fallen below 1
    assert found.threshold == pytest.approx(1.5)
    found.advance_time(100 * WINDOW)
    assert math.isinf(found.threshold)


def test_unit_of_a_dense_zone_includes_the_next_zone_unless_dense() -> None:
    found = touched(1, 1, 1, 1, 9)
    unit = found.unit_at(ZONE)
    assert unit is not None
    assert (unit.start, unit.stop) == (ZONE, 3 * ZONE)
    assert found.unit_at(2 * ZONE + 5) == unit
    assert found.unit_at(3 * ZONE) is None
    both = touched(1, 1, 2, 2)
    unit = both.unit_at(ZONE)
    assert unit is not None
    assert unit.stop == 2 * ZONE


def test_sparse_zone_is_no_unit() -> None:
    found = touched(3, 3, 3, 3, 3, 700)
    assert found.unit_at(700 * ZONE) is None


def test_interval_is_the_mean_time_from_response_to_request() -> None:
    found = navigator.Navigator()
    for number, pause_s in enumerate((0.001, 0.003)):
        at_s = number * 0.01
        found.request_answered(0, at_s)
        found.request_arrived(0, at_s + pause_s)
        found.request_arrived(
            0, at_s + 0.009, was_awaited=False
        )  # another request of the same batch
    unit = found.unit_at(0)
    assert unit is not None
    assert unit.interval_s == pytest.approx(0.002)


def test_zone_without_requests_has_an_infinite_interval() -> None:
    unit = touched(0).unit_at(0)
    assert unit is not None
    assert math.isinf(unit.interval_s)


def read_in_order(found: navigator.Navigator, zone: int, requests: int, at_s: float) -> float:
    """Read a zone, each request 1 ms after the last response; return the time of the end."""
    for _ in range(requests):
        found.request_arrived(zone * ZONE, at_s)
        found.request_answered(zone * ZONE, at_s)
        at_s += 0.001
    return at_s


def test_single_interval_is_not_regular() -> None:
    found = navigator.Navigator()
    at_s = read_in_order(found, 7, 2, 0.0)
    assert found.unit_at(7 * ZONE) is not None
    assert found.regular_unit_at(7 * ZONE) is None
    read_in_order(found, 7, 1, at_s)
    unit = found.regular_unit_at(7 * ZONE)
    assert unit is not None
    assert unit.interval_s == pytest.approx(0.001)


def test_reader_that_enters_a_zone_keeps_its_regularity() -> None:
    found = navigator.Navigator()
    at_s = read_in_order(found, 7, 3, 0.0)
    at_s = read_in_order(found, 8, 2, at_s)
    unit = found.regular_unit_at(8 * ZONE)
    assert unit is not None
    assert (unit.start, unit.stop) == (7 * ZONE, 9 * ZONE)
    read_in_order(found, 8, 1, at_s)
    unit = found.regular_unit_at(8 * ZONE)
    assert unit is not None
    assert unit.start == 8 * ZONE


def test_zone_inherits_the_interval_of_a_decayed_predecessor() -> None:
    found = navigator.Navigator()
    at_s = read_in_order(found, 7, 3, 0.0)
    at_s = read_in_order(found, 8, 2, at_s + 10 * WINDOW)  # other requests were served meanwhile
    assert found.zone_density(7 * ZONE) < 1
    unit = found.regular_unit_at(8 * ZONE)
    assert unit is not None
    assert (unit.start, unit.stop) == (8 * ZONE, 10 * ZONE)
    assert unit.interval_s == pytest.approx(0.001)


def test_sparse_zone_or_zone_after_an_unknown_one_is_not_regular() -> None:
    found = navigator.Navigator()
    at_s = read_in_order(found, 7, 3, 0.0)
    at_s = read_in_order(found, 20, 2, at_s + 10 * WINDOW)
    assert found.regular_unit_at(20 * ZONE) is None  # nothing is known of the zone before
    read_in_order(found, 20, 5, at_s)
    found.request_answered(8 * ZONE, at_s)
    assert found.regular_unit_at(8 * ZONE) is None  # less dense than the mean


def test_backward_clock_is_treated_as_standing_still() -> None:
    found = touched(1, at_s=1.0)
    found.request_answered(ZONE, 0.2)
    assert found.zone_density(ZONE) == pytest.approx(2.0)


def test_memory_is_bounded_and_the_oldest_zone_is_forgotten() -> None:
    found = navigator.Navigator(zone_limit=10)
    for zone in range(1000):
        found.request_answered(zone * ZONE, zone * 0.001)
    assert len(found) == 10
    assert found.zone_density(0) == 0
    assert found.zone_density(999 * ZONE) == 1


class Counting(navigator.Navigator):
    """Counts evaluations of zone densities, as a measure of the work."""

    looked = 0

    def _density(self, zone: navigator._Zone) -> float:
        self.looked += 1
        return super()._density(zone)


@pytest.mark.parametrize("pause_s", [0.0, 0.001, 0.1])
@pytest.mark.parametrize("zones", [10, 1000])
def test_work_for_a_request_does_not_grow_with_the_zones(zones: int, pause_s: float) -> None:
    found = Counting()
    requests = 5000
    for number in range(requests):
        offset, now_s = number * 7 % zones * ZONE, number * pause_s
        found.request_arrived(offset, now_s)
        found.request_answered(offset, now_s)
        found.regular_unit_at(offset)
    assert len(found) == zones
    assert found.looked <= 8 * requests


def with_times(touches: list[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """Yield each touched zone with the time of the touch."""
    now_s = 0.0
    for zone, pause_s in touches:
        now_s += pause_s
        yield zone, now_s


@hypothesis.given(TOUCHES)
def test_threshold_and_densities_follow_equation_4(touches: list[tuple[int, float]]) -> None:
    found = navigator.Navigator()
    history: list[tuple[int, int]] = []
    now_s = 0.0
    for zone, pause_s in touches:
        now_s += pause_s
        found.request_answered(zone * ZONE, now_s)
        history.append((zone, int(now_s / WINDOW)))
    window = int(now_s / WINDOW)
    densities = {
        zone: sum(2.0 ** -(window - when) for z, when in history if z == zone)
        for zone, _ in history
    }
    dense = [density for density in densities.values() if density >= 1]
    expected = sum(dense) / len(dense) if dense else math.inf
    assert found.threshold == pytest.approx(expected)
    for zone, density in densities.items():
        assert found.zone_density(zone * ZONE) == pytest.approx(density)


@hypothesis.given(TOUCHES)
def test_units_span_one_or_two_zones_and_begin_with_a_dense_one(
    touches: list[tuple[int, float]],
) -> None:
    found = navigator.Navigator()
    for zone, now_s in with_times(touches):
        found.request_answered(zone * ZONE, now_s)
    for zone in range(42):
        unit = found.unit_at(zone * ZONE)
        is_expected = any(
            found.zone_density(at * ZONE) >= found.threshold * (1 - 1e-9) for at in (zone, zone - 1)
        )
        assert (unit is not None) == is_expected
        if unit is not None:
            assert unit.contains(zone * ZONE)
            assert unit.stop - unit.start in (ZONE, 2 * ZONE)
            assert found.zone_density(unit.start) >= found.threshold * (1 - 1e-9)


@hypothesis.given(TOUCHES)
def test_regular_units_are_dense_and_contain_the_request(
    touches: list[tuple[int, float]],
) -> None:
    found = navigator.Navigator()
    for zone, now_s in with_times(touches):
        found.request_arrived(zone * ZONE, now_s)
        found.request_answered(zone * ZONE, now_s)
        unit = found.regular_unit_at(zone * ZONE)
        if unit is not None:
            assert unit.contains(zone * ZONE)
            assert math.isfinite(unit.interval_s)
            assert found.zone_density(unit.start) >= found.threshold * (1 - 1e-6)


@hypothesis.given(st.floats(0, 1), st.floats(0, 1))
def test_density_only_decays_without_requests(first_s: float, second_s: float) -> None:
    found = touched(1, 1, 1)
    found.advance_time(first_s)
    before = found.zone_density(ZONE)
    found.advance_time(first_s + second_s)
    assert found.zone_density(ZONE) <= before
