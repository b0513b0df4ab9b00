# SPDX-License-Identifier: Apache-2.0
"""The two ends of a connection between agents: the asking one and the answering one.

The one rule: a connection may end at any moment, for any reason, and then
everybody who waits on it hears of it at once; nothing else suffers.

What is to be sent goes straight to the socket while that takes it, else to the
outbox, which one task per connection empties.  Bulk connections let demand
connections of the same process go first, but never wait long for them.
"""

import abc
import collections
import dataclasses
import logging
from collections.abc import Awaitable
from collections.abc import Callable

import trio

from acstor_agent import peer_link
from acstor_common import errors
from acstor_common import geometry
from acstor_common import ids
from acstor_common import peer_wire

LOG = logging.getLogger(__name__)

Serve = Callable[[ids.HostId, peer_wire.Get], Awaitable[peer_wire.Buffer]]
"""Gives the bytes that a peer asks for, or raises one of errors.ChunkUnavailable's family."""

BULK_YIELDS_S = 0.05
"""How long bulk data lets demand data go first; a stuck demand connection must not block it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the peer network.

    :param incoming: connections from other agents
    :param outgoing: connections to other agents; an idle one makes room for a new one
    :param requests: requests that are being answered on one connection; further ones wait in
        the socket
    :param answer_bytes: bytes of the answers to them
    :param hello_s: time for connecting and for Hello
    :param idle_s: a connection without requests is closed after this; by the server after twice
        that
    :param silence_s: a connection is dropped when a frame or the outbox makes no progress so long
    :param serve_s: no request is worked on for longer, whatever its sender says
    """

    incoming: int = 2048
    outgoing: int = 1024
    requests: int = 128
    answer_bytes: int = 16 * geometry.MIB
    hello_s: float = 5.0
    idle_s: float = 60.0
    silence_s: float = 20.0
    serve_s: float = 60.0


class DemandGate:
    """Lets bulk connections wait while demand connections have something to send."""

    def __init__(self) -> None:
        self._waiting = 0  # demand connections whose outbox is not empty
        self._cleared = trio.Event()

    def begin(self) -> None:
        """Note that a demand connection has something in its outbox."""
        self._waiting += 1

    def end(self) -> None:
        """Note that its outbox is empty or given up."""
        self._waiting -= 1
        if not self._waiting:
            self._cleared.set()
            self._cleared = trio.Event()

    @property
    def is_open(self) -> bool:
        """Say that bulk data need not wait."""
        return not self._waiting

    async def wait(self) -> None:
        """Return when demand data is gone, or after BULK_YIELDS_S."""
        with trio.move_on_after(BULK_YIELDS_S):
            while self._waiting:
                await self._cleared.wait()


class Connection(abc.ABC):
    """What both ends have: a link, an outbox, and the tasks that read and write.

    :param receiver: has already received Hello
    :param peer: the other side in words, for logs and errors
    """

    def __init__(
        self,
        link: peer_link.Link,
        receiver: peer_wire.Receiver,
        peer: str,
        klass: peer_wire.Klass,
        gate: DemandGate,
    ) -> None:
        self.peer = peer
        self.klass = klass
        self.is_closed = False
        self.last_progress = trio.current_time()
        self.outbox_bytes = 0
        self.failure: errors.AcstorError | None = None
        self._link = link
        self._receiver = receiver
        self._gate = gate
        self._scope = trio.CancelScope()
        self._outbox: collections.deque[peer_wire.Buffer] = collections.deque()
        self._has_outbox = trio.Event()
        self._has_changed = trio.Event()  # less is to be done or to be sent

    @property
    @abc.abstractmethod
    def is_idle(self) -> bool:
        """Say that no request is under way."""

    @abc.abstractmethod
    def _handle(self, message: peer_wire.Message) -> None:
        """Act on a message, without waiting."""

    @property
    @abc.abstractmethod
    def _is_full(self) -> bool:
        """Say that the next message must wait, and with it whatever the other side sends."""

    def post(self, message: peer_wire.Message) -> None:
        """Send ``message``, or put it in the outbox if the socket is full; never waits."""
        buffers = peer_wire.encode(message)
        if self.is_closed:
            return
        if not self._outbox:
            if self.klass is peer_wire.Klass.DEMAND or self._gate.is_open:
                buffers = _rest(buffers, self._send_nowait(buffers))
            if not buffers:
                return
            if self.klass is peer_wire.Klass.DEMAND:
                self._gate.begin()
        self._outbox.extend(buffers)
        self.outbox_bytes += sum(map(len, buffers))
        self._has_outbox.set()

    def _send_nowait(self, buffers: list[peer_wire.Buffer]) -> int:
        """Send what can be sent now; a lost connection is noticed by the tasks that wait on it."""
        try:
            return self._link.send_nowait(buffers)
        except OSError:
            return 0

    async def run(self, early: list[peer_wire.Message]) -> None:
        """Read and write until the connection ends; ``failure`` tells why, if not by itself.

        :param early: messages that came together with Hello
        """
        try:
            with self._scope:
                async with trio.open_nursery() as self._nursery:
                    self._nursery.start_soon(self._until_it_ends, self._write)
                    await self._until_it_ends(self._read, early)
        finally:
            self.close()
            self._link.close()
            if self._outbox and self.klass is peer_wire.Klass.DEMAND:
                self._gate.end()

    async def _until_it_ends(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Do ``work``; when it ends, for whatever reason, end the connection."""
        try:
            await work(*args)
        except peer_link.LINK_ERRORS as error:
            self.fail(
                errors.SourceUnreachable("the answer", self.peer, f"connection lost: {error}")
            )
        except errors.RemoteProtocolError as error:
            LOG.warning("Connection dropped: %s", error)
            self.fail(error)
        finally:
            self.close()

    def fail(self, failure: errors.AcstorError) -> None:
        """End the connection because of ``failure``; the first one counts."""
        self.failure = self.failure or failure
        self.close()

    def close(self) -> None:
        """End the connection; nothing is sent on it from now on."""
        self.is_closed = True
        self._scope.cancel()

    async def _read(self, messages: list[peer_wire.Message] | None) -> None:
        while messages is not None:
            self.last_progress = trio.current_time()
            for message in messages:
                if self._is_full:
                    await self._wait_for_room()
                self._handle(message)
            messages = await self._link.receive(self._receiver)

    async def _write(self) -> None:
        while True:
            if not self._outbox:
                self._has_outbox = trio.Event()
                await self._has_outbox.wait()
            if self.klass is peer_wire.Klass.BULK:
                await self._gate.wait()
            some = [self._outbox[i] for i in range(min(len(self._outbox), 16))]
            sent = await self._link.send_some(some)
            self.last_progress = trio.current_time()
            self.outbox_bytes -= sent
            for _ in some:
                self._outbox.popleft()
            self._outbox.extendleft(reversed(_rest(some, sent)))
            if not self._outbox and self.klass is peer_wire.Klass.DEMAND:
                self._gate.end()
            self._has_changed.set()

    async def _wait_for_room(self) -> None:
        while self._is_full:
            self._has_changed = trio.Event()
            await self._has_changed.wait()

    def is_stuck(self, now: float, limits: Limits) -> bool:
        """Say that the other side began a frame, or lets our outbox wait, and nothing moves."""
        waits = bool(self._outbox) or not self._receiver.is_between_frames
        return waits and now - self.last_progress > limits.silence_s


def _rest(buffers: list[peer_wire.Buffer], sent: int) -> list[peer_wire.Buffer]:
    """Return what is left to send of ``buffers`` after ``sent`` bytes."""
    for number, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:] if sent else buffer, *buffers[number + 1 :]]
        sent -= len(buffer)
    return []


class Asking(Connection):
    """The end that opened the connection: sends Gets and waits for the answers."""

    def __init__(
        self,
        link: peer_link.Link,
        receiver: peer_wire.Receiver,
        peer: str,
        klass: peer_wire.Klass,
        gate: DemandGate,
    ) -> None:
        super().__init__(link, receiver, peer, klass, gate)
        self._last_id = 0
        self._waiting: dict[int, _Waiter] = {}

    @property
    def is_idle(self) -> bool:
        """Say that nobody waits for an answer."""
        return not self._waiting

    @property
    def _is_full(self) -> bool:
        """Answers are always taken: there is somebody who waits for them."""
        return False

    async def ask(self, get: peer_wire.Get) -> peer_wire.Buffer:
        """Send ``get`` under an id of its own; return the bytes.

        If the caller is cancelled the peer is told, and a late answer is dropped.

        :raises errors.ChunkMissing: the peer says that it cannot give it
        :raises errors.SourceUnreachable: it may later, or the connection was lost
        :raises errors.RemoteProtocolError: the connection was dropped because the peer broke the
            rules
        """
        if self.is_closed:
            raise self._lost(get)
        request_id = self._new_id()
        waiter = self._waiting[request_id] = _Waiter(get)
        try:
            self.post(get._replace(request_id=request_id))
            await waiter.is_answered.wait()
        finally:
            if self._waiting.pop(request_id, None):
                self.post(peer_wire.Cancel(request_id))
        if isinstance(waiter.answer, peer_wire.Refuse):
            raise self._refusal(get, waiter.answer)
        if waiter.answer is None:
            raise self._lost(get)
        return waiter.answer.data

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
            case peer_wire.Ping(token):
                self.post(peer_wire.Pong(token))

    def _answer(self, request_id: int, answer: peer_wire.Chunk | peer_wire.Refuse) -> None:
        """Give an answer to who waits for it; if nobody does any more, drop it."""
        if waiter := self._waiting.pop(request_id, None):
            waiter.answer = answer
            waiter.is_answered.set()

    async def run(self, early: list[peer_wire.Message]) -> None:
        """See :meth:`Connection.run`; at the end whoever waits still is told."""
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
        return errors.SourceUnreachable(describe(get), self.peer, why)

    def _refusal(self, get: peer_wire.Get, refuse: peer_wire.Refuse) -> errors.AcstorError:
        is_passing = refuse.code in (peer_wire.RefuseCode.UNREACHABLE, peer_wire.RefuseCode.BUSY)
        kind = errors.SourceUnreachable if is_passing else errors.ChunkMissing
        return kind(describe(get), self.peer, f"{refuse.code.name}: {refuse.text}")


class _Waiter:
    """Somebody who waits for an answer; none means that the connection was lost."""

    __slots__ = ("answer", "get", "is_answered")

    def __init__(self, get: peer_wire.Get) -> None:
        self.get = get
        self.is_answered = trio.Event()
        self.answer: peer_wire.Chunk | peer_wire.Refuse | None = None


def describe(get: peer_wire.Get) -> str:
    """Return what is asked for in words."""
    return f"{get.length} bytes of image {get.image_id} at {get.offset}"


class Answering(Connection):
    """The end that accepted the connection: answers Gets, so many at a time.

    :param host: the other side, from its Hello
    """

    def __init__(
        self,
        link: peer_link.Link,
        receiver: peer_wire.Receiver,
        peer: str,
        hello: peer_wire.Hello,
        gate: DemandGate,
        serve: Serve,
        limits: Limits,
    ) -> None:
        super().__init__(link, receiver, peer, hello.klass, gate)
        self._host = hello.host_id
        self._serve = serve
        self._limits = limits
        self._answering: dict[int, trio.CancelScope] = {}
        self._answering_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Say that no request is being answered and no answer is waiting to be sent."""
        return not self._answering_bytes and not self.outbox_bytes

    @property
    def _is_full(self) -> bool:
        return (
            len(self._answering) >= self._limits.requests
            or self._answering_bytes + self.outbox_bytes >= self._limits.answer_bytes
        )

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
                self._answering_bytes += message.length
                self._nursery.start_soon(self._answer, message, scope)
            case peer_wire.Cancel(request_id):
                if scope_of_it := self._answering.pop(request_id, None):
                    scope_of_it.cancel()
            case peer_wire.Ping(token):
                self.post(peer_wire.Pong(token))

    async def _answer(self, get: peer_wire.Get, scope: trio.CancelScope) -> None:
        answer: peer_wire.Message = peer_wire.Refuse(
            get.request_id, peer_wire.RefuseCode.UNREACHABLE, "no time left"
        )
        with scope:
            answer = await self._answer_to(get)
        self._answering_bytes -= get.length
        if self._answering.get(get.request_id) is scope:  # else it was cancelled
            del self._answering[get.request_id]
            self.post(answer)
        self._has_changed.set()

    async def _answer_to(self, get: peer_wire.Get) -> peer_wire.Message:
        try:
            data = await self._serve(self._host, get)
        except errors.AcstorError as error:
            return peer_wire.Refuse(get.request_id, _refuse_code(error), str(error))
        if len(data) != get.length:
            LOG.error("%d bytes were found for %s", len(data), describe(get))
            code = peer_wire.RefuseCode.UNREACHABLE
            return peer_wire.Refuse(get.request_id, code, "internal error")
        return peer_wire.Chunk(get.request_id, data)


def _refuse_code(error: errors.AcstorError) -> peer_wire.RefuseCode:
    if isinstance(error, errors.ChunkMissing):
        return peer_wire.RefuseCode.MISSING
    if isinstance(error, errors.ChunkInvalid):
        return peer_wire.RefuseCode.INVALID
    return peer_wire.RefuseCode.UNREACHABLE


async def greet(
    link: peer_link.Link, receiver: peer_wire.Receiver, ours: peer_wire.Hello, expected: ids.HostId
) -> list[peer_wire.Message]:
    """Say Hello first and check who answers; return the messages that came with the answer.

    :raises errors.RemoteProtocolError: it is not ``expected``
    """
    await _send(link, ours)
    theirs, early = await _receive_hello(link, receiver)
    if theirs.host_id != expected:
        raise errors.RemoteProtocolError(
            receiver.peer,
            f"this is {theirs.host_id}, not {expected}: the address in the ring is wrong",
        )
    if theirs.klass != ours.klass:
        raise errors.RemoteProtocolError(receiver.peer, "Hello of another class")
    return early


async def welcome(
    link: peer_link.Link, receiver: peer_wire.Receiver, host_id: ids.HostId, ring_epoch: int
) -> tuple[peer_wire.Hello, list[peer_wire.Message]]:
    """Wait for Hello and answer it; return it and the messages that came with it."""
    theirs, early = await _receive_hello(link, receiver)
    await _send(link, peer_wire.Hello(host_id, theirs.klass, ring_epoch))
    return theirs, early


async def _receive_hello(
    link: peer_link.Link, receiver: peer_wire.Receiver
) -> tuple[peer_wire.Hello, list[peer_wire.Message]]:
    messages = await link.receive(receiver)
    if messages is None:
        raise OSError("closed before Hello")
    hello, *early = messages
    if not isinstance(hello, peer_wire.Hello):  # the receiver lets nothing else be first
        raise errors.RemoteProtocolError(receiver.peer, f"{type(hello).__name__} before Hello")
    if link.names is not None and hello.host_id not in link.names:
        raise errors.RemoteProtocolError(
            receiver.peer,
            f"Hello of {hello.host_id} with a certificate of {sorted(link.names)[:3]}",
        )
    return hello, early


async def _send(link: peer_link.Link, message: peer_wire.Message) -> None:
    buffers = peer_wire.encode(message)
    while buffers:
        buffers = _rest(buffers, await link.send_some(buffers))
