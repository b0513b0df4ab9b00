# SPDX-License-Identifier: Apache-2.0
"""Reports of Tempest's results: counts and reasons."""

import pytest

from acstor_common import errors
from tests.lab.openstack import tempest_results

IMAGES, SERVERS = "tempest.api.image.v2.test_images.T", "tempest.api.compute.servers.test_x.T"


def results(**outcomes: str) -> dict[str, object]:
    tests = {
        f"{SERVERS}.{name}": {"outcome": outcome, "reason": f"because of {name}\nat last"}
        for name, outcome in outcomes.items()
    }
    return {"tests": tests}


def test_table_counts_results_by_part_with_reasons() -> None:
    made = results(test_a="passed", test_b="failed")
    made["tests"] |= {f"{IMAGES}.test_{n}": {"outcome": "skipped", "reason": "no"} for n in "cd"}
    assert tempest_results.count(made["tests"]) == {
        "tempest.api.compute": {"passed": 1, "failed": 1, "skipped": 0},
        "tempest.api.image": {"passed": 0, "failed": 0, "skipped": 2},
    }
    shown = tempest_results.table(made)
    assert "   2 skipped: no" in shown
    assert f"failed: {SERVERS}.test_b\nat last" in shown


def test_results_are_read_back_unchanged(tmp_path) -> None:
    made = results(test_a="passed")
    tempest_results.write(made, tmp_path / "results" / "tempest-stock.json")
    assert tempest_results.read(tmp_path / "results" / "tempest-stock.json") == made


def test_missing_results_are_named(tmp_path) -> None:
    with pytest.raises(errors.Unusable, match=r"tempest-acstor\.json.*(.|\n)*Run the tests"):
        tempest_results.read(tmp_path / "tempest-acstor.json")


def test_skipped_or_failed_class_counts_for_each_of_its_tests() -> None:
    ran = {
        f"setUpClass ({IMAGES})": {"outcome": "skipped", "reason": "no"},
        f"{SERVERS}.test_a": {"outcome": "passed", "reason": ""},
        f"tearDownClass ({SERVERS})": {"outcome": "failed", "reason": "left over"},
    }
    listed = [f"{IMAGES}.test_a", f"{IMAGES}.test_b", f"{SERVERS}.test_a", f"{SERVERS}.test_cut"]
    outcomes = {
        name: test["outcome"] for name, test in tempest_results.of_classes(ran, listed).items()
    }
    assert outcomes == {
        f"{IMAGES}.test_a": "skipped",
        f"{IMAGES}.test_b": "skipped",
        f"{SERVERS}.test_a": "passed",
        f"tearDownClass ({SERVERS})": "failed",
    }
