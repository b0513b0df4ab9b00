# SPDX-License-Identifier: Apache-2.0
"""A finding of the health checks: one kind of problem, its subjects and the remedy."""

import enum
from collections.abc import Collection
from collections.abc import Iterable
from typing import Final

import msgspec

NAMED: Final = 20  # number of subjects that a finding names; it counts all


class Severity(enum.StrEnum):
    """Severity of a finding; the health of the cloud is that of its worst finding."""

    OK = "ok"
    WARNING = "warning"  # guests read, but slower or less safely than intended
    ERROR = "error"  # guests wait or fail, or hosts will soon lose their peers


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A problem.

    :param code: its kind, for machines
    :param count: number of hosts, images or servers that have it
    :param subjects: the first of these, the worst first, with details
    :param remedy: action of the operator
    """

    code: str
    severity: Severity
    message: str
    count: int
    subjects: list[str]
    remedy: str


def worst_severity(found: Iterable[Finding]) -> Severity:
    """Return the severity of the worst finding.

    >>> worst_severity([])
    <Severity.OK: 'ok'>
    """
    return max(
        (problem.severity for problem in found), key=list(Severity).index, default=Severity.OK
    )


def make_finding(
    code: str, severity: Severity, message: str, subjects: Collection[str], remedy: str
) -> Finding:
    """Return a finding that counts all ``subjects`` and names the first of them."""
    return Finding(
        code=code,
        severity=severity,
        message=message,
        count=len(subjects),
        subjects=list(subjects)[:NAMED],
        remedy=remedy,
    )
