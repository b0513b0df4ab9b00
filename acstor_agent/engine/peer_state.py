# SPDX-License-Identifier: Apache-2.0
"""Peer state: debts, backoff, latency and trust of each peer, and latency of the source.

*Backoff.*  A peer that does not answer, or answers many times later than others, is quarantined
after a few failures in a row.  A peer that sent wrong bytes or broke the protocol is quarantined at
once and for longer.  After that, one trial request is allowed.  Success resets the peer; failure
doubles the next backoff.

*Latency.*  A place has one measure: how long it was silent before it gave something (EWMA).  An
event counts once, by the oldest request, and only since it last gave, so a batch is not
held against it.  Holders, homes and the source are three *kinds*, each compared with its like.  An
answer is *late* after TIMES the median of its kind.  So a slow source, or a slow link of this host,
makes no peer look slow.

*Trust.*  How many announcements of the peer are accepted (``announcement_limits``).
"""

import collections
import statistics
from collections.abc import Callable
from collections.abc import Sequence
from typing import Protocol

from acstor_agent.engine import announcement_limits
from acstor_agent.engine import failure
from acstor_agent.engine import fair_queue
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_common.model import ids
from acstor_common.util import token_buckets

CREDIT_BYTES = 8 * 1024 * 1024
"""Asked of one peer at a time: what 10 Gbit/s carry in 7 ms, and 25 Mbit/s in 2.7 s."""
ANNOUNCED_CHUNKS = token_buckets.Rate(per_s=20_000.0, burst=20_000.0)
"""What a peer may tell; 10 Gbit/s carry 19,000 chunks of 64 KiB a second."""
DENIAL_COST = 16
"""Chunks that a peer's allowance loses when it denies what it advertised."""
PEERS = 4096
"""Peers of whose telling something is remembered."""

FAILURES_ALLOWED = 2
"""Failures in a row at which a peer is left alone."""
FIRST_S, LIAR_S, LONGEST_S = 0.5, 60.0, 600.0
"""How long: at first, at first for a lie, and at most; it doubles each time."""
TRIAL_S = 1.0
"""So long others wait for the outcome of a trial."""
JITTER = 0.25
"""Share of a backoff that is added or taken off, so that not all hosts try at once."""

TIMES = 4.0
SHARE = 0.25
"""What the newest answer counts in what is usual."""
SOONEST_S, FIRST_GUESS_S, LATEST_S = 0.1, 0.5, 5.0
"""No answer is late before, without any knowledge, and any is late after this."""
SLOW_S = 0.25
"""Nobody is left alone because of an answer that took less."""
PLACES = 64
"""Places of a kind that are compared, those that gave last."""
NOTES = 8
"""What is usual is computed anew after so many answers."""

HEDGES_A_CHUNK, HEDGES_FIRST, HEDGES_MOST = 0.02, 4.0, 16.0
"""At most 2 % of all fetches are made twice; at the start four, as two of a frozen peer tell it.
The source is none of these, unless it is known to be quick: where many hosts begin at once and it
is slow, all would take homes that wait for it for frozen ones, and read it four times each."""

HELD, HOME, SOURCE = 0, 1, 2
_LIES = frozenset({failure.Failure.INVALID})
_NO_FAULT = frozenset({failure.Failure.MISSING, failure.Failure.WITHHELD})


class Random(Protocol):
    """The part of ``random.Random`` that is needed."""

    def random(self) -> float:
        """Return a number from 0 up to 1."""


def kind_of(attempt: transfer.Attempt) -> int:
    """Return with which attempts one is compared."""
    if attempt.host is None:
        return SOURCE
    return HOME if attempt.mode.reads_source else HELD


class Peer:
    """One peer.

    :ivar asks: attempts that it has not answered, by number
    :ivar under_bytes: of those that were sent
    :ivar line: attempts that wait until some of these are answered
    :ivar heard_s: when it last answered something, or said that it is alive
    :ivar gave_s: when it last gave a chunk
    :ivar failures: in a row; ``backoffs``, too
    :ivar until_s: end of the backoff; ``trial_s``: of the time of a trial
    """

    __slots__ = (
        *("asks", "failures", "gave_s", "heard_s", "host", "is_liar", "line"),
        *("backoffs", "trial_s", "under_bytes", "until_s"),
    )

    def __init__(self, host: ids.HostId) -> None:
        self.host = host
        self.asks: dict[int, transfer.Attempt] = {}
        self.under_bytes = 0
        self.line: fair_queue.FairQueue[transfer.Attempt] = fair_queue.FairQueue()
        self.heard_s = self.gave_s = 0.0
        self.failures = self.backoffs = 0
        self.is_liar = False
        self.until_s = self.trial_s = 0.0


class PeerStates:
    """All peers, and the source.

    :param rng: for the jitter of backoffs
    :param may_hedge: answers that are late are hedged at all
    :ivar source_gave_s: when the source last gave a chunk
    """

    def __init__(self, rng: Random, *, may_hedge: bool = True) -> None:
        self.listening = announcement_limits.AnnouncementLimits(ANNOUNCED_CHUNKS, PEERS)
        self.invalid_chunks = self.backoffs = self.hedges = 0
        self.source_gave_s = 0.0
        self._rng = rng
        self._peers: dict[ids.HostId, Peer] = {}
        self._alone: set[ids.HostId] = set()  # or on trial since
        self._last_number = 0
        self._hedges_most = HEDGES_MOST if may_hedge else 0.0
        self._first_hedges_left = HEDGES_FIRST if may_hedge else 0.0
        self._hedges_left = 0.0
        self._usual_s: tuple[collections.OrderedDict[ids.HostId | None, float], ...] = (
            *(collections.OrderedDict() for _ in (HELD, HOME, SOURCE)),
        )
        self._late_s = [FIRST_GUESS_S] * 3
        self._notes = [0] * 3

    def __len__(self) -> int:
        return len(self._peers)

    def get_or_create(self, host: ids.HostId) -> Peer:
        """Return what is known of a host."""
        peer = self._peers.get(host)
        if peer is None:
            peer = self._peers[host] = Peer(host)
        return peer

    def get(self, host: ids.HostId) -> Peer | None:
        """Return what is known of a host, if anything is."""
        return self._peers.get(host)

    def list_peers(self) -> list[Peer]:
        """Return all of whom something is known."""
        return list(self._peers.values())

    def new_numbers(self, peer: Peer, count: int) -> tuple[int, ...]:
        """Return consecutive numbers for the chunks of a new attempt: 32 bits, as on the wire.

        They are counted over all peers: a peer that was forgotten meanwhile may still answer what
        it was asked before.
        """
        while True:
            first = self._last_number + 1
            if first + count > 1 << 32:
                first = 0
            self._last_number = first + count - 1
            numbers = range(first, first + count)
            if peer.asks.keys().isdisjoint(numbers):
                return tuple(numbers)

    def pending_attempts(self, host: ids.HostId) -> int:
        """Return how many attempts a host has not answered."""
        peer = self._peers.get(host)
        return len(peer.asks) if peer else 0

    def forget_others(self, is_on_table: Callable[[ids.HostId], bool], now: float) -> None:
        """Forget the hosts that are on no table, where nothing is under way."""
        for host, peer in list(self._peers.items()):
            if not is_on_table(host) and not peer.asks and peer.until_s <= now:
                del self._peers[host]
                self._alone.discard(host)

    # Backoff

    def is_usable(self, host: ids.HostId, now: float) -> bool:
        """Say whether to ask a host; after a backoff that is the leave for one trial.

        The others hear False until the trial has an outcome, or TRIAL_S is over: who got the leave
        may have had no need of it.
        """
        if host not in self._alone:
            return True
        peer = self._peers[host]
        if now < peer.until_s or now < peer.trial_s:
            return False
        peer.trial_s = now + TRIAL_S
        return True

    def is_in_backoff(self, host: ids.HostId, now: float) -> bool:
        """Say whether a host is in backoff."""
        return host in self._alone and now < self._peers[host].until_s

    def is_doubtful(self, host: ids.HostId | None) -> bool:
        """Say whether a host is in backoff, or on trial after one."""
        return host in self._alone

    def in_backoff(self, now: float) -> dict[ids.HostId, float]:
        """Return the hosts in backoff, with the seconds that it lasts yet.

        May be called from any thread.
        """
        peers = [(host, self._peers.get(host)) for host in tuple(self._alone)]
        left = {host: peer.until_s - now for host, peer in peers if peer is not None}
        return {host: left_s for host, left_s in left.items() if left_s > 0}

    def record_failure(self, host: ids.HostId, failure: failure.Failure, now: float) -> float:
        """Note a failure; return for how long the host is left alone from now on, if it is new.

        An honest no is none: whoever says it lives.
        """
        if failure in _NO_FAULT:
            self.record_success(host, now)
            return 0.0
        peer, is_lie = self.get_or_create(host), failure in _LIES
        self.invalid_chunks += is_lie
        is_alone = now < peer.until_s
        if is_alone and (peer.is_liar or not is_lie):
            return 0.0  # what was asked before the backoff tells nothing new
        peer.failures += 1
        peer.is_liar |= is_lie
        if not (is_lie or peer.backoffs or peer.failures >= FAILURES_ALLOWED):
            return 0.0
        length_s = min((LIAR_S if peer.is_liar else FIRST_S) * 2.0**peer.backoffs, LONGEST_S)
        length_s *= 1 + JITTER * (2 * self._rng.random() - 1)
        peer.until_s, peer.trial_s = now + length_s, 0.0
        peer.backoffs = min(peer.backoffs + 1, 32)
        self._alone.add(host)
        self.backoffs += 1
        return 0.0 if is_alone else length_s

    def record_success(self, host: ids.HostId, now: float) -> None:
        """Note that a host gave right bytes, or an honest no: it is as good as new.

        In a backoff it is the answer to a request from before, which proves nothing.
        """
        peer = self._peers.get(host)
        if peer is not None and peer.failures and now >= peer.until_s:
            peer.failures = peer.backoffs = 0
            peer.is_liar = False
            self._alone.discard(host)

    # Latency

    def late_s(self, kind: int) -> float:
        """Return after which silence an answer is late."""
        return self._late_s[kind]

    @property
    def soonest_late_s(self) -> float:
        """After which silence an answer may be late, of whatever kind."""
        return min(self._late_s)

    def record_chunks(
        self, host: ids.HostId, attempts: Sequence[transfer.Attempt], now: float
    ) -> float:
        """Note what a peer gave in one event; return what it took if that was far too long.

        What no guest waited for may be late on purpose, and says nothing of a slow peer.
        """
        self.record_answers(sum([len(attempt.refs) for attempt in attempts]))
        peer = self.get_or_create(host)
        since_s, peer.gave_s = peer.gave_s, now
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
        """Note how long a place was silent, or at least."""
        usual_s = self._usual_s[kind]
        before_s = usual_s.pop(host, took_s)
        usual_s[host] = before_s + SHARE * (took_s - before_s)
        if len(usual_s) > PLACES:
            usual_s.popitem(last=False)
        self._notes[kind] += 1
        if self._notes[kind] % NOTES == 0:
            median_s = statistics.median_low(usual_s.values())
            self._late_s[kind] = min(max(SOONEST_S, TIMES * median_s), LATEST_S)

    def _is_slow(self, kind: int, host: ids.HostId, took_s: float) -> bool:
        """Say whether others are many times faster than this answer and those before it."""
        usual_s = self._usual_s[kind]
        own_s = min(took_s, usual_s.get(host, 0.0))
        if own_s < SLOW_S:  # nearly always: the others need no look
            return False
        others = [other_s for other, other_s in usual_s.items() if other != host]
        return bool(others) and own_s > TIMES * statistics.median(others)

    # Hedges

    def record_answers(self, chunks: int) -> None:
        """Note that chunks came: a few more may be fetched twice."""
        self._hedges_left = min(self._hedges_most, self._hedges_left + HEDGES_A_CHUNK * chunks)

    @property
    def may_hedge(self) -> bool:
        """Say whether there is a hedge left, for some places at least."""
        return self._hedges_left >= 1.0 or self._first_hedges_left >= 1.0

    def take_hedge(self, host: ids.HostId | None) -> bool:
        """Take one hedge out of the budget; say whether there is one for a host, or the source."""
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
        """Say whether the source has shown that it is not late where nothing else is known."""
        usual_s = self._usual_s[SOURCE].get(None)
        return usual_s is not None and TIMES * usual_s <= FIRST_GUESS_S


def _sent_s(attempt: transfer.Attempt) -> float:
    assert attempt.sent_s is not None
    return attempt.sent_s
