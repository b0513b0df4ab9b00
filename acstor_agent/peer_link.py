# SPDX-License-Identifier: Apache-2.0
"""One connection to another agent: bytes in and out, in clear text or by TLS.

The one rule: sockets between agents are touched here and nowhere else.  What
the bytes mean is the business of :mod:`acstor_common.peer_wire`, who may say
what to whom that of :mod:`acstor_agent.peer_net`.

The clear-text link calls a non-blocking socket itself and waits by trio only
when it must: trio's own socket methods take one turn of the scheduler per call,
which is a third of the cost of a chunk.
"""

import abc
import dataclasses
import socket
import ssl
from typing import Any

import trio

from acstor_common import errors
from acstor_common import peer_wire
from acstor_common import ring

LOW_WATER_BYTES = 256 * 1024
"""A receiver is not woken for less than this, or than the rest of a shorter frame."""
CALLS_PER_TURN = 16
"""Socket calls in a row before other tasks get a turn."""
BUFFERS_PER_CALL = 64

LINK_ERRORS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What a link raises when the connection is lost."""


def reason(error: Exception) -> str:
    """Return why a connection was lost, in words."""
    return str(error) or str(error.__cause__ or "") or type(error).__name__


@dataclasses.dataclass(frozen=True)
class PeerTls:
    """Files for mutual TLS 1.3 between agents, all PEM.

    :param ca_file: the cluster's certificate authority; only its certificates are trusted
    :param cert_file: this host's certificate, with its host id as DNS subjectAltName or CN
    :param key_file: the private key of it
    """

    ca_file: str
    cert_file: str
    key_file: str

    def context(self, *, is_server: bool) -> ssl.SSLContext:
        """Return a context that asks the other side for a certificate of the cluster.

        :raises errors.Unusable: a file cannot be read or is not what it should be
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the name to find is a host id; peer_net compares it
        context.verify_mode = ssl.CERT_REQUIRED
        if is_server:
            context.num_tickets = 0  # connections live long and are never resumed
        what = f"peer_tls_ca {self.ca_file}"
        try:
            context.load_verify_locations(self.ca_file)
            what = f"peer_tls_cert {self.cert_file}, peer_tls_key {self.key_file}"
            context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ValueError) as error:
            raise errors.Unusable(what, str(error), "PEM files are expected") from error
        return context


class Link(abc.ABC):
    """A connection that carries frames."""

    names: frozenset[str] | None = None
    """Host ids that the other side's certificate carries; None without TLS."""

    @abc.abstractmethod
    async def receive(self, receiver: peer_wire.Receiver) -> list[peer_wire.Message] | None:
        """Return the next messages, at least one; None when the other side has closed.

        :raises errors.RemoteProtocolError: what came is not the protocol
        """

    @abc.abstractmethod
    def send_nowait(self, buffers: list[peer_wire.Buffer]) -> int:
        """Send what can be sent without waiting; return the number of bytes."""

    @abc.abstractmethod
    async def send_some(self, buffers: list[peer_wire.Buffer]) -> int:
        """Send at least one byte, waiting for room if need be; return the number of bytes."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection at once."""


class PlainLink(Link):
    """A TCP connection in clear text."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._low_water_bytes = 1
        self._calls = 0

    async def receive(self, receiver: peer_wire.Receiver) -> list[peer_wire.Message] | None:
        """See :meth:`Link.receive`."""
        while True:
            try:
                count = self._sock.recvmsg_into(receiver.get_buffers())[0]
            except BlockingIOError:
                self._set_low_water(receiver.wanted_bytes)
                self._calls = 0
                await trio.lowlevel.wait_readable(self._sock)
                continue
            if not count:
                return None
            self._calls += 1
            if self._calls >= CALLS_PER_TURN:
                self._calls = 0
                await trio.lowlevel.checkpoint()
            if messages := receiver.received(count):
                return messages

    def _set_low_water(self, wanted_bytes: int) -> None:
        low_water_bytes = min(wanted_bytes, LOW_WATER_BYTES)
        if low_water_bytes != self._low_water_bytes:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water_bytes)
            self._low_water_bytes = low_water_bytes

    def send_nowait(self, buffers: list[peer_wire.Buffer]) -> int:
        """See :meth:`Link.send_nowait`."""
        try:
            return self._sock.sendmsg(buffers[:BUFFERS_PER_CALL])
        except BlockingIOError:
            return 0

    async def send_some(self, buffers: list[peer_wire.Buffer]) -> int:
        """See :meth:`Link.send_some`."""
        while True:
            await trio.lowlevel.wait_writable(self._sock)
            if count := self.send_nowait(buffers):
                return count

    def close(self) -> None:
        """See :meth:`Link.close`."""
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


class TlsLink(Link):
    """A TCP connection with TLS 1.3 on it."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, is_server: bool) -> None:
        transport = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._transport = transport
        self._stream = trio.SSLStream(
            transport, context, server_side=is_server, https_compatible=True
        )

    async def handshake(self) -> None:
        """Do the handshake and learn the names of the other side."""
        await self._stream.do_handshake()
        self.names = certificate_names(self._stream.getpeercert())

    async def receive(self, receiver: peer_wire.Receiver) -> list[peer_wire.Message] | None:
        """See :meth:`Link.receive`."""
        while data := await self._stream.receive_some():
            if messages := receiver.feed(data):
                return messages
        return None

    def send_nowait(self, buffers: list[peer_wire.Buffer]) -> int:
        """See :meth:`Link.send_nowait`; a TLS record is never sent without waiting."""
        return 0

    async def send_some(self, buffers: list[peer_wire.Buffer]) -> int:
        """See :meth:`Link.send_some`."""
        data = b"".join(buffers[:2])  # as a rule a header and its chunk
        await self._stream.send_all(data)
        return len(data)

    def close(self) -> None:
        """See :meth:`Link.close`."""
        self._transport.socket.close()


def certificate_names(certificate: dict[str, Any] | None) -> frozenset[str]:
    """Return the DNS names and the common names of a certificate as ``ssl`` shows it.

    >>> sorted(certificate_names({"subject": ((("commonName", "h1"),),),
    ...                           "subjectAltName": (("DNS", "h2"), ("IP Address", "1.2.3.4"))}))
    ['h1', 'h2']
    """
    certificate = certificate or {}
    fields = [field for part in certificate.get("subject", ()) for field in part]
    fields += certificate.get("subjectAltName", ())
    return frozenset(value for kind, value in fields if kind in ("DNS", "commonName"))


def _tune(sock: socket.socket, silence_s: float) -> None:
    """Make a connection fast and make the kernel notice that the other host is gone."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(silence_s)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))


async def _start(sock: socket.socket, context: ssl.SSLContext | None, is_server: bool) -> Link:
    if context is None:
        return PlainLink(sock)
    link = TlsLink(sock, context, is_server=is_server)
    try:
        await link.handshake()
    except BaseException:
        link.close()
        raise
    return link


async def connect(address: str, context: ssl.SSLContext | None, silence_s: float) -> Link:
    """Connect to the agent at ``address`` (``ip:port``).

    :param silence_s: the connection is lost when sent bytes stay unacknowledged for so long
    """
    ip, port = ring.parse_address(address)
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    dialled = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        await dialled.connect((ip, port))
    except BaseException:
        dialled.close()
        raise
    sock = socket.socket(fileno=dialled.detach())
    _tune(sock, silence_s)
    return await _start(sock, context, is_server=False)


async def accept(
    stream: trio.SocketStream, context: ssl.SSLContext | None, silence_s: float
) -> Link:
    """Make a link of a connection that another agent has opened."""
    sock = socket.socket(fileno=stream.socket.detach())
    _tune(sock, silence_s)
    return await _start(sock, context, is_server=True)
