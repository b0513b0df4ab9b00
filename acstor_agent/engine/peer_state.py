# SPDX-License-Identifier: Apache-2.0
"""Peer state: pending requests, backoff and latency of each peer.

*Backoff.* A peer that does not answer, or is many times slower than others, is put in backoff after
a few failures in a row; a peer that sent wrong bytes or broke the protocol, at once and for longer.
After that, one trial request is allowed. Success resets the peer; failure doubles the next backoff.

*Latency.* The EWMA of how long a provider was silent before it gave a chunk. An event counts once,
by its oldest request, and only since the provider last gave, so a batch does not count against it.
Holders, homes and the source are three *kinds*, each compared with its like: an answer is *late*
after TIMES the median of its kind. A slow source or a slow link of this host makes no peer look
slow.
"""

import statistics
from collections.abc import Callable
from collections.abc import Sequence
from typing import Protocol

from acstor_agent.engine import failure
from acstor_agent.engine import fair_queue
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_common.model import ids
from acstor_common.util import lru_table

CREDIT_BYTES = 8 * 1024 * 1024
"""Bytes requested from one peer at a time: 7 ms at 10 Gbit/s, 2.7 s at 25 Mbit/s."""

FAILURES_ALLOWED = 2
"""Failures in a row that put a peer in backoff."""
FIRST_S, LIAR_S, LONGEST_S = 0.5, 60.0, 600.0
"""First backoff, first backoff after wrong bytes, longest backoff; each one doubles."""
TRIAL_S = 1.0
"""Time that a trial request may take before another is allowed."""
JITTER = 0.25
"""Random share of a backoff, so that hosts do not try at the same time."""

TIMES = 4.0
SHARE = 0.25
"""Weight of the newest answer in the EWMA."""
SOONEST_S, FIRST_GUESS_S, LATEST_S = 0.1, 0.5, 5.0
"""When an answer is late: minimum, without measurements, maximum."""
SLOW_S = 0.25
"""Answers below this never put a peer in backoff."""
PLACES = 64
"""Providers of a kind that are compared, those that gave last."""
NOTES = 8
"""Answers after which the median is computed again."""

HEDGES_A_CHUNK, HEDGES_FIRST, HEDGES_MOST = 0.02, 4.0, 16.0
"""Hedge budget: 2 % of all chunks, and four at first, which go to the source only if it is fast:
else many hosts that start at once would read a slow source four times each."""

HELD, HOME, SOURCE = 0, 1, 2
_LIES = frozenset({failure.Failure.INVALID})
_NO_FAULT = frozenset({failure.Failure.MISSING, failure.Failure.WITHHELD})


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
        *("asks", "failures", "last_chunk_s", "last_heard_s", "host", "has_lied", "line"),
        *("backoffs", "probe_until_s", "credit_used_bytes", "until_s"),
    )

    def __init__(self, host: ids.HostId) -> None:
        self.host = host
        self.asks: dict[int, transfer.Attempt] = {}  # unanswered attempts by number
        self.credit_used_bytes = 0  # of those that were sent
        self.line: fair_queue.FairQueue[transfer.Attempt] = fair_queue.FairQueue()
        self.last_heard_s = self.last_chunk_s = 0.0  # time of the last sign of life, last chunk
        self.failures = self.backoffs = 0  # in a row
        self.has_lied = False
        self.until_s = self.probe_until_s = 0.0  # end of the backoff, of a trial


class PeerStates:
    """State of all peers, and latency of the source."""

    def __init__(self, rng: Random, *, may_hedge: bool = True) -> None:
        self.invalid_chunks = self.backoffs = self.hedges = 0
        self.last_source_chunk_s = 0.0  # time of its last chunk
        self._rng = rng
        self._peers: dict[ids.HostId, Peer] = {}
        self._backing_off: set[ids.HostId] = set()  # in backoff, or on trial after one
        self._last_number = 0
        self._hedges_most = HEDGES_MOST if may_hedge else 0.0
        self._first_hedges_left = HEDGES_FIRST if may_hedge else 0.0
        self._hedges_left = 0.0
        self._usual_s: tuple[lru_table.LruTable[ids.HostId | None, float], ...] = (
            *(lru_table.LruTable(PLACES) for _ in (HELD, HOME, SOURCE)),
        )
        self._late_s = [FIRST_GUESS_S] * 3
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
            if peer.asks.keys().isdisjoint(numbers):
                return tuple(numbers)

    def pending_attempts(self, host: ids.HostId) -> int:
        """Return how many numbers a host has not answered."""
        peer = self._peers.get(host)
        return len(peer.asks) if peer else 0

    def forget_others(self, is_on_table: Callable[[ids.HostId], bool], now: float) -> None:
        """Forget idle hosts that are on no table."""
        for host, peer in list(self._peers.items()):
            if not is_on_table(host) and not peer.asks and peer.until_s <= now:
                del self._peers[host]
                self._backing_off.discard(host)

    # Backoff

    def try_acquire(self, host: ids.HostId, now: float) -> bool:
        """Return whether to ask a host now; after a backoff, take the one trial.

        Until the trial has an outcome or TRIAL_S passed, other callers get False.
        """
        if host not in self._backing_off:
            return True
        peer = self._peers[host]
        if now < peer.until_s or now < peer.probe_until_s:
            return False
        peer.probe_until_s = now + TRIAL_S
        return True

    def is_in_backoff(self, host: ids.HostId, now: float) -> bool:
        """Return whether a host is in backoff."""
        return host in self._backing_off and now < self._peers[host].until_s

    def is_doubtful(self, host: ids.HostId | None) -> bool:
        """Return whether a host is in backoff, or on trial after one."""
        return host in self._backing_off

    def in_backoff(self, now: float) -> dict[ids.HostId, float]:
        """Return the hosts in backoff, with the seconds left; thread-safe."""
        peers = [(host, self._peers.get(host)) for host in tuple(self._backing_off)]
        left = {host: peer.until_s - now for host, peer in peers if peer is not None}
        return {host: left_s for host, left_s in left.items() if left_s > 0}

    def record_failure(self, host: ids.HostId, failure: failure.Failure, now: float) -> float:
        """Record a failure; return the length of a backoff that it starts, else 0.

        MISSING and WITHHELD count as success: the host answered.
        """
        if failure in _NO_FAULT:
            self.record_success(host, now)
            return 0.0
        peer, is_lie = self.get_or_create(host), failure in _LIES
        self.invalid_chunks += is_lie
        is_alone = now < peer.until_s
        if is_alone and (peer.has_lied or not is_lie):
            return 0.0  # the request was sent before the backoff
        peer.failures += 1
        peer.has_lied |= is_lie
        if not (is_lie or peer.backoffs or peer.failures >= FAILURES_ALLOWED):
            return 0.0
        length_s = min((LIAR_S if peer.has_lied else FIRST_S) * 2.0**peer.backoffs, LONGEST_S)
        length_s *= 1 + JITTER * (2 * self._rng.random() - 1)
        peer.until_s, peer.probe_until_s = now + length_s, 0.0
        peer.backoffs = min(peer.backoffs + 1, 32)
        self._backing_off.add(host)
        self.backoffs += 1
        return 0.0 if is_alone else length_s

    def record_success(self, host: ids.HostId, now: float) -> None:
        """Reset a peer that answered correctly, unless it is in backoff."""
        peer = self._peers.get(host)
        if peer is not None and peer.failures and now >= peer.until_s:
            peer.failures = peer.backoffs = 0
            peer.has_lied = False
            self._backing_off.discard(host)

    # Latency

    def late_s(self, kind: int) -> float:
        """Return after how many seconds of silence an answer of a kind is late."""
        return self._late_s[kind]

    @property
    def soonest_late_s(self) -> float:
        """The shortest :meth:`late_s` of all kinds."""
        return min(self._late_s)

    def record_chunks(
        self, host: ids.HostId, attempts: Sequence[transfer.Attempt], now: float
    ) -> float:
        """Record what a peer gave in one event; return its latency if it is far too long.

        Prefetches may be late on purpose, so they never count as slow.
        """
        self.record_answers(sum([len(attempt.refs) for attempt in attempts]))
        peer = self.get_or_create(host)
        since_s, peer.last_chunk_s = peer.last_chunk_s, now
        guests = [a for a in attempts if a.priority is priority.Priority.GUEST]
        some = guests or attempts
        oldest = some[0] if len(some) == 1 else min(some, key=_sent_s)
        kind, took_s = kind_of(oldest), now - max(_sent_s(oldest), since_s)
        if guests:
            self.record_latency(kind, host, took_s)
        if not self._is_slow(kind, host, took_s if guests else LATEST_S):
            self.record_success(host, now)
            return 0.0
        return took_s if guests else 0.0

    def record_latency(self, kind: int, host: ids.HostId | None, took_s: float) -> None:
        """Record for how many seconds a provider was silent."""
        usual_s = self._usual_s[kind]
        before_s = usual_s.get(host, took_s)
        usual_s[host] = before_s + SHARE * (took_s - before_s)
        self._answers[kind] += 1
        if self._answers[kind] % NOTES == 0:
            median_s = statistics.median_low(usual_s.values())
            self._late_s[kind] = min(max(SOONEST_S, TIMES * median_s), LATEST_S)

    def _is_slow(self, kind: int, host: ids.HostId, took_s: float) -> bool:
        """Return whether this answer and the EWMA are many times slower than others."""
        usual_s = self._usual_s[kind]
        own_s = min(took_s, usual_s.get(host, 0.0))
        if own_s < SLOW_S:  # nearly always
            return False
        others = [other_s for other, other_s in usual_s.items() if other != host]
        return bool(others) and own_s > TIMES * statistics.median(others)

    # Hedges

    def record_answers(self, chunks: int) -> None:
        """Add to the hedge budget."""
        self._hedges_left = min(self._hedges_most, self._hedges_left + HEDGES_A_CHUNK * chunks)

    @property
    def may_hedge(self) -> bool:
        """Whether the hedge budget allows some provider."""
        return self._hedges_left >= 1.0 or self._first_hedges_left >= 1.0

    def take_hedge(self, host: ids.HostId | None) -> bool:
        """Take a hedge from the budget; return whether it allows this host (None: source)."""
        if self._first_hedges_left >= 1.0 and (host is not None or self._is_source_quick):
            self._first_hedges_left -= 1.0
        elif self._hedges_left >= 1.0:
            self._hedges_left -= 1.0
        else:
            return False
        self.hedges += 1
        return True

    @property
    def _is_source_quick(self) -> bool:
        usual_s = self._usual_s[SOURCE].get(None)
        return usual_s is not None and TIMES * usual_s <= FIRST_GUESS_S


def _sent_s(attempt: transfer.Attempt) -> float:
    assert attempt.sent_s is not None
    return attempt.sent_s
