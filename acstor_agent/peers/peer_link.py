# SPDX-License-Identifier: Apache-2.0
"""A connection to another agent: bytes in and out, on a socket that only this module uses.

``peer_wire`` makes messages of the bytes; ``peers.connection`` says what each side may send.  After
a handshake (``peers.handshake``) frames are encrypted.

A link calls the non-blocking socket itself and waits by trio only when it must: trio's own socket
methods take one turn of the scheduler per call, which is a third of the cost of a chunk.
"""

import array
import fcntl
import math
import socket
import ssl
import sys
import termios
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence

import trio

from acstor_agent.peers import buffers as buffers_
from acstor_agent.peers import traffic_control
from acstor_common.identity import certificates
from acstor_common.model import geometry
from acstor_common.wire import peer_encryption
from acstor_common.wire import peer_wire

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

FRAME_S = 0.004
"""How long an encrypted frame with chunks takes on the link: none is of use before its end."""

LINK_ERRORS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What a link raises when the connection is lost."""

_DELIVERY_RATE = slice(160, 168)
"""Where the rate is, in bytes a second, at which the other side acknowledges (linux/tcp.h)."""
_APP_LIMITED = 7, 0x01  # the byte and the bit that say that this host had too little to send
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
    """Return why a connection was lost, for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason in _MEANINGS:
        return _MEANINGS[error.reason]
    return str(error) or str(error.__cause__ or "") or type(error).__name__


class Link:
    """A TCP connection.

    :ivar certificate: of the other side; None in insecure mode
    :ivar believed_by: the generation of the credentials that accepted the certificate
    :ivar sending: encrypts frames, and ``receiving`` decrypts them; None in insecure mode
    :ivar turn: is awaited before the link receives anything
    :ivar is_brief: little is decoded at a time
    :ivar upload: limits the rate of sending, and ``download`` that of receiving
    """

    certificate: certificates.HostCertificate | None = None
    believed_by = 0
    sending: peer_encryption.Encryption | None = None
    receiving: peer_encryption.Encryption | None = None
    turn: Callable[[], Awaitable[None]] | None = None
    is_brief = False
    _holds = 0  # directions that wait for their rate limits

    def __init__(self, sock: socket.socket, early: bytes = b"") -> None:
        self.upload, self.download = traffic_control.RateLimiter(), traffic_control.RateLimiter()
        self._sock = sock
        self._low_water_bytes = 1
        self._is_empty = False  # the last call has received all there was
        self._not_sent_bytes = NOT_SENT_BYTES
        self._calls = 0
        self._bytes_s = math.inf
        self._early = early  # came with the handshake

    async def receive(self, receiver: peer_wire.Receiver) -> list[peer_wire.Message] | None:
        """Return the next messages, at least one; None when the other side has closed.

        :raises errors.RemoteProtocolError: what came is not the protocol
        """
        messages: list[peer_wire.Message] | None
        if self._early:
            early, self._early = self._early, b""
            if messages := receiver.feed_bytes(early):
                return messages
        while True:
            if self._is_empty:
                self._set_low_water(receiver.wanted_bytes)
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

    async def _wait_for(self, limiter: traffic_control.RateLimiter) -> None:
        if not limiter.is_open:
            self._holds += 1
            try:
                await limiter.wait()
            finally:
                self._holds -= 1

    @property
    def is_held(self) -> bool:
        """Whether the link waits for one of its rate limits."""
        return self._holds > 0

    def _receive_nowait(self, receiver: peer_wire.Receiver) -> list[peer_wire.Message] | None:
        """Return the messages that are completed by what can be received without waiting.

        None when the other side has closed.
        """
        buffers = self._spaces(receiver)
        if self.download.step_bytes is not None:
            buffers = buffers_.first_of(buffers, self.download.step_bytes)
        count = self._sock.recvmsg_into(buffers)[0]
        self.download.charge_bytes(count)
        self._is_empty = count < sum(map(len, buffers))
        return receiver.bytes_received(count) if count else None

    def _spaces(self, receiver: peer_wire.Receiver) -> list[memoryview]:
        """Return where to receive next; of a chunk as much as there is."""
        spaces = receiver.get_buffers()
        is_short = self.is_brief and len(spaces) == 1
        return [spaces[0][:TURN_BYTES]] if is_short else spaces

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
        self.upload.charge_bytes(sent)
        return sent

    async def send_some(self, buffers: list[peer_wire.Buffer]) -> int:
        """Send at least one byte, waiting for room if need be; return the number of bytes."""
        await self._wait_for(self.upload)
        began_s = trio.current_time()
        while True:
            await self.wait_writable()
            if count := self.send_nowait(buffers):
                self._note_pace(count, trio.current_time() - began_s)
                return count
            await self._wait_for(self.upload)  # others may have sent meanwhile

    @property
    def run_bytes(self) -> int:
        """How many bytes of chunks a frame carries: few on a slow link where it is encrypted."""
        if self.sending is None:
            return peer_wire.RUN_BYTES
        most = min(peer_wire.RUN_BYTES, int(FRAME_S * self._delivery()[0]))
        return max(peer_wire.ENCRYPTED_RUN_BYTES, most)

    def _delivery(self) -> tuple[int, bool]:
        """Return bytes a second that arrived last, and whether there was too little to send."""
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _DELIVERY_RATE.stop)
        at, bit = _APP_LIMITED
        return int.from_bytes(info[_DELIVERY_RATE], sys.byteorder), bool(info[at] & bit)

    @property
    def bytes_s(self) -> float:
        """Bytes a second that the link moves, as far as was seen; infinite if nothing was."""
        bytes_s, is_app_limited = self._delivery()
        if bytes_s and not is_app_limited:
            self._bytes_s = float(bytes_s)
        return min(self._bytes_s, self.upload.bytes_s)

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

    def join_limits(self, traffic: traffic_control.Traffic, klass: peer_wire.Klass) -> None:
        """Use the limits that all connections share, and the DSCP of this connection's class."""
        self.upload, self.download = traffic.upload, traffic.download
        if dscp := traffic.dscp_of(klass):
            of_v6 = socket.IPPROTO_IPV6, socket.IPV6_TCLASS
            of_v4 = socket.IPPROTO_IP, socket.IP_TOS
            level, option = of_v6 if self._sock.family == socket.AF_INET6 else of_v4
            self._sock.setsockopt(level, option, dscp << _ECN_BITS)

    @property
    def undelivered_bytes(self) -> int:
        """What the kernel has taken and the other side has not acknowledged yet."""
        fcntl.ioctl(self._sock, termios.TIOCOUTQ, _OUTQ)
        return _OUTQ[0]

    async def wait_writable(self) -> None:
        """Return when the kernel keeps less than half unsent of what it may."""
        await trio.lowlevel.wait_writable(self._sock)

    def close(self) -> None:
        """Close the connection at once."""
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
