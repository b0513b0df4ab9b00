# SPDX-License-Identifier: Apache-2.0
"""Whether a signed message is of now, and new.

The one rule: a message counts once.  Who recorded one on the message bus can send it
again; it is old after a while, and until then it is remembered.  A signature can be
spelt in more than one way, so what the message says is remembered, not its bytes.

Hosts' clocks differ.  A message may seem to come from the future by FUTURE_S, and is
old after AGE_S; both are far more than clocks with NTP differ by.
"""

import collections
from collections.abc import Hashable

AGE_S = 900.0
FUTURE_S = 300.0
MAX_REMEMBERED = 65_536
"""Of 1,200 s, so 50 a second; each takes some 150 bytes."""


class ReplayFilter:
    """Remembers what was taken, as long as it is not old."""

    def __init__(self) -> None:
        self._seen: collections.OrderedDict[Hashable, float] = collections.OrderedDict()

    def why_not(self, message: Hashable, given_s: float, now_s: float) -> str:
        """Return why a message is not to be taken; "" if it is, which is remembered.

        :param message: what tells it from others; it was found to be authentic
        :param given_s: wall clock of who signed it
        :param now_s: wall clock here
        """
        age_s = now_s - given_s
        if age_s > AGE_S:
            return f"it was given {age_s:.0f} s ago by this host's clock, {AGE_S:.0f} at most"
        if age_s < -FUTURE_S:
            return f"it was given {-age_s:.0f} s from now: one of the two clocks is wrong"
        self._forget(now_s)
        if message in self._seen:
            return "it was taken before"
        if len(self._seen) >= MAX_REMEMBERED:
            return f"{MAX_REMEMBERED} others were given since {AGE_S:.0f} s ago"
        self._seen[message] = given_s
        return ""

    def _forget(self, now_s: float) -> None:
        """Forget those at the front that are too old to be taken again."""
        while self._seen:
            message, given_s = next(iter(self._seen.items()))
            if now_s - given_s <= AGE_S:
                break
            del self._seen[message]
