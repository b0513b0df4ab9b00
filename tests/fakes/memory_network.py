# SPDX-License-Identifier: Apache-2.0
"""A network of agents in one process and virtual time: PeerNets on memory streams.

A stream behaves like TCP: bytes arrive in order, after a delay, or the connection breaks.  Two
hosts can be silenced; then bytes arrive only after the silence.  It replaces
``peer_link.PeerLink``, the only place where agents use peer sockets.
"""

import collections
import contextvars
import errno
import math
import os
import random
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio

from acstor_agent.peers import connection_setup
from acstor_agent.peers import peer_link
from acstor_agent.peers import peer_listener
from acstor_agent.peers import traffic_control
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire

IN_FLIGHT_BYTES = 256 * 1024
"""Bytes in flight before a sender blocks."""
ALL_SHARE = 0.8

_here: contextvars.ContextVar[str] = contextvars.ContextVar("here")


def here() -> str:
    """Return the host of this task, "" if none."""
    return _here.get("")


class Direction:
    """One direction between two hosts.

    :param rng: decides how the byte stream is split
    :param delay_s: latency
    :param bytes_s: bandwidth in bytes per second
    """

    def __init__(self, rng: random.Random, delay_s: float = 0.0005, bytes_s: float = 100e6) -> None:
        self.delay_s, self.bytes_s = delay_s, bytes_s
        self._rng = rng
        self.is_silent = False
        self.pipes: set[Pipe] = set()
        self._free_s = 0.0

    def arrival_s(self, length: int) -> float:
        """Return the arrival time of bytes sent now, behind earlier ones."""
        self._free_s = max(self._free_s, trio.current_time()) + length / self.bytes_s
        return self._free_s + self.delay_s

    def some(self, length: int) -> int:
        """Return a random share of ``length`` to move at once, mostly all."""
        return (
            length if self._rng.random() < ALL_SHARE else self._rng.randint(min(1, length), length)
        )

    def go_on(self) -> None:
        """Wake receivers after a silence."""
        self.is_silent = False
        for pipe in self.pipes:
            pipe.wake()


class Pipe:
    """One direction of a connection."""

    def __init__(self, way: Direction) -> None:
        self._way = way
        way.pipes.add(self)
        self._parts: collections.deque[tuple[float, bytes]] = collections.deque()
        self.in_flight_bytes = 0
        self.error: OSError | None = None
        self._has_ended = False
        self._changed = trio.Event()

    def wake(self) -> None:
        """Wake all waiting tasks."""
        self._changed.set()
        self._changed = trio.Event()

    def send_nowait(self, buffers: list[peer_wire.Buffer]) -> int:
        """Take as many bytes as fit; return their number."""
        if self.error or self._has_ended:
            raise self.error or BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        room = self._way.some(IN_FLIGHT_BYTES - self.in_flight_bytes)
        data = b"".join(bytes(buffer) for buffer in buffers)[:room] if room else b""
        if data:
            self._parts.append((self._way.arrival_s(len(data)), data))
            self.in_flight_bytes += len(data)
            self.wake()
        return len(data)

    async def wait_room(self) -> None:
        """Return when sending is possible or would raise."""
        await trio.lowlevel.checkpoint()
        while self.in_flight_bytes >= IN_FLIGHT_BYTES and not self.error and not self._has_ended:
            await self._changed.wait()

    async def receive(self) -> bytes:
        """Return arrived bytes; b"" after the other side has closed."""
        await trio.lowlevel.checkpoint()
        while True:
            if self.error:
                raise self.error
            wait_s = self._parts[0][0] - trio.current_time() if self._parts else math.inf
            if wait_s <= 0 and not self._way.is_silent:
                arrived_s, data = self._parts.popleft()
                if (taken := self._way.some(len(data))) < len(data):
                    self._parts.appendleft((arrived_s, data[taken:]))
                    data = data[:taken]
                self.in_flight_bytes -= len(data)
                self.wake()
                return data
            if self._has_ended and not self._parts and not self._way.is_silent:
                return b""
            with trio.move_on_after(math.inf if self._way.is_silent else wait_s):
                await self._changed.wait()

    def end(self) -> None:
        """Mark the end of the stream."""
        self._has_ended = True
        self.wake()

    def break_(self, number: int = errno.ECONNRESET) -> None:
        """Break it at once; bytes in flight are lost."""
        self.error = self.error or ConnectionResetError(number, os.strerror(number))
        self._way.pipes.discard(self)
        self.wake()


class MemoryLink(peer_link.PeerLink):
    """One end of a connection; see :class:`peer_link.PeerLink`."""

    bytes_s = math.inf  # no compression: its CPU time is not virtual

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._in, self._out = incoming, outgoing
        self.upload = traffic_control.TrafficLimiter()
        self.download = traffic_control.TrafficLimiter()

    async def receive(self, receiver: peer_receiver.Receiver) -> list[peer_wire.Message] | None:
        """Return the next messages; None when the other side has closed."""
        while data := await self._in.receive():
            if messages := receiver.feed_bytes(data):
                return messages
        return None

    def send_nowait(self, buffers: list[peer_wire.Buffer]) -> int:
        """Send as many bytes as fit."""
        return self._out.send_nowait(buffers)

    def _adapt_not_sent(self, count: int, took_s: float) -> None:
        """Do nothing: no limit of unsent bytes."""

    @property
    def undelivered_bytes(self) -> int:
        """The bytes in flight."""
        return self._out.in_flight_bytes

    @property
    def least_rtt_s(self) -> float:
        """The minimum RTT, unknown."""
        return 0.0

    async def wait_writable(self) -> None:
        """Return when sending is possible."""
        await self._out.wait_room()

    def close(self) -> None:
        """Close this end; sent bytes still arrive, received ones are lost."""
        self._out.end()
        self._in.break_()


class _Accepted:
    """Stands in for an accepted connection in ``PeerNetwork._accept``."""

    def __init__(self, link: MemoryLink, peer_address: tuple[str, int]) -> None:
        self.link, self._peer_address = link, peer_address
        self.socket = self

    def getpeername(self) -> tuple[str, int]:
        """Return the peer's address."""
        return self._peer_address

    async def aclose(self) -> None:
        """Close it."""
        self.link.close()


class Endpoint:
    """Stands in for a listening socket."""

    def __init__(self, handler: peer_listener.Handler) -> None:
        self._handler = handler
        self._handlers: trio.Nursery | None = None

    async def serve(
        self,
        listeners: peer_listener.Listeners,
        handlers: trio.Nursery,
        task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept connections forever; see :meth:`peer_listener.PeerListener.serve`."""
        self._handlers = handlers
        task_status.started(listeners)
        try:
            await trio.sleep_forever()
        finally:
            self._handlers = None

    def connect(self, stream: _Accepted) -> None:
        """Take a connection, as accept(2) does.

        :raises ConnectionRefusedError: it is not listening
        """
        if self._handlers is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
        self._handlers.start_soon(self._handler, stream)


class Network:
    """Streams between all hosts, and the listening endpoints."""

    def __init__(self, rng: random.Random) -> None:
        self.ways: dict[tuple[str, str], Direction] = collections.defaultdict(
            lambda: Direction(rng)
        )
        self._endpoints: dict[tuple[str, int], tuple[str, Endpoint]] = {}
        self._addresses: dict[str, tuple[str, int]] = {}

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Route all PeerNets of this process through this network for the block."""
        before = connection_setup.connect, connection_setup.accept
        connection_setup.connect, connection_setup.accept = self._connect, _accept
        try:
            yield
        finally:
            connection_setup.connect, connection_setup.accept = before

    @contextmanager
    def listening(self, host: str, address: tuple[str, int], endpoint: Endpoint) -> Iterator[None]:
        """Make a host reachable; tasks started in the block belong to it."""
        _here.set(host)
        self._addresses[host], self._endpoints[address] = address, (host, endpoint)
        try:
            yield
        finally:
            del self._endpoints[address]

    def be(self, host: str) -> None:
        """Assign this task to a host."""
        _here.set(host)

    def break_all(self, host: str) -> None:
        """Break all connections of a host."""
        for ends, way in self.ways.items():
            if host in ends:
                for pipe in list(way.pipes):
                    pipe.break_()

    def silence(self, host: str, other: str, is_silent: bool) -> None:
        """Silence two hosts to each other, or end the silence."""
        for ends in ((host, other), (other, host)):
            self.ways[ends].is_silent = is_silent
            if not is_silent:
                self.ways[ends].go_on()

    async def _connect(
        self,
        ip: str,
        port: int,
        credentials: object,
        silence_s: float,
        on_dialled: Callable[[float], None],
    ) -> peer_link.PeerLink:
        here = _here.get()
        await trio.sleep(self.ways[here, here].delay_s)
        if (ip, port) not in self._endpoints:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody is there")
        there, endpoint = self._endpoints[ip, port]
        to, back = self.ways[here, there], self.ways[there, here]
        while to.is_silent or back.is_silent:  # noqa: ASYNC110 - SYN is retransmitted
            await trio.sleep(0.2)
        on_dialled(to.delay_s + back.delay_s)
        out, back_pipe = Pipe(to), Pipe(back)
        stream = _Accepted(MemoryLink(out, back_pipe), self._addresses[here])
        tasks = contextvars.copy_context()
        tasks.run(_here.set, there)
        tasks.run(endpoint.connect, stream)
        return MemoryLink(back_pipe, out)


async def _accept(stream: Any, credentials: object, silence_s: float) -> peer_link.PeerLink:
    await trio.lowlevel.checkpoint()
    link: peer_link.PeerLink = stream.link
    return link
