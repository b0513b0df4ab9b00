# SPDX-License-Identifier: Apache-2.0
"""Requests of peers: each gets one answer, or is cancelled.

The chunks that one host can make this one hold and fetch are bounded, abandoned fetches included.
The mode of a request limits what it may wait for.
"""

import collections
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Sequence

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine import requester
from acstor_agent.engine import transfer
from acstor_agent.engine import upload_scheduler
from acstor_agent.engine.data_structures import timers
from acstor_agent.engine.fetch import context
from acstor_agent.engine.fetch import read_through
from acstor_agent.engine.serve import authorization
from acstor_agent.engine.serve import requester_links
from acstor_agent.engine.serve import served_copies
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request

PendingRequest = requester.PendingRequest
Failure = failure.Failure
PEER, PREFETCH = priority.Priority.PEER, priority.Priority.PREFETCH
RELAYED = peer_request.Mode.RELAYED

HELD_WAIT_S = 2.0
"""Wait of a HELD request for a transfer: breaks a cycle of hosts with different tables."""
CHECK_S = 0.5  # interval of checks of deadlines; a timeout is at most this late
MAX_TIMEOUT_S = 60.0  # longest time for a request, whatever its sender says


class PeerRequests:
    """Pending requests of peers."""

    def __init__(
        self,
        context: context.Context,
        through: read_through.ReadThrough,
        rights: authorization.Authorization,
    ) -> None:
        self._context, self._read_through, self._rights = context, through, rights
        self.links = requester_links.RequesterLinks()
        self.copies = served_copies.ServedCopies(context)
        self._is_check_scheduled = False

    def __len__(self) -> int:
        return sum(len(link.peer_requests) for link in self.links)

    # New requests

    def take_requests(
        self, link: requester.RequesterLink, requests: Iterable[chunk_ref.Request]
    ) -> None:
        """Take new requests of a peer: authorize and answer them, or let them wait."""
        context, connection, host = self._context, link.connection, link.requester.host
        unknown: list[chunk_ref.Request] = []
        for request in requests:
            numbers = request.numbers
            if not link.peer_requests.keys().isdisjoint(numbers):
                why = f"request {request.number} twice"
                context.out.others.append(actions.CloseConnection(connection, why))
                break
            deadline_s = context.now + min(request.timeout_s, MAX_TIMEOUT_S)
            if link.requester.requests + len(numbers) > context.settings.requests_of_peer:
                all_pending = [PendingRequest(link, request, n, deadline_s) for n in numbers]
                self._refuse_excess(all_pending)
                continue
            refs = self._rights.authorize(host, request)
            if isinstance(refs, list) and self._may_give_run(link, request, refs):
                self._give_run(link, request, refs, deadline_s)
                continue
            all_pending = [PendingRequest(link, request, n, deadline_s) for n in numbers]
            self._add_requests(all_pending)
            if refs is None:
                unknown.append(request)
            elif isinstance(refs, str):
                self._refuse_all(all_pending, Failure.MISSING, refs)
            else:
                for pending, ref in zip(all_pending, refs, strict=True):
                    self._process(pending, ref)
        if unknown:
            context.out.others.append(actions.LookUpContents(connection, host, unknown))

    def _add_requests(self, all_pending: Sequence[PendingRequest]) -> None:
        self.links.add_requests(all_pending)
        if not self._is_check_scheduled:
            self._schedule_check()

    def contents_looked_up(
        self,
        connection: Hashable,
        found: Iterable[tuple[chunk_ref.Request, Sequence[ids.Content] | Failure]],
    ) -> None:
        """Continue requests whose images were looked up."""
        for request, contents in found:
            waiting = list(self.links.waiting(connection, request.numbers))
            all_pending = [a for a in waiting if a.request is request and a.ref is None]
            if not all_pending:
                continue  # cancelled, or authorized already
            if isinstance(contents, Failure):
                self._refuse_all(all_pending, contents, self._rights.not_looked_up(contents))
                continue
            refs = self._rights.authorize(all_pending[0].host, request, contents)
            assert refs is not None
            if isinstance(refs, str):
                self._refuse_all(all_pending, Failure.MISSING, refs)
                continue
            for pending in all_pending:
                self._process(pending, refs[pending.number - request.number])

    def _may_give_run(
        self,
        link: requester.RequesterLink,
        request: chunk_ref.Request,
        refs: Sequence[chunk_ref.ChunkRef],
    ) -> bool:
        context = self._context
        if len(refs) == 1 or context.settings.learns_ring:
            return False
        cids = [ref.cid for ref in refs]
        if len(set(cids)) < len(cids) or not all(map(context.cache.__contains__, cids)):
            return False
        if not link.uploads.has_slot(link.requester, refs):
            return False
        rights = self._rights
        return rights.names.may_serve_all(refs) or all(
            [rights.may_serve(ref, request.mode) for ref in refs]
        )

    def _give_run(
        self,
        link: requester.RequesterLink,
        request: chunk_ref.Request,
        refs: Sequence[chunk_ref.ChunkRef],
        deadline_s: float,
    ) -> None:
        context, host, priority = self._context, link.requester.host, request.priority
        if priority is not PREFETCH:
            context.overlap.record_overlap(True, len(refs))
        if request.mode is not RELAYED:
            self.copies.record_served(host, refs, priority)
        context.out.add_reply(link.connection, actions.SendRun(request.number, refs, priority))
        given = requester.ServedRequest(request.number, request, refs, priority, deadline_s)
        link.given.update(dict.fromkeys(request.numbers, given))
        link.uploads.chunks_sent(link, refs, context.now)

    def _process(self, pending: PendingRequest, ref: chunk_ref.ChunkRef) -> None:
        pending.ref = ref
        if pending.priority is not PREFETCH:
            self._context.overlap.record_overlap(self._is_shared(ref))
        if self._is_referred(pending):
            return
        if self._is_cached(pending):
            self._give_chunk(pending)
        else:
            self._fetch_chunk(pending)

    def _is_shared(self, ref: chunk_ref.ChunkRef) -> bool:
        context = self._context
        return ref.cid in context.cache or ref.key in context.transfers or ref.key in context.kept

    def _is_cached(self, pending: PendingRequest) -> bool:
        is_cached = pending.ref.cid in self._context.cache
        return is_cached and self._rights.may_serve(pending.ref, pending.mode)

    # Chunks that are not cached

    def _fetch_chunk(self, pending: PendingRequest) -> None:
        context, requester, mode = self._context, pending.link.requester, pending.mode
        if (kept := context.kept.get(pending.ref.key)) is not None:
            pending.data = kept
            self._give_chunk(pending)
            return
        transfer = context.transfers.single_transfer(pending.ref.key)
        is_left = mode is RELAYED and context.is_left_to_new_home(pending.ref, pending.host)
        if not mode.reads_source or is_left:
            self._join(pending, transfer)
            return
        is_new = transfer is None or (transfer.relay is None and transfer.read is None)
        if is_new and requester.begun >= context.settings.transfers_of_peer:
            self._refuse_excess((pending,))
            return
        transfer = context.transfers.get_or_create((pending.ref,), pending.priority)
        if is_new and transfer.charged_to is None:
            transfer.charged_to = requester
            requester.begun += 1
        transfer.peer_requests[pending] = None
        if mode is RELAYED:
            self._read_through.start_source_read(transfer, pending.priority, pending.host)
        else:
            self._read_through.start_read(transfer, pending.priority, pending.host, mode.is_moved)

    def _join(self, pending: PendingRequest, transfer: transfer.Transfer | None) -> None:
        """Let a request wait briefly for a transfer, unless only its host is asked."""
        is_coming = transfer is not None and transfer.read is not None
        if not is_coming and transfer is not None and pending.mode is not RELAYED:
            others = [attempt.host for attempt in transfer.attempts if attempt.host != pending.host]
            is_coming = bool(others) or transfer.relay is not None
        wait_s = HELD_WAIT_S if is_coming else self._context.lockstep.wait_s(pending, transfer)
        if not wait_s:
            self._refuse(pending, Failure.MISSING)
            return
        transfer = transfer or self._context.transfers.get_or_create(
            (pending.ref,), pending.priority
        )
        pending.deadline_s = min(pending.deadline_s, self._context.now + wait_s)
        transfer.peer_requests[pending] = None

    def chunks_arrived(self, transfer: transfer.Transfer, data: transfer.Bytes) -> None:
        """Answer all requests that wait for a transfer."""
        all_pending, transfer.peer_requests = transfer.peer_requests, {}
        for pending in all_pending:
            pending.data = data
            if not self._is_referred(pending):
                self._give_chunk(pending)

    def transfer_failed(self, transfer: transfer.Transfer, failure: Failure) -> None:
        """Refuse the requests for which nothing is under way now."""
        if transfer.read is not None:
            return
        is_relayed = transfer.relay is not None
        for pending in list(transfer.peer_requests):
            waits_on = is_relayed and pending.mode is not RELAYED
            is_held = not pending.mode.reads_source
            if not waits_on and not (is_held and (transfer.is_fetching or is_relayed)):
                del transfer.peer_requests[pending]
                self._refuse(pending, failure)

    def cache_read_failed(self, connection: Hashable, number: int) -> None:
        """Fetch a chunk that was to be given from the cache and could not be read."""
        link = self.links.get(connection)
        given = link.given.pop(number, None) if link is not None else None
        if link is not None and given is not None and number not in link.peer_requests:
            pending = PendingRequest(link, given.request, number, given.deadline_s)
            pending.ref, pending.priority = given.refs[number - given.number], given.priority
            self._add_requests([pending])
            self._fetch_chunk(pending)

    # Answers

    def _give_chunk(self, pending: PendingRequest) -> None:
        if self._would_delay_guests(pending):
            self._refuse(pending, Failure.BUSY)
            return
        if pending.mode is not RELAYED:
            self.copies.record_served(pending.host, (pending.ref,), pending.priority)
        uploads = pending.link.uploads
        if uploads.has_slot(pending.link.requester, (pending.ref,)):
            self._answer(pending)
        else:
            uploads.queue_answer(pending, self._context.now)
            self._send_more(uploads)

    def _would_delay_guests(self, pending: PendingRequest) -> bool:
        is_ahead = pending.priority is PREFETCH and not pending.mode.reads_source
        return is_ahead and pending.link.uploads.is_busy

    def _is_referred(self, pending: PendingRequest) -> bool:
        hosts = self.copies.refer(pending)
        if hosts:
            self._end(pending, actions.SendReferral(pending.number, hosts))
        return bool(hosts)

    def _answer(self, pending: PendingRequest) -> None:
        link, ref = pending.link, pending.ref
        link.uploads.chunks_sent(link, (ref,), self._context.now)
        if pending.data is None:
            how = pending.priority, pending.deadline_s
            what = pending.number, pending.request, (ref,)
            link.given[pending.number] = requester.ServedRequest(*what, *how)
        self._end(pending, actions.SendChunk(pending.number, ref, pending.data, pending.priority))

    def _send_more(self, uploads: upload_scheduler.UploadScheduler) -> None:
        while (pending := uploads.take_next_answer()) is not None:
            if pending.data is not None or self._is_cached(pending):
                self._answer(pending)
            else:
                self._fetch_chunk(pending)
            uploads.unpark(pending.link.requester)

    def answers_delivered(self, connection: Hashable, late_s: float) -> None:
        """Record that all bytes of a connection were delivered, up to ``late_s`` ago."""
        if (link := self.links.get(connection)) is not None:
            link.given.clear()
            link.uploads.answers_delivered(link, self._context.now, late_s)
            self._send_more(link.uploads)

    def slots_timed_out(self, link: requester.RequesterLink) -> None:
        """Reclaim the upload slots of a connection that holds them too long."""
        link.uploads.reclaim_slots(link, self._context.now)
        self._send_more(link.uploads)

    def _refuse(self, pending: PendingRequest, failure: Failure, why: str = "") -> None:
        request = pending.request if why else None
        self._end(pending, actions.SendRefusal(pending.number, failure, why, request))

    def _refuse_all(
        self, all_pending: Sequence[PendingRequest], failure: Failure, why: str = ""
    ) -> None:
        for pending in all_pending:
            self._refuse(pending, failure, why)

    def _refuse_excess(self, all_pending: Sequence[PendingRequest]) -> None:
        for pending in all_pending:
            self._end(pending, actions.SendExcessRefusal(pending.number, Failure.BUSY))

    def _end(self, pending: PendingRequest, answer: actions.Answer | None = None) -> None:
        if answer is not None:
            self._context.out.add_reply(pending.link.connection, answer)
        pending.data = None
        self.links.remove_request(pending)

    # Deadlines, cancellation, priority

    def _schedule_check(self) -> None:
        self._context.timers.set_timer(
            self._context.now + CHECK_S, timers.Due.REQUEST_DEADLINES, None
        )
        self._is_check_scheduled = True

    def check_deadlines(self) -> None:
        """Refuse requests whose deadline passed; send keepalives for the others."""
        context, alive = self._context, []
        for link in self.links:
            for pending in [a for a in link.peer_requests.values() if a.deadline_s <= context.now]:
                is_held = pending.ref is not None and not pending.mode.reads_source
                self._detach_request(pending)
                self._refuse(pending, Failure.MISSING if is_held else Failure.UNREACHABLE)
            if link.peer_requests and context.now - link.alive_s >= context.settings.timeout_s / 3:
                link.alive_s = context.now
                alive.append(link.connection)
        if alive:
            context.out.others.append(actions.SendKeepalives(alive))
        self._is_check_scheduled = False
        if len(self):
            self._schedule_check()

    def cancel_requests(self, connection: Hashable, numbers: Iterable[int]) -> None:
        """Cancel requests."""
        for pending in self.links.waiting(connection, numbers):
            self._detach_request(pending)
            self._end(pending)

    def connection_ended(self, connection: Hashable) -> None:
        """Cancel all requests of a connection that ended."""
        link = self.links.remove(connection)
        if link is not None:
            for pending in list(link.peer_requests.values()):
                self._detach_request(pending)
                self._end(pending)
            link.uploads.forget_connection(link, self._context.now)
            self._send_more(link.uploads)

    def recover_from_fault(self) -> None:
        """Refuse requests that wait for nothing, and rebuild counters, after a fault."""
        links, transfers = list(self.links), self._context.transfers.values()
        for uploads in (self._context.uploads, self._context.far_uploads):
            uploads.recount_uploads(links, self._context.now)
        self.links.recount(collections.Counter(transfer.charged_to for transfer in transfers))
        for pending in [pending for link in links for pending in link.peer_requests.values()]:
            is_queued = pending.link.uploads.is_waiting(pending)
            if pending.ref and not (self._transfer_of(pending) or is_queued):
                self._refuse(pending, Failure.UNREACHABLE)

    def raise_priority(self, connection: Hashable, numbers: Iterable[int]) -> None:
        """Raise pending requests to PEER."""
        for pending in self.links.waiting(connection, numbers):
            if pending.priority <= PEER:
                continue
            is_in_line = pending.ref is not None and pending.link.uploads.remove(pending)
            pending.priority = PEER
            transfer = self._transfer_of(pending)
            if is_in_line:
                pending.link.uploads.queue_answer(pending, self._context.now)
            elif transfer is not None and pending.mode.reads_source:
                self._read_through.raise_priority(transfer, PEER, pending.host)

    def follow_table(self) -> None:
        """Forget hosts that must not be named any more, and idle requesters."""
        self.copies.follow_table()
        self.links.drop_idle()

    def _detach_request(self, pending: PendingRequest) -> None:
        transfer = self._transfer_of(pending)
        if transfer is not None:
            del transfer.peer_requests[pending]
            self._context.transfers.drop_if_done(transfer)
        elif pending.ref is not None:
            pending.link.uploads.remove(pending)

    def _transfer_of(self, pending: PendingRequest) -> transfer.Transfer | None:
        transfer = self._context.transfers.get(pending.ref.key) if pending.ref else None
        return transfer if transfer is not None and pending in transfer.peer_requests else None
