# SPDX-License-Identifier: Apache-2.0
"""The end of a connection that answers another agent's requests for chunks.

The one rule: what a peer can make this host do at a time is bounded, in
requests and in bytes; beyond that its requests wait in the socket.
"""

import logging
from collections.abc import Awaitable
from collections.abc import Callable

import trio

from acstor_agent import peer_link
from acstor_agent.core import gossip
from acstor_agent.peer_connection import base
from acstor_agent.peer_connection import uplink as uplink_
from acstor_common import errors
from acstor_common import ids
from acstor_common import peer_wire

LOG = logging.getLogger(__name__)

Heard = Callable[[ids.HostId, peer_wire.News], None]
"""Takes note of what a peer tells; it decides for itself what to listen to."""
Serve = Callable[[ids.HostId, peer_wire.Get], Awaitable[peer_wire.Buffer]]
"""Gives the bytes that a peer asks for, or raises one of errors.ChunkUnavailable's family."""


class Answering(base.Connection):
    """The end that accepted the connection: answers Gets, so many at a time.

    :param host: the other side, from its Hello
    """

    def __init__(
        self,
        link: peer_link.Link,
        receiver: peer_wire.Receiver,
        peer: str,
        hello: peer_wire.Hello,
        gate: base.DemandGate,
        serve: Serve,
        heard: Heard,
        uplink: uplink_.Uplink,
        limits: base.Limits,
    ) -> None:
        super().__init__(link, receiver, peer, hello.klass, gate)
        self._host = hello.host_id
        self._serve = serve
        self._heard = heard
        self._uplink = uplink
        self._limits = limits
        self._answering: dict[int, trio.CancelScope] = {}
        self._tasks = 0  # a request that was cancelled is one until it has ended
        self._answering_bytes = 0
        self._last_post = trio.current_time()

    @property
    def is_idle(self) -> bool:
        """Say that no request is being answered and no answer is waiting to be sent."""
        return not self._tasks and not self.outbox_bytes

    @property
    def _is_full(self) -> bool:
        return (
            self._tasks >= self._limits.requests
            or self._answering_bytes + self.outbox_bytes >= self._limits.answer_bytes
        )

    def show_life(self, now: float, after_s: float) -> None:
        """Send a Ping where answers take long: to work on them is not to be dead."""
        if self._tasks and now - self._last_post > after_s:
            self.post(peer_wire.Ping(0))

    def post(self, message: peer_wire.Message) -> None:
        """Send ``message`` as soon as the socket takes it."""
        self._last_post = trio.current_time()
        super().post(message)

    def _handle(self, message: peer_wire.Message) -> None:
        match message:
            case peer_wire.Get():
                if message.request_id in self._answering:
                    raise errors.RemoteProtocolError(
                        self.peer, f"request id {message.request_id} twice"
                    )
                time_s = min(message.timeout_ms / 1000, self._limits.serve_s)
                scope = trio.CancelScope(deadline=trio.current_time() + time_s)
                self._answering[message.request_id] = scope
                self._tasks += 1
                self._answering_bytes += message.length
                self._nursery.start_soon(self._answer, message, scope)
            case peer_wire.Cancel(request_id):
                if scope_of_it := self._answering.pop(request_id, None):
                    scope_of_it.cancel()
            case peer_wire.Advertise() | peer_wire.Gone() | peer_wire.LetGo():
                self._heard(self._host, message)
            case peer_wire.Ping(token):
                self.post(peer_wire.Pong(token))

    async def _answer(self, get: peer_wire.Get, scope: trio.CancelScope) -> None:
        """Answer one request; the work for it ends when it is cancelled or its time is over."""
        with scope:
            answer = await self._answer_to(get)
            if isinstance(answer, peer_wire.Chunk):
                await self._send(get, scope, answer)
        if scope.cancelled_caught:
            code = peer_wire.RefuseCode.UNREACHABLE
            answer = peer_wire.Refuse(get.request_id, code, "no time left")
        if self._take(get, scope):  # neither cancelled nor answered in its turn
            self.post(answer)
        self._tasks -= 1
        self._answering_bytes -= get.length
        self._has_changed.set()

    async def _send(
        self, get: peer_wire.Get, scope: trio.CancelScope, chunk: peer_wire.Chunk
    ) -> None:
        """Send a chunk when it is its turn, or name hosts that can give it sooner."""
        urgency = self._urgency(get)
        if hosts := self._uplink.refer(get, self._host, urgency):
            if self._take(get, scope):
                self.post(peer_wire.Refer(get.request_id, hosts))
            return
        async with self._uplink.turn(urgency):
            if self._take(get, scope):
                await self._uplink.send(self, chunk)

    def _urgency(self, get: peer_wire.Get) -> gossip.Urgency:
        if self.klass is peer_wire.Klass.DEMAND:
            return gossip.Urgency.DEMAND
        return gossip.Urgency.READ_AHEAD if get.is_soon else gossip.Urgency.PREFETCH

    def _take(self, get: peer_wire.Get, scope: trio.CancelScope) -> bool:
        """Say whether somebody still waits for the answer; he gets it now."""
        is_waited_for = self._answering.get(get.request_id) is scope
        if is_waited_for:
            del self._answering[get.request_id]
        return is_waited_for

    async def _answer_to(self, get: peer_wire.Get) -> peer_wire.Message:
        try:
            data = await self._serve(self._host, get)
        except errors.AcstorError as error:
            return peer_wire.Refuse(get.request_id, _refuse_code(error), str(error))
        if len(data) != get.length:
            LOG.error("%d bytes were found for %s", len(data), base.describe(get))
            code = peer_wire.RefuseCode.UNREACHABLE
            return peer_wire.Refuse(get.request_id, code, "internal error")
        return peer_wire.Chunk(get.request_id, data)


def _refuse_code(error: errors.AcstorError) -> peer_wire.RefuseCode:
    if isinstance(error, errors.ChunkMissing):
        return peer_wire.RefuseCode.MISSING
    if isinstance(error, errors.ChunkInvalid):
        return peer_wire.RefuseCode.INVALID
    return peer_wire.RefuseCode.UNREACHABLE
