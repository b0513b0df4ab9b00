# SPDX-License-Identifier: Apache-2.0
"""One connection to another agent: bytes in and out, in clear text or by TLS.

With ``peer_security = authenticated`` both: TLS for the handshake and for a secret
from each side, then clear text whose frames carry codes made with these secrets.

Once connected, sockets between agents are touched here and nowhere else.  What
the bytes mean is the business of :mod:`acstor_common.peer_wire`, who may say what
to whom that of :mod:`acstor_agent.peers.peer_net`.

The clear-text link calls a non-blocking socket itself and waits by trio only
when it must: trio's own socket methods take one turn of the scheduler per call,
which is a third of the cost of a chunk.
"""

import array
import contextlib
import fcntl
import secrets
import socket
import ssl
import termios
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence

import trio

from acstor_agent import tls_session
from acstor_agent.peers import buffers as buffers_
from acstor_agent.peers import pacing
from acstor_common import certificates
from acstor_common import credentials as credentials_
from acstor_common import errors
from acstor_common import geometry
from acstor_common import peer_seal
from acstor_common import peer_wire

LOW_WATER_BYTES = 256 * geometry.KIB
"""A receiver is not woken for less than this, or than the rest of a shorter frame."""
TURN_BYTES = 512
"""What is decoded at a time where :attr:`Link.is_brief`: 32 Pings."""
CALLS_PER_TURN = 16
"""Socket calls in a row before other tasks get a turn."""
BUFFERS_PER_CALL = 64
NOT_SENT_BYTES, MOST_NOT_SENT_BYTES = 16 * geometry.KIB, 512 * geometry.KIB
"""What the kernel may keep of a connection unsent; the rest stays here, where it can be seen."""
NOT_SENT_S = 0.0005
"""More than the least only if it leaves in this time: 64 KiB at 1 Gbit/s, 0.6 MB at 10.  The kernel
asks for more when half of it has left; to be asked costs this host about 0.1 ms."""
TLS_BYTES_PER_CALL = 272 * geometry.KIB
"""What is received at a time, of TLS from the side that gives chunks: four with their headers.
What comes together is handled together: with one chunk at a time a GB costs a quarter more."""
TLS_BYTES_AHEAD = 256 * geometry.KIB
"""What is encrypted at a time: it is in memory twice until the kernel has taken it."""

LINK_ERRORS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What a link raises when the connection is lost."""

_OUTQ = array.array("i", [0])  # what the kernel answers

_ECN_BITS = 2  # below the DSCP, in one byte
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


def reason(error: Exception) -> str:
    """Return why a connection was lost, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason in _MEANINGS:
        return _MEANINGS[error.reason]
    return str(error) or str(error.__cause__ or "") or type(error).__name__


class ProofGiven(Exception):
    """The other side wanted to see this host's certificate, and nothing else."""


class Link:
    """A TCP connection in clear text.

    ``certificate`` is the other side's, None where ``peer_security`` is insecure; ``believed_by``
    is the generation of the credentials that it was checked with.  ``sending`` and ``receiving``
    make the codes of frames, where they carry codes.  ``turn`` is awaited before anything is
    received.  ``is_brief``: little is decoded at a time.  ``upload`` and ``download`` limit the
    rates of sending and receiving; ``is_held``: the connection waits for one of them.
    """

    certificate: certificates.HostCertificate | None = None
    believed_by = 0
    sending: peer_seal.Seal | None = None
    receiving: peer_seal.Seal | None = None
    turn: Callable[[], Awaitable[None]] | None = None
    is_brief = False
    _holds = 0  # directions that wait for their rate limits

    def __init__(self, sock: socket.socket) -> None:
        self.upload, self.download = pacing.RateLimiter(), pacing.RateLimiter()
        self._sock = sock
        self._low_water_bytes = 1
        self._is_empty = False  # the last call has received all there was
        self._not_sent_bytes = NOT_SENT_BYTES
        self._calls = 0
        self._early = b""  # came with the handshake

    async def receive(self, receiver: peer_wire.Receiver) -> list[peer_wire.Message] | None:
        """Return the next messages, at least one; None when the other side has closed.

        :raises errors.RemoteProtocolError: what came is not the protocol
        """
        messages: list[peer_wire.Message] | None
        if self._early:
            early, self._early = self._early, b""
            if messages := self._feed(receiver, early):
                return messages
        while True:
            if self._is_empty:
                self._set_low_water(self._expected_bytes(receiver))
                self._calls = 0
                await trio.lowlevel.wait_readable(self._sock)
            await self._wait_for(self.download)
            if self.turn is not None:
                await self.turn()
            try:
                messages = self._receive_nowait(receiver)
            except BlockingIOError:
                self._is_empty = True
                continue
            if messages is None:
                return None
            self._calls += 1
            if self._calls >= CALLS_PER_TURN:
                self._calls = 0
                await trio.lowlevel.checkpoint()
            if messages:
                return messages

    async def _wait_for(self, limiter: pacing.RateLimiter) -> None:
        if not limiter.is_open:
            self._holds += 1
            try:
                await limiter.wait()
            finally:
                self._holds -= 1

    @property
    def is_held(self) -> bool:
        """See the class."""
        return self._holds > 0

    def _receive_nowait(self, receiver: peer_wire.Receiver) -> list[peer_wire.Message] | None:
        """Return the messages that are completed by what can be received without waiting.

        None when the other side has closed.
        """
        buffers = self._spaces(receiver)
        if self.download.step_bytes is not None:
            buffers = buffers_.first_of(buffers, self.download.step_bytes)
        count = self._sock.recvmsg_into(buffers)[0]
        self.download.take(count)
        self._is_empty = count < sum(map(len, buffers))
        return receiver.received(count) if count else None

    def _spaces(self, receiver: peer_wire.Receiver) -> list[memoryview]:
        """Return where to receive next; of a chunk as much as there is."""
        spaces = receiver.get_buffers()
        is_short = self.is_brief and len(spaces) == 1
        return [spaces[0][:TURN_BYTES]] if is_short else spaces

    def _feed(self, receiver: peer_wire.Receiver, data: bytes) -> list[peer_wire.Message]:
        """Return the messages that are completed by what was received before."""
        return receiver.feed(data)

    def _expected_bytes(self, receiver: peer_wire.Receiver) -> int:
        """Return how many bytes must still come over TCP at least before there is a message."""
        return receiver.wanted_bytes

    def _set_low_water(self, expected_bytes: int) -> None:
        is_short = expected_bytes <= buffers_.SHORT_BYTES  # not worth a call of the kernel
        low_water_bytes = 1 if is_short else min(expected_bytes, LOW_WATER_BYTES)
        if low_water_bytes != self._low_water_bytes:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water_bytes)
            self._low_water_bytes = low_water_bytes

    def send_nowait(self, buffers: list[peer_wire.Buffer]) -> int:
        """Send what can be sent without waiting; return the number of bytes.

        What could not be sent must be the first to be sent next time.
        """
        if not self.upload.is_open:
            return 0
        try:
            some: Sequence[peer_wire.Buffer] = buffers[:BUFFERS_PER_CALL]
            if self.upload.step_bytes is not None:
                some = buffers_.first_of(some, self.upload.step_bytes)
            sent = self._sock.sendmsg(some)
        except BlockingIOError:
            return 0
        self.upload.take(sent)
        return sent

    async def send_some(self, buffers: list[peer_wire.Buffer]) -> int:
        """Send at least one byte, waiting for room if need be; return the number of bytes."""
        await self._wait_for(self.upload)
        began_s = trio.current_time()
        while True:
            await self.writable()
            if count := self.send_nowait(buffers):
                self._note_pace(count, trio.current_time() - began_s)
                return count
            await self._wait_for(self.upload)  # others may have sent meanwhile

    def _note_pace(self, count: int, took_s: float) -> None:
        """Let the kernel keep more unsent where that leaves quickly, the least where it does not.

        A wait that was short by chance makes it twice as much, and the next one makes it the least.
        """
        leaves_bytes = count * NOT_SENT_S / max(took_s, 1e-6)
        kept_bytes = self._not_sent_bytes
        if leaves_bytes >= 2 * kept_bytes:
            kept_bytes = min(2 * kept_bytes, MOST_NOT_SENT_BYTES)
        elif leaves_bytes < kept_bytes:
            kept_bytes = NOT_SENT_BYTES
        if kept_bytes != self._not_sent_bytes:
            self._not_sent_bytes = kept_bytes
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, kept_bytes)

    def join(self, traffic: pacing.Traffic, klass: peer_wire.Klass) -> None:
        """Use the limits that all connections share, and the DSCP of this connection's class."""
        self.upload, self.download = traffic.upload, traffic.download
        if dscp := traffic.dscp.of(klass):
            of_v6 = socket.IPPROTO_IPV6, socket.IPV6_TCLASS
            of_v4 = socket.IPPROTO_IP, socket.IP_TOS
            level, option = of_v6 if self._sock.family == socket.AF_INET6 else of_v4
            self._sock.setsockopt(level, option, dscp << _ECN_BITS)

    @property
    def undelivered_bytes(self) -> int:
        """What the kernel has taken and the other side has not acknowledged yet."""
        fcntl.ioctl(self._sock, termios.TIOCOUTQ, _OUTQ)
        return _OUTQ[0]

    async def writable(self) -> None:
        """Return when the kernel keeps less than half unsent of what it may."""
        await trio.lowlevel.wait_writable(self._sock)

    def close(self) -> None:
        """Close the connection at once."""
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


class TlsLink(Link):
    """A TCP connection with TLS 1.3 on it.

    :param session: not begun yet
    :param call_bytes: what is received at a time, at most
    """

    def __init__(
        self, sock: socket.socket, session: tls_session.TlsSession, call_bytes: int
    ) -> None:
        super().__init__(sock)
        self._session = session
        self._call_bytes = call_bytes
        self._records: list[peer_wire.Buffer] = []  # encrypted, and not with the kernel yet
        self._ahead_bytes = 0  # of the plain text in them, what was not said to be sent
        self._is_behind = False  # more of what was received can be decrypted

    async def handshake(self, credentials: credentials_.Credentials) -> None:
        """Do the handshake and learn who the other side is.

        :raises errors.NotAuthentic: it is nobody whose certificate may be taken
        """
        try:
            while not self._session.handshake():
                await self._send_all(self._session.take())
                await self._receive_some()
        except ssl.SSLError as error:
            if self._session.protocol == credentials_.PROOF_PROTOCOL:
                raise ProofGiven from error
            self._say_why()
            raise
        await self._send_all(self._session.take())
        if self._session.protocol != credentials.protocol:
            why = f"peer_security differs: this host's is {credentials.protocol}"
            raise errors.NotAuthentic("the other side's TLS", why)
        self.believed_by = credentials.generation  # first: other files may come meanwhile
        self.certificate = credentials.check(self._session.certificate)
        self._early = self._session.unread()

    def _say_why(self) -> None:
        """Tell the other side what was wrong with its TLS, if that can be done at once."""
        with contextlib.suppress(OSError):
            self._sock.send(self._session.take())

    async def _send_all(self, data: bytes) -> None:
        rest: list[peer_wire.Buffer] = [data] if data else []
        while rest:
            await self.writable()
            rest = buffers_.rest_of(rest, super().send_nowait(rest))

    async def _receive_some(self) -> None:
        """Receive at least a byte, or that no more comes."""
        await trio.lowlevel.checkpoint()  # all of it may be what TLS ignores
        while True:
            try:
                data = self._sock.recv(tls_session.RECORD_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock)
                continue
            if data:
                self._session.put(data)
            else:
                self._session.end()
            return

    async def laid_open(self, *, is_server: bool) -> Link:
        """Go on in clear text, with codes whose keys both sides exchange in secret first."""
        ours = secrets.token_bytes(peer_seal.SECRET_BYTES)
        await self._send_all(self._session.encrypt(ours))
        self._session.put(self._early)
        theirs, filled = bytearray(len(ours)), 0
        while filled < len(theirs):
            count = self._session.read_into(memoryview(theirs)[filled:])
            filled += count
            if self._session.is_over:
                raise OSError("closed during the handshake")
            if not count:
                await self._receive_some()
        if self._session.readable_bytes:
            raise OSError("more came by TLS than the handshake")
        keys = (bytes(theirs), ours) if is_server else (ours, bytes(theirs))
        client, server = peer_seal.keys(*keys)
        link = Link(socket.socket(fileno=self._sock.detach()))
        link.certificate, link.believed_by = self.certificate, self.believed_by
        link.sending = peer_seal.Seal(server if is_server else client)
        link.receiving = peer_seal.Seal(client if is_server else server)
        link._early = self._session.unread()  # frames that came with the secret
        return link

    def _receive_nowait(self, receiver: peer_wire.Receiver) -> list[peer_wire.Message] | None:
        """See :meth:`Link._receive_nowait`."""
        if self._session.has_more:
            messages = self._feed(receiver, b"")
            if messages or self._is_behind:
                return messages
        if self._session.is_over:
            return None
        call_bytes = min(self._call_bytes, self.download.step_bytes or self._call_bytes)
        data = self._sock.recv(call_bytes)
        self.download.take(len(data))
        found = self._feed(receiver, data) if data else None
        is_last = len(data) < call_bytes and not self._session.is_over
        self._is_empty = is_last and not self._session.has_more
        return found

    def _feed(self, receiver: peer_wire.Receiver, data: bytes) -> list[peer_wire.Message]:
        """See :meth:`Link._feed`."""
        self._session.put(data)
        messages: list[peer_wire.Message] = []
        records = self._session.records
        self._is_behind = False
        try:
            while self._session.has_more and (
                count := self._session.read_into(*self._spaces(receiver))
            ):
                messages += receiver.received(count)
                if self.is_brief and messages:
                    break
                if self._session.records - records >= tls_session.RECORDS_IN_A_ROW:
                    self._is_behind = self._session.has_more
                    break
        except ssl.SSLError:
            self._say_why()
            raise
        return messages

    def _expected_bytes(self, receiver: peer_wire.Receiver) -> int:
        """See :meth:`Link._expected_bytes`; part of a record may be here, not yet readable."""
        return max(1, receiver.wanted_bytes - self._session.unread_bytes)

    def send_nowait(self, buffers: list[peer_wire.Buffer]) -> int:
        """See :meth:`Link.send_nowait`.

        What is encrypted must be sent; it is said to be sent, all but its last byte, as its
        records are, so that until then it is among what is to be sent next time.
        """
        said, total = 0, sum(map(len, buffers))
        while self._records or said < total:
            if not self._records:
                part = buffers_.pieces_of(buffers_.rest_of(buffers, said), TLS_BYTES_AHEAD)
                self._records = [self._session.encrypt(buffer) for buffer in part]
                self._ahead_bytes = sum(map(len, part))
            sent = super().send_nowait(self._records)
            self._records = buffers_.rest_of(self._records, sent)
            if self._records:
                sent = min(sent, self._ahead_bytes - 1)
                self._ahead_bytes -= sent
                return said + sent
            said += self._ahead_bytes
        return said
