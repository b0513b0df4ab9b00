# SPDX-License-Identifier: Apache-2.0
"""This host among its peers: opens, keeps, bounds and closes connections.

Whatever a peer sends or omits, and any unexpected exception, ends in an answer, a reported loss, or
a dropped connection and a log line. Chunks are not verified here.
"""

import contextlib
import functools
import logging
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

import trio

from acstor_agent.peers import connection_setup
from acstor_agent.peers import handshake_limits
from acstor_agent.peers import peer_link
from acstor_agent.peers import peer_listener
from acstor_agent.peers import traffic_control
from acstor_agent.peers.connection import base_connection
from acstor_agent.peers.connection import channel
from acstor_agent.peers.connection import client_connection
from acstor_agent.peers.connection import hello_exchange
from acstor_agent.peers.connection import loop_share
from acstor_agent.peers.connection import periodic_checks
from acstor_agent.peers.connection import server_connection
from acstor_agent.runtime import fault_log
from acstor_common import errors
from acstor_common.identity import credentials
from acstor_common.model import ids
from acstor_common.wire import peer_wire

LOG = logging.getLogger(__name__)

RETRY_S = 1.0
"""Pause of a loop that failed."""

Limits = base_connection.Limits
Credentials = credentials.Credentials
SecurityMode = connection_setup.SecurityMode
OnNotification = server_connection.OnNotification
BrokeRules = Callable[[ids.HostId, errors.RemoteProtocolError], None]
"""Called with a host that was asked and broke the protocol."""


class PeerNetwork:
    """Client and server of the peer protocol; ``credentials`` None: insecure mode."""

    def __init__(
        self,
        host_id: ids.HostId,
        *,
        admission: hello_exchange.Admission,
        credentials: Credentials | None = None,
        limits: Limits | None = None,
        turns: loop_share.LoopTurns | None = None,
        traffic: traffic_control.Traffic | None = None,
    ) -> None:
        self._host_id = host_id
        self.subscribe()
        self._limits = limits or Limits()
        self._admission = admission
        self._credentials = credentials
        self._gate = base_connection.DemandGate()
        self._lines: dict[tuple[ids.HostId, peer_wire.Klass], channel.Channel] = {}
        self._leaving: set[channel.Channel] = set()  # replaced, and still with pending requests
        self._answering: set[server_connection.ServerConnection] = set()
        self._budgets = server_connection.Budgets(self._limits)
        many = self._limits.incoming + self._limits.outgoing
        self._share = loop_share.LoopShare(many, turns, self._limits.small_messages)
        self._traffic = traffic or traffic_control.unbounded()
        self.faults = fault_log.FaultLog()
        self.unauthenticated = handshake_limits.HandshakeLimits(
            self._limits.unauthenticated, self._limits.hello_s, admission.hosts_at
        )
        may_enter = self.unauthenticated.admit_connection if credentials else lambda ip: True
        self.endpoint = peer_listener.PeerListener(self._accept, may_enter)
        self._nursery: trio.Nursery | None = None
        self._giver: server_connection.RequestHandler
        self._scopes: set[trio.CancelScope] = set()

    def subscribe(
        self,
        *,
        on_notification: OnNotification = lambda host, notification: None,
        protocol_violated: BrokeRules = lambda host, error: None,
        on_notification_lost: Callable[[ids.HostId], None] = lambda host: None,
    ) -> None:
        """Set the callbacks for events of peers, before any connection.

        :param on_notification: called with a host and its announcement
        :param on_notification_lost: called with a host that may have missed announcements
        """
        self._on_notification, self._on_notification_lost = on_notification, on_notification_lost
        self._protocol_violated = protocol_violated

    @property
    def connections(self) -> tuple[int, int]:
        """Number of incoming and of outgoing connections."""
        return len(self.unauthenticated) + len(self._answering), len(self._lines)

    async def aclose(self) -> None:
        """End :meth:`run` and :meth:`serve_forever`, and close all connections."""
        for scope in self._scopes:
            scope.cancel()
        await trio.lowlevel.checkpoint()

    @contextlib.contextmanager
    def _until_closed(self) -> Iterator[None]:
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)

    async def _keep(self, what: str, loop: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await loop()
            except Exception as error:
                self.faults.record_fault(what, error)
            await trio.sleep(RETRY_S)

    # Client

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the connections to other agents until :meth:`aclose`."""
        with self._until_closed():
            async with trio.open_nursery() as nursery:
                sweep = functools.partial(
                    periodic_checks.sweep, self._asking, self._limits.idle_s, self._limits
                )
                checks = periodic_checks.Reauthorization(
                    self._admission, self._credentials, self._limits
                )
                watch = functools.partial(checks.watch_files, self._all)
                nursery.start_soon(self._keep, "a look at connections to peers", sweep)
                nursery.start_soon(self._keep, "a check of peers' certificates", watch)
                self._nursery = nursery
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._nursery = None  # before it closes: callers check it

    def _asking(self) -> list[base_connection.Connection]:
        return [line.connection for line in self._lines.values() if line.connection]

    def send_announcement(
        self, host: ids.HostId, address: str, notification: peer_wire.Notification
    ) -> None:
        """Send a message to ``host``; drop it if there is no connection or room."""
        try:
            line = self._line(host, address, peer_wire.Klass.BULK)
        except errors.ChunkUnavailable as e:
            LOG.debug("not told: %s", e)
            return
        line.send_announcement(notification)

    def send_requests(
        self,
        host: ids.HostId,
        address: str,
        requests: Sequence[peer_wire.ChunkRequest],
        on_answers: client_connection.OnAnswers,
    ) -> None:
        """Request chunks of ``host`` in few messages; never waits. Callers keep deadlines.

        :param requests: of one class of connections
        :param on_answers: called with each answer or loss, never from within this call
        :raises errors.LocalProtocolError: an answer to an older request with such a number is
            possible
        """
        klass = requests[0].priority.klass
        try:
            line = self._line(host, address, klass)
        except errors.ChunkUnavailable as failure:
            line = channel.Channel(host, address, klass, self.faults)
            line.failure = failure
            line.connection_ended()
            self._leaving.add(line)
            channel.next_turn(functools.partial(self._forget, line))
        line.send_requests(requests, on_answers)

    def cancel_requests(self, host: ids.HostId, request_ids: Sequence[int]) -> None:
        """Cancel requests to ``host``."""
        lines = [self._lines.get((host, klass)) for klass in peer_wire.Klass]
        for line in (*lines, *self._leaving):
            if line and line.host == host:
                line.cancel_requests(request_ids)

    def raise_priorities(self, host: ids.HostId, request_ids: Sequence[int]) -> None:
        """Tell ``host`` that guests now wait for bulk requests."""
        for line in (self._lines.get((host, peer_wire.Klass.BULK)), *self._leaving):
            if line and line.host == host and line.klass is peer_wire.Klass.BULK:
                line.raise_priorities(request_ids)

    def _forget(self, line: channel.Channel) -> None:
        """Remove a channel and fail its requests."""
        self._leaving.discard(line)
        if self._lines.get((line.host, line.klass)) is line:
            del self._lines[line.host, line.klass]
        line.connection_ended()

    def _line(self, host: ids.HostId, address: str, klass: peer_wire.Klass) -> channel.Channel:
        """Return the channel to ``host``; dial if there is none to this address."""
        line = self._lines.get((host, klass))
        if line and line.address == address and line.is_open:
            return line
        if self._nursery is None:
            what = "a connection to another host"
            raise errors.SourceUnreachable(what, "this host", "it does not wait among others")
        if line:
            line.scope.cancel()
            self._leaving.add(line)
        else:
            self._make_room()
        line = self._lines[host, klass] = channel.Channel(host, address, klass, self.faults)
        self._nursery.start_soon(self._run_line, line)
        return line

    def _make_room(self) -> None:
        left = [line.connection for line in self._lines.values() if line.is_open]
        if len(left) < self._limits.outgoing:
            return
        unused = [connection for connection in left if connection and connection.is_idle]
        if not unused:
            raise errors.SourceUnreachable(
                "another connection", "this host", f"all {len(left)} connections are in use"
            )
        min(unused, key=lambda connection: connection.last_progress).close()

    async def _run_line(self, line: channel.Channel) -> None:
        try:
            with line.scope:
                connection, early = await self._dial(line)
                line.open(connection)
                await connection.run(early)
                if isinstance(connection.failure, errors.RemoteProtocolError):
                    self._record_violation(line, connection.failure)
                elif isinstance(connection.failure, errors.LocalProtocolError):
                    self.faults.record_fault("a request to a peer", connection.failure)
        except (*peer_link.LINK_ERRORS, trio.TooSlowError) as error:
            why = f"cannot connect: {peer_link.reason(error)}"
            line.failure = errors.SourceUnreachable("a connection", line.peer, why)
        except (errors.NotAuthenticated, errors.OtherVersion) as error:
            LOG.warning("Connection to %s dropped: %s", line.peer, error)
            line.failure = errors.SourceUnreachable("a connection", line.peer, str(error))
        except errors.RemoteProtocolError as error:
            line.failure = error
            self._record_violation(line, error)
        except Exception as error:
            why = self.faults.record_fault("a connection to a peer", error)
            line.failure = errors.SourceUnreachable("a connection", line.peer, why)
        finally:
            self._forget(line)
            if line.may_have_missed_announcements:
                self._on_notification_lost(line.host)

    def _record_violation(self, line: channel.Channel, error: errors.RemoteProtocolError) -> None:
        LOG.warning("Connection dropped: %s", error)
        self._protocol_violated(line.host, error)

    async def _dial(
        self, line: channel.Channel
    ) -> tuple[client_connection.ClientConnection, list[peer_wire.Message]]:
        with trio.fail_after(self._limits.hello_s):
            link = await connection_setup.connect(
                line.ip, line.port, self._credentials, self._limits.silence_s
            )
            try:
                receiver = peer_wire.receiver(line.peer, peer_wire.FROM_SERVER, link.receiving)
                ours = peer_wire.Hello(self._host_id, line.klass, self._admission.ring.epoch)
                early = await hello_exchange.send_hello(
                    link, receiver, ours, line.host, self._admission
                )
                link.join_limits(self._traffic, line.klass)
            except BaseException:
                link.close()
                raise
        return (
            client_connection.ClientConnection(
                line.host, link, receiver, line.klass, self._gate, self._share, self._limits
            ),
            early,
        )

    # Server

    async def serve_forever(
        self,
        giver: server_connection.RequestHandler,
        listeners: Iterable[trio.SocketListener],
        task_status: trio.TaskStatus[peer_listener.Listeners] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve other agents until :meth:`aclose`; the listeners are closed at the end."""
        self._giver = giver
        with self._until_closed():
            async with trio.open_nursery() as nursery:
                sweep = functools.partial(
                    periodic_checks.sweep,
                    lambda: list(self._answering),
                    2 * self._limits.idle_s,
                    self._limits,
                )
                nursery.start_soon(self._keep, "a look at connections of peers", sweep)
                nursery.start_soon(self._keep, "a sign of life to peers", self._show_life)
                await self.endpoint.serve(list(listeners), nursery, task_status)

    async def _accept(self, stream: trio.SocketStream) -> None:
        ip, peer = "an unknown address", "an unknown address"
        try:
            ip, port = stream.socket.getpeername()[:2]
            peer = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
            with self.unauthenticated.limit_handshake(ip):
                if not await self._may_begin(stream, ip):
                    return
                try:
                    connection, early = await self._welcome(stream, peer)
                except connection_setup.ProofGiven:
                    return
            self._answering.add(connection)
            peer = connection.peer
            try:
                await connection.run(early)
            finally:
                self._answering.discard(connection)
            if isinstance(connection.failure, errors.RemoteProtocolError):
                self.unauthenticated.log_drops(
                    ip, peer, f"it broke the protocol: {connection.failure.why}"
                )
        except trio.TooSlowError:
            self.unauthenticated.log_drops(ip, peer, "no Hello in time")
        except errors.RemoteProtocolError as error:
            self.unauthenticated.log_drops(ip, peer, f"it broke the protocol: {error.why}")
        except (*peer_link.LINK_ERRORS, errors.NotAuthenticated) as error:
            self.unauthenticated.log_drops(ip, peer, peer_link.reason(error))
        except Exception as error:
            self.faults.record_fault("a connection of a peer", error)
        finally:
            await trio.aclose_forcefully(stream)

    def _make_room_for(self, new: server_connection.ServerConnection) -> None:
        """Close the longest idle connection, of the host or of all, if there are too many."""
        rivals = [c for c in self._answering if (c.host, c.klass) == (new.host, new.klass)]
        if len(rivals) < self._limits.of_host:
            rivals = list(self._answering)
            if len(rivals) < self._limits.incoming:
                return
        min(rivals, key=lambda c: (not c.is_idle, c.last_progress)).close()

    async def _may_begin(self, stream: trio.SocketStream, ip: str) -> bool:
        """Wait for the first byte; return whether a handshake may start now."""
        if self._credentials is None:
            return True
        await connection_setup.wait_for_first_byte(stream)
        if not self.unauthenticated.admit_handshake(ip):
            return False
        await self._share.next_turn(ip)  # after the check: refused ones do not queue
        return True

    async def _welcome(
        self, stream: trio.SocketStream, peer: str
    ) -> tuple[server_connection.ServerConnection, list[peer_wire.Message]]:
        link = await connection_setup.accept(stream, self._credentials, self._limits.silence_s)
        try:
            receiver = peer_wire.receiver(peer, peer_wire.FROM_CLIENT, link.receiving)
            theirs, early = await hello_exchange.await_hello(
                link, receiver, self._host_id, self._admission
            )
            link.join_limits(self._traffic, theirs.klass)
            receiver.peer = f"{theirs.host_id} ({peer})"
            connection = server_connection.ServerConnection(
                link,
                receiver,
                theirs,
                self._gate,
                self._giver,
                self._on_notification,
                self._budgets,
                self._share,
            )
            self._make_room_for(connection)
        except BaseException:
            link.close()
            raise
        return connection, early

    async def _show_life(self) -> None:
        interval_s = self._limits.silence_s / 4
        while True:
            await trio.sleep(interval_s)
            for connection in self._answering:
                connection.send_keepalive(trio.current_time(), interval_s)

    def _all(self) -> list[base_connection.Connection]:
        return [*self._asking(), *self._answering]
