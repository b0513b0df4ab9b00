# SPDX-License-Identifier: Apache-2.0
"""The server end of a connection: takes another agent's requests, sends answers.

Requests in progress and bytes of answers are bounded, per host and in total; others wait in the
socket. A timeout starts when its request is received. Requests that arrived together are passed to
the handler in one call.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Protocol

import trio

from acstor_agent.core import budget
from acstor_agent.peers import peer_link
from acstor_agent.peers.connection import base_connection
from acstor_agent.peers.connection import demand_gate
from acstor_agent.peers.connection import loop_share
from acstor_agent.peers.connection import peer_limits
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import token_buckets
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire

OnAnnouncement = Callable[[ids.HostId, peer_wire.Notification], None]
"""Called with a host and its announcement."""
Answer = peer_wire.Chunk | peer_wire.Refuse | peer_wire.Refer

_USELESS = frozenset({peer_wire.RefuseCode.MISSING, peer_wire.RefuseCode.WITHHELD})
"""Refusals that are charged to the requester; BUSY is only beyond its own limits."""
MESSAGE_BYTES = 128  # overhead of a queued message
ANSWER_BYTES = 2 * MESSAGE_BYTES + 64
"""Reserved for an answer beside its chunk: enough for a refusal."""


NOTIFICATIONS = token_buckets.Rate(per_s=200.0, burst=400.0)
"""Announcement messages from a host; 70 a second fill 10 Gbit/s."""
ENTRIES_PER_TOKEN = 16  # leases or shares that cost as much as a message; chunks have own limits


class RequestHandler(Protocol):
    """Answers requests; no method waits, or fails because of a peer."""

    def requests_received(
        self,
        connection: "ServerConnection",
        requests: Sequence[peer_wire.ChunkRequest],
        arrived_s: float,
    ) -> None:
        """Take requests with unused numbers that arrived together at ``arrived_s`` (trio's clock).

        Each gets one :meth:`ServerConnection.send_answers`, unless it is cancelled before.
        """

    def requests_cancelled(
        self, connection: "ServerConnection", request_ids: Sequence[int]
    ) -> None:
        """Cancel unanswered requests."""

    def priorities_raised(self, connection: "ServerConnection", request_ids: Sequence[int]) -> None:
        """Raise the priority of unanswered requests, since guests now wait for them."""

    def answers_drained(self, connection: "ServerConnection") -> None:
        """React to the socket having taken all queued answers."""

    def connection_ended(self, connection: "ServerConnection") -> None:
        """React to the end of a connection, on which nothing can be sent any more."""


class Budgets:
    """Limits that all peers share."""

    def __init__(self, limits: peer_limits.PeerLimits) -> None:
        self.notifications: token_buckets.TokenBuckets[
            tuple[ids.HostId, peer_wire.ConnectionClass]
        ] = token_buckets.TokenBuckets(NOTIFICATIONS, limits.incoming)
        self.requests = budget.Budget(limits.requests, limits.host_requests)
        self.bytes = budget.Budget(limits.answer_bytes, limits.host_answer_bytes)


class ServerConnection(base_connection.PeerConnection):
    """The end that accepted the connection."""

    def __init__(
        self,
        link: peer_link.PeerLink,
        receiver: peer_receiver.Receiver,
        hello: peer_wire.Hello,
        gate: demand_gate.DemandGate,
        handler: RequestHandler,
        on_announcement: OnAnnouncement,
        budgets: Budgets,
        share: loop_share.LoopShare,
    ) -> None:
        super().__init__(hello.host_id, link, receiver, hello.klass, gate, share)
        self._handler = handler
        self._on_announcement = on_announcement
        self._budgets = budgets
        self._charged_bytes = 0
        self._received: list[peer_wire.ChunkRequest] = []  # passed to the handler together
        self._open: dict[int, int] = {}  # unanswered requests, and their bytes
        self._open_chunks = 0
        self._answering_bytes = 0
        self._last_post = self._arrived_s = trio.current_time()

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress and no answer is queued."""
        return not self._open_chunks and not self.outbox_bytes

    def _parts(self, messages: list[peer_wire.Message]) -> Sequence[base_connection.Part]:
        self._arrived_s = self.last_progress
        has_notification = any(
            [isinstance(message, peer_wire.Notification) for message in messages]
        )
        self._account(loop_share.small_messages(messages, self._open), is_useful=has_notification)
        if any([isinstance(message, peer_wire.Cancel) for message in messages]):
            return _not_cancelled(messages)
        return messages

    def _is_over(self, request: peer_wire.ChunkRequest) -> bool:
        return trio.current_time() - self._arrived_s >= request.timeout_ms / 1000

    def _has_room(self, part: base_connection.Part) -> bool:
        budgets, sharer = self._budgets, self._sharer
        match part:
            case peer_wire.Get(requests):
                count = sum([request.chunk_count for request in requests])
                total = sum([request.length for request in requests]) + count * ANSWER_BYTES
                return (
                    budgets.requests.may_take_in_parts(sharer, count)
                    and budgets.bytes.may_take_in_parts(sharer, total)
                ) or self._is_over(requests[0])
            case peer_wire.ChunkRequest():
                count, total = part.chunk_count, part.length + part.chunk_count * ANSWER_BYTES
                return (
                    budgets.requests.may_take(sharer, count)
                    and budgets.bytes.may_take(sharer, total)
                ) or self._is_over(part)
            case peer_wire.Cancel():
                return True
            case _ if isinstance(part, peer_wire.Notification):
                return budgets.notifications.tokens_left(sharer, trio.current_time()) >= 1
        return budgets.bytes.may_take(sharer, MESSAGE_BYTES)

    def _outbox_changed(self) -> None:
        held_bytes = self._answering_bytes + self.outbox_bytes
        held_bytes += MESSAGE_BYTES * (len(self._outbox) + len(self._run))
        held_bytes += ANSWER_BYTES * self._open_chunks
        self._charge(held_bytes)

    def _drained(self) -> None:
        self._handler.answers_drained(self)

    def _charge(self, held_bytes: int) -> None:
        if held_bytes != self._charged_bytes:
            self._budgets.bytes.charge(self._sharer, held_bytes - self._charged_bytes)
            self._charged_bytes = held_bytes

    async def run(self, early: list[peer_wire.Message]) -> None:
        """Do as :meth:`base_connection.PeerConnection.run`; then release the host's budgets."""
        try:
            await super().run(early)
        finally:
            self._handler.connection_ended(self)
            self._charge(0)
            self._budgets.requests.charge(self._sharer, -self._open_chunks)
            self._open_chunks = 0

    def send_keepalive(self, now: float, after_s: float) -> None:
        """Send a Ping if answers take long."""
        if self._open_chunks and now - self._last_post > after_s:
            self.send_messages(peer_wire.Ping(0))

    def send_messages(self, *messages: peer_wire.Message) -> None:
        """Send messages as soon as the socket takes them."""
        self._last_post = trio.current_time()
        super().send_messages(*messages)

    def _handle(self, part: base_connection.Part) -> None:
        match part:
            case peer_wire.Get(requests):
                self._take(requests)
            case peer_wire.ChunkRequest():
                self._take((part,))
            case peer_wire.Cancel(request_ids):
                self._settle()  # the handler must know the requests
                known = [number for number in request_ids if number in self._open]
                if known:
                    self._handler.requests_cancelled(self, known)
                    self._release([self._open.pop(number) for number in known])
                    self._outbox_changed()
            case peer_wire.RaisePriority(request_ids):
                self._settle()
                known = [number for number in request_ids if number in self._open]
                if known:
                    self._handler.priorities_raised(self, known)
            case peer_wire.Ping(token):
                self.send_messages(peer_wire.Pong(token))
            case _ if isinstance(part, peer_wire.Notification):
                tokens = 1.0
                if isinstance(part, peer_wire.ReplicaRequest | peer_wire.ReplicaReport):
                    tokens += base_connection.count_entries(part) / ENTRIES_PER_TOKEN
                self._budgets.notifications.charge_tokens(self._sharer, tokens, trio.current_time())
                self._on_announcement(self.host, part)

    def _take(self, requests: Sequence[peer_wire.ChunkRequest]) -> None:
        asked: dict[int, int] = {}
        for request in requests:
            asked.update(request.lengths)
        if twice := self._open.keys() & asked.keys():
            raise errors.RemoteProtocolError(self.peer, f"request id {min(twice)} twice")
        if self._is_over(requests[0]):
            for number in asked:
                self.send_messages(peer_wire.Refuse(number, peer_wire.RefuseCode.UNREACHABLE))
            return
        self._open.update(asked)
        self._open_chunks += len(asked)
        self._budgets.requests.charge(self._sharer, len(asked))
        self._answering_bytes += sum(asked.values())
        self._outbox_changed()
        self._received += requests

    def _settle(self) -> None:
        if self._received:
            asked, self._received = self._received, []
            self._handler.requests_received(self, asked, self._arrived_s)

    def send_answers(self, answers: Iterable[Answer]) -> None:
        """Answer pending requests, together as far as possible."""
        is_useful, refused = False, 0
        awaited: list[Answer] = []
        lengths: list[int] = []
        known = self._open
        for answer in self._awaited(answers):
            awaited.append(answer)
            if isinstance(answer, peer_wire.Chunk):
                is_useful, numbers = True, answer.numbers
                lengths += [known[number] for number in numbers]
                for number in numbers:
                    del known[number]
                continue
            lengths.append(known.pop(answer.request_id))
            if isinstance(answer, peer_wire.Refuse):
                refused += answer.code in _USELESS
            else:
                is_useful = True
        if awaited:
            self._release(lengths)
            self.send_messages(*awaited)
        self._account(refused * loop_share.REFUSAL_PRICE, is_useful=is_useful)

    def charge_refusal(self) -> None:
        """Charge the requester for a BUSY refusal that it caused."""
        self._account(loop_share.REFUSAL_PRICE, is_useful=False)

    def _awaited(self, answers: Iterable[Answer]) -> Iterator[Answer]:
        """Yield the answers to pending requests; of a partly answered run, chunk by chunk."""
        known = self._open
        for answer in answers:
            if isinstance(answer, peer_wire.Chunk) and answer.chunk_bytes:
                if all([number in known for number in answer.numbers]):
                    yield answer
                else:
                    yield from (
                        chunk for chunk in answer.iter_chunks() if chunk.request_id in known
                    )
            elif answer.request_id in known:
                yield answer

    def _release(self, lengths: Sequence[int]) -> None:
        if self._open_chunks:  # else the connection has ended
            self._open_chunks -= len(lengths)
            self._budgets.requests.charge(self._sharer, -len(lengths))
            self._answering_bytes -= sum(lengths)
        self._has_changed.set()


def _not_cancelled(messages: list[peer_wire.Message]) -> list[peer_wire.Message]:
    """Drop requests that later messages cancel; put Cancels of others first, to make room."""
    cancelled: set[int] = set()
    left: list[peer_wire.Message] = []
    for message in reversed(messages):
        if isinstance(message, peer_wire.Cancel):
            cancelled.update(message.request_ids)
        elif isinstance(message, peer_wire.Get):
            kept = tuple(
                [
                    request
                    for request in message.requests
                    if not cancelled.issuperset(request.numbers)
                ]
            )
            of_runs = {number for request in kept for number in request.numbers} & cancelled
            if of_runs:  # part of a run: cancel it after the run is known
                left.append(peer_wire.Cancel(tuple(of_runs)))
            for request in message.requests:
                cancelled.difference_update(request.numbers)
            if kept:
                left.append(peer_wire.Get(kept))
        else:
            left.append(message)
    if cancelled:
        left.append(peer_wire.Cancel(tuple(cancelled)))
    return left[::-1]
