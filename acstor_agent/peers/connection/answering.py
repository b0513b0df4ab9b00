# SPDX-License-Identifier: Apache-2.0
"""The end of a connection that answers another agent's requests for chunks.

The one rule: what a peer can make this host do at a time is bounded, in
requests and in bytes; beyond that its requests wait in the socket.
"""

import logging
from collections.abc import Awaitable
from collections.abc import Callable

import trio

from acstor_agent.core import gossip
from acstor_agent.peers import peer_link
from acstor_agent.peers.connection import base
from acstor_agent.peers.connection import uplink as uplink_
from acstor_common import errors
from acstor_common import ids
from acstor_common import peer_wire

LOG = logging.getLogger(__name__)

Heard = Callable[[ids.HostId, peer_wire.News], None]
"""Takes note of what a peer tells; it decides for itself what to listen to."""
Serve = Callable[[ids.HostId, peer_wire.Get], Awaitable[peer_wire.Buffer]]
"""Gives the bytes that a peer asks for, or raises one of errors.ChunkUnavailable's family."""
ServeNowait = Callable[[ids.HostId, peer_wire.Get], peer_wire.Buffer | None]
"""Gives them if that takes no waiting, as many as are asked for, else None."""


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
        serve_nowait: ServeNowait,
        heard: Heard,
        uplink: uplink_.Uplink,
        limits: base.Limits,
    ) -> None:
        super().__init__(link, receiver, peer, hello.klass, gate)
        self._host = hello.host_id
        self._serve = serve
        self._serve_nowait = serve_nowait
        self._heard = heard
        self._uplink = uplink
        self._limits = limits
        self._answering: dict[int, _Work] = {}
        self._works = 0  # a request that was cancelled is one until it has ended
        self._answering_bytes = 0
        self._last_post = trio.current_time()

    @property
    def is_idle(self) -> bool:
        """Say that no request is being answered and no answer is waiting to be sent."""
        return not self._works and not self.outbox_bytes

    @property
    def _is_full(self) -> bool:
        return (
            self._works >= self._limits.requests
            or self._answering_bytes + self.outbox_bytes >= self._limits.answer_bytes
        )

    def show_life(self, now: float, after_s: float) -> None:
        """Send a Ping where answers take long: to work on them is not to be dead."""
        if self._works and now - self._last_post > after_s:
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
                self._begin(_Work(message, self._limits.serve_s))
            case peer_wire.Cancel(request_id):
                if work := self._answering.pop(request_id, None):
                    work.scope.cancel()
            case peer_wire.Advertise() | peer_wire.Gone() | peer_wire.LetGo():
                self._heard(self._host, message)
            case peer_wire.Ping(token):
                self.post(peer_wire.Pong(token))

    def _begin(self, work: "_Work") -> None:
        """Answer at once, or in its turn, or when a task has found what is asked for."""
        get = work.get
        self._answering[get.request_id] = work
        self._works += 1
        self._answering_bytes += get.length
        if self._refer(work):
            return
        data = self._serve_nowait(self._host, get)
        if data is None:
            self._nursery.start_soon(self._find, work)
        else:
            self._queue(work, data)

    def _refer(self, work: "_Work") -> bool:
        """Name hosts that can give the chunk sooner than this one, if there are any."""
        hosts = self._uplink.refer(work.get, self._host, self._urgency(work.get))
        if hosts:
            self._end(work, peer_wire.Refer(work.get.request_id, hosts))
        return bool(hosts)

    async def _find(self, work: "_Work") -> None:
        """Get what is asked for; that ends when it is cancelled or its time is over."""
        with work.scope:
            answer = await self._answer_to(work.get)
            if isinstance(answer, peer_wire.Refuse):
                self._end(work, answer)
            elif not self._refer(work):
                self._queue(work, answer)
            return
        self._end(work, self._too_late(work))

    def _queue(self, work: "_Work", data: peer_wire.Buffer) -> None:
        def send() -> bool:
            if trio.current_time() > work.scope.deadline:
                self._end(work, self._too_late(work))
                return False
            return self._end(work, peer_wire.Chunk(work.get.request_id, data))

        self._uplink.put(work.get, self._host, self._urgency(work.get), self, send)

    def _too_late(self, work: "_Work") -> peer_wire.Refuse:
        code = peer_wire.RefuseCode.UNREACHABLE
        return peer_wire.Refuse(work.get.request_id, code, "no time left")

    def _end(self, work: "_Work", answer: peer_wire.Message) -> bool:
        """End a request; say whether somebody still waits for the answer: he gets it now."""
        is_waited_for = self._answering.get(work.get.request_id) is work
        if is_waited_for:
            del self._answering[work.get.request_id]
            self.post(answer)
        self._works -= 1
        self._answering_bytes -= work.get.length
        self._has_changed.set()
        return is_waited_for and not self.is_closed

    def _urgency(self, get: peer_wire.Get) -> gossip.Urgency:
        if self.klass is peer_wire.Klass.DEMAND:
            return gossip.Urgency.DEMAND
        return gossip.Urgency.READ_AHEAD if get.is_soon else gossip.Urgency.PREFETCH

    async def _answer_to(self, get: peer_wire.Get) -> peer_wire.Buffer | peer_wire.Refuse:
        try:
            data = await self._serve(self._host, get)
        except errors.AcstorError as error:
            return peer_wire.Refuse(get.request_id, _refuse_code(error), str(error))
        if len(data) != get.length:
            LOG.error("%d bytes were found for %s", len(data), base.describe(get))
            code = peer_wire.RefuseCode.UNREACHABLE
            return peer_wire.Refuse(get.request_id, code, "internal error")
        return data


class _Work:
    """One request that is being worked on.

    :param longest_s: it is not worked on for longer, whatever its sender says
    """

    __slots__ = ("get", "scope")

    def __init__(self, get: peer_wire.Get, longest_s: float) -> None:
        self.get = get
        time_s = min(get.timeout_ms / 1000, longest_s)
        self.scope = trio.CancelScope(deadline=trio.current_time() + time_s)


def _refuse_code(error: errors.AcstorError) -> peer_wire.RefuseCode:
    if isinstance(error, errors.ChunkMissing):
        return peer_wire.RefuseCode.MISSING
    if isinstance(error, errors.ChunkInvalid):
        return peer_wire.RefuseCode.INVALID
    return peer_wire.RefuseCode.UNREACHABLE
