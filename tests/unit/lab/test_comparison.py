# SPDX-License-Identifier: Apache-2.0
"""The comparison of test results on stock OpenStack and with acstor."""

import re

from tests.lab.openstack import comparison

SERVERS = "tempest.api.compute.servers.test_x.T"
STATES = {"passed", "failed", "skipped", comparison.NOT_RUN}


def results(is_cut: bool = False, **outcomes: str) -> dict[str, object]:
    tests = {
        f"{SERVERS}.{name}": {"outcome": outcome, "reason": f"because of {name}\nat last"}
        for name, outcome in outcomes.items()
    }
    return {"tests": tests, "is_cut": is_cut}


def outcomes(compared: comparison.Comparison) -> dict[str, tuple[str, str]]:
    return {
        finding.test.rpartition(".")[2]: (finding.stock, finding.acstor)
        for finding in compared.findings
    }


def test_comparison_finds_each_difference_and_each_common_failure() -> None:
    stock = results(test_a="passed", test_b="passed", test_c="failed", test_d="passed")
    acstor = results(test_a="passed", test_b="failed", test_c="failed", test_e="skipped")
    compared = comparison.compare(stock, acstor, [])
    assert outcomes(compared) == {
        "test_b": ("passed", "failed"),
        "test_c": ("failed", "failed"),
        "test_d": ("passed", "not run"),
        "test_e": ("not run", "skipped"),
    }
    assert (compared.compared, compared.left, compared.is_explained) == (3, 0, False)


def test_comparison_is_explained_by_the_same_outcomes_alone() -> None:
    stock, acstor = results(test_a="passed"), results(test_a="failed")
    same = comparison.Known(r"\.test_a$", "passed", "failed", "the guest is slow")
    assert comparison.compare(stock, acstor, [same]).is_explained
    for other in (same._replace(acstor="skipped"), same._replace(match="test_b")):
        assert not comparison.compare(stock, acstor, [other]).is_explained


def test_tests_without_time_on_one_cloud_are_counted_and_not_found() -> None:
    stock = results(test_a="passed", test_b="passed", test_c="passed")
    acstor = results(is_cut=True, test_a="passed")
    acstor["tests"]["tearDownClass (x)"] = {"outcome": "failed", "reason": "left over"}
    compared = comparison.compare(stock, acstor, [])
    assert outcomes(compared) == {"tearDownClass (x)": ("not run", "failed")}
    assert (compared.compared, compared.left) == (1, 2)


def test_comparison_of_no_tests_is_not_explained() -> None:
    assert not comparison.compare(results(), results(test_a="passed", is_cut=True), []).is_explained


def test_text_shows_counts_and_both_reasons_of_a_finding() -> None:
    stock, acstor = results(test_a="passed", test_b="passed"), results(test_b="failed")
    shown = comparison.text(stock, acstor, comparison.compare(stock, acstor, []))
    assert re.search(r"tempest.api.compute \| stock  \| +2 \| +0 \|", shown)
    assert re.search(r"tempest.api.compute \| acstor \| +0 \| +1 \|", shown)
    assert f"{SERVERS}.test_b\n  stock: passed at last\n  acstor: failed at last\n" in shown
    assert shown.endswith("2 differ or fail on both, 2 unexplained")


def test_known_results_are_patterns_with_outcomes_and_reasons() -> None:
    for entry in comparison.read_known():
        assert re.compile(entry.match)
        assert {entry.stock, entry.acstor} <= STATES
        assert entry.why
