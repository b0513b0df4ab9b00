# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the cache's folder, since when, and when it is worth to look again.

The rule guarded here: a folder that is broken is asked again and again, but
less and less often, and never given up.  No clock and no disk: who calls says
what time it is.
"""

from typing import NamedTuple

FIRST_LOOK_S = 1.0
LONGEST_WAIT_S = 60.0
"""The waits double up to this.  Who is well for so long begins with the first again."""


class FolderFault(NamedTuple):
    """What is wrong, and since when (seconds of the Unix epoch)."""

    what: str
    since_s: float


class FolderHealth:
    """Whether a folder can be used, and when to look again.

    >>> patience = FolderHealth()
    >>> patience.met("No space left on device", now_s=5.0, time_s=1e9)
    True
    >>> patience.met("No space left on device", now_s=6.0, time_s=1e9)
    False
    >>> patience.look_at_s, patience.trouble
    (8.0, FolderFault(what='No space left on device', since_s=1000000000.0))
    >>> patience.is_over(now_s=8.0)
    True
    """

    def __init__(self) -> None:
        self.trouble: FolderFault | None = None
        self.look_at_s = float("inf")
        """When to look again, by the clock of who calls."""
        self._wait_s = FIRST_LOOK_S
        self._over_at_s = float("-inf")

    def record_fault(self, what: str, now_s: float, time_s: float) -> bool:
        """Note that something is wrong still, or again; say whether that is news.

        :param now_s: a clock that is never set; ``time_s``: the time of day
        """
        is_news = self.trouble is None
        if is_news and now_s - self._over_at_s > LONGEST_WAIT_S:
            self._wait_s = FIRST_LOOK_S
        self.look_at_s = now_s + self._wait_s
        self._wait_s = min(LONGEST_WAIT_S, 2 * self._wait_s)
        self.trouble = FolderFault(what, time_s if self.trouble is None else self.trouble.since_s)
        return is_news

    def is_over(self, now_s: float) -> bool:
        """Note that all is well; say whether that is news."""
        if self.trouble is None:
            return False
        self.trouble, self.look_at_s, self._over_at_s = None, float("inf"), now_s
        return True
