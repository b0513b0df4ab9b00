# SPDX-License-Identifier: Apache-2.0
"""Sends the engine's requests to peers, and feeds it only bytes that match the requested CIDs."""

import functools
import logging
import math
from collections.abc import Sequence
from typing import NamedTuple
from typing import Protocol

import trio

from acstor_agent.core import counters
from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_agent.engine_io import engine_driver
from acstor_agent.engine_io import read_request
from acstor_agent.peers import peer_network
from acstor_agent.peers.connection import client_connection
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.wire.peer import peer_wire

LOG = logging.getLogger(__name__)

Failure = read_request.Failure
Origin = counters.Origin


CALLBACKS = 4096  # hosts whose callback is cached


class TransferMeter(Protocol):
    """Counts bytes of chunks by peer."""

    def count_received(self, peer: ids.HostId, count: int, took_s: float | None) -> None:
        """Count received bytes, wrong ones too; 0 for a cancelled request.

        :param took_s: summed seconds of the requests that a guest waited for; None: there are none
        """

    def count_sent(self, peer: ids.HostId, count: int) -> None:
        """Count sent bytes."""


FAILURES = {
    peer_wire.RefuseCode.MISSING: Failure.MISSING,
    peer_wire.RefuseCode.UNREACHABLE: Failure.UNREACHABLE,
    peer_wire.RefuseCode.BUSY: Failure.BUSY,
    peer_wire.RefuseCode.WITHHELD: Failure.WITHHELD,
}


PRIORITIES = {priority: peer_wire.Priority[priority.at_peer.name] for priority in priority.Priority}

_URGENT = peer_wire.Priority.PEER
_RELAYED = peer_wire.Mode.RELAYED
_ORIGINS = {mode: Origin.HOME if mode.reads_source else Origin.PEER for mode in peer_wire.Mode}


class SentRequest(NamedTuple):
    """Chunks requested from a peer, with consecutive numbers."""

    number: int
    refs: Sequence[chunk_ref.ChunkRef]
    mode: peer_wire.Mode
    since_s: float | None  # when sent; None: no guest waited


class PeerClient:
    """Client side of the exchange: requests chunks and sends announcements."""

    def __init__(
        self,
        driver: engine_driver.EngineDriver,
        net: peer_network.PeerNetwork,
        meter: TransferMeter | None,
    ) -> None:
        self._driver, self._core, self._net, self._meter = driver, driver.core, net, meter
        self._callbacks: dict[ids.HostId, client_connection.OnAnswers] = {}
        self._sent: dict[int, SentRequest] = {}
        driver.on_action(actions.RequestChunks, self._send_requests)
        driver.on_action(actions.CancelRequests, self._cancel)
        driver.on_action(
            actions.RaisePriority, lambda todo: net.raise_priorities(todo.host, todo.numbers)
        )
        driver.on_action(actions.SendAnnouncement, self._send_announcement)

    def _address_of(self, host: ids.HostId) -> str | None:
        tables = self._core.context.ring
        for table in (tables.table, tables.former):
            if table is not None and host in table:
                return table.address_of(host)
        return None

    def _send_requests(self, action: actions.RequestChunks) -> None:
        host, address = action.host, self._address_of(action.host)
        if address is None:  # it has left both tables
            lost = [(number, Failure.UNREACHABLE) for number, _, _ in action.iter_chunks()]
            self._driver.handle_event(self._core.peer_refused, host, lost)
            return
        on_answers = self._callbacks.get(host)
        if on_answers is None:
            if len(self._callbacks) >= CALLBACKS:
                self._callbacks.clear()  # created again on demand
            on_answers = self._callbacks[host] = functools.partial(self._answers_received, host)
        context, now = self._core.context, trio.current_time()
        timeout_ms = int(1000 * context.requests_out.timeout_s)
        urgent: list[peer_wire.ChunkRequest] = []
        others: list[peer_wire.ChunkRequest] = []
        for attempt in action.attempts:
            priority, mode = PRIORITIES[attempt.priority], attempt.mode
            since_s = now if priority is _URGENT else None
            some = urgent if priority is _URGENT else others
            wire_mode = mode if context.settings.may_refer else mode.plain
            for run in chunk_ref.runs(attempt.numbers, attempt.refs):
                cids = b"".join([ref.cid for ref in run.refs])
                proof = peer_wire.proof_of(cids, context.ring.own_host, host)
                place = run.number, run.image_id, run.offset, run.length
                how = wire_mode, priority, timeout_ms, run.chunk_bytes
                request = peer_wire.ChunkRequest(*place, proof, *how)
                sent = SentRequest(run.number, run.refs, mode, since_s)
                self._sent.update(dict.fromkeys(request.numbers, sent))
                some.append(request)
        for some in (urgent, others):
            if some:
                self._net.send_requests(host, address, some, on_answers)

    def _cancel(self, cancel: actions.CancelRequests) -> None:
        now, took_s = trio.current_time(), 0.0
        for number in cancel.numbers:
            sent = self._sent.pop(number, None)
            since_s = sent.since_s if sent is not None else None
            given_up_s = now - since_s if since_s is not None else math.inf
            if given_up_s < self._core.context.requests_out.timeout_s:  # else it timed out
                took_s += given_up_s
        if took_s and self._meter is not None:
            self._meter.count_received(cancel.host, 0, took_s)
        self._net.cancel_requests(cancel.host, cancel.numbers)

    def _answers_received(self, host: ids.HostId, answers: list[client_connection.Answer]) -> None:
        """Feed answers that arrived together; an empty list is a keepalive."""
        chunks: list[tuple[int, read_request.FetchedChunk]] = []
        received: list[tuple[int, float | None]] = []
        failed: list[tuple[int, Failure]] = []
        for answer in answers:
            if isinstance(answer, peer_wire.Chunk):
                self._take(answer, chunks, received, failed)
                continue
            number = answer.request_id
            if self._sent.pop(number, None) is None:
                continue
            if isinstance(answer, peer_wire.Refer):
                self._driver.counters.referrals += 1
                self._driver.handle_event(self._core.peer_referred, host, number, answer.hosts)
            else:
                failed.append((number, _failure_of(answer)))
        if received and self._meter is not None:
            _count_received(self._meter, host, received)
        if chunks:
            self._driver.handle_event(self._core.chunks_arrived, host, chunks)
        if failed:
            self._driver.handle_event(self._core.peer_refused, host, failed)
        if not answers:
            self._driver.handle_event(self._core.keep_alive_received, host)

    def _take(
        self,
        answer: peer_wire.Chunk,
        chunks: list[tuple[int, read_request.FetchedChunk]],
        received: list[tuple[int, float | None]],
        failed: list[tuple[int, Failure]],
    ) -> None:
        numbers = answer.numbers
        sent = self._sent.get(answer.request_id)
        of_all = [*map(self._sent.get, numbers)]
        if sent is None or of_all.count(sent) < len(of_all):
            if len(numbers) > 1:  # some were cancelled, or requested separately
                for chunk in answer.iter_chunks():
                    self._take(chunk, chunks, received, failed)
            return
        for number in numbers:
            del self._sent[number]
        begin, origin = answer.request_id - sent.number, _ORIGINS[sent.mode]
        refs = sent.refs[begin : begin + len(numbers)]
        received.append((len(answer.data), sent.since_s))  # wrong ones count too
        pieces, right_bytes = chunk_ref.matching(refs, answer.data), 0
        for number, data in zip(numbers, pieces, strict=True):
            if data is None:
                failed.append((number, Failure.INVALID))
            else:
                chunks.append((number, read_request.FetchedChunk(data, origin)))
                right_bytes += len(data)
        self._driver.counters.relayed_bytes += right_bytes if sent.mode is _RELAYED else 0

    def _send_announcement(self, message: actions.SendAnnouncement) -> None:
        address = self._address_of(message.host)
        if address is None:
            return
        messages: list[peer_wire.Announcement] = []
        length = message.segment_chunks
        messages += [peer_wire.Advertise(message.held, length)] if message.held else []
        messages += [peer_wire.Gone(message.evicted, length)] if message.evicted else []
        messages += [peer_wire.EvictionHint(message.evictable, length)] if message.evictable else []
        for notification in messages:
            self._net.send_announcement(message.host, address, notification)
        self._driver.counters.advertised += segments.count(message.held)
        self._driver.counters.withdrawn += segments.count(message.evicted)
        self._driver.counters.copy_hints_sent += segments.count(message.evictable)

    def send_announcement_now(
        self, host: ids.HostId, message: peer_wire.Notification, now: float
    ) -> None:
        """Send a message to a host, if it is on the table and not in backoff."""
        context = self._core.context
        if host in context.ring.table and not context.peers.is_in_backoff(host, now):
            self._net.send_announcement(host, context.ring.table.address_of(host), message)


def _failure_of(answer: peer_wire.Refuse | client_connection.RequestLost) -> Failure:
    if isinstance(answer, peer_wire.Refuse):
        return FAILURES[answer.code]
    LOG.debug("%s", answer.failure)
    return Failure.UNREACHABLE


def _count_received(
    meter: TransferMeter, host: ids.HostId, received: list[tuple[int, float | None]]
) -> None:
    now, count = trio.current_time(), sum(length for length, _ in received)
    timed = [(length, asked_s) for length, asked_s in received if asked_s is not None]
    timed_bytes = sum(length for length, _ in timed)
    if timed_bytes:
        meter.count_received(host, timed_bytes, sum(now - asked_s for _, asked_s in timed))
    if count > timed_bytes:
        meter.count_received(host, count - timed_bytes, None)
