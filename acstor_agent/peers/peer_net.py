# SPDX-License-Identifier: Apache-2.0
"""This host among its peers: connections that are opened, kept, bounded and closed.

The one rule: a peer can cost time, never the daemon.  Whatever comes or does
not come over a connection ends in an answer, in one of the errors that
:meth:`PeerNet.fetch` names, or in a dropped connection and a line in the log.  So does
an error that nobody foresaw.

Bytes are handed on as they came: whoever asked checks them against the CID.
"""

import contextlib
import logging
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

import trio

from acstor_agent import faults
from acstor_agent.peers import credentials as credentials_
from acstor_agent.peers import peer_endpoint
from acstor_agent.peers import peer_link
from acstor_agent.peers import strangers
from acstor_agent.peers.connection import answering
from acstor_agent.peers.connection import asking
from acstor_agent.peers.connection import base
from acstor_agent.peers.connection import hello
from acstor_agent.peers.connection import idle
from acstor_agent.peers.connection import rights
from acstor_agent.peers.connection import uplink
from acstor_common import errors
from acstor_common import ids
from acstor_common import peer_wire
from acstor_common import ring

LOG = logging.getLogger(__name__)

EARLY_MESSAGES = 16
"""News that wait for a connection; more are not sent."""

Limits = base.Limits
Credentials = credentials_.Credentials
Security = credentials_.Security
MaySpeak = hello.MaySpeak
Server = answering.Server
Heard = answering.Heard


class _Line:
    """The connection to one host for one class, from the first wish for it on."""

    def __init__(self, host: ids.HostId, address: str, klass: peer_wire.Klass) -> None:
        self.host, self.address, self.klass = host, address, klass
        self.ip, self.port = ring.parse_address(address)
        self.peer = f"{host} ({address})"
        self.scope = trio.CancelScope()
        self.is_decided = trio.Event()  # there is a connection or a failure
        self.connection: asking.Asking | None = None
        self.early: list[peer_wire.News] = []  # to be sent when there is a connection
        self.failure: errors.AcstorError | None = None


class PeerNet:
    """Asks other agents for chunks, and answers theirs.

    :param host_id: this host
    :param heard: is told what a peer tells without being asked
    :param may_speak: says why a host may not speak, to it and for itself; empty if it may
    :param credentials: who this host is, and whom it believes; None where nobody proves anything
    :param ring_epoch: returns the epoch of the v-node table in force, for Hello
    :param is_reachable: whether a host can be asked by others; if so they may be referred to it
    :param hosts_at: how many hosts that may speak stand at an address; they have places of their
        own before their Hello
    """

    def __init__(
        self,
        host_id: ids.HostId,
        *,
        may_speak: MaySpeak,
        heard: Heard = lambda host, news: None,
        credentials: Credentials | None = None,
        ring_epoch: Callable[[], int] = lambda: 0,
        is_reachable: Callable[[ids.HostId], bool] = lambda host: False,
        hosts_at: Callable[[str], int] = lambda ip: 0,
        limits: Limits | None = None,
    ) -> None:
        self._host_id = host_id
        self._heard = heard
        self._ring_epoch = ring_epoch
        self._limits = limits or Limits()
        self._may_speak = may_speak
        self._credentials = credentials
        self._gate = base.DemandGate()
        self._uplink = uplink.Uplink(is_reachable)
        self._lines: dict[tuple[ids.HostId, peer_wire.Klass], _Line] = {}
        self._answering: set[answering.Answering] = set()
        self._budgets = answering.Budgets(self._limits)
        self.faults = faults.Faults()
        self.strangers = strangers.Strangers(self._limits.strangers, self._limits.hello_s, hosts_at)
        may_enter = self.strangers.may_come if credentials else lambda ip: True
        self.endpoint = peer_endpoint.Endpoint(self._accept, may_enter)
        self._nursery: trio.Nursery | None = None
        self._server: Server
        self._scopes: set[trio.CancelScope] = set()

    @property
    def connections(self) -> tuple[int, int]:
        """Number of connections from other agents, and to other agents."""
        return len(self.strangers) + len(self._answering), len(self._lines)

    async def aclose(self) -> None:
        """End :meth:`run` and :meth:`serve_forever` and close every connection."""
        for scope in self._scopes:
            scope.cancel()
        await trio.lowlevel.checkpoint()

    @contextlib.contextmanager
    def _until_closed(self) -> Iterator[None]:
        """Cancel what is inside when :meth:`aclose` is called."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)

    # Asking

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the connections to other agents until :meth:`aclose`."""
        with self._until_closed():
            async with trio.open_nursery() as nursery:
                idle_s = self._limits.idle_s
                nursery.start_soon(idle.sweep, self._asking, idle_s, self._limits)
                rights_ = rights.Rights(self._may_speak, self._credentials)
                nursery.start_soon(rights_.watch, self._all)
                self._nursery = nursery
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._nursery = None  # while it is open: who asks now must not find it closed

    def _asking(self) -> list[base.Connection]:
        return [line.connection for line in self._lines.values() if line.connection]

    async def fetch(
        self,
        host: ids.HostId,
        address: str,
        klass: peer_wire.Klass,
        *,
        image_id: ids.ImageId,
        offset: int,
        length: int,
        cid: ids.Cid,
        may_read_source: bool,
        timeout_s: float,
        may_refer: bool = False,
        is_soon: bool = False,
        is_relayed: bool = False,
        is_moved: bool = False,
    ) -> peer_wire.Buffer | peer_wire.Refer:
        """Return ``length`` bytes of an image from ``host``; they are not checked against ``cid``.

        :param address: where the agent of ``host`` listens, ``ip:port``
        :param may_read_source: the host may read through, from its source, what it has not got
        :param timeout_s: for everything, connecting included
        :param may_refer: the host may name others to ask instead, in a Refer
        :param is_soon: a guest is about to want them: they go before other answers in bulk
        :param is_relayed: this host asks as a home, for others
        :param is_moved: ``host`` is the home since the last v-node table only
        :raises errors.ChunkMissing: the host says that it cannot give them
        :raises errors.SourceUnreachable: no connection, connection lost, no answer in time, or the
            host says that it cannot give them now
        :raises errors.RemoteProtocolError: it is another host, or it broke the protocol
        """
        timeout_ms = max(1, int(timeout_s * 1000))
        get = peer_wire.Get(
            0,
            image_id,
            offset,
            length,
            peer_wire.proof_of(cid, self._host_id, host),
            may_read_source,
            timeout_ms,
            may_refer=may_refer,
            is_soon=is_soon,
            is_relayed=is_relayed,
            is_moved=is_moved,
        )
        with trio.move_on_after(timeout_s):
            line = self._line(host, address, klass)
            if not line.is_decided.is_set():
                await line.is_decided.wait()
            if line.connection:
                return await line.connection.ask(get)
            raise self._failure_of(line, get)
        raise errors.SourceUnreachable(
            base.describe(get),
            f"{host} ({address})",
            f"no answer within {timeout_s:g} s",
        )

    def tell(self, host: ids.HostId, address: str, news: peer_wire.News) -> None:
        """Tell ``host`` something; where that cannot be done at once nothing is lost by it."""
        try:
            line = self._line(host, address, peer_wire.Klass.BULK)
        except errors.ChunkUnavailable as e:
            LOG.debug("not told: %s", e)
            return
        if line.connection:
            line.connection.tell(news)
        elif len(line.early) < EARLY_MESSAGES:
            line.early.append(news)

    def _failure_of(self, line: _Line, get: peer_wire.Get) -> errors.AcstorError:
        if isinstance(line.failure, errors.RemoteProtocolError):
            return errors.RemoteProtocolError(line.peer, line.failure.why)
        why = str(line.failure or "closed")
        return errors.SourceUnreachable(base.describe(get), line.peer, why)

    def _line(self, host: ids.HostId, address: str, klass: peer_wire.Klass) -> _Line:
        """Return the line to ``host``; begin to connect if there is none to this address."""
        line = self._lines.get((host, klass))
        if line and line.address == address and not (line.connection and line.connection.is_closed):
            return line
        if self._nursery is None:
            what = "a connection to another host"
            raise errors.SourceUnreachable(what, "this host", "it is not, or no more, among others")
        if line:
            line.scope.cancel()
        else:
            self._make_room()
        line = self._lines[host, klass] = _Line(host, address, klass)
        self._nursery.start_soon(self._run_line, line)
        return line

    def _make_room(self) -> None:
        """Close the connection that is idle for longest if there are too many."""
        if len(self._lines) < self._limits.outgoing:
            return
        unused = [c for c in self._asking() if c.is_idle]
        if not unused:
            raise errors.SourceUnreachable(
                "another connection", "this host", f"all {len(self._lines)} connections are in use"
            )
        min(unused, key=lambda connection: connection.last_progress).close()

    async def _run_line(self, line: _Line) -> None:
        try:
            with line.scope:
                line.connection, early = await self._dial(line)
                line.is_decided.set()
                for message in line.early:
                    line.connection.tell(message)
                await line.connection.run(early)
                if isinstance(line.connection.failure, errors.RemoteProtocolError):
                    LOG.warning("Connection dropped: %s", line.connection.failure)
        except (*peer_link.LINK_ERRORS, trio.TooSlowError) as error:
            why = f"cannot connect: {peer_link.reason(error)}"
            line.failure = errors.SourceUnreachable("a connection", line.peer, why)
        except errors.NotAuthentic as error:
            LOG.warning("Connection to %s dropped: %s", line.peer, error)
            line.failure = errors.SourceUnreachable("a connection", line.peer, str(error))
        except errors.RemoteProtocolError as error:
            LOG.warning("Connection dropped: %s", error)
            line.failure = error
        except Exception as error:
            why = self.faults.note("a connection to a peer", error)
            line.failure = errors.SourceUnreachable("a connection", line.peer, why)
        finally:
            line.is_decided.set()
            if self._lines.get((line.host, line.klass)) is line:
                del self._lines[line.host, line.klass]

    async def _dial(self, line: _Line) -> tuple[asking.Asking, list[peer_wire.Message]]:
        with trio.fail_after(self._limits.hello_s):
            link = await peer_link.connect(
                line.ip, line.port, self._credentials, self._limits.silence_s
            )
            try:
                receiver = peer_wire.Receiver(line.peer, peer_wire.FROM_SERVER, link.receiving)
                ours = peer_wire.Hello(self._host_id, line.klass, self._ring_epoch())
                early = await hello.greet(link, receiver, ours, line.host, self._may_speak)
            except BaseException:
                link.close()
                raise
        return asking.Asking(line.host, link, receiver, line.peer, line.klass, self._gate), early

    # Answering

    async def serve_forever(
        self,
        server: Server,
        listeners: Iterable[trio.SocketListener],
        task_status: trio.TaskStatus[peer_endpoint.Listeners] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Answer other agents until :meth:`aclose`; the listeners are closed at the end.

        One that dies is opened again at its address.

        :param server: gives the bytes that peers ask for
        """
        self._server = server
        with self._until_closed():
            async with trio.open_nursery() as nursery:
                idle_s = 2 * self._limits.idle_s
                nursery.start_soon(idle.sweep, lambda: list(self._answering), idle_s, self._limits)
                nursery.start_soon(self._show_life)
                nursery.start_soon(self._uplink.run)
                await self.endpoint.serve(list(listeners), nursery, task_status)

    async def _accept(self, stream: trio.SocketStream) -> None:
        ip, peer = "an unknown address", "an unknown address"
        try:
            ip, port = stream.socket.getpeername()[:2]
            peer = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
            with self.strangers.one_from(ip):
                if not await self._may_begin(stream, ip):
                    return
                connection, early = await self._welcome(stream, peer)
            self._answering.add(connection)
            peer = connection.peer
            try:
                await connection.run(early)
            finally:
                self._answering.discard(connection)
            if isinstance(connection.failure, errors.RemoteProtocolError):
                self.strangers.say(ip, peer, f"it broke the protocol: {connection.failure.why}")
        except trio.TooSlowError:
            self.strangers.say(ip, peer, "no Hello in time")
        except errors.RemoteProtocolError as error:
            self.strangers.say(ip, peer, f"it broke the protocol: {error.why}")
        except (*peer_link.LINK_ERRORS, errors.NotAuthentic) as error:
            self.strangers.say(ip, peer, peer_link.reason(error))
        except Exception as error:
            self.faults.note("a connection of a peer", error)
        finally:
            await trio.aclose_forcefully(stream)

    def _make_room_for(self, new: answering.Answering) -> None:
        """Close what a host has opened before, beyond what it may have: it has no use for it.

        Where there are too many connections of all hosts, the one that is idle for longest.
        """
        rivals = [c for c in self._answering if (c.host, c.klass) == (new.host, new.klass)]
        if len(rivals) < self._limits.of_host:
            rivals = list(self._answering)
            if len(rivals) < self._limits.incoming:
                return
        min(rivals, key=lambda c: (not c.is_idle, c.last_progress)).close()

    async def _may_begin(self, stream: trio.SocketStream, ip: str) -> bool:
        """Wait until the other side begins a handshake; say whether it may have one now."""
        if self._credentials is None:
            return True
        await peer_link.begun(stream)
        return self.strangers.may_begin(ip)

    async def _welcome(
        self, stream: trio.SocketStream, peer: str
    ) -> tuple[answering.Answering, list[peer_wire.Message]]:
        link = await peer_link.accept(stream, self._credentials, self._limits.silence_s)
        try:
            receiver = peer_wire.Receiver(peer, peer_wire.FROM_CLIENT, link.receiving)
            theirs, early = await hello.welcome(
                link, receiver, self._host_id, self._ring_epoch(), self._may_speak
            )
            receiver.peer = peer = f"{theirs.host_id} ({peer})"
            connection = answering.Answering(
                link,
                receiver,
                peer,
                theirs,
                self._gate,
                self._server,
                self._heard,
                self._uplink,
                self._limits,
                self._budgets,
                self.faults,
            )
            self._make_room_for(connection)
        except BaseException:
            link.close()
            raise
        return connection, early

    async def _show_life(self) -> None:
        """Tell those who wait for answers that this host works on them."""
        interval_s = self._limits.silence_s / 4
        while True:
            await trio.sleep(interval_s)
            for connection in self._answering:
                connection.show_life(trio.current_time(), interval_s)

    def _all(self) -> list[base.Connection]:
        return [*self._asking(), *self._answering]
