# SPDX-License-Identifier: Apache-2.0
"""The end of a connection that asks another agent for chunks.

The one rule: whoever asks gets one answer or one error, and soon after the
connection is lost at the latest; an answer that nobody waits for is dropped.
"""

import trio

from acstor_agent.peers import peer_link
from acstor_agent.peers.connection import base
from acstor_common import errors
from acstor_common import geometry
from acstor_common import ids
from acstor_common import peer_wire

UNTOLD_BYTES = 256 * geometry.KIB
"""While so much waits for a peer that does not read, it is told no news and its Pings are not
answered: what waits shows as well that this host lives."""

_Answer = peer_wire.Chunk | peer_wire.Refuse | peer_wire.Refer


class Asking(base.Connection):
    """The end that opened the connection: sends Gets and waits for the answers."""

    def __init__(
        self,
        host: ids.HostId,
        link: peer_link.Link,
        receiver: peer_wire.Receiver,
        peer: str,
        klass: peer_wire.Klass,
        gate: base.DemandGate,
    ) -> None:
        super().__init__(host, link, receiver, peer, klass, gate)
        self._last_id = 0
        self._waiting: dict[int, _Waiter] = {}

    @property
    def is_idle(self) -> bool:
        """Say that nobody waits for an answer."""
        return not self._waiting

    def _has_room(self, message: peer_wire.Message) -> bool:
        """Answers are always taken: there is somebody who waits for them."""
        return True

    @property
    def _is_answer_awaited(self) -> bool:
        return bool(self._waiting)

    async def ask(self, get: peer_wire.Get) -> peer_wire.Buffer | peer_wire.Refer:
        """Send ``get`` under an id of its own; return the bytes, or whom to ask instead.

        If the caller is cancelled the peer is told, and a late answer is dropped.

        :raises errors.ChunkMissing: the peer says that it cannot give it
        :raises errors.SourceUnreachable: it may later, or the connection was lost
        :raises errors.RemoteProtocolError: the connection was dropped because the peer broke the
            rules
        """
        if self.is_closed:
            raise self._lost(get)
        if not self._waiting:
            self.last_progress = trio.current_time()  # from now on silence counts
        request_id = self._new_id()
        get = get._replace(request_id=request_id)
        waiter = self._waiting[request_id] = _Waiter(get)
        try:
            self.post(get)
            await waiter.is_answered.wait()
        finally:
            if self._waiting.pop(request_id, None):
                self.post(peer_wire.Cancel(request_id))
        if isinstance(waiter.answer, peer_wire.Refuse):
            raise self._refusal(get, waiter.answer)
        if waiter.answer is None:
            raise self._lost(get)
        return waiter.answer.data if isinstance(waiter.answer, peer_wire.Chunk) else waiter.answer

    def tell(self, message: peer_wire.News | peer_wire.Pong) -> None:
        """Send what nobody waits for, unless too much waits already: then it is left out."""
        if self.outbox_bytes < UNTOLD_BYTES:
            self.post(message)

    def _new_id(self) -> int:
        while True:
            self._last_id = (self._last_id + 1) & 0xFFFFFFFF
            if self._last_id not in self._waiting:
                return self._last_id

    def _handle(self, message: peer_wire.Message) -> None:
        match message:
            case peer_wire.Chunk(request_id, data):
                waiter = self._waiting.get(request_id)
                if waiter and len(data) != waiter.get.length:
                    raise errors.RemoteProtocolError(
                        self.peer, f"{len(data)} bytes where {waiter.get.length} were asked for"
                    )
                self._answer(request_id, message)
            case peer_wire.Refuse(request_id):
                self._answer(request_id, message)
            case peer_wire.Refer(request_id):
                waiter = self._waiting.get(request_id)
                if waiter and not waiter.get.may_refer:
                    raise errors.RemoteProtocolError(self.peer, "Refer where none was allowed")
                self._answer(request_id, message)
            case peer_wire.Ping(token):
                self.tell(peer_wire.Pong(token))

    def _answer(self, request_id: int, answer: _Answer) -> None:
        """Give an answer to who waits for it; if nobody does any more, drop it."""
        if waiter := self._waiting.pop(request_id, None):
            waiter.answer = answer
            waiter.is_answered.set()

    async def run(self, early: list[peer_wire.Message]) -> None:
        """See :meth:`base.Connection.run`; at the end whoever waits still is told."""
        try:
            await super().run(early)
        finally:
            for waiter in self._waiting.values():
                waiter.is_answered.set()
            self._waiting.clear()

    def _lost(self, get: peer_wire.Get) -> errors.AcstorError:
        if isinstance(self.failure, errors.RemoteProtocolError):
            return errors.RemoteProtocolError(self.peer, self.failure.why)
        why = str(self.failure) if self.failure else "connection closed"
        return errors.SourceUnreachable(base.describe(get), self.peer, why)

    def _refusal(self, get: peer_wire.Get, refuse: peer_wire.Refuse) -> errors.AcstorError:
        kinds: dict[peer_wire.RefuseCode, type[errors.ChunkUnavailable]] = {
            peer_wire.RefuseCode.MISSING: errors.ChunkMissing,
            peer_wire.RefuseCode.WITHHELD: errors.ChunkRefused,
        }
        kind = kinds.get(refuse.code, errors.SourceUnreachable)
        return kind(base.describe(get), self.peer, refuse.code.name)


class _Waiter:
    """Somebody who waits for an answer; none means that the connection was lost."""

    __slots__ = ("answer", "get", "is_answered")

    def __init__(self, get: peer_wire.Get) -> None:
        self.get = get
        self.is_answered = trio.Event()
        self.answer: _Answer | None = None
