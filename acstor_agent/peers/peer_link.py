# SPDX-License-Identifier: Apache-2.0
"""One connection to another agent: bytes in and out, in clear text or by TLS.

With ``peer_security = authenticated`` both: TLS for the handshake and for a secret
from each side, then clear text whose frames carry codes made with these secrets.

The one rule: sockets between agents are touched here and nowhere else.  What
the bytes mean is the business of :mod:`acstor_common.peer_wire`, who may say
what to whom that of :mod:`acstor_agent.peers.peer_net`.

The clear-text link calls a non-blocking socket itself and waits by trio only
when it must: trio's own socket methods take one turn of the scheduler per call,
which is a third of the cost of a chunk.
"""

import contextlib
import fcntl
import secrets
import socket
import ssl
import sys
import termios
from collections.abc import Callable
from collections.abc import Iterator
from typing import TypeVar

import trio

from acstor_agent.peers import credentials as credentials_
from acstor_common import certificates
from acstor_common import errors
from acstor_common import geometry
from acstor_common import peer_seal
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


_ANOTHER_MODE = "it does not speak TLS, and this host does: peer_security differs"
_NOT_BELIEVED = "it does not believe this host's certificate"
_MEANINGS = {
    "WRONG_VERSION_NUMBER": _ANOTHER_MODE,
    "UNEXPECTED_MESSAGE": _ANOTHER_MODE,
    "RECORD_LAYER_FAILURE": _ANOTHER_MODE,
    "TLSV1_ALERT_UNKNOWN_CA": _NOT_BELIEVED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _NOT_BELIEVED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": _NOT_BELIEVED,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has shown no certificate",
}

_T = TypeVar("_T")


def reason(error: Exception) -> str:
    """Return why a connection was lost, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason in _MEANINGS:
        return _MEANINGS[error.reason]
    return str(error) or str(error.__cause__ or "") or type(error).__name__


class Link:
    """A TCP connection in clear text.

    ``certificate`` is the other side's, None where ``peer_security`` is insecure; ``believed_by``
    is the generation of the credentials that it was checked with.  ``sending`` and ``receiving``
    make the codes of frames, where they carry codes.
    """

    certificate: certificates.HostCertificate | None = None
    believed_by = 0
    sending: peer_seal.Seal | None = None
    receiving: peer_seal.Seal | None = None

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

    async def handshake(self, credentials: credentials_.Credentials) -> None:
        """Do the handshake and learn who the other side is.

        :raises errors.NotAuthentic: it is nobody whose certificate may be taken
        """
        await self._patiently(self._sock.do_handshake)
        if self._sock.selected_alpn_protocol() != credentials.security.value:
            why = f"peer_security differs: this host's is {credentials.security.value}"
            raise errors.NotAuthentic("the other side's TLS", why)
        self.believed_by = credentials.generation  # first: other files may come meanwhile
        self.certificate = credentials.check(self._sock.getpeercert(binary_form=True))

    async def _patiently(self, call: Callable[[], _T]) -> _T:
        """Call until it need not wait any more."""
        while True:
            try:
                return call()
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self._sock)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self._sock)

    async def laid_open(self, *, is_server: bool) -> Link:
        """Go on in clear text, with codes whose keys both sides exchange in secret first.

        OpenSSL reads record by record, so nothing that follows the secret was read already.
        """
        ours = secrets.token_bytes(peer_seal.SECRET_BYTES)
        await self._patiently(lambda: self._sock.send(ours))
        theirs = b""
        while len(theirs) < len(ours):
            part = await self._patiently(lambda: self._sock.recv(len(ours) - len(theirs)))  # noqa: B023
            if not part:
                raise OSError("closed during the handshake")
            theirs += part
        if self._sock.pending():
            raise OSError("more came by TLS than the handshake")
        client, server = peer_seal.keys(theirs, ours) if is_server else peer_seal.keys(ours, theirs)
        link = Link(socket.socket(fileno=self._sock.detach()))
        link.certificate, link.believed_by = self.certificate, self.believed_by
        link.sending = peer_seal.Seal(server if is_server else client)
        link.receiving = peer_seal.Seal(client if is_server else server)
        return link

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


def _tune(sock: socket.socket, silence_s: float) -> None:
    """Make a connection fast and make the kernel notice that the other host is gone."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOT_SENT_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(silence_s)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))


async def _start(
    sock: socket.socket, credentials: credentials_.Credentials | None, *, is_server: bool
) -> Link:
    if credentials is None:
        return Link(sock)
    try:
        context = credentials.context(is_server=is_server)
    except OSError:
        sock.close()
        raise
    wrapped = context.wrap_socket(sock, server_side=is_server, do_handshake_on_connect=False)
    link = TlsLink(wrapped)
    try:
        await link.handshake(credentials)
        if credentials.security is credentials_.Security.AUTHENTICATED:
            return await link.laid_open(is_server=is_server)
    except BaseException:
        link.close()
        raise
    return link


async def connect(
    ip: str, port: int, credentials: credentials_.Credentials | None, silence_s: float
) -> Link:
    """Connect to an agent.

    :param credentials: None for clear text
    :param silence_s: the connection is lost when sent bytes stay unacknowledged for so long
    :raises errors.NotAuthentic: the other side is not to be believed
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
    return await _start(sock, credentials, is_server=False)


async def begun(stream: trio.SocketStream) -> None:
    """Return when the other side of a new connection has sent something; it stays to be read.

    :raises OSError: it has hung up instead
    """
    if not await stream.socket.recv(1, socket.MSG_PEEK):
        raise OSError("closed before Hello")


async def accept(
    stream: trio.SocketStream, credentials: credentials_.Credentials | None, silence_s: float
) -> Link:
    """Make a link of a connection that another agent has opened; see :func:`connect`."""
    sock = socket.socket(fileno=stream.socket.detach())
    _tune(sock, silence_s)
    return await _start(sock, credentials, is_server=True)
