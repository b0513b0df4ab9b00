# SPDX-License-Identifier: Apache-2.0
"""Compares the results of tests on the stock cloud and on the cloud with acstor.

``known_results.toml`` explains each difference, and each test that fails on both clouds.
"""

import pathlib
import re
import tomllib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import prettytable

from tests.lab.openstack import tempest_results

KNOWN_RESULTS = pathlib.Path(__file__).with_name("known_results.toml")
NOT_RUN = "not run"


class Known(NamedTuple):
    """An explained pair of outcomes of the matching tests."""

    match: str
    stock: str
    acstor: str
    why: str


class Finding(NamedTuple):
    """A test that differs or fails on both clouds; ``why`` is empty if nothing explains it."""

    test: str
    stock: str
    acstor: str
    reasons: tuple[str, str]
    why: str

    def __str__(self) -> str:
        """Return it as lines of text."""
        pairs = zip(("stock", "acstor"), (self.stock, self.acstor), self.reasons, strict=True)
        lines = [f"  {way}: {outcome} {reason}".rstrip() for way, outcome, reason in pairs]
        return "\n".join([self.test, *lines, f"  {self.why or 'UNEXPLAINED'}"])


class Comparison(NamedTuple):
    """What differs between two clouds.

    :ivar compared: number of tests with an outcome on both
    :ivar left: number of tests for which the time of a cloud was too short
    """

    findings: list[Finding]
    compared: int
    left: int

    @property
    def is_explained(self) -> bool:
        """Whether tests ran on both clouds, and each finding has a reason."""
        return self.compared > 0 and all(finding.why for finding in self.findings)


def read_known(path: pathlib.Path = KNOWN_RESULTS) -> list[Known]:
    """Return the explained outcomes of a file."""
    return [Known(**entry) for entry in tomllib.loads(path.read_text()).get("test", [])]


def compare(
    stock: Mapping[str, Any], acstor: Mapping[str, Any], known: Sequence[Known]
) -> Comparison:
    """Compare the results of the two clouds."""
    sides = stock["tests"], acstor["tests"]
    both = sides[0].keys() & sides[1].keys()
    others = sides[0].keys() ^ sides[1].keys()
    if stock["is_cut"] or acstor["is_cut"]:
        # A class's teardown has a result only if it fails; other tests just had no time.
        others = {name for name in others if "tearDownC" in name}
    found = [_finding(name, sides, known) for name in sorted(both | others)]
    every = sides[0].keys() | sides[1].keys()
    findings = [finding for finding in found if finding is not None]
    return Comparison(findings, len(both), len(every - both - others))


def _finding(
    name: str, sides: tuple[Mapping[str, Any], Mapping[str, Any]], known: Sequence[Known]
) -> Finding | None:
    stock, acstor = (side.get(name, {"outcome": NOT_RUN, "reason": ""}) for side in sides)
    outcomes = stock["outcome"], acstor["outcome"]
    if outcomes[0] == outcomes[1] != tempest_results.FAILED:
        return None
    reasons = _last_line(stock["reason"]), _last_line(acstor["reason"])
    explained = (
        entry.why
        for entry in known
        if (entry.stock, entry.acstor) == outcomes and re.search(entry.match, name)
    )
    return Finding(name, *outcomes, reasons, next(explained, ""))


def _last_line(reason: str) -> str:
    return next(iter(reason.strip().splitlines()[-1:]), "")


def text(stock: Mapping[str, Any], acstor: Mapping[str, Any], compared: Comparison) -> str:
    """Return counts of both clouds, and the findings."""
    shown = prettytable.PrettyTable(["tests", "cloud", *tempest_results.OUTCOMES], align="r")
    shown.align["tests"] = shown.align["cloud"] = "l"
    counts = {"stock": tempest_results.count(stock["tests"])}
    counts["acstor"] = tempest_results.count(acstor["tests"])
    for group in sorted(counts["stock"].keys() | counts["acstor"].keys()):
        for way, of_way in counts.items():
            shown.add_row([group, way, *of_way.get(group, tempest_results.NONE).values()])
    unexplained = sum(not finding.why for finding in compared.findings)
    return "\n".join(
        [
            str(shown),
            *map(str, compared.findings),
            f"compared: {compared.compared} tests; no time for {compared.left}; "
            f"{len(compared.findings)} differ or fail on both, {unexplained} unexplained",
        ]
    )
