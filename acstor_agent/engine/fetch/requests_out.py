# SPDX-License-Identifier: Apache-2.0
"""Attempts: numbered requests to peers, with deadlines and limited bytes in flight."""

from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from typing import TypeVar

from acstor_agent.engine import actions
from acstor_agent.engine import peer_state
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_agent.engine.data_structures import fair_queue
from acstor_agent.engine.data_structures import timers
from acstor_agent.engine.fetch import source_reads
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request

MAX_TIMEOUTS = 4  # multiple of the timeout after which an attempt ends despite keepalives
CHECK_S = 0.1  # shortest interval between checks of late attempts

T = TypeVar("T")

Attempt = transfer.Attempt
Track = transfer.Track
GUEST, PEER = priority.Priority.GUEST, priority.Priority.PEER


def _one_class(answer: object) -> None:
    """Give all answers the same class."""


def split_ended(attempt: Attempt, some: list[int]) -> Attempt:
    """Split an attempt whose transfer has ended."""
    rest = [at for at in range(len(attempt.numbers)) if at not in some]
    return attempt.split(attempt.transfer, some, rest)


class RequestsOut:
    """The attempts; each ends once: by answer, lost connection, cancellation or timeout."""

    def __init__(
        self,
        out: actions.ActionQueue,
        deadlines: timers.Timers,
        peers: peer_state.PeerStates,
        timeout_s: float,
    ) -> None:
        self._out, self._deadlines, self._peers = out, deadlines, peers
        self.timeout_s = timeout_s  # of silence after sending, which ends an attempt
        self.split: Callable[[Attempt, list[int]], Attempt] = split_ended
        self._untimed: dict[Attempt, None] = {}

    def send_or_queue(
        self,
        transfer: transfer.Transfer,
        host: ids.HostId,
        mode: peer_request.Mode,
        refs: transfer.Refs,
        track: Track,
        now: float,
    ) -> Attempt:
        """Create an attempt; send it at once, or queue it while too much is in flight."""
        peer = self._peers.get_or_create(host)
        numbers = self._peers.new_numbers(peer, len(refs))
        attempt = Attempt(numbers, transfer, host, mode, refs, track, now)
        peer.pending.update(dict.fromkeys(numbers, attempt))
        attempt.watch_with(self._untimed)
        in_flight_bytes = peer.in_flight_bytes + attempt.length
        is_urgent = attempt.priority.is_urgent
        most = peer_state.MAX_IN_FLIGHT_BYTES if is_urgent else peer_state.MAX_PREFETCH_BYTES
        if not peer.queue.length and in_flight_bytes <= most:
            self._out.add_request(host, attempt)
            attempt.sent_s, peer.in_flight_bytes = now, in_flight_bytes
        else:
            peer.queue.put_item(attempt.priority, attempt.first_ref.image_id, attempt)
            self._send_more(peer, now)
        return attempt

    def divide_attempt(self, attempt: Attempt, part: Attempt) -> None:
        """Register the split-off part of an attempt."""
        if attempt.host is None or attempt.is_over:
            return
        peer = self._peers.get_or_create(attempt.host)
        peer.pending.update(dict.fromkeys(part.numbers, part))
        if part.sent_s is None:
            peer.queue.put_item(part.priority, part.first_ref.image_id, part)
        else:
            self._out.add_split_request(attempt, part)

    def at_source(self, transfer: transfer.Transfer, now: float) -> Attempt:
        """Return an attempt at the source, checked for lateness like others."""
        mode = peer_request.Mode.HOME
        numbers = (0,) * transfer.chunk_count
        attempt = Attempt(numbers, transfer, None, mode, transfer.refs, Track.FETCH, now)
        attempt.watch_with(self._untimed)
        return attempt

    def _send(self, peer: peer_state.Peer, attempt: Attempt, now: float) -> None:
        self._out.add_request(peer.host, attempt)
        attempt.sent_s = now
        peer.in_flight_bytes += attempt.length

    def raise_priority(self, attempt: Attempt, priority: priority.Priority, now: float) -> None:
        """Raise the priority of an attempt."""
        before, attempt.priority = attempt.priority, min(priority, attempt.priority)
        if attempt.is_over or attempt.priority is before:
            return
        if attempt.priority <= PEER < before:
            attempt.at_s = now  # from now on it can be late
            attempt.watch_with(self._untimed)
        if attempt.host is None:
            return
        if attempt.sent_s is None:
            peer, image_id = self._peers.get_or_create(attempt.host), attempt.first_ref.image_id
            peer.queue.remove(before, image_id, attempt)
            peer.queue.put_item(priority, image_id, attempt)
            self._send_more(peer, now)
        elif attempt.priority.at_peer is PEER is not before.at_peer:
            self._out.add_priority_raise(attempt.host, attempt.numbers)

    def end_answered(
        self,
        host: ids.HostId,
        answers: Sequence[tuple[int, T]],
        now: float,
        classify: Callable[[T], Hashable] | None = None,  # splits chunks by class; None: one
    ) -> list[tuple[Attempt, list[T]]]:
        """End answered attempts, split if only partly; return them with the answers by chunk."""
        peer = self._peers.get(host)
        if peer is None:
            return []
        taken = self._end_completed(peer, answers) if classify is None else []
        begin = sum([len(some) for _, some in taken])
        left = dict(reversed(answers[begin:])) if begin < len(answers) else {}  # the first counts
        while left:
            number, answer = left.popitem()
            attempt = peer.pending.get(number)
            if attempt is None or attempt.sent_s is None:
                continue  # unknown numbers are ignored
            if len(attempt.numbers) == 1:
                what = [answer]
            else:
                left[number] = answer
                attempt, what = self._divide(attempt, left, classify or _one_class)
            self._answered(peer, attempt)
            taken.append((attempt, what))
        if taken:
            peer.last_heard_s = now
            self._send_more(peer, now)
        return taken

    def _end_completed(
        self, peer: peer_state.Peer, answers: Sequence[tuple[int, T]]
    ) -> list[tuple[Attempt, list[T]]]:
        taken: list[tuple[Attempt, list[T]]] = []
        begin = 0
        while (attempt := self._completed_attempt(peer, answers, begin)) is not None:
            end = begin + len(attempt.numbers)
            taken.append((attempt, [answer for _, answer in answers[begin:end]]))
            self._answered(peer, attempt)
            begin = end
        return taken

    def _completed_attempt(
        self, peer: peer_state.Peer, answers: Sequence[tuple[int, object]], begin: int
    ) -> Attempt | None:
        attempt = peer.pending.get(answers[begin][0]) if begin < len(answers) else None
        if attempt is None or attempt.sent_s is None:
            return None
        some = answers[begin : begin + len(attempt.numbers)]
        return attempt if tuple([number for number, _ in some]) == attempt.numbers else None

    def _answered(self, peer: peer_state.Peer, attempt: Attempt) -> None:
        self._remove_attempt(peer, attempt)
        peer.in_flight_bytes -= attempt.length

    def _divide(
        self, attempt: Attempt, left: dict[int, T], classify: Callable[[T], Hashable]
    ) -> tuple[Attempt, list[T]]:
        """Take the answers of one class for an attempt from ``left``; split its chunks off."""
        what = classify(left[next(n for n in attempt.numbers if n in left)])
        some = [
            at for at, n in enumerate(attempt.numbers) if n in left and classify(left[n]) == what
        ]
        if len(some) < len(attempt.numbers):
            attempt = self.split(attempt, some)
        return attempt, [left.pop(number) for number in attempt.numbers]

    def _remove_attempt(self, peer: peer_state.Peer, attempt: Attempt) -> None:
        attempt.end_attempt()
        for number in attempt.numbers:
            del peer.pending[number]

    def cancel_attempt(self, attempt: Attempt, now: float) -> None:
        """Cancel an attempt."""
        if attempt.is_over:
            return
        if attempt.host is None:
            attempt.end_attempt()
            return
        if attempt.sent_s is not None:
            self._out.add_cancel(attempt.host, attempt.numbers)
        self._end(self._peers.get_or_create(attempt.host), attempt, now)

    def take_lost(self, host: ids.HostId, connection: Hashable, now: float) -> list[Attempt]:
        """End and return the attempts that were sent on a lost connection."""
        peer = self._peers.get(host)
        if peer is None:
            return []
        pending = dict.fromkeys(peer.pending.values())
        lost = [a for a in pending if a.sent_s is not None and a.connection == connection]
        for attempt in lost:
            self._end(peer, attempt, now)
        return lost

    def take_queued(self, host: ids.HostId) -> list[Attempt]:
        """End and return the attempts that were not sent to a host yet."""
        peer = self._peers.get_or_create(host)
        waiting = []
        while (attempt := peer.queue.take_next()) is not None:
            self._remove_attempt(peer, attempt)
            waiting.append(attempt)
        return waiting

    def _end(self, peer: peer_state.Peer, attempt: Attempt, now: float) -> None:
        self._remove_attempt(peer, attempt)
        if attempt.sent_s is None:
            peer.queue.remove(attempt.priority, attempt.first_ref.image_id, attempt)
            return
        peer.in_flight_bytes -= attempt.length
        self._send_more(peer, now)

    def _send_more(self, peer: peer_state.Peer, now: float) -> None:
        queue = peer.queue
        while queue.length and peer.in_flight_bytes < peer_state.MAX_IN_FLIGHT_BYTES:
            if peer.in_flight_bytes < peer_state.MAX_PREFETCH_BYTES:
                attempt = queue.take_next()
            else:
                attempt = queue.take_by_priority(GUEST) or queue.take_by_priority(PEER)
            if attempt is None:
                return
            self._send(peer, attempt, now)

    def recount_in_flight(self, is_awaited: Callable[[transfer.Attempt], bool], now: float) -> None:
        """Recount bytes in flight, rebuild queues, and cancel unneeded attempts, after a fault."""
        for peer in self._peers.list_peers():
            attempts = list(dict.fromkeys(peer.pending.values()))
            pending = [a for a in attempts if not a.is_over]
            peer.pending = {number: a for a in pending for number in a.numbers}
            peer.in_flight_bytes = sum(a.length for a in pending if a.sent_s is not None)
            peer.queue = fair_queue.FairQueue()
            for attempt in pending:
                attempt.watch_with(self._untimed)
                if attempt.sent_s is None:
                    peer.queue.put_item(attempt.priority, attempt.first_ref.image_id, attempt)
            for attempt in attempts:
                if not is_awaited(attempt):
                    self.cancel_attempt(attempt, now)
            self._send_more(peer, now)

    def is_late(self, attempt: Attempt, now: float) -> bool:
        """Return whether the provider was silent, or the reader has waited, for too long."""
        return now >= self._late_s(attempt)

    def silent_s(self, attempt: Attempt, now: float) -> float:
        """Return for how many seconds the provider has been silent."""
        return now - self._silent_since_s(attempt, now)

    def _silent_since_s(self, attempt: Attempt, never_s: float) -> float:
        sent_s, host = attempt.sent_s, attempt.host
        if host is not None:
            peer = self._peers.get_or_create(host)
            return never_s if sent_s is None else peer.silent_since_s(attempt)
        read: source_reads.SourceRead | None = attempt.transfer.read
        if read is None or not read.number:
            return never_s
        return max(read.begun_s, self._peers.last_source_chunk_s)

    def _late_s(self, attempt: Attempt) -> float:
        latest_s = attempt.at_s + peer_state.MAX_LATE_S
        late_s = self._peers.late_after_s(peer_state.kind_of(attempt))
        return min(self._silent_since_s(attempt, latest_s) + late_s, latest_s)

    def timeout_at_s(self, attempt: Attempt) -> float:
        """Return when an attempt times out; never at the source, which has own timeouts."""
        if attempt.host is None or attempt.sent_s is None:
            return float("inf")
        timeout_at_s = attempt.sent_s + self.timeout_s
        if attempt.track is Track.RELAY:
            return timeout_at_s  # keepalives do not extend a relay: the source is an alternative
        last_heard_s = self._peers.get_or_create(attempt.host).last_heard_s
        longest_s = attempt.sent_s + MAX_TIMEOUTS * self.timeout_s
        return min(max(timeout_at_s, last_heard_s + self.timeout_s), longest_s)

    def flush(self, now: float) -> None:
        """Set one timer for the attempts that are new or raised in this event."""
        if self._untimed:
            is_hedged = any(attempt.priority <= PEER for attempt in self._untimed)
            after_s = self._peers.min_late_s if is_hedged else self.timeout_s
            at_s = min(now + after_s, *map(self.timeout_at_s, self._untimed))
            self._deadlines.set_timer(at_s, timers.Due.ATTEMPTS, self._untimed)
            self._untimed = {}

    def check_again(self, attempts: Sequence[Attempt], now: float) -> None:
        """Set a timer for the first lateness or timeout of some attempts."""
        batch: dict[Attempt, None] = {}
        for attempt in attempts:
            attempt.watch_with(batch)
        soonest_s = min(map(self._check_at_s, attempts))
        if soonest_s == float("inf"):
            soonest_s = now + self.timeout_s
        at_s = max(soonest_s, now + CHECK_S)
        self._deadlines.set_timer(at_s, timers.Due.ATTEMPTS, batch)

    def _check_at_s(self, attempt: Attempt) -> float:
        is_hedged = attempt.priority <= PEER and not attempt.is_late
        if attempt.track is Track.PROBE or (is_hedged and attempt.track is not Track.LOOKUP):
            return min(self._late_s(attempt), self.timeout_at_s(attempt))
        return self.timeout_at_s(attempt)
