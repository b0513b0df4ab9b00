# SPDX-License-Identifier: Apache-2.0
"""Peer state: pending requests, backoff and latency of each peer.

*Backoff* starts after a few failures in a row, or answers many times slower than those of others;
at once, and for longer, after wrong bytes or a protocol error. Then one trial request is allowed.
Success resets the peer; failure doubles the next backoff.

*Latency* is the EWMA of the silence of a provider before a chunk, once per event, by its oldest
request. An answer is *late* after LATE_FACTOR times the median of its *kind* (holders, homes, the
source), so a slow source or a slow link of this host does not make a peer look slow.
"""

import statistics
from collections.abc import Callable
from collections.abc import Sequence
from typing import Protocol

from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_agent.engine.data_structures import fair_queue
from acstor_common.model import ids
from acstor_common.util import lru_table

MAX_IN_FLIGHT_BYTES = 8 * 1024 * 1024
"""Most bytes requested from one peer at a time: 7 ms at 10 Gbit/s, 2.7 s at 25 Mbit/s."""
MAX_PREFETCH_BYTES = MAX_IN_FLIGHT_BYTES * 3 // 4  # from which on only guests' requests are sent

FAILURES_ALLOWED = 2  # failures in a row that put a peer in backoff
INITIAL_BACKOFF_S, INVALID_BACKOFF_S, MAX_BACKOFF_S = 0.5, 60.0, 600.0
"""First backoff, first backoff after wrong bytes, longest backoff; each one doubles."""
TRIAL_S = 1.0  # time that a trial request may take before another is allowed
JITTER = 0.25  # random share of a backoff, so that hosts do not try at the same time

LATE_FACTOR = 4.0  # an answer is late after this many times the median of its kind
EWMA_WEIGHT = 0.25  # weight of the newest answer in the EWMA
MIN_LATE_S, INITIAL_LATE_S, MAX_LATE_S = 0.1, 0.5, 5.0
"""When an answer is late: minimum, without measurements, maximum."""
GUEST_FIRST_S = 0.5
"""For so long after a guest's request any chunk ends the peer's silence; later, only chunks of
guests' earlier requests do."""
MIN_SLOW_S = 0.25  # answers below this never put a peer in backoff
MAX_PROVIDERS = 64  # most providers of a kind that are compared: those that answered last
MEDIAN_EVERY = 8  # answers after which the median is computed again

HEDGES_PER_CHUNK, INITIAL_HEDGES, MAX_HEDGES = 0.02, 4.0, 16.0
"""Hedge budget: 2 % of all chunks, and four at first, which go to the source only if it is fast:
else many hosts that start at once would read a slow source four times each."""

HELD, HOME, SOURCE = 0, 1, 2
_INVALID = frozenset({failure.Failure.INVALID})
_NO_FAULT = frozenset({failure.Failure.MISSING, failure.Failure.WITHHELD})  # the host answered


class Random(Protocol):
    """The part of ``random.Random`` that is needed."""

    def random(self) -> float:
        """Return a number in [0, 1)."""


def kind_of(attempt: transfer.Attempt) -> int:
    """Return the kind of an attempt: HELD, HOME or SOURCE."""
    if attempt.host is None:
        return SOURCE
    return HOME if attempt.mode.reads_source else HELD


class Peer:
    """State of one peer."""

    __slots__ = (
        *("pending", "failures", "last_chunk_s", "last_heard_s"),
        *("last_urgent_chunk_s", "last_urgent_request_s"),
        *("queue", "backoffs", "trial_until_s", "in_flight_bytes", "backoff_until_s"),
        *("host", "has_sent_invalid"),
    )

    def __init__(self, host: ids.HostId) -> None:
        self.host = host
        self.pending: dict[int, transfer.Attempt] = {}  # unanswered attempts by number
        self.in_flight_bytes = 0  # of the attempts that were sent
        self.queue: fair_queue.FairQueue[transfer.Attempt] = fair_queue.FairQueue()  # not sent yet
        self.last_heard_s = self.last_chunk_s = 0.0  # time of the last sign of life, last chunk
        self.last_urgent_chunk_s = 0.0  # time of the last chunk that a guest waited for
        self.last_urgent_request_s = 0.0  # when that was requested
        self.failures = self.backoffs = 0  # in a row
        self.has_sent_invalid = False
        self.backoff_until_s = self.trial_until_s = 0.0  # end of the backoff, of a trial

    def silent_since_s(self, attempt: transfer.Attempt) -> float:
        """Return since when it has been silent for an attempt that was sent."""
        since_s = _sent_s(attempt)
        if self.last_urgent_request_s <= since_s:
            since_s = max(since_s, self.last_urgent_chunk_s)
        others_until_s = max(since_s, attempt.at_s) + GUEST_FIRST_S
        return max(since_s, min(self.last_chunk_s, others_until_s))


class PeerStates:
    """State of all peers, and latency of the source."""

    def __init__(self, rng: Random, *, may_hedge: bool = True) -> None:
        self.invalid_chunks = self.backoffs = self.hedges = 0
        self.last_source_chunk_s = 0.0  # time of its last chunk
        self._rng = rng
        self._peers: dict[ids.HostId, Peer] = {}
        self._backing_off: set[ids.HostId] = set()  # in backoff, or on trial after one
        self._last_number = 0
        self._max_hedges = MAX_HEDGES if may_hedge else 0.0
        self._first_hedges_left = INITIAL_HEDGES if may_hedge else 0.0
        self._hedges_left = 0.0
        self._usual_s: tuple[lru_table.LruTable[ids.HostId | None, float], ...] = (
            *(lru_table.LruTable(MAX_PROVIDERS) for _ in (HELD, HOME, SOURCE)),
        )
        self._late_s = [INITIAL_LATE_S] * 3
        self._answers = [0] * 3

    def __len__(self) -> int:
        return len(self._peers)

    def get_or_create(self, host: ids.HostId) -> Peer:
        """Return the state of a host."""
        peer = self._peers.get(host)
        if peer is None:
            peer = self._peers[host] = Peer(host)
        return peer

    def get(self, host: ids.HostId) -> Peer | None:
        """Return the state of a host, if there is one."""
        return self._peers.get(host)

    def list_peers(self) -> list[Peer]:
        """Return the state of all known peers."""
        return list(self._peers.values())

    def new_numbers(self, peer: Peer, count: int) -> tuple[int, ...]:
        """Return consecutive 32-bit numbers for chunks, unused over all peers."""
        while True:
            first = self._last_number + 1
            if first + count > 1 << 32:
                first = 0
            self._last_number = first + count - 1
            numbers = range(first, first + count)
            if peer.pending.keys().isdisjoint(numbers):
                return tuple(numbers)

    def pending_attempts(self, host: ids.HostId) -> int:
        """Return how many numbers a host has not answered."""
        peer = self._peers.get(host)
        return len(peer.pending) if peer else 0

    def forget_others(self, is_on_table: Callable[[ids.HostId], bool], now: float) -> None:
        """Forget idle hosts that are on no table."""
        for host, peer in list(self._peers.items()):
            if not is_on_table(host) and not peer.pending and peer.backoff_until_s <= now:
                del self._peers[host]
                self._backing_off.discard(host)

    def try_acquire(self, host: ids.HostId, now: float) -> bool:
        """Return whether to ask a host now; after a backoff, True once per TRIAL_S, for a trial."""
        if host not in self._backing_off:
            return True
        peer = self._peers[host]
        if now < peer.backoff_until_s or now < peer.trial_until_s:
            return False
        peer.trial_until_s = now + TRIAL_S
        return True

    def is_in_backoff(self, host: ids.HostId, now: float) -> bool:
        """Return whether a host is in backoff."""
        return host in self._backing_off and now < self._peers[host].backoff_until_s

    def is_suspect(self, host: ids.HostId | None) -> bool:
        """Return whether a host is in backoff, or on trial after one."""
        return host in self._backing_off

    def list_backoffs(self, now: float) -> dict[ids.HostId, float]:
        """Return the hosts in backoff, with the seconds left; thread-safe."""
        peers = [(host, self._peers.get(host)) for host in tuple(self._backing_off)]
        left = {host: peer.backoff_until_s - now for host, peer in peers if peer is not None}
        return {host: left_s for host, left_s in left.items() if left_s > 0}

    def record_failure(self, host: ids.HostId, failure: failure.Failure, now: float) -> float:
        """Record a failure; return the length of a backoff that it starts, else 0."""
        if failure in _NO_FAULT:
            self.record_success(host, now)
            return 0.0
        peer, is_invalid = self.get_or_create(host), failure in _INVALID
        self.invalid_chunks += is_invalid
        is_alone = now < peer.backoff_until_s
        if is_alone and (peer.has_sent_invalid or not is_invalid):
            return 0.0  # the request was sent before the backoff
        peer.failures += 1
        peer.has_sent_invalid |= is_invalid
        if not (is_invalid or peer.backoffs or peer.failures >= FAILURES_ALLOWED):
            return 0.0
        first_s = INVALID_BACKOFF_S if peer.has_sent_invalid else INITIAL_BACKOFF_S
        length_s = min(first_s * 2.0**peer.backoffs, MAX_BACKOFF_S)
        length_s *= 1 + JITTER * (2 * self._rng.random() - 1)
        peer.backoff_until_s, peer.trial_until_s = now + length_s, 0.0
        peer.backoffs = min(peer.backoffs + 1, 32)
        self._backing_off.add(host)
        self.backoffs += 1
        return 0.0 if is_alone else length_s

    def record_success(self, host: ids.HostId, now: float) -> None:
        """Reset a peer that answered correctly, unless it is in backoff."""
        peer = self._peers.get(host)
        if peer is not None and peer.failures and now >= peer.backoff_until_s:
            peer.failures = peer.backoffs = 0
            peer.has_sent_invalid = False
            self._backing_off.discard(host)

    def late_after_s(self, kind: int) -> float:
        """Return after how many seconds of silence an answer of a kind is late."""
        return self._late_s[kind]

    @property
    def min_late_s(self) -> float:
        """The shortest :meth:`late_after_s` of all kinds."""
        return min(self._late_s)

    def record_chunks(
        self, host: ids.HostId, attempts: Sequence[transfer.Attempt], now: float
    ) -> float:
        """Record what a peer gave in one event; return its latency if far too long, else 0."""
        self.refill_hedges(sum([len(attempt.refs) for attempt in attempts]))
        peer = self.get_or_create(host)
        guests = [a for a in attempts if a.priority is priority.Priority.GUEST]
        some = guests or attempts
        oldest = some[0] if len(some) == 1 else min(some, key=_sent_s)
        kind, took_s = kind_of(oldest), now - peer.silent_since_s(oldest)
        peer.last_chunk_s = now
        if urgent := [attempt for attempt in attempts if attempt.priority.is_urgent]:
            peer.last_urgent_chunk_s = now
            peer.last_urgent_request_s = min(map(_sent_s, urgent))
        if guests:  # prefetches may be late on purpose, so they never count as slow
            self.record_latency(kind, host, took_s)
        if not self._is_slow(kind, host, took_s if guests else MAX_LATE_S):
            self.record_success(host, now)
            return 0.0
        return took_s if guests else 0.0

    def record_latency(self, kind: int, host: ids.HostId | None, took_s: float) -> None:
        """Record for how many seconds a provider was silent."""
        usual_s = self._usual_s[kind]
        before_s = usual_s.get(host, took_s)
        usual_s[host] = before_s + EWMA_WEIGHT * (took_s - before_s)
        self._answers[kind] += 1
        if self._answers[kind] % MEDIAN_EVERY == 0:
            median_s = statistics.median_low(usual_s.values())
            self._late_s[kind] = min(max(MIN_LATE_S, LATE_FACTOR * median_s), MAX_LATE_S)

    def _is_slow(self, kind: int, host: ids.HostId, took_s: float) -> bool:
        usual_s = self._usual_s[kind]
        own_s = min(took_s, usual_s.get(host, 0.0))
        if own_s < MIN_SLOW_S:  # nearly always
            return False
        others = [other_s for other, other_s in usual_s.items() if other != host]
        return bool(others) and own_s > LATE_FACTOR * statistics.median(others)

    def refill_hedges(self, chunks: int) -> None:
        """Add HEDGES_PER_CHUNK of each answered chunk to the hedge budget."""
        self._hedges_left = min(self._max_hedges, self._hedges_left + HEDGES_PER_CHUNK * chunks)

    @property
    def may_hedge(self) -> bool:
        """Whether the hedge budget allows some provider."""
        return self._hedges_left >= 1.0 or self._first_hedges_left >= 1.0

    def take_hedge(self, host: ids.HostId | None) -> bool:
        """Take a hedge from the budget; return whether it allows this host (None: source)."""
        if self._first_hedges_left >= 1.0 and (host is not None or self._is_source_fast):
            self._first_hedges_left -= 1.0
        elif self._hedges_left >= 1.0:
            self._hedges_left -= 1.0
        else:
            return False
        self.hedges += 1
        return True

    @property
    def _is_source_fast(self) -> bool:
        usual_s = self._usual_s[SOURCE].get(None)
        return usual_s is not None and LATE_FACTOR * usual_s <= INITIAL_LATE_S


def _sent_s(attempt: transfer.Attempt) -> float:
    assert attempt.sent_s is not None
    return attempt.sent_s
