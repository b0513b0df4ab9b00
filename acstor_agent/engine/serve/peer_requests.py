# SPDX-License-Identifier: Apache-2.0
"""Requests of peers: for chunks that are cached, under way, or only at the source.

Each request is answered once, cancelled, or times out. Its mode
(``acstor_common.wire.peer_request``) limits what it may wait for. What one host can make this host
hold and fetch is bounded, including fetches that it no longer waits for.
"""

import collections
from collections.abc import Container
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine import requester
from acstor_agent.engine import timers
from acstor_agent.engine import transfer
from acstor_agent.engine.fetch import context
from acstor_agent.engine.fetch import read_through
from acstor_agent.engine.serve import authorization
from acstor_agent.engine.serve import referrals
from acstor_common.model import ids
from acstor_common.wire import peer_request

PendingRequest = requester.PendingRequest
Failure = failure.Failure
PEER, PREFETCH = priority.Priority.PEER, priority.Priority.PREFETCH
RELAYED = peer_request.Mode.RELAYED

HELD_WAIT_S = 2.0
"""Wait of a HELD request for a transfer: breaks a cycle of hosts with different tables."""
LOOK_S = 0.5
"""Interval at which deadlines are checked, so the longest delay of a timeout."""
LONGEST_S = 60.0
"""Longest time for a request, whatever its sender says."""


class PeerRequests:
    """Pending requests of peers."""

    def __init__(
        self,
        context: context.Context,
        through: read_through.ReadThrough,
        rights: authorization.Authorization,
    ) -> None:
        self._context, self._read_through, self._rights = context, through, rights
        self.uploads = context.uploads
        self.referrals = referrals.Referrals(context.host_keys)
        self.given = self.referred = 0
        self.receivers: dict[ids.HostId, requester.Requester] = {}
        self._links: dict[Hashable, requester.RequesterLink] = {}
        self._is_check_scheduled = False
        self._segment_chunks = context.ring.table.segment_chunks

    def __len__(self) -> int:
        return sum(len(link.peer_requests) for link in self._links.values())

    # New requests

    def take_requests(
        self, connection: Hashable, host: ids.HostId, requests: Iterable[chunk_ref.Request]
    ) -> None:
        """Take new requests of a peer: authorize and answer them, or let them wait."""
        context, link = self._context, self._link(connection, host)
        unknown: list[chunk_ref.Request] = []
        for request in requests:
            numbers = request.numbers
            if not link.peer_requests.keys().isdisjoint(numbers):
                why = f"request {request.number} twice"
                context.out.others.append(actions.CloseConnection(connection, why))
                break
            deadline_s = context.now + min(request.timeout_s, LONGEST_S)
            if link.receiver.requests + len(numbers) > context.settings.requests_of_peer:
                askers = [PendingRequest(link, request, n, deadline_s) for n in numbers]
                self._refuse_all(askers, Failure.BUSY)
                continue
            refs = self._rights.authorize(host, request)
            if isinstance(refs, list) and self._may_give_run(link.receiver, request, refs):
                self._give_run(link, request, refs, deadline_s)
                continue
            askers = [PendingRequest(link, request, n, deadline_s) for n in numbers]
            self._add_requests(askers)
            if refs is None:
                unknown.append(request)
            elif isinstance(refs, str):
                self._refuse_all(askers, Failure.MISSING, refs)
            else:
                for asker, ref in zip(askers, refs, strict=True):
                    self._go_on(asker, ref)
        if unknown:
            context.out.others.append(actions.LookUpContents(connection, host, unknown))

    def _link(self, connection: Hashable, host: ids.HostId) -> requester.RequesterLink:
        link = self._links.get(connection)
        if link is None:
            receiver = self.receivers.get(host)
            if receiver is None:
                receiver = self.receivers[host] = requester.Requester(host)
            link = self._links[connection] = requester.RequesterLink(connection, receiver)
            receiver.links += 1
        if not link.peer_requests:
            link.alive_s = self._context.now
        return link

    def _add_requests(self, askers: Sequence[PendingRequest]) -> None:
        link = askers[0].link
        link.peer_requests.update([(asker.number, asker) for asker in askers])
        link.receiver.requests += len(askers)
        if not self._is_check_scheduled:
            self._schedule_check()

    def contents_looked_up(
        self,
        connection: Hashable,
        found: Iterable[tuple[chunk_ref.Request, Sequence[ids.Content] | Failure]],
    ) -> None:
        """Continue requests whose images were looked up."""
        for request, contents in found:
            waiting = list(self._waiting(connection, request.numbers))
            askers = [a for a in waiting if a.request is request and a.ref is None]
            if not askers:
                continue  # cancelled, or authorized already
            if isinstance(contents, Failure):
                self._refuse_all(askers, contents, self._rights.not_looked_up(contents))
                continue
            refs = self._rights.authorize(askers[0].host, request, contents)
            assert refs is not None
            if isinstance(refs, str):
                self._refuse_all(askers, Failure.MISSING, refs)
                continue
            for asker in askers:
                self._go_on(asker, refs[asker.number - request.number])

    def is_waiting(self, asker: PendingRequest) -> bool:
        """Return whether a request is pending on an open connection."""
        link = self._links.get(asker.link.connection)
        return link is asker.link and link.peer_requests.get(asker.number) is asker

    def _waiting(self, connection: Hashable, numbers: Iterable[int]) -> Iterator[PendingRequest]:
        link = self._links.get(connection)
        for number in numbers if link is not None else ():
            assert link is not None
            if (asker := link.peer_requests.get(number)) is not None:
                yield asker

    def _may_give_run(
        self,
        receiver: requester.Requester,
        request: chunk_ref.Request,
        refs: Sequence[chunk_ref.ChunkRef],
    ) -> bool:
        """Return whether a run is cached and may be sent as one answer now."""
        context, uploads = self._context, self.uploads
        if len(refs) == 1 or context.settings.learns_ring:
            return False
        cids = [ref.cid for ref in refs]
        if len(set(cids)) < len(cids) or not all(map(context.cache.__contains__, cids)):
            return False
        if not uploads.has_slot(receiver, refs):
            return False
        rights = self._rights
        return rights.names.may_give_all(refs) or all(
            [rights.may_give(ref, request.mode) for ref in refs]
        )

    def _give_run(
        self,
        link: requester.RequesterLink,
        request: chunk_ref.Request,
        refs: Sequence[chunk_ref.ChunkRef],
        deadline_s: float,
    ) -> None:
        context, host, priority = self._context, link.receiver.host, request.priority
        if priority is not PREFETCH:
            context.overlap.record_overlap(True, len(refs))
        if request.mode is not RELAYED and self._is_named(host):
            known = self.referrals.record_served(refs, host, priority)
            self._hint_surplus_copies(host, refs, known)
        self.given += len(refs)
        context.out.add_reply(link.connection, actions.SendRun(request.number, refs, priority))
        given = requester.ServedRequest(request.number, request, refs, priority, deadline_s)
        link.given.update(dict.fromkeys(request.numbers, given))
        self.uploads.chunks_sent(link, refs, context.now)

    def _go_on(self, asker: PendingRequest, ref: chunk_ref.ChunkRef) -> None:
        asker.ref = ref
        if asker.priority is not PREFETCH:
            self._context.overlap.record_overlap(self._is_shared(ref))
        if self._is_referred(asker):
            return
        if self._is_here(asker):
            self._give_chunk(asker)
        else:
            self._fetch_chunk(asker)

    def _is_shared(self, ref: chunk_ref.ChunkRef) -> bool:
        """Return whether another reader has requested the chunk before."""
        context = self._context
        return ref.cid in context.cache or ref.key in context.transfers or ref.key in context.kept

    def _is_here(self, asker: PendingRequest) -> bool:
        is_cached = asker.ref.cid in self._context.cache
        return is_cached and self._rights.may_give(asker.ref, asker.mode)

    # Chunks that are not cached

    def _fetch_chunk(self, asker: PendingRequest) -> None:
        """Let a request wait for a transfer, and start a read if its mode allows."""
        context, receiver, mode = self._context, asker.link.receiver, asker.mode
        if (kept := context.kept.get(asker.ref.key)) is not None:
            asker.data = kept
            self._give_chunk(asker)
            return
        transfer = context.transfers.single_transfer(asker.ref.key)
        is_left = mode is RELAYED and context.is_left_to_new_home(asker.ref, asker.host)
        if not mode.reads_source or is_left:
            self._join(asker, transfer)
            return
        is_new = transfer is None or (transfer.relay is None and transfer.read is None)
        if is_new and receiver.begun >= context.settings.transfers_of_peer:
            self._refuse(asker, Failure.BUSY)
            return
        transfer = context.transfers.get_or_create((asker.ref,), asker.priority)
        if is_new and transfer.charged_to is None:
            transfer.charged_to = receiver
            receiver.begun += 1
        transfer.peer_requests[asker] = None
        if mode is RELAYED:
            self._read_through.read(transfer, asker.priority, asker.host)
        else:
            self._read_through.start_read(transfer, asker.priority, asker.host, mode.is_moved)

    def _join(self, asker: PendingRequest, transfer: transfer.Transfer | None) -> None:
        """Let a HELD request wait briefly for a transfer, if not for the peer itself."""
        is_coming = transfer is not None and transfer.read is not None
        if not is_coming and transfer is not None and asker.mode is not RELAYED:
            others = [attempt.host for attempt in transfer.attempts if attempt.host != asker.host]
            is_coming = bool(others) or transfer.relay is not None
        wait_s = HELD_WAIT_S if is_coming else self._context.lockstep.wait_s(asker, transfer)
        if not wait_s:
            self._refuse(asker, Failure.MISSING)
            return
        transfer = transfer or self._context.transfers.get_or_create((asker.ref,), asker.priority)
        asker.deadline_s = min(asker.deadline_s, self._context.now + wait_s)
        transfer.peer_requests[asker] = None

    def chunks_arrived(self, transfer: transfer.Transfer, data: transfer.Bytes) -> None:
        """Answer all requests that wait for a transfer."""
        askers, transfer.peer_requests = transfer.peer_requests, {}
        for asker in askers:
            asker.data = data
            if not self._is_referred(asker):
                self._give_chunk(asker)

    def requests_failed(self, transfer: transfer.Transfer, failure: Failure) -> None:
        """Refuse the requests whose track of a transfer has ended."""
        if transfer.read is not None:
            return
        is_relayed = transfer.relay is not None
        for asker in list(transfer.peer_requests):
            waits_on = is_relayed and asker.mode is not RELAYED
            is_held = not asker.mode.reads_source
            if not waits_on and not (is_held and (transfer.is_fetching or is_relayed)):
                del transfer.peer_requests[asker]
                self._refuse(asker, failure)

    def cache_read_failed(self, connection: Hashable, number: int) -> None:
        """Fetch a chunk that was to be given from the cache and could not be read."""
        link = self._links.get(connection)
        given = link.given.pop(number, None) if link is not None else None
        if link is not None and given is not None and number not in link.peer_requests:
            asker = PendingRequest(link, given.request, number, given.deadline_s)
            asker.ref, asker.priority = given.refs[number - given.number], given.priority
            self._add_requests([asker])
            self._fetch_chunk(asker)

    # Answers

    def _give_chunk(self, asker: PendingRequest) -> None:
        """Send or queue the chunk, and record that the peer has it."""
        if self._is_in_the_way(asker):
            self._refuse(asker, Failure.BUSY)
            return
        if asker.mode is not RELAYED and self._is_named(asker.host):
            refs = (asker.ref,)
            known = self.referrals.record_served(refs, asker.host, asker.priority)
            self._hint_surplus_copies(asker.host, refs, known)
        if self.uploads.has_slot(asker.link.receiver, (asker.ref,)):
            self._answer(asker)
        else:
            self.uploads.put(asker, self._context.now)
            self._send_more()

    def _is_in_the_way(self, asker: PendingRequest) -> bool:
        """Return whether a prefetch would take the uplink from waiting guests."""
        is_ahead = asker.priority is PREFETCH and not asker.mode.reads_source
        return is_ahead and self.uploads.is_busy

    def _is_named(self, host: ids.HostId) -> bool:
        context = self._context
        return context.ring.is_giver(host) and not context.peers.is_in_backoff(host, context.now)

    def _referral(self, asker: PendingRequest) -> tuple[ids.HostId, ...]:
        """Return the hosts to refer a peer to, the best first."""
        context = self._context
        is_tree = context.uploads.is_busy and asker.mode.may_refer
        learns_ring = context.settings.learns_ring and asker.mode is not RELAYED
        if not ((is_tree or learns_ring) and self._is_named(asker.host)):
            return ()
        hosts = context.lockstep.refer(asker, self._is_named) if learns_ring else None
        if hosts is None and is_tree:
            hosts = self.referrals.referrals_for(asker.ref, asker.host, asker.priority)
            if len(hosts) == 1 and learns_ring:
                hosts += (context.ring.here,)  # alone it would be the next one in step
        return hosts or ()

    def _is_referred(self, asker: PendingRequest) -> bool:
        """Name hosts that can give a content sooner than this one, if there are any."""
        hosts = self._referral(asker)
        if hosts:
            self._hint_surplus_copies(asker.host, (asker.ref,), [asker.ref.oid])
            self.referred += 1
            self._end(asker, actions.SendReferral(asker.number, hosts))
        return bool(hosts)

    def _hint_surplus_copies(
        self, host: ids.HostId, refs: Sequence[chunk_ref.ChunkRef], known: Container[ids.Oid]
    ) -> None:
        """Queue eviction hints for the oldest holders of chunks with too many copies."""
        context, limit = self._context, self._context.settings.copies_limit
        news, is_hinted = context.announcements, host in context.announcements.hints
        if not limit or not (known or is_hinted):
            return
        for ref in refs:
            if not context.ring.is_home(ref.place):
                continue
            if is_hinted:
                news.withdraw_hint(host, ref)
            if ref.oid in known and (
                (holder := self.referrals.take_surplus(ref, limit)) is not None
            ):
                news.hint_eviction(holder, ref)

    def _answer(self, asker: PendingRequest) -> None:
        self.given += 1
        link, ref = asker.link, asker.ref
        self.uploads.chunks_sent(link, (ref,), self._context.now)
        if asker.data is None:
            how = asker.priority, asker.deadline_s
            what = asker.number, asker.request, (ref,)
            link.given[asker.number] = requester.ServedRequest(*what, *how)
        self._end(asker, actions.SendChunk(asker.number, ref, asker.data, asker.priority))

    def _send_more(self) -> None:
        """Answer queued requests while there are slots; evicted chunks are fetched again."""
        while (asker := self.uploads.take_next_answer()) is not None:
            if asker.data is not None or self._is_here(asker):
                self._answer(asker)
            else:
                self._fetch_chunk(asker)
            self.uploads.unpark(asker.link.receiver)

    def answers_delivered(self, connection: Hashable, late_s: float) -> None:
        """Record that all bytes of a connection were delivered, up to ``late_s`` ago."""
        if (link := self._links.get(connection)) is not None:
            link.given.clear()
            self.uploads.answers_delivered(link, self._context.now, late_s)
            self._send_more()

    def slots_timed_out(self, link: requester.RequesterLink) -> None:
        """Reclaim the upload slots of a connection that holds them too long."""
        self.uploads.reclaim_places(link, self._context.now)
        self._send_more()

    def _refuse(self, asker: PendingRequest, failure: Failure, why: str = "") -> None:
        request = asker.request if why else None
        self._end(asker, actions.SendRefusal(asker.number, failure, why, request))

    def _refuse_all(
        self, askers: Sequence[PendingRequest], failure: Failure, why: str = ""
    ) -> None:
        for asker in askers:
            self._refuse(asker, failure, why)

    def _end(self, asker: PendingRequest, answer: actions.Answer | None = None) -> None:
        if answer is not None:
            self._context.out.add_reply(asker.link.connection, answer)
        asker.data = None
        if asker.link.peer_requests.pop(asker.number, None) is not None:
            asker.link.receiver.requests -= 1

    # Deadlines, cancellation, priority

    def _schedule_check(self) -> None:
        self._context.timers.put(self._context.now + LOOK_S, timers.Due.REQUEST_DEADLINES, None)
        self._is_check_scheduled = True

    def check_deadlines(self) -> None:
        """Refuse requests whose deadline passed; send keepalives for the others."""
        context, alive = self._context, []
        for link in self._links.values():
            for asker in [a for a in link.peer_requests.values() if a.deadline_s <= context.now]:
                is_held = asker.ref is not None and not asker.mode.reads_source
                self._detach_request(asker)
                self._refuse(asker, Failure.MISSING if is_held else Failure.UNREACHABLE)
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
        for asker in self._waiting(connection, numbers):
            self._detach_request(asker)
            self._end(asker)

    def connection_ended(self, connection: Hashable) -> None:
        """Cancel all requests of a connection that ended."""
        link = self._links.pop(connection, None)
        if link is not None:
            link.receiver.links -= 1
            for asker in list(link.peer_requests.values()):
                self._detach_request(asker)
                self._end(asker)
            self.uploads.forget_connection(link, self._context.now)
            self._send_more()

    def recover_from_fault(self) -> None:
        """Refuse requests that wait for nothing, and rebuild counters, after a fault."""
        links, transfers = list(self._links.values()), self._context.transfers.values()
        self.uploads.recount_uploads(links, self._context.now)
        charged = collections.Counter(transfer.charged_to for transfer in transfers)
        for receiver in self.receivers.values():
            receiver.begun, receiver.requests = charged[receiver], 0
        for link in links:
            link.receiver.requests += len(link.peer_requests)
        for asker in [asker for link in links for asker in link.peer_requests.values()]:
            if asker.ref and not (self._transfer_of(asker) or self.uploads.is_waiting(asker)):
                self._refuse(asker, Failure.UNREACHABLE)

    def raise_priority(self, connection: Hashable, numbers: Iterable[int]) -> None:
        """Raise pending requests to PEER."""
        for asker in self._waiting(connection, numbers):
            if asker.priority <= PEER:
                continue
            is_in_line = asker.ref is not None and self.uploads.remove(asker)
            asker.priority = PEER
            transfer = self._transfer_of(asker)
            if is_in_line:
                self.uploads.put(asker, self._context.now)
            elif transfer is not None and asker.mode.reads_source:
                self._read_through.raise_priority(transfer, PEER, asker.host)

    def follow_table(self) -> None:
        """Forget hosts that must not be named any more, and idle requesters."""
        length = self._context.ring.table.segment_chunks
        if length != self._segment_chunks:
            self._segment_chunks = length
            self.referrals.clear()
        for host in self._context.host_keys.list_hosts():
            if not self._is_named(host):
                self._context.host_keys.forget_host(host)
        for receiver in list(self.receivers.values()):
            if not (receiver.links or receiver.begun):
                del self.receivers[receiver.host]

    def _detach_request(self, asker: PendingRequest) -> None:
        transfer = self._transfer_of(asker)
        if transfer is not None:
            del transfer.peer_requests[asker]
            self._context.transfers.drop_if_done(transfer)
        elif asker.ref is not None:
            self.uploads.remove(asker)

    def _transfer_of(self, asker: PendingRequest) -> transfer.Transfer | None:
        transfer = self._context.transfers.get(asker.ref.key) if asker.ref else None
        return transfer if transfer is not None and asker in transfer.peer_requests else None
