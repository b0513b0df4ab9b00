# SPDX-License-Identifier: Apache-2.0
"""The client end of a connection: requests chunks from another agent.

Each request gets one answer, or is lost when the connection ends. A late answer to a cancelled
request is dropped; an answer to no request ends the connection. So the numbers of cancelled
requests are remembered, and not reused meanwhile.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import trio

from acstor_agent.core import send_queue
from acstor_agent.peers import peer_link
from acstor_agent.peers.connection import base_connection
from acstor_agent.peers.connection import demand_gate
from acstor_agent.peers.connection import loop_share
from acstor_agent.peers.connection import peer_limits
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.util import lru_table
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_request
from acstor_common.wire.peer import peer_wire

NEXT_BYTES = 16 * geometry.KIB
"""Bytes in the outbox, which is not reordered, below which messages are added."""


class RequestLost(NamedTuple):
    """A request whose connection has ended without an answer."""

    request_id: int
    failure: errors.AcstorError


Answer = peer_wire.Chunk | peer_wire.Refuse | peer_wire.Refer | RequestLost
OnAnswers = Callable[[list[Answer]], None]
"""Called with answers that arrived together; empty: a keepalive. Never waits or fails."""


class ClientConnection(base_connection.PeerConnection):
    """The end that opened the connection."""

    def __init__(
        self,
        host: ids.HostId,
        link: peer_link.PeerLink,
        receiver: peer_receiver.Receiver,
        klass: peer_wire.ConnectionClass,
        gate: demand_gate.DemandGate,
        share: loop_share.LoopShare,
        limits: peer_limits.PeerLimits,
    ) -> None:
        super().__init__(host, link, receiver, klass, gate, share)
        self._limits = limits
        self._account(0, is_useful=True)  # this host asks it
        self._waiting: dict[int, tuple[peer_wire.ChunkRequest, OnAnswers]] = {}
        self._send_queue = send_queue.SendQueue()  # requests and announcements not sent yet
        self._raised: dict[int, None] = {}  # to be raised once they are sent
        self._answers: list[tuple[OnAnswers, Answer]] = []
        self._has_shown_life = False
        self._chunk_bytes = 0  # the longest requested chunk
        receiver.expects = self._expects
        receiver.awaited_bytes = self._awaited_bytes
        self._cancelled: lru_table.LruTable[int, int] = lru_table.LruTable(
            limits.remembered_cancels
        )

    @property
    def is_idle(self) -> bool:
        """Whether no request is pending."""
        return not self._waiting

    def _has_room(self, part: base_connection.Part) -> bool:
        return True

    @property
    def _is_answer_awaited(self) -> bool:
        return bool(self._waiting)

    @property
    def used_numbers(self) -> tuple[Mapping[int, object], Mapping[int, object]]:
        """Tables with the numbers of requests whose answers may still arrive."""
        return self._waiting, self._cancelled

    def send_requests(
        self, requests: Sequence[peer_wire.ChunkRequest], on_answers: OnAnswers
    ) -> None:
        """Send requests, in few messages; while the socket is full they are queued.

        :param on_answers: called with the answer to each request, once
        :raises errors.LocalProtocolError: a number is in use, or was cancelled recently
        """
        check_numbers(requests, *self.used_numbers)
        if not self._waiting:
            self.last_progress = trio.current_time()  # silence counts from now on
        for request in requests:
            self._waiting.update(dict.fromkeys(request.numbers, (request, on_answers)))
            self._chunk_bytes = max(self._chunk_bytes, request.chunk_bytes or request.length)
        if self._is_writing:
            self._send_queue.queue_requests(requests)
            return
        try:
            self.send_messages(*peer_wire.batches(requests))
        except errors.LocalProtocolError as error:  # a bug in the caller
            self.fail_connection(error)

    def raise_priorities(self, request_ids: Iterable[int]) -> None:
        """Tell the peer that guests wait for pending bulk requests."""
        for request_id in request_ids:
            if request_id in self._waiting:
                self._raised[request_id] = None
                self._send_queue.raise_priority(request_id)
        if not self._is_writing:
            self._gather()

    def _gather(self) -> None:
        if not (self._send_queue or self._raised):
            return
        while self.outbox_bytes < NEXT_BYTES and (some := self._send_queue.pop_next()) is not None:
            if not isinstance(some, list):
                self.send_messages(some)
                continue
            self.send_messages(*peer_wire.batches(some))
            numbers = [number for request in some for number in request.numbers]
            gone = [number for number in numbers if number not in self._waiting]
            self.send_messages(*map(peer_wire.Cancel, _in_messages(gone)))
        raised = [request_id for request_id in self._raised if request_id in self._waiting]
        self._raised = dict.fromkeys(
            request_id for request_id in raised if request_id in self._send_queue
        )
        sent = [request_id for request_id in raised if request_id not in self._send_queue]
        self.send_messages(*map(peer_wire.RaisePriority, _in_messages(sent)))

    def cancel_requests(self, request_ids: Iterable[int]) -> None:
        """Cancel requests: tell the peer, and drop late answers."""
        sent: list[int] = []
        for request_id in request_ids:
            waiting = self._waiting.pop(request_id, None)
            if waiting is None:
                continue
            is_sent = request_id not in self._send_queue
            if is_sent:
                sent.append(request_id)
            if is_sent or not self._send_queue.drop_chunk(request_id):
                self._cancelled[request_id] = waiting[0].length_of(request_id)
        self.send_messages(*map(peer_wire.Cancel, _in_messages(sent)))

    def send_announcement(self, message: peer_wire.Notification | peer_wire.Pong) -> None:
        """Send an announcement or a Pong; drop it if too much is queued."""
        if (
            self.outbox_bytes >= self._limits.queued_bytes
            or self._send_queue.announcement_count >= self._limits.queued_announcements
        ):
            return
        if self._is_writing and not isinstance(message, peer_wire.Pong):
            self._send_queue.queue_announcement(message)
        else:
            self.send_messages(message)

    def _parts(self, messages: list[peer_wire.Message]) -> list[peer_wire.Message]:
        """Take checked chunks; return other messages. Raise RemoteProtocolError on a repetition."""
        others: list[peer_wire.Message] = []
        for message in messages:
            if isinstance(message, peer_wire.Chunk):
                self._take(message)
            else:
                others.append(message)
        self._account(loop_share.small_messages(others), is_useful=False)
        return others

    def _handle(self, part: base_connection.Part) -> None:
        match part:
            case peer_wire.Refuse():
                self._answer(part)
            case peer_wire.Refer(request_id):
                waiting = self._waiting.get(request_id)
                if waiting and not waiting[0].mode.may_refer:
                    raise self._violation("Refer where none was allowed")
                self._answer(part)
            case peer_wire.Ping(token):
                self.send_announcement(peer_wire.Pong(token))
                self._has_shown_life = True

    def _awaited_bytes(self) -> int:
        """Return the most bytes of chunks that may arrive (:class:`peer_receiver.Receiver`)."""
        return (len(self._waiting) + len(self._cancelled)) * self._chunk_bytes

    def _expects(self, chunks: Sequence[tuple[int, int, int]]) -> bool:
        """Check chunks before they are received (:data:`peer_receiver.Expects`)."""
        are_awaited = True
        for first, length, chunk_bytes in chunks:
            count = peer_request.count_chunks(length, chunk_bytes)
            waiting = self._waiting_for(first, count)
            if waiting is None:
                are_awaited &= self._expects_each(first, length, chunk_bytes)
                continue
            request = waiting[0]
            is_as_cut = not chunk_bytes or chunk_bytes == request.chunk_bytes
            if length != (asked_bytes := request.length_of(first, count)) or not is_as_cut:
                raise self._violation(f"{length} bytes where {asked_bytes} were requested")
        return are_awaited

    def _waiting_for(
        self, first: int, count: int
    ) -> tuple[peer_wire.ChunkRequest, OnAnswers] | None:
        known = self._waiting
        waiting = known.get(first) if not self._send_queue else None
        if waiting is None or count == 1:
            return waiting
        of_all = [*map(known.get, range(first, first + count))]
        return waiting if of_all.count(waiting) == count else None

    def _expects_each(self, first: int, length: int, chunk_bytes: int) -> bool:
        are_awaited, size = True, chunk_bytes or length
        for number, begin in enumerate(range(0, length, size), first):
            waiting = self._waiting.get(number)
            if waiting is not None and number not in self._send_queue:
                asked_bytes: int | None = waiting[0].length_of(number)
            else:
                asked_bytes, are_awaited = self._cancelled.get(number), False
            if asked_bytes is None:
                raise self._violation("unsolicited response (Chunk)")
            if (given_bytes := min(size, length - begin)) != asked_bytes:
                raise self._violation(f"{given_bytes} bytes where {asked_bytes} were requested")
        return are_awaited

    def _take(self, answer: peer_wire.Chunk) -> None:
        numbers = answer.numbers
        waiting = self._waiting_for(answer.request_id, len(numbers))
        if waiting is None:
            for chunk in answer.iter_chunks():
                self._answer(chunk)
            return
        for number in numbers:
            del self._waiting[number]
        self._answers.append((waiting[1], answer))

    def _answer(self, answer: peer_wire.Chunk | peer_wire.Refuse | peer_wire.Refer) -> None:
        is_asked = answer.request_id not in self._send_queue
        waiting = self._waiting.pop(answer.request_id, None) if is_asked else None
        if waiting is not None:
            self._answers.append((waiting[1], answer))
        elif self._cancelled.pop(answer.request_id, None) is None:
            raise self._violation(f"unsolicited response ({type(answer).__name__})")

    def _violation(self, why: str) -> errors.RemoteProtocolError:
        return errors.RemoteProtocolError(self.peer, why)

    def _settle(self) -> None:
        answers, self._answers = self._answers, []
        deliver_answers(answers)
        if self._has_shown_life:
            self._has_shown_life = False
            for on_answers in {waiting[1] for waiting in self._waiting.values()}:
                on_answers([])

    async def run(self, early: list[peer_wire.Message]) -> None:
        """Do as :meth:`base_connection.PeerConnection.run`; then report requests as lost."""
        try:
            await super().run(early)
        finally:
            waiting, self._waiting = self._waiting, {}
            self._send_queue.clear()
            self._answers += [
                (on_answers, lost(number, request, self.peer, self.failure))
                for number, (request, on_answers) in waiting.items()
            ]
            self._settle()


def _in_messages(request_ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for begin in range(0, len(request_ids), peer_wire.MAX_BATCH):
        yield tuple(request_ids[begin : begin + peer_wire.MAX_BATCH])


def check_numbers(requests: Sequence[peer_wire.ChunkRequest], *used: Mapping[int, object]) -> None:
    """Raise LocalProtocolError if numbers of requests are repeated or in use."""
    numbers = [number for request in requests for number in request.numbers]
    for some in used:
        if not some.keys().isdisjoint(numbers):
            number = next(number for number in numbers if number in some)
            raise errors.LocalProtocolError(f"request id {number} is still in use")
    if len(set(numbers)) < len(numbers):
        raise errors.LocalProtocolError(f"request id {numbers[0]} is still in use")


def lost(
    number: int, request: peer_wire.ChunkRequest, peer: str, failure: errors.AcstorError | None
) -> RequestLost:
    """Return the loss of a chunk's request, because of ``failure`` if given."""
    if isinstance(failure, errors.RemoteProtocolError):
        return RequestLost(number, errors.RemoteProtocolError(peer, failure.why))
    why = str(failure or "connection closed")
    return RequestLost(
        number, errors.SourceUnreachable(base_connection.describe(request), peer, why)
    )


def deliver_answers(answers: Iterable[tuple[OnAnswers, Answer]]) -> None:
    """Call each requester once with its answers; raise a fault after all calls."""
    grouped: dict[OnAnswers, list[Answer]] = {}
    for on_answers, answer in answers:
        grouped.setdefault(on_answers, []).append(answer)
    fault: Exception | None = None
    for on_answers, its in grouped.items():
        try:
            on_answers(its)
        except Exception as error:
            fault = error
    if fault is not None:
        raise fault
