# SPDX-License-Identifier: Apache-2.0
"""Replay protection of signed messages, by content: a signature has several valid encodings."""

import collections
from collections.abc import Hashable

AGE_S = 900.0  # older messages are rejected, younger ones remembered
FUTURE_S = 300.0  # clocks may differ: a message may be this early
MAX_REMEMBERED = 65_536  # about 50 messages per second for 1,200 s; each takes some 150 bytes


class ReplayFilter:
    """Remembers up to ``limit`` accepted messages until they are too old."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._seen: collections.OrderedDict[Hashable, float] = collections.OrderedDict()

    def check_and_remember(self, message: Hashable, given_s: float, now_s: float) -> str:
        """Return why an authenticated message is rejected; "" if accepted and remembered."""
        age_s = now_s - given_s
        if age_s > AGE_S:
            return f"it was sent {age_s:.0f} s ago by this host's clock, {AGE_S:.0f} s at most"
        if age_s < -FUTURE_S:
            return f"it was sent {-age_s:.0f} s in the future: one of the two clocks is wrong"
        self._forget(now_s)
        if message in self._seen:
            return "it was accepted before"
        if len(self._seen) >= self._limit:
            return f"{self._limit} others were sent in the last {AGE_S:.0f} s"
        self._seen[message] = given_s
        return ""

    def _forget(self, now_s: float) -> None:
        while self._seen:
            message, given_s = next(iter(self._seen.items()))
            if now_s - given_s <= AGE_S:
                break
            del self._seen[message]
