# SPDX-License-Identifier: Apache-2.0
"""Pending reads of this host: each gets its bytes, or the reason of a failure, by its deadline."""

import collections
import math
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Protocol

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_agent.engine.data_structures import timers
from acstor_agent.engine.fetch import broadcast_lookup
from acstor_agent.engine.fetch import context
from acstor_agent.engine.fetch import prefetch_limits
from acstor_agent.engine.fetch import read_through
from acstor_agent.engine.fetch import retries
from acstor_agent.engine.fetch import source_selection
from acstor_agent.engine.fetch import transfer_runs
from acstor_common import errors

Attempt = transfer.Attempt
Bytes = transfer.Bytes
Refs = transfer.Refs

Failure = failure.Failure
Priority = priority.Priority
Transfer = transfer.Transfer
Waiter = transfer.Waiter
GUEST = Priority.GUEST
READAHEAD = Priority.READAHEAD

KEPT = 1024  # chunks not yet stored in the cache from which on no prefetch starts (64 MiB)


class PeerWaiters(Protocol):
    """Peers that wait for chunks."""

    def chunks_arrived(self, transfer: Transfer, data: Bytes) -> None:
        """Answer the peers that wait for a transfer."""

    def transfer_failed(self, transfer: Transfer, failure: Failure) -> None:
        """Refuse the peers for which nothing is under way now."""


class PendingReads:
    """The waiters of this host, and how their chunks are fetched."""

    def __init__(
        self, context: context.Context, through: read_through.ReadThrough, peer_waiters: PeerWaiters
    ) -> None:
        self._context, self._read_through, self._peer_waiters = context, through, peer_waiters
        self.selection = source_selection.SourceSelection(context, through, self)
        self.lookups = broadcast_lookup.BroadcastLookups(context, self)
        self.prefetch_limits = context.prefetch_limits
        self.retries = retries.Retries(context.timers)
        self._waiters: dict[Hashable, Waiter] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def add_read(
        self,
        batch: Sequence[chunk_ref.ChunkRef],
        priority: Priority,
        token: Hashable | None,
        deadline_s: float,
        is_retried: bool,
        guest: Hashable = None,
    ) -> None:
        """See :meth:`Engine.request_chunks`."""
        is_guest = priority is GUEST
        if not is_guest and priority not in prefetch_limits.PREFETCH_PRIORITIES:
            raise errors.LocalProtocolError(f"{priority.name} is no reason of a host's own")
        waiter = Waiter(token, list(batch), is_retried and is_guest, deadline_s)
        if token is not None:
            self._add_waiter(waiter)
        is_source_first = is_guest and self._choose_source_first()
        if batch and priority <= READAHEAD:
            self._context.lockstep.guest_read(batch[-1].image_id, batch[-1].offset)
        self._fetch_missing(waiter, priority, guest, is_source_first)
        if not (waiter.left or waiter.is_done) and token is not None:
            self._complete(waiter, None, "")

    def _fetch_missing(
        self, waiter: Waiter, priority: Priority, guest: Hashable, is_source_first: bool
    ) -> None:
        kept, index = self._context.kept, 0
        while index < len(waiter.refs) and not waiter.is_done:  # done: dropped from a full queue
            ref = waiter.refs[index]
            if kept and (data := kept.get(ref.key)) is not None:
                waiter.got[index] = data
                waiter.left -= 1
                index += 1
                continue
            transfer = self._join_transfer(waiter, index, priority)
            index += transfer.chunk_count
            if priority is GUEST:
                transfer.guest = transfer.guest or guest
                self._start_for_guest(transfer, ref, is_source_first)
                is_source_first = self.selection.preference.is_source_first  # one chunk is a probe
            else:
                self._queue_prefetch(transfer, priority)

    def _add_waiter(self, waiter: Waiter) -> None:
        self._waiters[waiter.token] = waiter
        if waiter.deadline_s < math.inf:
            self._context.timers.set_timer(waiter.deadline_s, timers.Due.READ_DEADLINE, waiter)

    def _join_transfer(self, waiter: Waiter, index: int, priority: Priority) -> Transfer:
        refs = transfer_runs.joinable_chunks(self._context, waiter.refs, index)
        transfer = self._context.transfers.get_or_create(refs, priority)
        if waiter.token is not None:
            transfer.waiters.append((waiter, transfer_runs.positions(transfer, refs, index)))
        return transfer

    def _choose_source_first(self) -> bool:
        context = self._context
        return (
            context.settings.may_ask_source_first
            and self.selection.preference.choose_source_first(context.now)
        )

    def _start_for_guest(
        self, transfer: Transfer, ref: chunk_ref.ChunkRef, is_source_first: bool
    ) -> None:
        lookup: broadcast_lookup.BroadcastLookup | None = transfer.lookup
        if lookup is not None and lookup.ref.image_id != ref.image_id:
            self.lookups.end_lookup(transfer)  # it serves readers of another image
        if transfer.retry is not None:
            self.retries.retry_now(transfer, ref.image_id)
        elif transfer.lookup is not None:
            return
        elif not transfer.is_fetching:
            self.prefetch_limits.remove_transfer(transfer)
            transfer.priority = GUEST
            self.selection.start_fetch(transfer, is_source_first)
        elif transfer.priority is not GUEST:
            transfer.priority = GUEST
            self.selection.raise_priority(transfer)

    def _queue_prefetch(self, transfer: Transfer, priority: Priority) -> None:
        if transfer.retry is not None or transfer.lookup is not None:
            return  # a guest waits for it already
        if transfer.is_fetching:
            if priority < transfer.priority or transfer.priority.asks_holders_only:
                transfer.priority = priority
                self.selection.raise_priority(transfer)
            return
        if transfer.prefetch_queue is not None:
            if (
                priority >= transfer.prefetch_queue
                and not transfer.prefetch_queue.asks_holders_only
            ):
                return
            self.prefetch_limits.remove_transfer(transfer)
        transfer.priority = priority
        forgotten = self.prefetch_limits.queue_transfer(transfer, priority)
        if forgotten is not None:
            self._fail(forgotten, Failure.FORGOTTEN, "")

    def _is_source_first(self, priority: Priority) -> bool:
        return (
            priority is READAHEAD
            and self.selection.preference.is_source_first
            and self._context.overlap.is_low  # else the source is fast because homes spare it
        )

    def start_queued(self) -> None:
        """Start queued fetches as limits allow; call it after each event."""
        if self.retries.due.length:
            for transfer in self.retries.take_due(self._context.now):
                transfer.names = (*transfer.names[1:], transfer.names[0])
                self.selection.start_fetch(transfer)
        if self.prefetch_limits.waiting.length and len(self._context.kept) < KEPT:
            for transfer in self.prefetch_limits.start_queued():
                if not transfer.is_fetching:
                    self.selection.start_fetch(transfer, self._is_source_first(transfer.priority))
        while self._context.transfers.unwanted and self._context.source_reads.is_full:
            transfer, _ = self._context.transfers.unwanted.popitem()
            if not transfer.is_wanted:  # still without readers
                self._end(transfer)

    # Arrival

    def chunks_arrived(
        self, transfer: Transfer, chunks: Sequence[Bytes], winner: Attempt | None
    ) -> None:
        """Store a transfer's chunks and give them to its readers; no ``winner``: the source."""
        context = self._context
        if context.transfers.get(transfer.key) is not transfer:
            return  # it arrived twice in one event
        if winner is not None:
            refs, provider, mode = winner.refs, winner.host, winner.mode
        else:
            refs, provider, mode = transfer.refs, None, None
        waiters, peer_requests = transfer.waiters, transfer.peer_requests
        is_for_others = False
        is_own = transfer.is_fetching or bool(waiters)
        if peer_requests or not is_own:
            is_for_others = any(request.mode.reads_source for request in peer_requests)
            priority = read_through.most_urgent(transfer)
        else:  # nearly always
            priority = transfer.priority
        is_kept = is_for_others or context.ring.is_home(refs[0].ring_position)  # all have one home
        is_stored = is_kept or not context.settings.homes_keep or priority.is_for_this_host
        how = is_kept, is_own, priority, is_stored
        context.out.add_store(actions.ArrivedRun(refs, transfer.keys, chunks, provider, mode, *how))
        context.kept.update(zip(transfer.keys, chunks, strict=True))
        self._give_to_waiters(transfer, chunks)
        if transfer.tries or transfer.retry is not None or transfer.lookup is not None:
            self.retries.chunk_became_available()
        self._end(transfer)
        if peer_requests:
            self._peer_waiters.chunks_arrived(transfer, chunks[0])

    def _give_to_waiters(self, transfer: Transfer, chunks: Sequence[Bytes]) -> None:
        for waiter, positions in transfer.take_waiters():
            if waiter.is_done:
                continue
            for position, data in zip(positions, chunks, strict=True):
                waiter.got[position] = data
            waiter.left -= len(chunks)
            if not waiter.left:
                self._complete(waiter, None, "")

    def _end(self, transfer: Transfer) -> None:
        context = self._context
        context.transfers.forget_transfer(transfer)
        self._end_fetch(transfer)
        if transfer.relay is not None:
            context.requests_out.cancel_attempt(transfer.relay, context.now)
            transfer.relay = None
        if transfer.read is not None:
            context.source_reads.drop_read(transfer.read)
            transfer.read = None

    def _end_fetch(self, transfer: Transfer) -> None:
        for attempt in transfer.attempts:
            if not attempt.is_over:
                self._context.requests_out.cancel_attempt(attempt, self._context.now)
        transfer.attempts.clear()
        transfer.is_fetching = False
        if transfer.retry is not None:
            self.retries.forget_transfer(transfer)
        if transfer.lookup is not None:
            self.lookups.end_lookup(transfer)
        if transfer.prefetch_queue is not None:
            self.prefetch_limits.remove_transfer(transfer)

    # Failure

    def source_failed(self, transfer: Transfer, failure: Failure) -> None:
        """Continue without the source, for local readers and for peers."""
        self._context.transfers.uncharge(transfer)
        self.selection.source_failed(transfer, failure)
        self._peer_waiters.transfer_failed(transfer, failure)
        self._context.transfers.drop_if_done(transfer)

    def providers_failed(self, transfer: Transfer, failure: Failure) -> None:
        """Fail impatient readers; start lookups or pauses for the others."""
        self.prefetch_limits.remove_transfer(transfer)
        self._fail_impatient(transfer, failure, transfer.why)
        for single in self._context.transfers.split_transfer(transfer) if transfer.waiters else ():
            if self._context.transfers.get(single.key) is single:  # it may have ended with others
                self._look_up_or_pause(single, failure)
        self._peer_waiters.transfer_failed(transfer, Failure.MISSING)
        self._context.transfers.drop_if_done(transfer)

    def _look_up_or_pause(self, transfer: Transfer, failure: Failure) -> None:
        waiting = [(waiter, at[0]) for waiter, at in transfer.waiters if not waiter.is_done]
        wanted = {waiter.refs[first].image_id for waiter, first in waiting}
        names = (name[0] for name in transfer.names if name[0].image_id in wanted)
        denied = next((name for name in names if name.image_id in transfer.denied), None)
        if denied is not None:
            self.lookups.start_lookup(transfer, denied)
        else:
            self._pause(transfer, failure.name.lower())
        self._context.transfers.drop_if_done(transfer)

    def _fail_impatient(self, transfer: Transfer, failure: Failure, why: str) -> None:
        entries = [entry for entry in transfer.take_waiters() if not entry[0].is_done]
        transfer.waiters = [entry for entry in entries if entry[0].is_retried]
        for waiter, _ in entries:
            if not waiter.is_retried:
                self._complete(waiter, failure, why)

    def lookup_failed(
        self,
        transfer: Transfer,
        ref: chunk_ref.ChunkRef,
        failure: Failure,
        why: str,
        lost_in_s: float,
    ) -> None:
        """Fail readers of a lost chunk's image; pause for the others."""
        if failure is Failure.LOST:
            for waiter, at in transfer.waiters.copy():
                if not waiter.is_done and waiter.refs[at[0]].image_id == ref.image_id:
                    self._complete(waiter, failure, why)
        self._fail_impatient(transfer, failure, why)
        if transfer.waiters:
            self._pause(transfer, why, ref if lost_in_s else None, lost_in_s)
        else:
            self._end_fetch(transfer)
        self._context.transfers.drop_if_done(transfer)

    def _pause(
        self,
        transfer: Transfer,
        why: str,
        absent: chunk_ref.ChunkRef | None = None,
        lost_in_s: float = 0.0,
    ) -> None:
        transfer.why = why
        for waiter, _ in transfer.waiters:
            if not waiter.is_done:
                stall = actions.ReportStall(waiter.token, why, absent, lost_in_s)
                self._context.out.others.append(stall)
        self.retries.pause_transfer(transfer, self._context.now)

    def _fail(self, transfer: Transfer, failure: Failure, why: str) -> None:
        for waiter, _ in transfer.take_waiters():
            self._complete(waiter, failure, why)
        self._end_fetch(transfer)
        self._context.transfers.drop_if_done(transfer)

    def recover_from_fault(self, is_whole: Callable[[Transfer], bool], why: str) -> None:
        """End transfers that are not whole, with their readers, after a fault."""
        transfers = self._context.transfers
        for old in dict.fromkeys(transfers.values()):
            old.waiters = [entry for entry in old.waiters if not entry[0].is_done]
            old.done_entries = 0
            if not is_whole(old):
                for waiter, _ in old.take_waiters():
                    self._complete(waiter, Failure.UNREACHABLE, why)
                self._end(old)
        entries = [entry for transfer in transfers.values() for entry in transfer.waiters]
        coming = {(waiter, n) for waiter, positions in entries for n in positions}
        for waiter in list(self._waiters.values()):
            if waiter.is_done:
                self._forget_waiter(waiter)
                continue
            lacks = [n for n, data in enumerate(waiter.got) if data is None]
            if not lacks or any((waiter, n) not in coming for n in lacks):
                self._complete(waiter, Failure.UNREACHABLE, why)
        self.prefetch_limits.recount_running(dict.fromkeys(transfers.values()))
        self.lookups.recount_slots()

    # End of waiters

    def deadline_passed(self, waiter: Waiter) -> None:
        """Fail a waiter whose deadline passed."""
        if not waiter.is_done:
            transfers = (self._context.transfers.get(ref.key) for ref in waiter.refs)
            whys = (transfer.why for transfer in transfers if transfer is not None)
            self._complete(waiter, Failure.LATE, next(filter(None, whys), ""))

    def cancel_reads(self, token: Hashable) -> None:
        """Cancel a read; fetches under way continue, queued prefetches end."""
        waiter = self._waiters.get(token)
        if waiter is not None:
            self._forget_waiter(waiter)

    def _complete(self, waiter: Waiter, failure: Failure | None, why: str) -> None:
        if not waiter.is_done:
            waiter.is_done = True
            answer = actions.CompleteRead(waiter.token, waiter.got, failure, why)
            self._context.out.others.append(answer)
            self._forget_waiter(waiter)

    def _forget_waiter(self, waiter: Waiter) -> None:
        waiter.is_done = True
        if self._waiters.get(waiter.token) is waiter:
            del self._waiters[waiter.token]
        refs, got, waiter.refs, waiter.got = waiter.refs, waiter.got, [], []
        if not waiter.left:
            return
        left = collections.Counter(
            [
                transfer
                for ref, data in zip(refs, got, strict=True)
                if data is None and (transfer := self._context.transfers.get(ref.key)) is not None
            ]
        )
        for transfer, chunks in left.items():
            transfer.remove_waiters(chunks // transfer.chunk_count)
            if not transfer.is_wanted:
                if transfer.retry is not None or transfer.lookup is not None:
                    self._end_fetch(transfer)
                elif transfer.prefetch_queue not in (None, READAHEAD) and not transfer.is_fetching:
                    self.prefetch_limits.remove_transfer(transfer)
                self._context.transfers.drop_if_done(transfer)
