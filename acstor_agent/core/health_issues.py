# SPDX-License-Identifier: Apache-2.0
"""Parts of the agent that fail at present while guests are still served."""

from typing import NamedTuple


class HealthIssue(NamedTuple):
    """One failing part."""

    why: str
    since_s: float  # start of the failure, by the caller's clock


class HealthIssues:
    """The failing parts, by name.

    >>> issues = HealthIssues()
    >>> [issues.record_failure("metrics", "Address already in use", at_s) for at_s in (10.0, 20.0)]
    [True, False]
    >>> issues.now["metrics"].since_s
    10.0
    >>> issues.clear_failure("metrics"), issues.clear_failure("metrics"), issues.now
    (True, False, {})
    """

    def __init__(self) -> None:
        self.now: dict[str, HealthIssue] = {}

    def record_failure(self, what: str, why: str, now_s: float) -> bool:
        """Record a failure; return whether the part or its reason is new."""
        known = self.now.get(what)
        self.now[what] = HealthIssue(why, known.since_s if known else now_s)
        return known is None or known.why != why

    def clear_failure(self, what: str) -> bool:
        """Clear a failure; return whether there was one."""
        return self.now.pop(what, None) is not None
