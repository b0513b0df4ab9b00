# SPDX-License-Identifier: Apache-2.0
"""Tests of OpenStack on two clouds of the lab: stock Nova and Glance, then with all of acstor.

Each cloud is new.  Results stay in ``.cache/outside/clouds``, for a run that resumes.
"""

import re
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tests.lab.openstack import comparison
from tests.lab.openstack import tempest
from tests.lab.openstack import tempest_cloud
from tests.lab.openstack import tempest_results
from tests.outside import qemu_source
from tests.outside import rally_scenarios

FOLDER = qemu_source.CACHE / "clouds"
TESTS = r"^tempest\.api\.(image|compute)\."
_CONCURRENCY = 2
_TEST_S = 600
_NOTHING: Mapping[str, Any] = {"tests": {}, "is_cut": True, "seconds": 0, "listed": 0}

Run = Callable[[str, Mapping[str, str], float], dict[str, Any]]
"""Runs tests: way, ids by name, and end of its time; returns results."""


def run_tempest(match: str | None, longest_s: float, is_resumed: bool) -> bool:
    """Run Tempest's tests on both clouds; return whether each difference is explained."""

    def run(way: str, ids: Mapping[str, str], stop_s: float) -> dict[str, Any]:
        return tempest.run(way, ids, tempest.Plan(_CONCURRENCY, stop_s, _TEST_S))

    ids = tempest.list_tests(match or TESTS)
    return _compare("tempest", run_both("tempest", run, ids, longest_s, is_resumed))


def run_rally(match: str | None, longest_s: float, is_resumed: bool) -> bool:
    """Run rally's scenarios on both clouds; return whether each difference is explained."""
    rally_scenarios.VENV.install()
    named = {f"rally.NovaServers.{name}": name for name in rally_scenarios.SCENARIOS}
    ids = {name: scenario for name, scenario in named.items() if re.search(match or "", name)}
    return _compare("rally", run_both("rally", rally_scenarios.run, ids, longest_s, is_resumed))


def run_both(
    part: str,
    run: Run,
    ids: Mapping[str, str],
    longest_s: float,
    is_resumed: bool,
) -> list[Mapping[str, Any]]:
    """Run tests on the stock cloud, then those with a result on the cloud with acstor.

    :param longest_s: of both; each cloud has half of what is left
    :param is_resumed: whether tests with a kept result are left out
    :return: results of each cloud
    """
    stop_s = time.monotonic() + longest_s
    results: list[Mapping[str, Any]] = []
    for clouds_left, way in zip((2, 1), tempest_cloud.WAYS, strict=True):
        path = FOLDER / f"{part}-{way}.json"
        kept = tempest_results.read(path) if is_resumed and path.exists() else _NOTHING
        wanted = {name: ids[name] for name in ids if name not in kept["tests"]}
        if results:
            wanted = {name: wanted[name] for name in wanted if name in results[0]["tests"]}
        if wanted:
            now_s = time.monotonic()
            new = run(way, wanted, now_s + (stop_s - now_s) / clouds_left)
            kept = {**new, "tests": {**kept["tests"], **new["tests"]}}
            tempest_results.write(kept, path)
        results.append(kept)
    return results


def _compare(part: str, results: Sequence[Mapping[str, Any]]) -> bool:
    stock, acstor = results
    compared = comparison.compare(stock, acstor, comparison.read_known())
    print(comparison.text(stock, acstor, compared))
    for way, of_way in zip(tempest_cloud.WAYS, results, strict=True):
        print(f"{part}: {way}: {of_way['seconds']} s, {of_way['listed']} tests in its last run")
    return compared.is_explained
