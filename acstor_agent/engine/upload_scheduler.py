# SPDX-License-Identifier: Apache-2.0
"""Upload scheduler: sends a few answers at a time, the most urgent first.

Sent one after the other, answers arrive after half the time on average, and early receivers can
serve others. So an answer occupies a *slot* until it is delivered; others queue, and requesters are
referred to earlier ones. A slow requester keeps a slot for SLOT_TIMEOUT_S and gets no more until it
has caught up. Answers for a host with UNDELIVERED_BYTES are *parked* without their bytes.
"""

import collections
from collections.abc import Collection
from collections.abc import Sequence

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_agent.engine import requester
from acstor_agent.engine.data_structures import fair_queue
from acstor_agent.engine.data_structures import timers

PendingRequest = requester.PendingRequest
RequesterLink = requester.RequesterLink
Priority = priority.Priority
Requester = requester.Requester

BUSY_QUEUE = 1  # queued answers from which on requesters are referred to other hosts
FOR_OTHERS = 2
"""Slots that a requester leaves to others with the variant ``ring``, so that answers for a
successor queue here, where others overtake them."""
SLOT_TIMEOUT_S = 0.25
UNDELIVERED_BYTES = 16 * 1024 * 1024
"""Twice a peer's bytes in flight, since delivery is polled only now and then."""
OF_LATE_S = 2.0  # where links have queues, some answer meets one within this time
TOGETHER = 4
"""Answers that 100 Mbit/s carry in LATE_S; so many together are not late because of a queue."""
ANSWER_BYTES = 4096  # cost of an answer beside its bytes, since small ones take memory too


class UploadScheduler:
    """Decides which answer is sent next; ``learns_ring``: few slots at first."""

    def __init__(
        self, out: actions.ActionQueue, deadlines: timers.Timers, learns_ring: bool = False
    ) -> None:
        few, many = FEW, MANY
        self.slots = UploadSlots(few if learns_ring else many)
        self._for_others = FOR_OTHERS if learns_ring else 0
        self.used = 0
        self._out, self._deadlines = out, deadlines
        self._turns: fair_queue.FairQueue[PendingRequest] = fair_queue.FairQueue()
        self._parked: fair_queue.FairQueue[PendingRequest] = fair_queue.FairQueue()
        self._unwatched: collections.OrderedDict[RequesterLink, None] = collections.OrderedDict()
        self._watched = 0
        self._full_requester: Requester | None = None  # has all the slots that it may have
        self._queue_s = float("-inf")  # when an answer last met a queue

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def is_busy(self) -> bool:
        """Whether requesters should ask another host."""
        return self._turns.length >= BUSY_QUEUE

    def has_slot(self, requester: Requester, refs: Sequence[chunk_ref.ChunkRef]) -> bool:
        """Return whether answers with these chunks may be sent at once."""
        if self._turns.length or self.used + len(refs) > self.slots.count:
            return False
        before_last = requester.undelivered + _cost_of(refs[:-1])
        return not self._is_full(requester) and before_last < UNDELIVERED_BYTES

    def _is_full(self, requester: Requester) -> bool:
        return requester.slots >= max(1, self.slots.count - self._for_others)

    def queue_answer(self, pending: PendingRequest, now: float) -> None:
        """Queue an answer."""
        self._put(pending)
        while self._unwatched:  # a slot may be free already
            self._watch(self._unwatched.popitem(last=False)[0], now)

    def _put(self, pending: PendingRequest) -> None:
        requester = pending.link.requester
        if requester.undelivered < UNDELIVERED_BYTES:
            requester.undelivered += _cost(pending.ref)
            self._turns.put_item(pending.priority, pending.host, pending)
        else:
            pending.data = None
            self._parked.put_item(pending.priority, pending.host, pending)

    def take_next_answer(self) -> PendingRequest | None:
        """Return the next request to answer, if any; :meth:`unpark` must follow."""
        if self.used >= self.slots.count or not self._turns.length:
            return None
        full = self._full_requester
        without = full.host if full is not None and self._is_full(full) else None
        pending = self._turns.take_next(skipped=without)
        if pending is not None:
            pending.link.requester.undelivered -= _cost(pending.ref)
        return pending

    def remove(self, pending: PendingRequest) -> bool:
        """Remove an answer; return whether it was queued."""
        if self._turns.remove(pending.priority, pending.host, pending):
            pending.link.requester.undelivered -= _cost(pending.ref)
            self.unpark(pending.link.requester)
            return True
        return self._parked.remove(pending.priority, pending.host, pending)

    def unpark(self, requester: Requester) -> None:
        """Queue parked answers of a host up to its limit."""
        while self._parked and requester.undelivered < UNDELIVERED_BYTES:
            parked = (
                self._parked.take_by_priority(priority, requester.host) for priority in Priority
            )
            pending = next(filter(None, parked), None)
            if pending is None:
                return
            self._put(pending)

    def chunks_sent(
        self, link: RequesterLink, refs: Sequence[chunk_ref.ChunkRef], now: float
    ) -> None:
        """Record that chunks were sent on a connection."""
        cost = _cost_of(refs)
        link.undelivered += cost
        link.requester.undelivered += cost
        if not link.is_slow:
            link.slots += len(refs)
            link.requester.slots += len(refs)
            if self._is_full(link.requester):
                self._full_requester = link.requester
            self.used += len(refs)
        if link.watched_s is None:
            if self._watched and not self._turns and link.undelivered < UNDELIVERED_BYTES // 2:
                self._unwatched[link] = None
            else:
                self._unwatched.pop(link, None)
                self._watch(link, now)

    def answers_delivered(self, link: RequesterLink, now: float, late_s: float) -> None:
        """Record that all bytes of a connection were delivered, up to ``late_s`` ago."""
        if link.watched_s is not None:
            together = max(1.0, link.slots / TOGETHER)
            self._record_latency((now - late_s - link.watched_s) / together, now)
        self.forget_connection(link, now)

    def _record_latency(self, took_s: float, now: float) -> None:
        self.slots.answer_delivered(took_s)
        if took_s > LATE_S:
            self._queue_s = now

    def has_met_queue(self, now: float) -> bool:
        """Return whether an answer met a queue within OF_LATE_S."""
        return now - self._queue_s < OF_LATE_S

    def forget_connection(self, link: RequesterLink, now: float) -> None:
        """Free the slots of a connection that has delivered everything, or ended."""
        self._unwatched.pop(link, None)
        self._watched -= link.watched_s is not None
        self.used -= link.slots
        link.requester.slots -= link.slots
        link.requester.undelivered -= link.undelivered
        link.slots = link.undelivered = 0
        link.watched_s, link.is_slow = None, False
        self.unpark(link.requester)
        self._watch_another(now)

    def recount_uploads(self, every: Collection[RequesterLink], now: float) -> None:
        """Rebuild all counters from the open connections, after a fault."""
        links = [link for link in every if link.uploads is self]
        for waiting in (self._turns, self._parked):
            for pending in list(waiting):
                if (
                    pending.link.peer_requests.get(pending.number) is not pending
                    or pending.link not in links
                ):
                    waiting.remove(pending.priority, pending.host, pending)
        self.used = sum(link.slots for link in links)
        self._watched = sum(link.watched_s is not None for link in links)
        for link in links:
            link.requester.slots = link.requester.undelivered = 0
        for pending in self._turns:
            pending.link.requester.undelivered += _cost(pending.ref)
        for link in links:
            link.requester.slots += link.slots
            link.requester.undelivered += link.undelivered
            self.unpark(link.requester)
            if link.undelivered and link.watched_s is None and link not in self._unwatched:
                self._watch(link, now)
        self._watch_another(now)

    def is_waiting(self, pending: PendingRequest) -> bool:
        """Return whether an answer is queued or parked."""
        what = pending.priority, pending.host, pending
        return self._turns.is_queued(*what) or self._parked.is_queued(*what)

    def reclaim_slots(self, link: RequesterLink, now: float) -> None:
        """Take the slots of a connection that has held them for SLOT_TIMEOUT_S."""
        link.is_due = False
        if link.watched_s is None or link.is_slow:
            return
        if now < link.watched_s + SLOT_TIMEOUT_S:
            self._schedule_reclaim(link, link.watched_s)
            return
        self.slots.note_unanswered(SLOT_TIMEOUT_S)
        self._queue_s = now
        self.used -= link.slots
        link.requester.slots -= link.slots
        link.slots, link.is_slow = 0, True

    def _watch_another(self, now: float) -> None:
        if not self._watched and self._unwatched:
            self._watch(self._unwatched.popitem(last=False)[0], now)

    def _watch(self, link: RequesterLink, now: float) -> None:
        self._out.add_delivery_watch(link.connection)
        if not link.is_due:
            self._schedule_reclaim(link, now)
        link.watched_s = now
        self._watched += 1

    def _schedule_reclaim(self, link: RequesterLink, since_s: float) -> None:
        self._deadlines.set_timer(since_s + SLOT_TIMEOUT_S, timers.Due.SLOT_TIMEOUT, link)
        link.is_due = True


def _cost_of(refs: Sequence[chunk_ref.ChunkRef]) -> int:
    return sum([ref.length for ref in refs]) + ANSWER_BYTES * len(refs)


def _cost(ref: chunk_ref.ChunkRef) -> int:
    return ref.length + ANSWER_BYTES


FEW = 3
"""Slots after an answer met a queue: enough that a busy receiver does not idle this host's link."""
MANY = 64
LATE_S = 0.02  # an answer that takes longer has met a queue
QUICK_S, QUICK_ONES = 0.005, 8  # so many answers in a row within this time have met no queue


class UploadSlots:
    """Adapts the number of upload slots to the latency of answers: few where a queue delays them.

    >>> slots = UploadSlots()
    >>> slots.count
    64
    >>> slots.answer_delivered(took_s=0.3)
    >>> slots.count
    3
    >>> for _ in range(QUICK_ONES):
    ...     slots.answer_delivered(took_s=0.001)
    >>> slots.count
    64
    """

    def __init__(self, count: int = MANY, few: int = FEW) -> None:
        self.count, self._few = count, few
        self._quick_ones = 0

    def note_unanswered(self, age_s: float) -> None:
        """Record how many seconds ago an undelivered answer was sent."""
        if age_s > LATE_S:
            self.count, self._quick_ones = self._few, 0

    def answer_delivered(self, took_s: float) -> None:
        """Record how many seconds a delivered answer took."""
        self.note_unanswered(took_s)
        self._quick_ones = self._quick_ones + 1 if took_s < QUICK_S else 0
        if self._quick_ones >= QUICK_ONES:
            self.count = MANY
