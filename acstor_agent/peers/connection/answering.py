# SPDX-License-Identifier: Apache-2.0
"""The end of a connection that answers another agent's requests for chunks.

The one rule: what a peer can make this host do at a time is bounded, in requests
and in bytes, for itself and for all peers together; beyond that its requests wait
in the socket.
"""

import logging
from collections.abc import Callable
from typing import Any
from typing import Protocol

import trio

from acstor_agent import faults as faults_
from acstor_agent.core import rates
from acstor_agent.core.exchange import budget
from acstor_agent.core.exchange import gossip
from acstor_agent.peers import peer_link
from acstor_agent.peers.connection import base
from acstor_agent.peers.connection import uplink as uplink_
from acstor_common import errors
from acstor_common import ids
from acstor_common import peer_wire

LOG = logging.getLogger(__name__)

Heard = Callable[[ids.HostId, peer_wire.News], None]
"""Takes note of what a peer tells; it decides for itself what to listen to."""


class Admitted(Protocol):
    """What a Get asks for, once it is known that it may be asked for."""

    @property
    def cid(self) -> ids.Cid:
        """The chunk's CID, from this host's own chunk map."""


class Server(Protocol):
    """Who knows what peers may ask for, and gives it.

    All methods raise one of errors.ChunkUnavailable's family, which becomes a refusal.
    """

    def admit(self, host: ids.HostId, get: peer_wire.Get) -> Admitted | None:
        """Return what is asked for; None if it must be looked up first."""

    async def look_up(self, host: ids.HostId, get: peer_wire.Get, is_urgent: bool) -> Admitted:
        """Return what is asked for, after a look elsewhere.

        :param is_urgent: a guest waits for it, or will soon
        """

    def answer_nowait(
        self, host: ids.HostId, get: peer_wire.Get, admitted: Any
    ) -> peer_wire.Buffer | None:
        """Return the bytes, as many as are asked for; None if that takes waiting."""

    async def answer(
        self, host: ids.HostId, get: peer_wire.Get, admitted: Any, is_urgent: bool
    ) -> peer_wire.Buffer:
        """Return the bytes; see :meth:`look_up`."""


MESSAGE_BYTES = 128
"""What a message that waits takes beside its bytes, and what is allowed for its answer."""


NEWS = rates.Rate(per_s=200.0, burst=400.0)
"""Messages of news that a host may send: at 10 Gbit/s there are 70 a second.  What they say is
counted where it is listened to; this bounds the work of reading what is not."""


class Budgets:
    """What all peers share."""

    def __init__(self, limits: base.Limits) -> None:
        self.news: rates.Buckets[tuple[ids.HostId, peer_wire.Klass]] = rates.Buckets(
            NEWS, limits.incoming
        )
        self.requests = budget.Budget(limits.requests, limits.host_requests)
        self.bytes = budget.Budget(limits.answer_bytes, limits.host_answer_bytes)


class Answering(base.Connection):
    """The end that accepted the connection: answers Gets, so many at a time."""

    def __init__(
        self,
        link: peer_link.Link,
        receiver: peer_wire.Receiver,
        peer: str,
        hello: peer_wire.Hello,
        gate: base.DemandGate,
        server: Server,
        heard: Heard,
        uplink: uplink_.Uplink,
        limits: base.Limits,
        budgets: Budgets,
        faults: faults_.Faults,
    ) -> None:
        super().__init__(hello.host_id, link, receiver, peer, hello.klass, gate)
        self._server = server
        self._heard = heard
        self._uplink = uplink
        self._limits = limits
        self._budgets = budgets
        self._faults = faults
        self._sharer = hello.host_id, hello.klass  # what is in bulk leaves room for what is urgent
        self._charged_bytes = 0
        self._answering: dict[int, _Work] = {}
        self._works = 0  # a request that was cancelled is one until it has ended
        self._answering_bytes = 0
        self._last_post = trio.current_time()

    @property
    def is_idle(self) -> bool:
        """Say that no request is being answered and no answer is waiting to be sent."""
        return not self._works and not self.outbox_bytes

    def _has_room(self, message: peer_wire.Message) -> bool:
        if isinstance(message, peer_wire.Cancel):
            return True
        if isinstance(message, peer_wire.News):
            return self._budgets.news.level(self._sharer, trio.current_time()) >= 1
        if not isinstance(message, peer_wire.Get):
            return self._budgets.bytes.may_take(self._sharer, MESSAGE_BYTES)
        return self._budgets.requests.may_take(self._sharer, 1) and self._budgets.bytes.may_take(
            self._sharer, message.length + MESSAGE_BYTES
        )

    def _outbox_changed(self) -> None:
        """Charge the host with what is being read for it and what waits for it."""
        held_bytes = self._answering_bytes + self.outbox_bytes
        held_bytes += MESSAGE_BYTES * (self._works + len(self._outbox))
        self._charge(held_bytes)

    def _charge(self, held_bytes: int) -> None:
        if held_bytes != self._charged_bytes:
            self._budgets.bytes.take(self._sharer, held_bytes - self._charged_bytes)
            self._charged_bytes = held_bytes

    async def run(self, early: list[peer_wire.Message]) -> None:
        """See :meth:`base.Connection.run`; at the end nothing is held for the host any more."""
        try:
            await super().run(early)
        finally:
            self._uplink.forget(self)
            self._charge(0)
            self._budgets.requests.take(self._sharer, -self._works)
            self._works = 0

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
            case peer_wire.Ping(token):
                self.post(peer_wire.Pong(token))
            case _ if isinstance(message, peer_wire.News):
                self._budgets.news.take(self._sharer, 1, trio.current_time())
                self._heard(self.host, message)

    def _begin(self, work: "_Work") -> None:
        """Answer at once, or in its turn, or when a task has found what is asked for."""
        get = work.get
        self._answering[get.request_id] = work
        self._works += 1
        self._budgets.requests.take(self._sharer, 1)
        self._answering_bytes += get.length
        self._outbox_changed()
        data: peer_wire.Buffer | None = None
        try:
            work.admitted = self._server.admit(self.host, get)
            if self._refer(work):
                return
            if work.admitted is not None:
                data = self._server.answer_nowait(self.host, get, work.admitted)
        except Exception as error:
            self._end(work, self._refusal(get, error))
            return
        if data is None:
            self._nursery.start_soon(self._find, work)
        else:
            self._queue(work, data)

    def _refer(self, work: "_Work") -> bool:
        """Name hosts that can give the chunk sooner than this one, if there are any."""
        if work.admitted is None:
            return False
        urgency = self._urgency(work.get)
        hosts = self._uplink.refer(work.get, work.admitted.cid, self.host, urgency)
        if hosts:
            self._end(work, peer_wire.Refer(work.get.request_id, hosts))
        return bool(hosts)

    async def _find(self, work: "_Work") -> None:
        """Get what is asked for; that ends when it is cancelled or its time is over."""
        with work.scope:
            answer = await self._answer_to(work)
            if isinstance(answer, peer_wire.Refuse):
                self._end(work, answer)
            elif not self._refer(work):
                self._queue(work, answer)
            return
        self._end(work, self._too_late(work))

    def _queue(self, work: "_Work", data: peer_wire.Buffer) -> None:
        def send() -> bool:
            try:
                return self._send(work, data)
            except Exception as error:  # others have their turn after it
                self._faults.note("an answer to a peer", error)
                self.close()
                return False

        if work.admitted is not None:
            cid, urgency = work.admitted.cid, self._urgency(work.get)
            self._uplink.put(cid, self.host, urgency, self, send)

    def _send(self, work: "_Work", data: peer_wire.Buffer) -> bool:
        if trio.current_time() > work.scope.deadline:
            self._end(work, self._too_late(work))
            return False
        return self._end(work, peer_wire.Chunk(work.get.request_id, data))

    def _too_late(self, work: "_Work") -> peer_wire.Refuse:
        return peer_wire.Refuse(work.get.request_id, peer_wire.RefuseCode.UNREACHABLE)

    def _end(self, work: "_Work", answer: peer_wire.Message) -> bool:
        """End a request; say whether somebody still waits for the answer: he gets it now."""
        is_waited_for = self._answering.get(work.get.request_id) is work
        if is_waited_for:
            del self._answering[work.get.request_id]
            self.post(answer)
        if self._works:  # none when the connection has ended: all was given back
            self._works -= 1
            self._budgets.requests.take(self._sharer, -1)
            self._answering_bytes -= work.get.length
            self._outbox_changed()
        self._has_changed.set()
        return is_waited_for and not self.is_closed

    def _urgency(self, get: peer_wire.Get) -> gossip.Urgency:
        if self.klass is peer_wire.Klass.DEMAND:
            return gossip.Urgency.DEMAND
        return gossip.Urgency.READ_AHEAD if get.is_soon else gossip.Urgency.PREFETCH

    async def _answer_to(self, work: "_Work") -> peer_wire.Buffer | peer_wire.Refuse:
        get = work.get
        is_urgent = self._urgency(get) is not gossip.Urgency.PREFETCH
        try:
            if work.admitted is None:
                work.admitted = await self._server.look_up(self.host, get, is_urgent)
            data = await self._server.answer(self.host, get, work.admitted, is_urgent)
        except Exception as error:
            return self._refusal(get, error)
        if len(data) != get.length:
            LOG.error("%d bytes were found for %s", len(data), base.describe(get))
            return peer_wire.Refuse(get.request_id, peer_wire.RefuseCode.UNREACHABLE)
        return data

    def _refusal(self, get: peer_wire.Get, error: Exception) -> peer_wire.Refuse:
        """Return a refusal that says no more than its code; the log says the rest."""
        if not isinstance(error, errors.AcstorError):
            self._faults.note("a request of a peer", error)
        LOG.debug("%s is refused %s: %s", self.peer, base.describe(get), error)
        return peer_wire.Refuse(get.request_id, _code_of(error))


def _code_of(error: Exception) -> peer_wire.RefuseCode:
    if isinstance(error, errors.ChunkRefused):
        return peer_wire.RefuseCode.WITHHELD
    if isinstance(error, errors.ChunkMissing | errors.ChunkInvalid):
        return peer_wire.RefuseCode.MISSING
    return peer_wire.RefuseCode.UNREACHABLE


class _Work:
    """One request that is being worked on.

    :param longest_s: it is not worked on for longer, whatever its sender says
    """

    __slots__ = ("admitted", "get", "scope")

    def __init__(self, get: peer_wire.Get, longest_s: float) -> None:
        self.get = get
        self.admitted: Admitted | None = None
        time_s = min(get.timeout_ms / 1000, longest_s)
        self.scope = trio.CancelScope(deadline=trio.current_time() + time_s)
