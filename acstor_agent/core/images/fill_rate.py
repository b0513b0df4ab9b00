# SPDX-License-Identifier: Apache-2.0
"""Rates, deadlines and retries of background fills; times are of one monotonic clock."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from acstor_agent.core.cloud import interface_traffic
from acstor_common.util import backoff

SHARE = 0.9  # share of the spare bandwidth that fills use; the rest is for traffic that begins now
BESIDE_GUESTS = 0.1  # share of that rate while guests boot or wait for chunks of a near source
BESIDE_BOOTS = 1 / 3
"""The share of a processor above which a fill from a far source waits while guests boot: 100 Mbit/s
of compressed images need about as much."""
NEAR_GUESTS = 2 / 3  # the same for chunks near those that guests waited for
LEAST_BYTES_S = 256 * 1024.0  # least rate, also on a busy link, so that a fill ends
UNKNOWN_BYTES_S = 62_500_000.0  # rate when the link is unknown: half of 1000 Mbit/s
AHEAD_S = 0.25  # burst after a delay, in seconds at the current rate
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0
SPEED_OVER_S = 10.0  # time constant of the average speed
SPEED_EVERY_S = 0.5  # least time that a speed is measured over
RECENT_DECAY = 0.8  # of the recent speed with each measurement
SPEED_PAUSE_S = 60.0  # a longer time between two measurements is a pause of the fill
PROCESSOR_OVER_S = 1.0  # time that a share of a processor is kept over
RESERVE_SHARE = 0.1  # share of the time to the deadline that is kept in reserve
RESERVE_S = 60.0  # upper bound of this reserve


class SpareBandwidth:
    """Spare bandwidth of a link, from its interface counters."""

    def __init__(self) -> None:
        self._last: interface_traffic.InterfaceSample | None = None
        self._others_bytes_s = 0.0
        self._own_bytes = 0.0

    def count_bytes(self, count: float) -> None:
        """Count bytes that a fill received over the link."""
        self._own_bytes += count

    def reset(self) -> None:
        """Start again after a pause without samples."""
        self._last, self._own_bytes = None, 0.0

    def spare_bytes_s(self, look: interface_traffic.InterfaceSample) -> float:
        """Return the rate in bytes/s that other traffic leaves over; see :data:`SHARE`.

        An increase of other traffic counts at once, a decrease by half.
        """
        last, own_bytes = self._last, self._own_bytes * interface_traffic.HEADER_FACTOR
        self._last, self._own_bytes = look, 0.0
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
    >>> pacer.bytes_s = 100.0  # the latest 500 bytes take their time at this rate
    >>> pacer.wait_s(500, now_s=10.0)
    4.75
    """

    def __init__(self) -> None:
        self.bytes_s = math.inf
        self._last_s, self._last_bytes = -math.inf, 0.0

    def wait_s(self, count: float, now_s: float) -> float:
        """Return the wait before ``count`` bytes may be requested; 0: now, and they are counted."""
        next_s = self._last_s + self._last_bytes / self.bytes_s
        begin_s = max(next_s, now_s - AHEAD_S)
        if begin_s > now_s:
            return begin_s - now_s
        self._last_s, self._last_bytes = begin_s, count
        return 0.0


class ProcessorShare:
    """Keeps a process at a share of one processor, by waits.

    >>> processor = ProcessorShare(0.5)
    >>> [processor.wait_s(used_s, now_s) for used_s, now_s in ((3, 10.0), (4, 10.5), (4, 12.0))]
    [0.0, 1.5, 0.0]
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._began_s, self._began_used_s = -math.inf, 0.0

    def wait_s(self, used_s: float, now_s: float) -> float:
        """Return the wait until the processor time ``used_s`` so far is within the share.

        Use above the share counts up to ``PROCESSOR_OVER_S``: older use must not delay a fill long.
        """
        allowed_s = self._share * (now_s - self._began_s)
        self._began_used_s = max(self._began_used_s, used_s - allowed_s - PROCESSOR_OVER_S)
        until_s = self._began_s + (used_s - self._began_used_s) / self._share
        if until_s > now_s:
            return until_s - now_s
        if now_s >= self._began_s + PROCESSOR_OVER_S:
            self._began_s, self._began_used_s = now_s, used_s
        return 0.0


def time_left_s(by_s: float, within_s: float, now_s: float) -> float:
    """Return the time to a wall-clock moment, between 0 and ``within_s``.

    >>> [time_left_s(by_s=1600.0, within_s=600.0, now_s=now_s) for now_s in (1100.0, 0.0, 9000.0)]
    [500.0, 600.0, 0.0]
    """
    return min(max(by_s - now_s, 0.0), within_s)


class Deadline(NamedTuple):
    """The time by which an image is to be fully cached."""

    at_s: float
    within_s: float

    def left_s(self, now_s: float) -> float:
        """Return the time left; negative after the deadline."""
        return self.at_s - now_s

    def is_pressing(self, now_s: float) -> bool:
        """Return whether only the reserve is left, so the fill runs at full speed."""
        return self.left_s(now_s) <= min(RESERVE_SHARE * self.within_s, RESERVE_S)

    def needed_bytes_s(self, left_bytes: int, now_s: float) -> float:
        """Return the rate that transfers ``left_bytes`` before the reserve begins.

        >>> Deadline(at_s=1600.0, within_s=600.0).needed_bytes_s(5400, now_s=1000.0)
        10.0
        """
        if self.is_pressing(now_s):
            return math.inf
        return left_bytes / (self.left_s(now_s) - min(RESERVE_SHARE * self.within_s, RESERVE_S))

    def is_late(self, takes_s: float | None, now_s: float) -> bool:
        """Return whether the deadline is or will be missed; ``takes_s``: of the rest, if known."""
        left_s = self.left_s(now_s)
        return left_s <= 0 or (takes_s is not None and takes_s > left_s)


def needed_bytes_s(due: Iterable[tuple[Deadline, int]], now_s: float) -> float:
    """Return the rate that meets all deadlines, earliest deadline first.

    >>> one, other = Deadline(at_s=1600.0, within_s=600.0), Deadline(at_s=1601.0, within_s=600.0)
    >>> round(needed_bytes_s([(one, 5400), (other, 5410)], now_s=1000.0), 2)
    19.98
    """
    rate, left_bytes = 0.0, 0
    for deadline, more_bytes in sorted(due, key=lambda entry: entry[0].at_s):
        left_bytes += more_bytes
        if more_bytes:
            rate = max(rate, deadline.needed_bytes_s(left_bytes, now_s))
    return rate


class LinkShare:
    """Bytes on the link for each byte of chunks: fewer where chunks are stored compressed.

    :ivar share: of the chunks that arrived before the last :meth:`refresh`
    """

    def __init__(self) -> None:
        self.share = 1.0
        self._bytes, self._link_bytes = 0, 0.0

    def count_chunk(self, length: int, share: float) -> float:
        """Count a chunk; return its bytes on the link."""
        self._bytes += length
        self._link_bytes += length * share
        return length * share

    def refresh(self) -> None:
        """Update ``share``, if anything arrived."""
        if self._bytes:
            self.share = self._link_bytes / self._bytes
            self._bytes, self._link_bytes = 0, 0.0


class Speed:
    """Moving average of the transfer rate.

    :ivar recent_bytes_s: about the highest of the latest measurements, which follows at once
    """

    def __init__(self) -> None:
        self.bytes_s = self.recent_bytes_s = 0.0
        self._since_s: float | None = None
        self._count = 0

    def count_bytes(self, count: int) -> None:
        """Count bytes."""
        self._count += count

    def refresh(self, now_s: float) -> None:
        """Update ``bytes_s``, after :data:`SPEED_EVERY_S` at least; call it about each second."""
        if self._since_s is None:
            self._since_s = now_s
        passed_s = now_s - self._since_s
        if passed_s < SPEED_EVERY_S:
            return
        newest, is_first = self._count / passed_s, not self.bytes_s
        self._since_s, self._count = now_s, 0
        if passed_s > SPEED_PAUSE_S:
            return
        self.recent_bytes_s = max(newest, RECENT_DECAY * self.recent_bytes_s)
        share = 1 - math.exp(-passed_s / SPEED_OVER_S)
        self.bytes_s = newest if is_first else self.bytes_s + share * (newest - self.bytes_s)

    def left_s(self, count: int) -> float | None:
        """Return the time that ``count`` bytes take at this speed; None if unknown."""
        return None if self.bytes_s < 1 else count / self.bytes_s


class Failure(NamedTuple):
    """Why a fill failed, and when it is retried."""

    why: str
    again_s: float


class Backoff:
    """Exponential backoff of a fill.

    >>> backoff = Backoff()
    >>> backoff.record_failure("the source is away", now_s=100.0)
    >>> backoff.record_failure("the source is away", now_s=105.0)
    >>> backoff.failure
    Failure(why='the source is away', again_s=115.0)
    """

    def __init__(
        self, first_pause_s: float = FIRST_PAUSE_S, longest_pause_s: float = LONGEST_PAUSE_S
    ) -> None:
        self.failure: Failure | None = None
        self.failures = 0
        self._first_pause_s, self._longest_pause_s = first_pause_s, longest_pause_s

    def record_failure(self, why: str, now_s: float, deadline: Deadline | None = None) -> None:
        """Record a failure; the pause is at most a tenth of the time to a deadline."""
        longest_s = self._longest_pause_s
        if deadline is not None and (left_s := deadline.left_s(now_s)) > 0:
            longest_s = min(longest_s, max(self._first_pause_s, RESERVE_SHARE * left_s))
        pause_s = backoff.pause_s(self.failures, self._first_pause_s, longest_s)
        self.failure = Failure(why, now_s + pause_s)
        self.failures += 1

    def record_success(self) -> None:
        """Reset after a success."""
        self.failure, self.failures = None, 0

    def may_try(self, now_s: float) -> bool:
        """Return whether it is time to try."""
        return self.failure is None or now_s >= self.failure.again_s
