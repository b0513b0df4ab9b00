# SPDX-License-Identifier: Apache-2.0
"""How fast images may become whole and must, how fast they do, and when to try again.

This is what nobody waits for, so it takes what others leave over.

Times are seconds of one clock that never goes back, given by the caller.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from acstor_agent.core.cloud import interface_traffic

SHARE = 0.9
"""Of what the link has to spare: the rest is for those who begin to use it just now."""
BESIDE_GUESTS = 0.1
"""Of that, while guests of this host boot, or wait for what is not here."""
LEAST_BYTES_S = 256 * 1024.0
"""Fills go on at this rate on a link that is full: it must end some day."""
UNKNOWN_BYTES_S = 62_500_000.0
"""Where nothing is known of the link: half of what 1000 Mbit/s carry."""
AHEAD_S = 0.25
"""How much of its rate a fill that was kept waiting may take at once."""
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0
SPEED_OVER_S = 10.0
"""Over how long a speed is averaged, about."""
RESERVE_SHARE = 0.1
"""Of the time until an image is to be whole, what is kept for what goes wrong."""
RESERVE_S = 60.0
"""And no more than this."""


class SpareBandwidth:
    """What a link has to spare, as its counters show it."""

    def __init__(self) -> None:
        self._last: interface_traffic.InterfaceSample | None = None
        self._others_bytes_s = 0.0
        self._own_bytes = 0

    def count_bytes(self, count: int) -> None:
        """Note bytes of chunks that came for an image that becomes whole."""
        self._own_bytes += count

    def reset(self) -> None:
        """Begin anew, after a pause in which nobody looked."""
        self._last, self._own_bytes = None, 0

    def spare_bytes_s(self, look: interface_traffic.InterfaceSample) -> float:
        """Return the rate in bytes/s that others leave over; see :data:`SHARE`.

        What others take is believed at once when it grows, and by half when it falls.
        """
        last, own_bytes = self._last, self._own_bytes * interface_traffic.HEADERS
        self._last, self._own_bytes = look, 0
        if last is not None and look.at_s > last.at_s:
            received = interface_traffic.traffic_between(last.links, look.links).received
            others_bytes_s = max(0.0, received - own_bytes) / (look.at_s - last.at_s)
            calmer = (self._others_bytes_s + others_bytes_s) / 2
            self._others_bytes_s = max(others_bytes_s, calmer)
        return max(LEAST_BYTES_S, SHARE * (look.link_bytes_s - self._others_bytes_s))


class Pacer:
    """Spreads fetches over time.

    >>> pacer = Pacer()
    >>> pacer.bytes_s = 1000.0
    >>> [pacer.wait_s(500, now_s=10.0) for _ in range(3)]
    [0.0, 0.25, 0.25]

    What was counted last takes its time at the rate that holds now:

    >>> pacer.bytes_s = 100.0
    >>> pacer.wait_s(500, now_s=10.0)
    4.75
    """

    def __init__(self) -> None:
        self.bytes_s = math.inf
        self._last_s, self._last_bytes = -math.inf, 0

    def wait_s(self, count: int, now_s: float) -> float:
        """Return how long to wait before so many bytes may be asked for.

        :return: 0 if they may be now: they are counted; if not, nothing is: ask again then
        """
        next_s = self._last_s + self._last_bytes / self.bytes_s
        begin_s = max(next_s, now_s - AHEAD_S)
        if begin_s > now_s:
            return begin_s - now_s
        self._last_s, self._last_bytes = begin_s, count
        return 0.0


def time_left_s(by_s: float, within_s: float, now_s: float) -> float:
    """Return how long it is until a moment by the wall clock, which may have jumped.

    It is no less than nothing, and no more than was given at first.

    >>> [time_left_s(by_s=1600.0, within_s=600.0, now_s=now_s) for now_s in (1100.0, 0.0, 9000.0)]
    [500.0, 600.0, 0.0]
    """
    return min(max(by_s - now_s, 0.0), within_s)


class Deadline(NamedTuple):
    """When an image is to be whole.

    :param within_s: how long that was away when it was asked for
    """

    at_s: float
    within_s: float

    def left_s(self, now_s: float) -> float:
        """Return the time that is left; below 0: since when it is over."""
        return self.at_s - now_s

    def is_pressing(self, now_s: float) -> bool:
        """Say whether there is no time but the reserve, or less: as fast as it comes."""
        return self.left_s(now_s) <= min(RESERVE_SHARE * self.within_s, RESERVE_S)

    def needed_bytes_s(self, left_bytes: int, now_s: float) -> float:
        """Return the rate at which so many bytes come before the reserve of time is needed.

        >>> Deadline(at_s=1600.0, within_s=600.0).needed_bytes_s(5400, now_s=1000.0)
        10.0
        """
        if self.is_pressing(now_s):
            return math.inf
        return left_bytes / (self.left_s(now_s) - min(RESERVE_SHARE * self.within_s, RESERVE_S))

    def is_late(self, takes_s: float | None, now_s: float) -> bool:
        """Say whether it is missed, or will be if the rest takes so long.

        :param takes_s: None: not known; then it is late only when it is missed
        """
        left_s = self.left_s(now_s)
        return left_s <= 0 or (takes_s is not None and takes_s > left_s)


def needed_bytes_s(due: Iterable[tuple[Deadline, int]], now_s: float) -> float:
    """Return the rate at which images come in time, of which the one that is due first comes first.

    Each takes its time from those that are due later, so these count from the beginning.

    :param due: when each is to be whole, and how many bytes of it are left

    >>> one, other = Deadline(at_s=1600.0, within_s=600.0), Deadline(at_s=1601.0, within_s=600.0)
    >>> round(needed_bytes_s([(one, 5400), (other, 5410)], now_s=1000.0), 2)
    19.98
    """
    rate, left_bytes = 0.0, 0
    for deadline, more_bytes in sorted(due, key=lambda one: one[0].at_s):
        left_bytes += more_bytes
        if more_bytes:
            rate = max(rate, deadline.needed_bytes_s(left_bytes, now_s))
    return rate


class Speed:
    """How fast bytes came of late."""

    def __init__(self) -> None:
        self.bytes_s = 0.0
        self._since_s: float | None = None
        self._count = 0

    def count_bytes(self, count: int) -> None:
        """Note bytes."""
        self._count += count

    def refresh(self, now_s: float) -> None:
        """Bring ``bytes_s`` up to date; call it each second or so."""
        since_s, self._since_s = self._since_s, now_s
        count, self._count = self._count, 0
        if since_s is None or now_s <= since_s:
            self._count = count
            return
        share = 1 - math.exp(-(now_s - since_s) / SPEED_OVER_S)
        is_first = not self.bytes_s
        newest = count / (now_s - since_s)
        self.bytes_s = newest if is_first else self.bytes_s + share * (newest - self.bytes_s)

    def left_s(self, count: int) -> float | None:
        """Return how long so many bytes will take at this speed; None if that cannot be told."""
        return None if self.bytes_s < 1 else count / self.bytes_s


def _longest_pause_s(deadline: Deadline | None, now_s: float) -> float:
    if deadline is None or deadline.left_s(now_s) <= 0:
        return LONGEST_PAUSE_S
    return max(FIRST_PAUSE_S, RESERVE_SHARE * deadline.left_s(now_s))


class Failure(NamedTuple):
    """Why an image does not become whole, and when that is tried again."""

    why: str
    again_s: float


class Backoff:
    """When to try again what has failed: each time twice as long after.

    >>> backoff = Backoff()
    >>> backoff.failed("the source is away", now_s=100.0)
    >>> backoff.failed("the source is away", now_s=105.0)
    >>> backoff.failure
    Failure(why='the source is away', again_s=115.0)
    """

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self._pause_s = FIRST_PAUSE_S

    def record_failure(self, why: str, now_s: float, deadline: Deadline | None = None) -> None:
        """Note a failure; with a deadline no pause is longer than a tenth of the time left."""
        self.failure = Failure(why, now_s + min(self._pause_s, _longest_pause_s(deadline, now_s)))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def record_success(self) -> None:
        """Note that it works."""
        self.failure = None
        self._pause_s = FIRST_PAUSE_S

    def may_try(self, now_s: float) -> bool:
        """Say whether it is time to try."""
        return self.failure is None or now_s >= self.failure.again_s
