# SPDX-License-Identifier: Apache-2.0
"""Results of Tempest's tests: saved, counted and shown.

A test without a result was not run, and is not counted.
"""

import collections
import json
import pathlib
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import prettytable

from acstor_common import errors

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
OUTCOMES = (PASSED, FAILED, SKIPPED)
NONE = dict.fromkeys(OUTCOMES, 0)
_GROUPS = ("tempest.api.image", "tempest.api.compute", "acstor_tempest_plugin", "rally")


def read(path: pathlib.Path) -> dict[str, Any]:
    """Return saved results.

    :raises errors.Unusable: there are none
    """
    try:
        results: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise errors.Unusable(str(path), str(e), "Run the tests on that cloud first") from e
    return results


def write(results: Mapping[str, Any], path: pathlib.Path) -> None:
    """Save results for :func:`read`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def group_of(test: str) -> str:
    """Return a test's group.

    >>> group_of("setUpClass (tempest.api.image.v2.test_images.ImportImagesTest)")
    'tempest.api.image'
    """
    return next((group for group in _GROUPS if group in test), "other")


def of_classes(tests: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Give each test of a skipped or failed class the outcome of its class."""
    whole = {
        match[1]: outcome
        for name, outcome in tests.items()
        if (match := re.match(r"setUpClass \((.+)\)$", name))
    }
    of_tests = {name: whole.get(name.rpartition(".")[0]) for name in names if name not in tests}
    wanted = set(names)
    return {
        **{name: test for name, test in tests.items() if name in wanted or "tearDownC" in name},
        **{name: outcome for name, outcome in of_tests.items() if outcome is not None},
    }


def count(tests: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the number of tests by group and outcome."""
    counts: dict[str, dict[str, int]] = {}
    for name, test in sorted(tests.items()):
        of_group = counts.setdefault(group_of(name), dict(NONE))
        of_group[test["outcome"]] += 1
    return counts


def table(results: Mapping[str, Any]) -> str:
    """Return counts, reasons of skips, and failures, as text."""
    shown = prettytable.PrettyTable(["tests", *OUTCOMES], align="r")
    shown.align["tests"] = "l"
    for group, counts in count(results["tests"]).items():
        shown.add_row([group, *counts.values()])
    reasons = collections.Counter(
        test["reason"] for test in results["tests"].values() if test["outcome"] == SKIPPED
    )
    lines = [str(shown), *(f"{times:>4} skipped: {why}" for why, times in reasons.most_common())]
    for name, test in sorted(results["tests"].items()):
        if test["outcome"] == FAILED:
            lines += [f"failed: {name}", *test["reason"].strip().splitlines()[-1:]]
    return "\n".join(lines)
