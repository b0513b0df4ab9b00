# SPDX-License-Identifier: Apache-2.0
"""Counters of an agent: plain integers on the hot path, exported as metrics."""

import bisect
import collections
import enum
from collections.abc import Iterable
from collections.abc import Sequence

from acstor_common.model import ids

LATENCY_BOUNDS_S = (
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)


class Origin(enum.Enum):
    """Where the bytes of a read came from."""

    ZERO = "zero"  # the chunk map says that they are zeros
    BOOT = "boot"  # the boot image, in memory while guests boot
    CACHE = "cache"  # the public cache of this host
    PEER = "peer"  # another host that holds the chunk
    HOME = "home"  # the chunk's home, which reads the source once for all
    SOURCE = "source"

    __hash__ = object.__hash__  # Enum's own is a Python call at every look-up


class Tally:
    """Requests and bytes by origin, counted in ``total``, too."""

    __slots__ = ("_total", "bytes", "requests")

    def __init__(self, total: "Tally | None" = None) -> None:
        self._total = total
        self.requests = dict.fromkeys(Origin, 0)
        self.bytes = dict.fromkeys(Origin, 0)

    def add(self, origin: Origin, length: int, requests: int = 1) -> None:
        """Count requests of ``length`` bytes altogether."""
        self.requests[origin] += requests
        self.bytes[origin] += length
        if self._total is not None:
            self._total.add(origin, length, requests)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return ``{origin: {"requests": …, "bytes": …}}`` with every origin."""
        return {
            origin.value: {"requests": self.requests[origin], "bytes": self.bytes[origin]}
            for origin in Origin
        }


class Latency:
    """Histogram of seconds: buckets of ``bounds_s`` and one above.

    >>> latency = Latency()
    >>> latency.add(0.003)
    >>> latency.count, latency.quantile(0.5)
    (1, 0.005)
    """

    __slots__ = ("bounds_s", "buckets", "longest_s", "total_s")

    def __init__(self, bounds_s: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        self.bounds_s = bounds_s
        self.buckets = [0] * (len(bounds_s) + 1)
        self.total_s = 0.0
        self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one operation."""
        self.buckets[bisect.bisect_left(self.bounds_s, seconds)] += 1
        self.total_s += seconds
        if seconds > self.longest_s:
            self.longest_s = seconds

    def merge(self, other: "Latency") -> None:
        """Add the counts of another histogram with the same bounds."""
        self.buckets = [own + its for own, its in zip(self.buckets, other.buckets, strict=True)]
        self.total_s += other.total_s
        self.longest_s = max(self.longest_s, other.longest_s)

    @property
    def count(self) -> int:
        """Number of operations."""
        return sum(self.buckets)

    def quantile(self, share: float) -> float:
        """Return the upper bound of the bucket with the quantile, or the longest time."""
        wanted = share * self.count
        seen = 0
        for bound, bucket in zip(self.bounds_s, self.buckets, strict=False):
            seen += bucket
            if seen >= wanted:
                return bound
        return self.longest_s


class ReadCounters:
    """Counters of reads, of one image or of all images of a host."""

    __slots__ = ("_total", "failed_reads", "in_flight", "latency", "lost_reads", "read")

    def __init__(self, total: "ReadCounters | None" = None) -> None:
        self._total = total  # counts the same reads together with those of other images
        self.read: Tally = Tally(total.read if total else None)  # bytes that guests got
        self.latency = Latency()
        self.in_flight = 0
        self.failed_reads = 0  # ended with an error
        self.lost_reads = 0  # of these, those whose bytes exist nowhere

    def count_read(self, seconds: float) -> None:
        """Count a read that was answered."""
        self.latency.add(seconds)
        if self._total is not None:
            self._total.latency.add(seconds)

    def count_waiting(self, change: int) -> None:
        """Count a read that begins to wait (1) or ends (-1)."""
        self.in_flight += change
        if self._total is not None:
            self._total.count_waiting(change)

    def count_failed(self, is_lost: bool) -> None:
        """Count a read that ended with an error."""
        self.failed_reads += 1
        self.lost_reads += is_lost
        if self._total is not None:
            self._total.count_failed(is_lost)


class ExchangeCounters:
    """Counters of chunks that enter and leave the host."""

    def __init__(self) -> None:
        self.fetched_total = Tally()  # includes detached images
        self.fetched: collections.defaultdict[ids.ImageId, Tally] = collections.defaultdict(
            lambda: Tally(self.fetched_total)
        )
        self.served_chunks = self.served_bytes = 0
        self.source_bytes = 0  # read from the source, for this host and for peers
        self.source_timed_bytes = 0  # of these, those that guests waited for
        self.source_s = 0.0  # the time of these, summed over the chunks
        self.relayed_bytes = 0  # came from another home instead
        self.prefetched_bytes = 0  # arrived before a guest waited
        self.referrals = 0  # responses that named other hosts
        self.advertised = self.withdrawn = 0  # chunks announced, announcements withdrawn
        self.copy_hints_sent = self.demoted = 0  # sent as a home, and obeyed

    def forget_image(self, image_id: ids.ImageId) -> None:
        """Stop counting by image; the total remains."""
        self.fetched.pop(image_id, None)

    def bytes_from(self, origins: Iterable[Origin]) -> int:
        """Return the bytes that came from these origins, of all images."""
        return sum(self.fetched_total.bytes[origin] for origin in origins)
