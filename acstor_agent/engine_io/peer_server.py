# SPDX-License-Identifier: Apache-2.0
"""Feeds requests of peers to the engine, which authorizes them, and sends its answers."""

import logging
from collections.abc import Sequence

import trio

from acstor_agent.cache import cache_files
from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_agent.engine_io import engine_driver
from acstor_agent.engine_io import map_lookup
from acstor_agent.engine_io import peer_client
from acstor_agent.engine_io import read_request
from acstor_agent.engine_io import send_progress
from acstor_agent.peers.connection import server_connection
from acstor_agent.runtime import disk_io
from acstor_common.model import ids
from acstor_common.util import log_limit
from acstor_common.wire.peer import peer_wire

LOG = logging.getLogger(__name__)

Failure = read_request.Failure
_CODES = {
    Failure.MISSING: peer_wire.RefuseCode.MISSING,
    Failure.INVALID: peer_wire.RefuseCode.MISSING,
    Failure.LOST: peer_wire.RefuseCode.MISSING,
    Failure.WITHHELD: peer_wire.RefuseCode.WITHHELD,
    Failure.BUSY: peer_wire.RefuseCode.BUSY,
}
PRIORITIES = {wired: priority.Priority[wired.name] for wired in peer_wire.Priority}
WARN_EVERY_S = 10.0
"""Interval of warnings about one host's refused requests, which include their number."""


class PeerServer:
    """Server side of the exchange, a :class:`server_connection.RequestHandler`."""

    def __init__(
        self,
        driver: engine_driver.EngineDriver,
        cache: cache_files.CacheFiles,
        maps: map_lookup.ImageMaps,
        meter: peer_client.TransferMeter | None,
    ) -> None:
        self._driver, self._core, self._cache, self._meter = driver, driver.core, cache, meter
        self._warned = log_limit.LogLimit(WARN_EVERY_S)
        self._map_lookup = map_lookup.MapLookup(driver, maps)
        self._reads: dict[send_progress.PolledConnection, dict[int, trio.CancelScope]] = {}
        self._send_progress = send_progress.SendProgress(driver, self._reads)
        driver.nursery.start_soon(self._send_progress.run)
        driver.on_action(actions.SendAnswers, self._send_answers)
        driver.on_action(actions.SendKeepalives, self._send_keepalives)
        driver.on_action(actions.CloseConnection, self._close)

    def requests_received(
        self,
        connection: server_connection.ServerConnection,
        requests: Sequence[peer_wire.ChunkRequest],
        arrived_s: float,
    ) -> None:
        """See :meth:`server_connection.RequestHandler.requests_received`."""
        waited_s = trio.current_time() - arrived_s
        received = [
            chunk_ref.Request(
                *(*request[:6], PRIORITIES[request.priority]),
                *(request.timeout_ms / 1000 - waited_s, request.chunk_bytes),
            )
            for request in requests
        ]
        self._feed_requests(connection, received)

    def _feed_requests(
        self, connection: server_connection.ServerConnection, requests: list[chunk_ref.Request]
    ) -> None:
        """Feed requests; if the engine fails, again one by one, to end only the bad one."""
        host = connection.host
        is_far = not self._core.context.ring.is_near(host) and connection.is_far
        if not self._driver.handle_event(
            self._core.peer_requested, connection, host, requests, is_far
        ):
            return
        numbers = [number for request in requests for number in request.numbers]
        self._driver.handle_event(self._core.peer_cancelled, connection, numbers)
        if len(requests) == 1:
            code = peer_wire.RefuseCode.UNREACHABLE
            self._send(connection, [peer_wire.Refuse(number, code) for number in numbers])
            return
        for request in requests:  # answered ones are not answered again
            self._feed_requests(connection, [request])

    def requests_cancelled(
        self, connection: server_connection.ServerConnection, request_ids: Sequence[int]
    ) -> None:
        """See :meth:`server_connection.RequestHandler.requests_cancelled`."""
        self._map_lookup.forget_requests(connection, request_ids)
        if (reads := self._reads.get(connection)) is not None:
            for number in request_ids:
                if (scope := reads.pop(number, None)) is not None:
                    scope.cancel()
            self._reads_changed(connection)
        self._driver.handle_event(self._core.peer_cancelled, connection, request_ids)

    def priorities_raised(
        self, connection: server_connection.ServerConnection, request_ids: Sequence[int]
    ) -> None:
        """See :meth:`server_connection.RequestHandler.priorities_raised`."""
        self._driver.handle_event(self._core.peer_raised_priority, connection, request_ids)

    def connection_ended(self, connection: server_connection.ServerConnection) -> None:
        """See :meth:`server_connection.RequestHandler.connection_ended`."""
        self._map_lookup.connection_ended(connection)
        for scope in self._reads.pop(connection, {}).values():
            scope.cancel()
        if self._driver.handle_event(self._core.peer_disconnected, connection):
            self._driver.handle_event(
                self._core.peer_disconnected, connection
            )  # it is not reported again
        self._send_progress.forget_connection(connection)

    def answers_drained(self, connection: server_connection.ServerConnection) -> None:
        """See :meth:`server_connection.RequestHandler.answers_drained`."""
        self._send_progress.poll_soon(connection)

    def _send_answers(self, action: actions.SendAnswers) -> None:
        connection: server_connection.ServerConnection = action.connection  # type: ignore[assignment]
        self._map_lookup.forget_requests(connection, (answer.number for answer in action.answers))
        answers: list[server_connection.Answer] = []
        uncached: list[actions.SendChunk] = []
        for answer in action.answers:
            if isinstance(answer, actions.SendRun):
                run = self._read_run_nowait(answer)
                if run is None:
                    uncached += answer.iter_chunks()
                else:
                    answers.append(run)
            elif isinstance(answer, actions.SendChunk) and answer.data is None:
                uncached.append(answer)
            else:
                answers.append(self._encode_answer(connection, answer))
        for given, data in zip(uncached, self._read_nowait(uncached), strict=True):
            if data is None:
                scope = trio.CancelScope()
                self._reads.setdefault(connection, {})[given.number] = scope
                self._driver.nursery.start_soon(self._read, connection, given, scope)
            else:
                answers.append(_answer(given, data))
        self._send(connection, answers)

    def _encode_answer(
        self,
        connection: server_connection.ServerConnection,
        answer: actions.SendChunk | actions.SendRefusal | actions.SendReferral,
    ) -> server_connection.Answer:
        match answer:
            case actions.SendChunk():
                return _answer(answer, answer.data.data)
            case actions.SendReferral(number, hosts):
                return peer_wire.Refer(number, hosts)
            case actions.SendRefusal(number, failure, why, request):
                if request is not None:
                    self._warn(connection.host, request, why)
                if isinstance(answer, actions.SendExcessRefusal):
                    connection.charge_refusal()
                code = _CODES.get(failure, peer_wire.RefuseCode.UNREACHABLE)
                return peer_wire.Refuse(number, code)

    def _read_nowait(self, given: list[actions.SendChunk]) -> Sequence[read_request.Bytes | None]:
        return self._cache.read_chunks_nowait([answer.ref.cid for answer in given]) if given else ()

    def _read_run_nowait(self, given: actions.SendRun) -> peer_wire.Chunk | None:
        """Return a run as a message; None if that would wait, or its length is wrong."""
        refs = given.refs
        data = self._cache.read_run_nowait([ref.cid for ref in refs])
        if data is None or len(data) != sum([ref.length for ref in refs]):
            return None
        return peer_wire.Chunk(given.number, data, refs[0].length)

    async def _read(
        self,
        connection: server_connection.ServerConnection,
        given: actions.SendChunk,
        scope: trio.CancelScope,
    ) -> None:
        data = None
        with scope, disk_io.use_stream(map_lookup.stream_of(connection.host, given.priority)):
            try:
                data = await self._cache.read_chunk(given.ref.cid)
            except Exception as error:
                self._driver.faults.record_fault("a chunk for a peer", error)
        reads = self._reads.get(connection, {})
        if reads.get(given.number) is not scope:
            return  # cancelled; the number may belong to another request
        del reads[given.number]
        if data is None:
            self._driver.handle_event(self._core.cache_read_failed, connection, given.number)
        else:
            self._send(connection, [_answer(given, data)])
        self._reads_changed(connection)

    def _reads_changed(self, connection: server_connection.ServerConnection) -> None:
        if not self._reads.get(connection):
            self._reads.pop(connection, None)
            self._send_progress.poll_soon(connection)

    def _send(
        self,
        connection: server_connection.ServerConnection,
        answers: list[server_connection.Answer],
    ) -> None:
        given = [answer for answer in answers if isinstance(answer, peer_wire.Chunk)]
        if given:
            total = sum([len(answer.data) for answer in given])
            self._driver.counters.served_chunks += sum([answer.chunk_count for answer in given])
            self._driver.counters.served_bytes += total
            if self._meter is not None:
                self._meter.count_sent(connection.host, total)
        connection.send_answers(answers)

    def _warn(self, host: ids.HostId, request: chunk_ref.Request, why: str) -> None:
        suppressed = self._warned.take_line(host, trio.current_time())
        if suppressed is not None:
            LOG.warning(
                "%s requested %d bytes of image %s at %d: refused, %s (and %d like it)",
                *(host, request.length, request.image_id, request.offset, why, suppressed),
            )

    def _send_keepalives(self, action: actions.SendKeepalives) -> None:
        connection: server_connection.ServerConnection
        for connection in action.connections:  # type: ignore[assignment]
            connection.send_messages(peer_wire.Ping(0))

    def _close(self, action: actions.CloseConnection) -> None:
        connection: server_connection.ServerConnection = action.connection  # type: ignore[assignment]
        LOG.warning("Connection of %s dropped: %s", connection.peer, action.why)
        connection.close()


def _answer(given: actions.SendChunk, data: read_request.Bytes) -> server_connection.Answer:
    """Return the message for a chunk; refuse it if the map states another length."""
    if len(data) != given.ref.length:
        LOG.error(
            "%d bytes have the CID %s of a chunk of %d bytes",
            len(data),
            given.ref.cid.hex(),
            given.ref.length,
        )
        return peer_wire.Refuse(given.number, peer_wire.RefuseCode.MISSING)
    return peer_wire.Chunk(given.number, data)
