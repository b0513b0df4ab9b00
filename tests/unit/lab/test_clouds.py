# SPDX-License-Identifier: Apache-2.0
"""Tests of OpenStack on two clouds: what runs where, what is kept, and rally's reports."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.outside import clouds
from tests.outside import rally_scenarios

IDS = {"a": "id of a", "b": "id of b", "c": "id of c"}


class Cloud:
    """Runs the first tests of those it is given, as many as it has time for."""

    def __init__(self, fits: int = 3) -> None:
        self.fits = fits
        self.ran: list[tuple[str, dict[str, str]]] = []
        self.stops_s: list[float] = []

    def run(self, way: str, ids: Mapping[str, str], stop_s: float) -> dict[str, Any]:
        self.ran.append((way, dict(ids)))
        self.stops_s.append(stop_s)
        tests = {name: {"outcome": "passed", "reason": way} for name in list(ids)[: self.fits]}
        return {"is_cut": len(tests) < len(ids), "seconds": 1, "listed": 9, "tests": tests}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(clouds, "FOLDER", tmp_path)


def run_both(cloud: Cloud, is_resumed: bool = False) -> list[list[str]]:
    results = clouds.run_both("part", cloud.run, IDS, 100.0, is_resumed)
    return [sorted(of_way["tests"]) for of_way in results]


def test_second_cloud_runs_the_tests_with_a_result_on_the_first() -> None:
    cloud = Cloud(fits=2)
    assert run_both(cloud) == [["a", "b"], ["a", "b"]]
    assert cloud.ran == [("stock", IDS), ("acstor", {"a": "id of a", "b": "id of b"})]


def test_first_cloud_has_half_of_the_time_and_the_second_one_what_is_left() -> None:
    cloud = Cloud()
    run_both(cloud)
    first, second = cloud.stops_s
    assert 45 < second - first < 55


def test_resumed_run_adds_the_missing_results() -> None:
    run_both(Cloud(fits=2))
    cloud = Cloud(fits=2)
    assert run_both(cloud, is_resumed=True) == [["a", "b", "c"], ["a", "b", "c"]]
    assert cloud.ran == [("stock", {"c": "id of c"}), ("acstor", {"c": "id of c"})]
    again = Cloud()
    assert run_both(again, is_resumed=True) == [["a", "b", "c"], ["a", "b", "c"]]
    assert again.ran == []


def test_new_run_forgets_the_kept_results() -> None:
    run_both(Cloud())
    cloud = Cloud(fits=1)
    assert run_both(cloud) == [["a"], ["a"]]


def report(errors: list[list[str]], is_good: bool = True) -> dict[str, Any]:
    data = [{"duration": 1.0 + number, "error": error} for number, error in enumerate(errors)]
    return {"tasks": [{"subtasks": [{"workloads": [{"data": data, "pass_sla": is_good}]}]}]}


def test_scenario_passes_with_all_its_iterations() -> None:
    result = rally_scenarios.result_of(report([[], [], [], []]))
    assert result == {"outcome": "passed", "seconds": 2.5, "reason": ""}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (report([[], ["Timeout", "a\nserver", "trace"], [], []]), "1 of 4.*: Timeout a server$"),
        (report([[], [], []]), "0 of 4 iterations failed: its context"),
        (report([[], [], [], []], is_good=False), "its context or clean-up failed"),
        (report([]), "0 of 4"),
    ],
)
def test_scenario_fails_with_any_iteration_or_its_context(given, reason) -> None:
    result = rally_scenarios.result_of(given)
    assert result["outcome"] == "failed"
    assert re.search(reason, result["reason"])
