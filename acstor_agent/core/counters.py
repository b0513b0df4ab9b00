# SPDX-License-Identifier: Apache-2.0
"""What an agent counts: plain integers on the hot path, turned into metrics elsewhere.

Reads are counted by where the bytes came from.  ``read`` is what guests got;
``fetched`` is what was moved to this host for it, so fetched / read of the
non-local origins is the amplification.
"""

import bisect
import collections
import enum
from collections.abc import Iterable

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
    PEER = "peer"  # a host that held the chunk
    HOME = "home"  # the chunk's home, which reads it through once for everybody
    SOURCE = "source"  # the source itself

    __hash__ = object.__hash__  # that of Enum is a call of Python at every look-up


class Tally:
    """Requests and bytes by origin.

    :param total: counts the same, with others
    """

    __slots__ = ("_total", "bytes", "requests")

    def __init__(self, total: "Tally | None" = None) -> None:
        self._total = total
        self.requests = dict.fromkeys(Origin, 0)
        self.bytes = dict.fromkeys(Origin, 0)

    def add(self, origin: Origin, length: int, requests: int = 1) -> None:
        """Count requests of ``length`` bytes in all."""
        self.requests[origin] += requests
        self.bytes[origin] += length
        if self._total is not None:
            self._total.add(origin, length, requests)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return ``{origin: {"requests": …, "bytes": …}}``, every origin included."""
        return {
            origin.value: {"requests": self.requests[origin], "bytes": self.bytes[origin]}
            for origin in Origin
        }


class Latency:
    """A histogram of seconds with the bounds of LATENCY_BOUNDS_S and one bucket above them.

    >>> latency = Latency()
    >>> latency.add(0.003)
    >>> latency.count, latency.quantile(0.5)
    (1, 0.005)
    """

    __slots__ = ("buckets", "longest_s", "total_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.total_s = 0.0
        self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one operation that took ``seconds``."""
        self.buckets[bisect.bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.total_s += seconds
        if seconds > self.longest_s:
            self.longest_s = seconds

    def merge(self, other: "Latency") -> None:
        """Add what another one has counted."""
        self.buckets = [own + its for own, its in zip(self.buckets, other.buckets, strict=True)]
        self.total_s += other.total_s
        self.longest_s = max(self.longest_s, other.longest_s)

    @property
    def count(self) -> int:
        """Operations counted so far."""
        return sum(self.buckets)

    def quantile(self, share: float) -> float:
        """Return the bound of the bucket that holds the quantile; the longest one if above all."""
        wanted = share * self.count
        seen = 0
        for bound, bucket in zip(LATENCY_BOUNDS_S, self.buckets, strict=False):
            seen += bucket
            if seen >= wanted:
                return bound
        return self.longest_s


class ReadCounters:
    """What is counted of the reads of one image, or of all images of a host.

    ``failed_reads`` are those that ended with an error, ``lost_reads`` those of them whose bytes
    are nowhere any more.

    :param total: counts the same, with other images
    """

    __slots__ = ("_total", "failed_reads", "in_flight", "latency", "lost_reads", "read")

    def __init__(self, total: "ReadCounters | None" = None) -> None:
        self._total = total
        self.read: Tally = Tally(total.read if total else None)
        self.latency = Latency()
        self.in_flight = 0
        self.failed_reads = 0
        self.lost_reads = 0

    def count_read(self, seconds: float) -> None:
        """Count a read that was answered."""
        self.latency.add(seconds)
        if self._total is not None:
            self._total.latency.add(seconds)

    def count_waiting(self, change: int) -> None:
        """Count a read that begins to wait (1), or has ended (-1)."""
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
    """What is counted where chunks enter and leave the host.

    ``fetched`` is by image, ``fetched_total`` of all, those included that were forgotten;
    ``source_bytes`` are those that this host read from the source, for itself and for peers;
    guests, here or elsewhere, waited for ``source_timed_bytes`` of them, in ``source_s`` the
    time of each chunk from the question to its bytes, added up; ``relayed_bytes`` are those
    that it took from another home instead; ``prefetched_bytes`` what came because neighbours
    have it, before any guest waited; ``referrals`` answers that named others; ``advertised``
    and ``taken_back`` what neighbours were told, once for each; ``copies_told`` what others
    were asked to let go first, ``demoted`` what their homes asked this host to.
    """

    __slots__ = (
        "advertised",
        "copies_told",
        "demoted",
        "fetched",
        "fetched_total",
        "prefetched_bytes",
        "referrals",
        "relayed_bytes",
        "served_bytes",
        "served_chunks",
        "source_bytes",
        "source_s",
        "source_timed_bytes",
        "taken_back",
    )

    def __init__(self) -> None:
        self.fetched_total = Tally()
        self.fetched: collections.defaultdict[ids.ImageId, Tally] = collections.defaultdict(
            lambda: Tally(self.fetched_total)
        )
        self.served_chunks = 0
        self.served_bytes = 0
        self.source_bytes = 0
        self.source_timed_bytes = 0
        self.source_s = 0.0
        self.relayed_bytes = self.prefetched_bytes = 0
        self.referrals = 0
        self.advertised = self.taken_back = 0
        self.copies_told = self.demoted = 0

    def forget_image(self, image_id: ids.ImageId) -> None:
        """Count an image that is not attached any more in the total alone."""
        self.fetched.pop(image_id, None)

    def given_by(self, origins: Iterable[Origin]) -> int:
        """Return the bytes that came to this host from these places, of whatever image."""
        return sum(self.fetched_total.bytes[origin] for origin in origins)
