# SPDX-License-Identifier: Apache-2.0
"""What does not work now although guests are served, and since when."""

from typing import NamedTuple


class HealthIssue(NamedTuple):
    """One part that does not work.

    :param why: the last failure in words
    :param since_s: since when, in seconds of the clock that was given
    """

    why: str
    since_s: float


class HealthIssues:
    """The parts that do not work, by name.

    >>> troubles = HealthIssues()
    >>> troubles.note("metrics", "Address already in use", 10.0)
    True
    >>> troubles.note("metrics", "Address already in use", 20.0)  # nothing new
    False
    >>> troubles.now["metrics"].since_s
    10.0
    >>> troubles.over("metrics"), troubles.over("metrics"), troubles.now
    (True, False, {})
    """

    def __init__(self) -> None:
        self.now: dict[str, HealthIssue] = {}

    def record_failure(self, what: str, why: str, now_s: float) -> bool:
        """Note that a part has failed; return whether that is news."""
        known = self.now.get(what)
        self.now[what] = HealthIssue(why, known.since_s if known else now_s)
        return known is None or known.why != why

    def clear_failure(self, what: str) -> bool:
        """Note that a part works; return whether that is news."""
        return self.now.pop(what, None) is not None
