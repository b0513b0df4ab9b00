# SPDX-License-Identifier: Apache-2.0
"""Single requests to a peer, and a server that answers each in a task.

Agents request batches; tests of connections often need single requests.
"""

from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import trio

from acstor_agent.peers import peer_network
from acstor_agent.peers.connection import client_connection
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.wire.peer import peer_wire

Serve = Callable[[ids.HostId, peer_wire.ChunkRequest], Awaitable[Any]]

_REFUSALS = {
    peer_wire.RefuseCode.MISSING: errors.ChunkMissing,
    peer_wire.RefuseCode.WITHHELD: errors.ChunkRefused,
}


async def fetch(
    net: peer_network.PeerNetwork,
    host: ids.HostId,
    address: str,
    request: peer_wire.ChunkRequest,
    timeout_s: float,
) -> Any:
    """Return the bytes of a chunk, or a referral.

    :raises errors.ChunkUnavailable: the peer refuses or does not answer
    :raises errors.RemoteProtocolError: the peer violates the protocol
    """
    [outcome] = (await fetch_all(net, host, address, [request], timeout_s)).values()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def fetch_all(
    net: peer_network.PeerNetwork,
    host: ids.HostId,
    address: str,
    requests: Sequence[peer_wire.ChunkRequest],
    timeout_s: float,
) -> dict[int, Any]:
    """Send requests together; return outcomes by number: bytes, a referral, an error."""
    timeout_ms = max(1, int(timeout_s * 1000))
    left = {one.request_id for one in requests}
    where, completed = f"{host} ({address})", trio.Event()
    outcomes: dict[int, Any] = {}

    def record_answers(answers: list[client_connection.Answer]) -> None:
        for answer in answers:
            outcomes[answer.request_id] = outcome_of(answer, where)
            left.discard(answer.request_id)
        if not left:
            completed.set()

    net.send_requests(
        host, address, [one._replace(timeout_ms=timeout_ms) for one in requests], record_answers
    )
    with trio.move_on_after(timeout_s):
        try:
            await completed.wait()
        finally:
            if left:
                net.cancel_requests(host, list(left))
    why = f"no answer within {timeout_s:g} s"
    return outcomes | {one: errors.SourceUnreachable("a chunk", where, why) for one in left}


def outcome_of(answer: client_connection.Answer, where: str) -> Any:
    """Return the bytes, the referral, or an error."""
    match answer:
        case peer_wire.Chunk(_, data):
            return data
        case peer_wire.Refuse(_, code):
            return _REFUSALS.get(code, errors.SourceUnreachable)("a chunk", where, code.name)
        case client_connection.RequestLost(_, failure):
            return failure
    return answer


class TaskServer:
    """Answers each request in a task, with the result of ``serve``.

    :ivar asked_for: all requests
    """

    def __init__(self, serve: Serve, nursery: trio.Nursery) -> None:
        self._serve, self._nursery = serve, nursery
        self.asked_for: list[peer_wire.ChunkRequest] = []
        self._scopes: dict[tuple[Any, int], trio.CancelScope] = {}

    def requests_received(
        self, connection: Any, requests: Sequence[peer_wire.ChunkRequest], arrived_s: float
    ) -> None:
        """See ``server_connection.RequestHandler``."""
        for request in requests:
            self.asked_for.append(request)
            scope = self._scopes[connection, request.request_id] = trio.CancelScope()
            scope.deadline = arrived_s + request.timeout_ms / 1000
            self._nursery.start_soon(self._answer, connection, request, scope)

    async def _answer(
        self, connection: Any, request: peer_wire.ChunkRequest, scope: trio.CancelScope
    ) -> None:
        code = peer_wire.RefuseCode.UNREACHABLE
        answer: Any = None
        with scope:
            try:
                data = await self._serve(connection.host, request)
                answer = peer_wire.Chunk(request.request_id, data)
            except errors.ChunkRefused:
                code = peer_wire.RefuseCode.WITHHELD
            except (errors.ChunkMissing, errors.ChunkInvalid):
                code = peer_wire.RefuseCode.MISSING
            except errors.AcstorError:
                pass
        if self._scopes.pop((connection, request.request_id), None) is scope:
            connection.send_answers([answer or peer_wire.Refuse(request.request_id, code)])

    def requests_cancelled(self, connection: Any, request_ids: Sequence[int]) -> None:
        """See ``server_connection.RequestHandler``."""
        for request_id in request_ids:
            scope = self._scopes.pop((connection, request_id), None)
            if scope is not None:
                scope.cancel()

    def priorities_raised(self, connection: Any, request_ids: Sequence[int]) -> None:
        """See ``server_connection.RequestHandler``."""

    def answers_drained(self, connection: Any) -> None:
        """See ``server_connection.RequestHandler``."""

    def connection_ended(self, connection: Any) -> None:
        """See ``server_connection.RequestHandler``."""
        self.requests_cancelled(
            connection, [number for link, number in self._scopes if link is connection]
        )
