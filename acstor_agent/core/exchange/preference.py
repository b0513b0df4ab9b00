# SPDX-License-Identifier: Apache-2.0
"""Whether guests who wait are better off asking the source first: never slower than it alone.

Normally peers and homes are asked before the source, because that spares it.
Where they are clearly slower, by what was measured here lately, a guest does not
have to pay for that.  Only chunks that a guest already waits for are decided
about: read-ahead and prefetch stay with the peers, so that the source is spared
as long as there is time.

Both are probed: while the source goes first one guest in PROBE still asks the
peers, and where peers are slow and nothing is known of the source one in
PROBE_SOURCE asks that.
"""

import collections
import statistics

LATEST = 16
"""Answers of each side that are looked at."""
ENOUGH = 8
"""Answers without which nothing is decided."""
RECENT_S = 60.0
"""Older answers tell nothing."""
CLEARLY = 2.0
"""How many times slower peers are when the source begins to go first."""
AGAIN = 1.3
"""How many times slower they may be when they go first again."""
LEAST_S = 0.005
"""A smaller difference is nothing that a guest would feel."""
PROBE = 8
PROBE_SOURCE = 32
SLOW_S = 0.1
"""Answers of peers that take longer make it worth a read of the source to know how fast that is."""


class Preference:
    """What both sides took lately, and who goes first.

    >>> preference = Preference()
    >>> for _ in range(8):
    ...     preference.peer_answered(0.3, now=1.0)
    ...     preference.source_answered(0.01, now=1.0)
    >>> preference.decide(now=1.0), preference.is_source_first
    (True, True)
    """

    def __init__(self) -> None:
        self.is_source_first = False
        self.source_firsts = 0
        """Guests who were sent to the source first, probes included."""
        self._peers: collections.deque[tuple[float, float]] = collections.deque(maxlen=LATEST)
        self._source: collections.deque[tuple[float, float]] = collections.deque(maxlen=LATEST)
        self._decisions = 0

    def peer_answered(self, seconds: float, now: float) -> None:
        """Note that a peer took ``seconds`` to give a guest a chunk, or not to give it."""
        self._peers.append((now, seconds))

    def source_answered(self, seconds: float, now: float) -> None:
        """Note that the source took ``seconds`` to give a chunk."""
        self._source.append((now, seconds))

    def usual_s(self, now: float) -> tuple[float | None, float | None]:
        """Return what peers and the source usually take; None where too little is known."""
        return _usual_s(self._peers, now), _usual_s(self._source, now)

    def decide(self, now: float) -> bool:
        """Say whether the guest who asks now goes to the source first."""
        self._decisions += 1
        peers_s, source_s = self.usual_s(now)
        if peers_s is None or source_s is None:
            self.is_source_first = False
            is_dark = peers_s is not None and peers_s > SLOW_S
            is_first = is_dark and self._decisions % PROBE_SOURCE == 0
        else:
            factor = AGAIN if self.is_source_first else CLEARLY
            self.is_source_first = peers_s > max(factor * source_s, source_s + LEAST_S)
            is_first = self.is_source_first and self._decisions % PROBE != 0
        self.source_firsts += is_first
        return is_first


def _usual_s(answers: collections.deque[tuple[float, float]], now: float) -> float | None:
    recent = [seconds for when, seconds in answers if now - when <= RECENT_S]
    return statistics.median(recent) if len(recent) >= ENOUGH else None
