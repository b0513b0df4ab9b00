# SPDX-License-Identifier: Apache-2.0
"""Delays of outer homes and of the source: a home asks no outer home that is much farther.

It compares the outer home's group with the source, except for images that the source just failed
to give, and with nearer groups, as of its site. So each site reads a chunk over the WAN once. The
delay is the least time in the last WINDOW_S to twice that, as in BBR (Cardwell 2016). The shortest
round trip of new connections to a group, a lower bound of its delay, is known before it answers.
"""

import math

from acstor_common.model import ids
from acstor_common.ring import location
from acstor_common.util import lru_table

MIN_ANSWERS = 4  # answers below which a group's delay is unknown
WINDOW_S = 30.0
FAR_RATIO, FAR_S = 2.0, 0.005
"""An outer home is far if its delay exceeds another one by this factor and these seconds."""
ROUND_TRIP_S = 60.0  # for so long a round-trip time counts, unless a shorter one follows
GROUPS, IMAGES = 256, 64  # groups, and images that the source failed to give, remembered at most


class Delay:
    """A windowed minimum.

    >>> delay = Delay()
    >>> for n in range(MIN_ANSWERS):
    ...     delay.record(1.0 + n, now=0.0)
    >>> delay.least_s(now=1.0), delay.least_s(now=2 * WINDOW_S)
    (1.0, None)
    """

    __slots__ = ("_answers", "_began_s", "_least_s")

    def __init__(self) -> None:
        self._began_s = 0.0
        self._answers, self._least_s = [0, 0], [math.inf, math.inf]  # of this window, the last one

    def record(self, seconds: float, now: float) -> None:
        """Record how long an answer took."""
        self._move_window(now)
        self._answers[0] += 1
        self._least_s[0] = min(self._least_s[0], seconds)

    def least_s(self, now: float, min_answers: int = MIN_ANSWERS) -> float | None:
        """Return the delay; None if it is unknown."""
        self._move_window(now)
        return min(self._least_s) if sum(self._answers) >= min_answers else None

    def _move_window(self, now: float) -> None:
        windows = int((now - self._began_s) / WINDOW_S)
        if windows:
            self._began_s = now
            last = (self._answers[0], self._least_s[0]) if windows == 1 else (0, math.inf)
            self._answers, self._least_s = [0, last[0]], [math.inf, last[1]]


class _Group:
    __slots__ = ("delay", "first_s", "round_trip_s", "round_trip_until_s")

    def __init__(self) -> None:
        self.delay, self.first_s = Delay(), math.inf
        self.round_trip_s = self.round_trip_until_s = 0.0

    def least_round_trip_s(self, now: float) -> float | None:
        return self.round_trip_s if now < self.round_trip_until_s else None


class UpstreamDelays:
    """The delays that this host has seen, by group: the location of its hosts."""

    def __init__(self) -> None:
        self.skipped = 0  # chunks not requested from far groups
        self._source = Delay()
        self._groups = lru_table.LruTable[location.Levels, _Group](GROUPS)
        self._failed_until_s = lru_table.LruTable[ids.ImageId, float](IMAGES)

    def record_source_failure(self, image_id: ids.ImageId, now: float) -> None:
        """Record that the source did not give a chunk of an image."""
        self._failed_until_s[image_id] = now + WINDOW_S

    def record_source(self, begun_s: float, now: float) -> None:
        """Record an answer of the source."""
        self._source.record(now - begun_s, now)

    def record_relay(self, group: location.Levels, sent_s: float, now: float) -> None:
        """Record an answer of an outer home of ``group``."""
        known = self._get_or_create(group)
        if sent_s >= known.first_s:  # others may have waited for a connection
            known.delay.record(now - sent_s, now)
        known.first_s = min(now, known.first_s)

    def record_round_trip(self, group: location.Levels, round_trip_s: float, now: float) -> None:
        """Record the round-trip time of a new connection to a host of ``group`` (0: unknown)."""
        known = self._get_or_create(group)
        is_least = now >= known.round_trip_until_s or round_trip_s <= known.round_trip_s
        if round_trip_s and is_least:
            known.round_trip_s, known.round_trip_until_s = round_trip_s, now + ROUND_TRIP_S

    def _get_or_create(self, group: location.Levels) -> _Group:
        known = self._groups.get_as_used(group)
        if known is None:
            known = self._groups[group] = _Group()
        return known

    def may_ask(
        self,
        group: location.Levels,
        image_id: ids.ImageId,
        chunks: int,
        now: float,
        own_group: location.Levels,
    ) -> bool:
        """Return whether a host of ``own_group`` asks an outer home of ``group`` for chunks."""
        known = self._groups.get_as_used(group)
        if known is None:
            return True
        delay_s = known.delay.least_s(now)
        has_answered = delay_s is not None
        if delay_s is None:
            delay_s = known.least_round_trip_s(now)
        if delay_s is None:
            return True
        levels = location.common_levels(own_group, group)
        nearer = [
            other
            for at, other in self._groups.items()
            if location.common_levels(own_group, at) > levels
        ]
        delays = [other.delay.least_s(now) for other in nearer]
        if now >= self._failed_until_s.get(image_id, 0.0):
            delays.append(self._source.least_s(now, min_answers=1))
        if not has_answered:
            delays += [other.least_round_trip_s(now) for other in nearer]
        least_s = min((other_s for other_s in delays if other_s is not None), default=math.inf)
        if delay_s <= max(FAR_RATIO * least_s, least_s + FAR_S):
            return True
        self.skipped += chunks
        return False
