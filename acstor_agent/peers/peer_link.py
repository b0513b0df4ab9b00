# SPDX-License-Identifier: Apache-2.0
"""One connection to another agent: bytes in and out, in clear text or by TLS.

The one rule: sockets between agents are touched here and nowhere else.  What
the bytes mean is the business of :mod:`acstor_common.peer_wire`, who may say
what to whom that of :mod:`acstor_agent.peers.peer_net`.

The clear-text link calls a non-blocking socket itself and waits by trio only
when it must: trio's own socket methods take one turn of the scheduler per call,
which is a third of the cost of a chunk.
"""

import contextlib
import dataclasses
import fcntl
import socket
import ssl
import sys
import termios
from collections.abc import Iterator
from typing import Any

import trio

from acstor_common import errors
from acstor_common import geometry
from acstor_common import peer_wire

LOW_WATER_BYTES = 256 * geometry.KIB
"""A receiver is not woken for less than this, or than the rest of a shorter frame."""
CALLS_PER_TURN = 16
"""Socket calls in a row before other tasks get a turn."""
BUFFERS_PER_CALL = 64
NOT_SENT_BYTES = 16 * 1024
"""What the kernel may keep of a connection unsent; the rest stays here, where it can be seen."""
RECORD_BYTES = 16 * geometry.KIB  # of plain text in a TLS record

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


class Link:
    """A TCP connection in clear text.

    ``names`` are the host ids that the other side's certificate carries, None without TLS.
    """

    names: frozenset[str] | None = None

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._low_water_bytes = 1
        self._calls = 0

    async def receive(self, receiver: peer_wire.Receiver) -> list[peer_wire.Message] | None:
        """Return the next messages, at least one; None when the other side has closed.

        :raises errors.RemoteProtocolError: what came is not the protocol
        """
        while True:
            try:
                count = self._receive_nowait(receiver.get_buffers())
            except (BlockingIOError, ssl.SSLWantReadError):
                self._set_low_water(self._expected_bytes(receiver))
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

    def _receive_nowait(self, buffers: list[memoryview]) -> int:
        return self._sock.recvmsg_into(buffers)[0]

    def _expected_bytes(self, receiver: peer_wire.Receiver) -> int:
        """Return how many bytes must still come over TCP at least before there is a message."""
        return receiver.wanted_bytes

    def _set_low_water(self, expected_bytes: int) -> None:
        low_water_bytes = min(expected_bytes, LOW_WATER_BYTES)
        if low_water_bytes != self._low_water_bytes:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water_bytes)
            self._low_water_bytes = low_water_bytes

    def send_nowait(self, buffers: list[peer_wire.Buffer]) -> int:
        """Send what can be sent without waiting; return the number of bytes.

        What could not be sent must be the first to be sent next time.
        """
        try:
            return self._sock.sendmsg(buffers[:BUFFERS_PER_CALL])
        except BlockingIOError:
            return 0

    async def send_some(self, buffers: list[peer_wire.Buffer]) -> int:
        """Send at least one byte, waiting for room if need be; return the number of bytes."""
        while True:
            await self.writable()
            if count := self.send_nowait(buffers):
                return count

    @property
    def undelivered_bytes(self) -> int:
        """What the kernel has taken and the other side has not acknowledged yet."""
        return int.from_bytes(fcntl.ioctl(self._sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)

    async def writable(self) -> None:
        """Return when the kernel keeps less than half of NOT_SENT_BYTES unsent."""
        await trio.lowlevel.wait_writable(self._sock)

    def close(self) -> None:
        """Close the connection at once."""
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


class TlsLink(Link):
    """A TCP connection with TLS 1.3 on it."""

    _sock: ssl.SSLSocket

    async def handshake(self) -> None:
        """Do the handshake and learn the names of the other side."""
        while True:
            try:
                self._sock.do_handshake()
                break
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self._sock)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self._sock)
        self.names = certificate_names(self._sock.getpeercert())

    def _receive_nowait(self, buffers: list[memoryview]) -> int:
        return self._sock.recv_into(buffers[0])

    def _expected_bytes(self, receiver: peer_wire.Receiver) -> int:
        """See :meth:`Link._expected_bytes`; most of a record may be here, not yet readable."""
        return max(1, receiver.wanted_bytes - RECORD_BYTES)

    def send_nowait(self, buffers: list[peer_wire.Buffer]) -> int:
        """See :meth:`Link.send_nowait`."""
        sent = 0
        with contextlib.suppress(ssl.SSLWantWriteError):
            for record in _records(buffers):
                count = self._sock.send(record)
                sent += count
                if count < len(record):
                    break
        return sent


def _records(buffers: list[peer_wire.Buffer]) -> Iterator[peer_wire.Buffer]:
    """Yield the buffers, short ones joined with the beginning of the next one to whole records."""
    head = b""
    for buffer in buffers:
        start = 0
        if head or len(buffer) < RECORD_BYTES:
            start = RECORD_BYTES - len(head)
            head += buffer[:start]
            if len(head) == RECORD_BYTES:
                yield head
                head = b""
        if start < len(buffer):
            yield memoryview(buffer)[start:]
    if head:
        yield head


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
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOT_SENT_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(silence_s)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))


async def _start(sock: socket.socket, context: ssl.SSLContext | None, is_server: bool) -> Link:
    if context is None:
        return Link(sock)
    wrapped = context.wrap_socket(sock, server_side=is_server, do_handshake_on_connect=False)
    link = TlsLink(wrapped)
    try:
        await link.handshake()
    except BaseException:
        link.close()
        raise
    return link


async def connect(ip: str, port: int, context: ssl.SSLContext | None, silence_s: float) -> Link:
    """Connect to an agent.

    :param silence_s: the connection is lost when sent bytes stay unacknowledged for so long
    """
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
