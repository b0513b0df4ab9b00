# SPDX-License-Identifier: Apache-2.0
"""Decides whether reads go to the source before peers: if guests wait much longer for peers."""

MIN_ANSWERS = 8  # answers below which a side counts as unknown
RECENT_S = 60.0  # older answers do not count
FIRST_RATIO, RETURN_RATIO = 2.0, 1.3
"""Ratio of latencies at which the source goes first, and below which peers do again."""
MIN_DIFFERENCE_S = 0.005  # smaller differences do not count
PROBE, PROBE_SOURCE = 8, 32  # one guest read in so many asks peers, or an unknown source
SLOW_S = 0.1  # latency of peers from which on an unknown source is probed
EWMA_WEIGHT, MAX_RATIO = 0.25, 4.0
"""Weight of the newest answer in the EWMA, and its cap as a multiple of the EWMA."""


class _Latency:
    __slots__ = ("answers", "at_s", "s")

    def __init__(self) -> None:
        self.s, self.answers, self.at_s = 0.0, 0, 0.0

    def record(self, seconds: float, now: float) -> None:
        if now - self.at_s > RECENT_S:
            self.answers = 0
        if self.answers:
            counted_s = min(seconds, max(MAX_RATIO * self.s, 4 * MIN_DIFFERENCE_S))
            self.s += EWMA_WEIGHT * (counted_s - self.s)
        else:
            self.s = seconds
        self.answers += 1
        self.at_s = now

    def known_s(self, now: float) -> float | None:
        return self.s if self.answers >= MIN_ANSWERS and now - self.at_s <= RECENT_S else None


class SourcePreference:
    """Compares recent latencies of peers and source.

    >>> preference = SourcePreference()
    >>> for _ in range(8):
    ...     preference.record_peer_wait(0.3, now=1.0)
    ...     preference.record_source_wait(0.01, now=1.0)
    >>> preference.choose_source_first(now=1.0), preference.is_source_first
    (True, True)
    """

    def __init__(self) -> None:
        self.is_source_first = False
        self._peers, self._source = _Latency(), _Latency()
        self._decisions = 0

    def record_peer_wait(self, seconds: float, now: float) -> None:
        """Record how many seconds a guest waited for peers to answer or fail."""
        self._peers.record(seconds, now)

    def record_source_wait(self, seconds: float, now: float) -> None:
        """Record how many seconds a guest waited for the source."""
        self._source.record(seconds, now)

    def choose_source_first(self, now: float) -> bool:
        """Return whether the next guest read goes to the source first."""
        self._decisions += 1
        peers_s, source_s = self._peers.known_s(now), self._source.known_s(now)
        if peers_s is None or source_s is None:
            self.is_source_first = False
            is_probe_due = peers_s is not None and peers_s > SLOW_S
            return is_probe_due and self._decisions % PROBE_SOURCE == 0
        factor = RETURN_RATIO if self.is_source_first else FIRST_RATIO
        self.is_source_first = peers_s > max(factor * source_s, source_s + MIN_DIFFERENCE_S)
        return self.is_source_first and self._decisions % PROBE != 0


MIN_CHUNKS = 128  # chunks below which hosts are assumed to read the same
LOW_SHARE = 1 / 16  # share of common chunks below which prefetches skip the homes
WEIGHT = 1 / 64  # weight of the newest chunk, once there are that many


class ReadOverlap:
    """Estimates the share of chunks that several hosts read: only those make homes worthwhile.

    Samples: whether chunks that guests here read next were announced, and whether chunks that
    peers request were here. Homes are chosen by hash, so the sample is fair. A dishonest peer can
    at most send prefetches to the source while that is clearly faster, or keep them with the homes.
    """

    __slots__ = ("_seen", "share")

    def __init__(self) -> None:
        self.share = 0.0
        self._seen = 0

    def record_overlap(self, is_shared: bool, chunks: int = 1) -> None:
        """Record whether another host reads some chunks."""
        if chunks > 1 and WEIGHT * self._seen >= 1:
            self._seen += chunks
            self.share = is_shared + (self.share - is_shared) * (1 - WEIGHT) ** chunks
            return
        for _ in range(chunks):
            self._seen += 1
            self.share += max(WEIGHT, 1 / self._seen) * (is_shared - self.share)

    @property
    def is_low(self) -> bool:
        """Whether hosts are known to read hardly any common chunk."""
        return self._seen >= MIN_CHUNKS and self.share < LOW_SHARE
