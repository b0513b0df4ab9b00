# SPDX-License-Identifier: Apache-2.0
"""Opens and accepts connections between agents: TCP options and the handshake.

In a mutual TLS 1.3 handshake each side sends a secret. TLS then ends without a close_notify, and
keys derived from both secrets encrypt whole frames (``peer_encryption``), not records of 16 KiB. A
failure leaves no socket open.
"""

import contextlib
import enum
import secrets
import socket
import ssl
from collections.abc import Callable

import trio

from acstor_agent.peers import peer_link
from acstor_agent.runtime import tcp_info
from acstor_agent.runtime import tls_session
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import credentials
from acstor_common.wire.peer import peer_encryption

Credentials = credentials.Credentials
PROOF_PROTOCOL = credentials.PROOF_PROTOCOL


def _tune(sock: socket.socket, silence_s: float) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, peer_link.NOT_SENT_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(silence_s)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))


async def _start(
    sock: socket.socket,
    credentials: credentials.Credentials | None,
    silence_s: float,
    *,
    is_server: bool,
) -> peer_link.PeerLink:
    try:
        _tune(sock, silence_s)
        if credentials is None:
            return peer_link.PeerLink(sock)
        return await Handshake(sock, credentials, is_server=is_server).run()
    except BaseException:
        sock.close()
        raise


async def connect(
    ip: str,
    port: int,
    credentials: credentials.Credentials | None,
    silence_s: float,
    on_dialled: Callable[[float], None] = lambda round_trip_s: None,
) -> peer_link.PeerLink:
    """Connect to an agent; ``credentials`` None: clear text.

    :param silence_s: the connection is lost when sent bytes stay unacknowledged for so long
    :param on_dialled: called with the round-trip time (0: unknown), before the handshake
    :raises errors.NotAuthenticated: the other side's certificate is not valid
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    dialled = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        await dialled.connect((ip, port))
        on_dialled(tcp_info.least_rtt_s(dialled))
    except BaseException:
        dialled.close()
        raise
    sock = socket.socket(fileno=dialled.detach())
    return await _start(sock, credentials, silence_s, is_server=False)


async def wait_for_first_byte(stream: trio.SocketStream) -> None:
    """Wait until a new connection can be read, without reading; raise OSError if it is closed."""
    if not await stream.socket.recv(1, socket.MSG_PEEK):
        raise OSError("closed before Hello")


async def accept(
    stream: trio.SocketStream, credentials: credentials.Credentials | None, silence_s: float
) -> peer_link.PeerLink:
    """Return the link of an accepted connection; see :func:`connect`."""
    sock = socket.socket(fileno=stream.socket.detach())
    return await _start(sock, credentials, silence_s, is_server=True)


class ProofGiven(Exception):
    """The other side asked for this host's certificate only (ALPN ``acstor-proof``)."""


class Handshake:
    """The handshake on a socket that the caller closes; raises OSError without a certificate."""

    def __init__(self, sock: socket.socket, credentials: Credentials, *, is_server: bool) -> None:
        self._sock, self._credentials, self._is_server = sock, credentials, is_server
        context = credentials.tls_context(is_server=is_server)
        self._session = tls_session.TlsSession(context, is_server=is_server)

    async def run(self) -> peer_link.PeerLink:
        """Return the link, ready for frames, or raise NotAuthenticated or ProofGiven."""
        generation, certificate = await self._prove()
        keys = await self._agree()
        link = peer_link.PeerLink(
            socket.socket(fileno=self._sock.detach()), self._session.take_undecrypted()
        )
        link.certificate, link.credentials_generation = certificate, generation
        ours, theirs = keys.server, keys.client
        if not self._is_server:
            ours, theirs = theirs, ours
        link.sending = peer_encryption.Encryption(ours)
        link.receiving = peer_encryption.Encryption(theirs)
        return link

    async def _prove(self) -> tuple[int, certificates.HostCertificate]:
        credentials, session = self._credentials, self._session
        try:
            while not session.continue_handshake():
                await self._send(session.take_outgoing())
                await self._receive()
        except ssl.SSLError as error:
            if session.protocol == PROOF_PROTOCOL:
                raise ProofGiven from error
            with contextlib.suppress(OSError):  # send an alert, if possible
                self._sock.send(session.take_outgoing())
            raise
        await self._send(session.take_outgoing())
        if session.protocol != credentials.protocol:
            why = f"peer_security differs: this host's is {credentials.protocol}"
            raise errors.NotAuthenticated("the other side's TLS", why)
        generation = credentials.generation  # read before the check: the files may change
        return generation, credentials.check_peer(session.certificate)

    async def _agree(self) -> peer_encryption.Keys:
        session = self._session
        ours = secrets.token_bytes(peer_encryption.SECRET_BYTES)
        await self._send(session.encrypt(ours))
        session.add_received(
            session.take_undecrypted()
        )  # the secret may have arrived with the handshake
        theirs, filled = bytearray(len(ours)), 0
        while filled < len(theirs):
            count = session.read_into(memoryview(theirs)[filled:])
            filled += count
            if session.is_over:
                raise OSError("closed during the handshake")
            if not count:
                await self._receive()
        if session.readable_bytes:
            raise OSError("TLS data beyond the handshake")
        return peer_encryption.keys(*((theirs, ours) if self._is_server else (ours, theirs)))

    async def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            await trio.lowlevel.wait_writable(self._sock)
            with contextlib.suppress(BlockingIOError):
                rest = rest[self._sock.send(rest) :]

    async def _receive(self) -> None:
        await trio.lowlevel.checkpoint()  # TLS may ignore everything
        while True:
            try:
                data = self._sock.recv(tls_session.RECORD_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock)
                continue
            if data:
                self._session.add_received(data)
            else:
                self._session.receive_eof()
            return


class SecurityMode(enum.StrEnum):
    """How agents communicate; both sides must agree, which ALPN checks."""

    SECURE = "secure"  # mutual TLS 1.3, then encrypted frames
    INSECURE = "insecure"  # clear text; hosts are not authenticated
