# SPDX-License-Identifier: Apache-2.0
"""Connections with peers, bounded; a fault of a peer or of this host ends at most one of them."""

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
from acstor_agent.peers import peer_link
from acstor_agent.peers import peer_listener
from acstor_agent.peers import traffic_control
from acstor_agent.peers import unauthenticated_connections
from acstor_agent.peers.connection import base_connection
from acstor_agent.peers.connection import client_connection
from acstor_agent.peers.connection import demand_gate
from acstor_agent.peers.connection import failed_dials
from acstor_agent.peers.connection import hello_exchange
from acstor_agent.peers.connection import loop_share
from acstor_agent.peers.connection import peer_channel
from acstor_agent.peers.connection import peer_limits
from acstor_agent.peers.connection import periodic_checks
from acstor_agent.peers.connection import server_connection
from acstor_agent.runtime import fault_log
from acstor_common import errors
from acstor_common.identity import credentials
from acstor_common.model import addresses
from acstor_common.model import ids
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire

LOG = logging.getLogger(__name__)

RETRY_S = 1.0  # pause of a loop that failed

PeerLimits = peer_limits.PeerLimits
Credentials = credentials.Credentials
SecurityMode = connection_setup.SecurityMode
OnViolation = Callable[[ids.HostId, errors.RemoteProtocolError], None]


class PeerNetwork:
    """Client and server of the peer protocol; ``credentials`` None: insecure mode."""

    def __init__(
        self,
        host_id: ids.HostId,
        *,
        admission: hello_exchange.Admission,
        credentials: Credentials | None = None,
        limits: PeerLimits | None = None,
        turns: loop_share.LoopTurns | None = None,
        traffic: traffic_control.TrafficControl | None = None,
    ) -> None:
        self._host_id = host_id
        self.set_callbacks()
        self._limits = limits or PeerLimits()
        self._admission = admission
        self._credentials = credentials
        self._gate = demand_gate.DemandGate()
        self._channels: dict[
            tuple[ids.HostId, peer_wire.ConnectionClass], peer_channel.Channel
        ] = {}
        self._replaced: set[peer_channel.Channel] = set()  # still with pending requests
        self._failed_dials = failed_dials.FailedDials(self._limits.outgoing)
        self._incoming: set[server_connection.ServerConnection] = set()
        self._budgets = server_connection.Budgets(self._limits)
        many = self._limits.incoming + self._limits.outgoing
        self._share = loop_share.LoopShare(many, turns, self._limits.small_messages)
        self._traffic = traffic or traffic_control.unbounded()
        self.faults = fault_log.FaultLog()
        self.unauthenticated = unauthenticated_connections.UnauthenticatedConnections(
            self._limits.unauthenticated, self._limits.hello_s, admission
        )
        may_enter = self.unauthenticated.admit_connection if credentials else lambda ip: True
        self.endpoint = peer_listener.PeerListener(self._accept, may_enter)
        self._nursery: trio.Nursery | None = None
        self._handler: server_connection.RequestHandler
        self._scopes: set[trio.CancelScope] = set()

    def set_callbacks(
        self,
        *,
        on_announcement: server_connection.OnAnnouncement = lambda host, announcement: None,
        protocol_violated: OnViolation = lambda host, error: None,
        on_announcement_lost: Callable[[ids.HostId], None] = lambda host: None,
        on_dialled: Callable[[ids.HostId, float], None] = lambda host, round_trip_s: None,
    ) -> None:
        """Set callbacks, before any connection; ``on_dialled`` gets its round trip (0: unknown)."""
        self._on_announcement, self._on_announcement_lost = on_announcement, on_announcement_lost
        self._protocol_violated, self._on_dialled = protocol_violated, on_dialled

    @property
    def connection_counts(self) -> tuple[int, int]:
        """Number of incoming and of outgoing connections."""
        return len(self.unauthenticated) + len(self._incoming), len(self._channels)

    async def aclose(self) -> None:
        """Cancel :meth:`run` and :meth:`serve_forever`, without awaiting them."""
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

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the connections to other agents until :meth:`aclose`."""
        with self._until_closed():
            async with trio.open_nursery() as nursery:
                sweep = functools.partial(
                    periodic_checks.sweep, self._outgoing, self._limits.idle_s, self._limits
                )
                checks = periodic_checks.Reauthorization(
                    self._admission, self._credentials, self._limits
                )
                watch = functools.partial(checks.watch_files, self._all)
                nursery.start_soon(self._keep, "a check of connections to peers", sweep)
                nursery.start_soon(self._keep, "a check of peers' certificates", watch)
                self._nursery = nursery
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._nursery = None  # before it closes: callers check it

    def _outgoing(self) -> list[base_connection.PeerConnection]:
        return [channel.connection for channel in self._channels.values() if channel.connection]

    def send_announcement(
        self, host: ids.HostId, address: str, announcement: peer_wire.Notification
    ) -> None:
        """Send a message, connecting if needed; drop it if that or room fails."""
        klass = peer_wire.ConnectionClass.BULK
        if not (
            self._failed_dials.may_announce(host, address)
            or self._open_channel(host, address, klass)
        ):
            self._on_announcement_lost(host)
            return
        try:
            channel = self._channel_to(host, address, klass)
        except errors.ChunkUnavailable as e:
            LOG.debug("announcement dropped: %s", e)
            return
        channel.send_announcement(announcement)

    def send_requests(
        self,
        host: ids.HostId,
        address: str,
        requests: Sequence[peer_wire.ChunkRequest],
        on_answers: client_connection.OnAnswers,
    ) -> None:
        """Request chunks of ``host``, of one class of connections; callers keep deadlines.

        :param on_answers: called with each unverified answer or loss, never from within this call
        :raises errors.LocalProtocolError: a number is in use, or was cancelled recently
        """
        klass = requests[0].priority.connection_class
        try:
            channel = self._channel_to(host, address, klass)
        except errors.ChunkUnavailable as failure:
            channel = peer_channel.Channel(host, address, klass, self.faults)
            channel.failure = failure
            channel.connection_ended()
            self._replaced.add(channel)
            peer_channel.call_soon(functools.partial(self._remove_channel, channel))
        channel.send_requests(requests, on_answers)

    def cancel_requests(self, host: ids.HostId, request_ids: Sequence[int]) -> None:
        """Cancel requests to ``host``."""
        lines = [self._channels.get((host, klass)) for klass in peer_wire.ConnectionClass]
        for channel in (*lines, *self._replaced):
            if channel and channel.host == host:
                channel.cancel_requests(request_ids)

    def raise_priorities(self, host: ids.HostId, request_ids: Sequence[int]) -> None:
        """Tell ``host`` that guests now wait for bulk requests."""
        bulk = peer_wire.ConnectionClass.BULK
        for channel in (self._channels.get((host, bulk)), *self._replaced):
            if channel and channel.host == host and channel.klass is bulk:
                channel.raise_priorities(request_ids)

    def _remove_channel(self, channel: peer_channel.Channel) -> None:
        self._replaced.discard(channel)
        if self._channels.get((channel.host, channel.klass)) is channel:
            del self._channels[channel.host, channel.klass]
        channel.connection_ended()

    def _open_channel(
        self, host: ids.HostId, address: str, klass: peer_wire.ConnectionClass
    ) -> peer_channel.Channel | None:
        channel = self._channels.get((host, klass))
        return channel if channel and channel.address == address and channel.is_open else None

    def _channel_to(
        self, host: ids.HostId, address: str, klass: peer_wire.ConnectionClass
    ) -> peer_channel.Channel:
        if (known := self._open_channel(host, address, klass)) is not None:
            return known
        channel = self._channels.get((host, klass))
        if self._nursery is None:
            what = "a connection to another host"
            raise errors.SourceUnreachable(what, "this host", "its peer network is not running")
        if not (channel and channel.is_open):
            self._make_room()
        if channel:
            channel.scope.cancel()
            self._replaced.add(channel)
        channel = self._channels[host, klass] = peer_channel.Channel(
            host, address, klass, self.faults
        )
        self._nursery.start_soon(self._run_channel, channel)
        return channel

    def _make_room(self) -> None:
        left = [channel.connection for channel in self._channels.values() if channel.is_open]
        if len(left) < self._limits.outgoing:
            return
        unused = [connection for connection in left if connection and connection.is_idle]
        if not unused:
            raise errors.SourceUnreachable(
                "another connection", "this host", f"all {len(left)} connections are in use"
            )
        min(unused, key=lambda connection: connection.last_progress).close()

    async def _run_channel(self, channel: peer_channel.Channel) -> None:
        try:
            with channel.scope:
                connection, early = await self._dial(channel)
                channel.open(connection)
                await connection.run(early)
                if isinstance(connection.failure, errors.RemoteProtocolError):
                    self._record_violation(channel, connection.failure)
                elif isinstance(connection.failure, errors.LocalProtocolError):
                    self.faults.record_fault("a request to a peer", connection.failure)
        except (*peer_link.LINK_ERRORS, trio.TooSlowError) as error:
            why = f"cannot connect: {peer_link.reason(error)}"
            channel.failure = errors.SourceUnreachable("a connection", channel.peer, why)
        except (errors.NotAuthenticated, errors.OtherVersion) as error:
            self._failed_dials.log_rejection(channel.host, channel.peer, error)
            channel.failure = errors.SourceUnreachable("a connection", channel.peer, str(error))
        except errors.RemoteProtocolError as error:
            channel.failure = error
            self._record_violation(channel, error)
        except Exception as error:
            why = self.faults.record_fault("a connection to a peer", error)
            channel.failure = errors.SourceUnreachable("a connection", channel.peer, why)
        finally:
            if channel.connection is None:
                self._failed_dials.dial_failed(channel.host, channel.address)
            self._remove_channel(channel)
            if channel.may_have_missed_announcements:
                self._on_announcement_lost(channel.host)

    def _record_violation(
        self, channel: peer_channel.Channel, error: errors.RemoteProtocolError
    ) -> None:
        LOG.warning("Connection dropped: %s", error)
        self._protocol_violated(channel.host, error)

    async def _dial(
        self, channel: peer_channel.Channel
    ) -> tuple[client_connection.ClientConnection, list[peer_wire.Message]]:
        with trio.fail_after(self._limits.hello_s):
            link = await connection_setup.connect(
                *(channel.ip, channel.port, self._credentials, self._limits.silence_s),
                functools.partial(self._on_dialled, channel.host),
            )
            try:
                receiver = peer_receiver.receiver(
                    channel.peer, peer_wire.FROM_SERVER, link.receiving
                )
                ours = peer_wire.Hello(self._host_id, channel.klass, self._admission.ring.epoch)
                early = await hello_exchange.send_hello(
                    link, receiver, ours, channel.host, self._admission
                )
                link.join_limits(self._traffic, channel.klass)
            except BaseException:
                link.close()
                raise
        return (
            client_connection.ClientConnection(
                channel.host, link, receiver, channel.klass, self._gate, self._share, self._limits
            ),
            early,
        )

    async def serve_forever(
        self,
        handler: server_connection.RequestHandler,
        listeners: Iterable[trio.SocketListener],
        task_status: trio.TaskStatus[peer_listener.Listeners] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve other agents until :meth:`aclose`; the listeners are closed at the end."""
        self._handler = handler
        with self._until_closed():
            async with trio.open_nursery() as nursery:
                sweep = functools.partial(
                    periodic_checks.sweep,
                    lambda: list(self._incoming),
                    2 * self._limits.idle_s,
                    self._limits,
                )
                nursery.start_soon(self._keep, "a check of connections from peers", sweep)
                nursery.start_soon(self._keep, "keepalives to peers", self._send_keepalives)
                await self.endpoint.serve(list(listeners), nursery, task_status)

    async def _accept(self, stream: trio.SocketStream) -> None:
        ip, peer = "an unknown address", "an unknown address"
        try:
            ip, port = stream.socket.getpeername()[:2]
            peer = addresses.with_port(ip, port)
            with self.unauthenticated.count_unauthenticated(ip):
                if not await self._may_handshake(stream, ip):
                    return
                try:
                    connection, early = await self._welcome(stream, peer)
                except connection_setup.ProofGiven:
                    return
            self._incoming.add(connection)
            peer = connection.peer
            try:
                await connection.run(early)
            finally:
                self._incoming.discard(connection)
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
        """Close the longest idle (else longest silent) connection, if there are too many."""
        rivals = [c for c in self._incoming if not c.is_closed]
        of_host = [c for c in rivals if (c.host, c.klass) == (new.host, new.klass)]
        if len(of_host) >= self._limits.of_host:
            rivals = of_host
        elif len(rivals) < self._limits.incoming:
            return
        min(rivals, key=lambda c: (not c.is_idle, c.last_progress)).close()

    async def _may_handshake(self, stream: trio.SocketStream, ip: str) -> bool:
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
            receiver = peer_receiver.receiver(peer, peer_wire.FROM_CLIENT, link.receiving)
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
                self._handler,
                self._on_announcement,
                self._budgets,
                self._share,
            )
            self._make_room_for(connection)
        except BaseException:
            link.close()
            raise
        return connection, early

    async def _send_keepalives(self) -> None:
        interval_s = self._limits.silence_s / 4
        while True:
            await trio.sleep(interval_s)
            for connection in self._incoming:
                connection.send_keepalive(trio.current_time(), interval_s)

    def _all(self) -> list[base_connection.PeerConnection]:
        return [*self._outgoing(), *self._incoming]
