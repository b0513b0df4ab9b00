# SPDX-License-Identifier: Apache-2.0
"""A connection to another agent: bytes in and out, encrypted after a handshake.

It calls the socket itself: trio's methods take a turn each, a third of the cost of a chunk.
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

from acstor_agent.peers import traffic_control
from acstor_agent.runtime import low_water
from acstor_agent.runtime import tcp_info
from acstor_common.identity import certificates
from acstor_common.model import geometry
from acstor_common.wire.peer import peer_encryption
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire

MAX_LOW_WATER_BYTES = 256 * geometry.KIB
"""SO_RCVLOWAT at most; lower for the rest of a shorter frame."""
TURN_BYTES = 512  # bytes decoded at a time if :attr:`PeerLink.reads_small_steps`: 32 Pings
CALLS_PER_TURN = 16  # socket calls in a row before other tasks get a turn
BUFFERS_PER_CALL = 64
NOT_SENT_BYTES, MOST_NOT_SENT_BYTES = 16 * geometry.KIB, 512 * geometry.KIB
"""TCP_NOTSENT_LOWAT, least and most; the rest stays in this process and can be reordered."""
NOT_SENT_S = 0.0005
"""More than the least only if that is sent within this time: 64 KiB at 1 Gbit/s, 0.6 MB at 10."""

NEARLY_BYTES = 16 * geometry.KIB
"""An answer with fewer undelivered bytes does not delay the next one."""
FAR_S = 0.005  # round-trip time from which on a host is far

FRAME_S = 0.004  # time on the link of an encrypted frame, which is useless until complete

LINK_ERRORS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""Errors of a lost connection."""

_DELIVERY_RATE = slice(160, 168)  # delivery rate in bytes a second (linux/tcp.h)
_APP_LIMITED = 7, 0x01  # byte and bit: the sender had too little to send
_OUTQ = array.array("i", [0])  # result buffer

_ECN_BITS = 2  # below the DSCP, in one byte
_ANOTHER_MODE = "it does not speak TLS, and this host does: peer_security differs"
_NOT_BELIEVED = "it does not trust this host's certificate"
_MEANINGS = {
    "WRONG_VERSION_NUMBER": _ANOTHER_MODE,
    "UNEXPECTED_MESSAGE": _ANOTHER_MODE,
    "RECORD_LAYER_FAILURE": _ANOTHER_MODE,
    "TLSV1_ALERT_UNKNOWN_CA": _NOT_BELIEVED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _NOT_BELIEVED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": _NOT_BELIEVED,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it presented no certificate",
}


def reason(error: Exception) -> str:
    """Return why a connection was lost, for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason in _MEANINGS:
        return _MEANINGS[error.reason]
    return str(error) or str(error.__cause__ or "") or type(error).__name__


class PeerLink:
    """A TCP connection."""

    certificate: certificates.HostCertificate | None = None  # of the peer; None: insecure mode
    credentials_generation = 0  # the generation of the credentials that accepted it
    sending: peer_encryption.Encryption | None = None  # None: insecure mode
    receiving: peer_encryption.Encryption | None = None
    turn: Callable[[], Awaitable[None]] | None = None  # awaited before each receive
    reads_small_steps = False  # decode only TURN_BYTES at a time
    _waits = 0  # directions that wait for a rate limit

    def __init__(self, sock: socket.socket, early: bytes = b"") -> None:
        self.upload, self.download = (
            traffic_control.TrafficLimiter(),
            traffic_control.TrafficLimiter(),
        )
        self._sock = sock
        self._low_water = low_water.LowWaterMark(sock)
        self._is_empty = False  # the last call received everything
        self._not_sent_bytes = NOT_SENT_BYTES
        self._calls = 0
        self._bytes_s = math.inf
        self._early = early  # received with the handshake

    async def receive(self, receiver: peer_receiver.Receiver) -> list[peer_wire.Message] | None:
        """Return messages (1 or more), None if the peer closed, or raise RemoteProtocolError."""
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

    async def _wait_for(self, limiter: traffic_control.TrafficLimiter) -> None:
        if not limiter.is_open:
            self._waits += 1
            try:
                await limiter.wait()
            finally:
                self._waits -= 1

    @property
    def is_rate_limited(self) -> bool:
        """Whether the link waits for a rate limit."""
        return self._waits > 0

    def _receive_nowait(self, receiver: peer_receiver.Receiver) -> list[peer_wire.Message] | None:
        buffers = self._buffers(receiver)
        if self.download.step_bytes is not None:
            buffers = first_of(buffers, self.download.step_bytes)
        count = self._sock.recvmsg_into(buffers)[0]
        self.download.charge_bytes(count)
        self._is_empty = count < sum(map(len, buffers))
        return receiver.bytes_received(count) if count else None

    def _buffers(self, receiver: peer_receiver.Receiver) -> list[memoryview]:
        spaces = receiver.get_buffers()
        is_short = self.reads_small_steps and len(spaces) == 1
        return [spaces[0][:TURN_BYTES]] if is_short else spaces

    def _set_low_water(self, expected_bytes: int) -> None:
        is_short = expected_bytes <= SHORT_BYTES  # not worth a system call
        self._low_water.set_bytes(1 if is_short else min(expected_bytes, MAX_LOW_WATER_BYTES))

    def send_nowait(self, buffers: list[peer_wire.Buffer]) -> int:
        """Send what the socket takes; return the number of bytes. The rest must be next."""
        if not self.upload.is_open:
            return 0
        try:
            some: Sequence[peer_wire.Buffer] = buffers[:BUFFERS_PER_CALL]
            if self.upload.step_bytes is not None:
                some = first_of(some, self.upload.step_bytes)
            sent = self._sock.sendmsg(some)
        except BlockingIOError:
            return 0
        self.upload.charge_bytes(sent)
        return sent

    async def send_some(self, buffers: list[peer_wire.Buffer]) -> int:
        """Send at least one byte, waiting if necessary; return the number of bytes."""
        await self._wait_for(self.upload)
        began_s = trio.current_time()
        while True:
            await self.wait_writable()
            if count := self.send_nowait(buffers):
                self._adapt_not_sent(count, trio.current_time() - began_s)
                return count
            await self._wait_for(self.upload)  # other connections share the limit

    @property
    def run_bytes(self) -> int:
        """Bytes of chunks in a frame: fewer on a slow encrypted link."""
        if self.sending is None:
            return peer_wire.RUN_BYTES
        most = min(peer_wire.RUN_BYTES, int(FRAME_S * self._delivery()[0]))
        return max(peer_wire.ENCRYPTED_RUN_BYTES, most)

    def _delivery(self) -> tuple[int, bool]:
        """Return the delivery rate in bytes a second, and whether it is sender-limited."""
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _DELIVERY_RATE.stop)
        at, bit = _APP_LIMITED
        return int.from_bytes(info[_DELIVERY_RATE], sys.byteorder), bool(info[at] & bit)

    @property
    def bytes_s(self) -> float:
        """Measured rate of the link in bytes a second; infinite if unknown."""
        bytes_s, is_app_limited = self._delivery()
        if bytes_s and not is_app_limited:
            self._bytes_s = float(bytes_s)
        return min(self._bytes_s, self.upload.bytes_s)

    def _adapt_not_sent(self, count: int, took_s: float) -> None:
        """Adapt TCP_NOTSENT_LOWAT: double it where sending is fast, else reset it."""
        leaves_bytes = count * NOT_SENT_S / max(took_s, 1e-6)
        kept_bytes = self._not_sent_bytes
        if leaves_bytes >= 2 * kept_bytes:
            kept_bytes = min(2 * kept_bytes, MOST_NOT_SENT_BYTES)
        elif leaves_bytes < kept_bytes:
            kept_bytes = NOT_SENT_BYTES
        if kept_bytes != self._not_sent_bytes:
            self._not_sent_bytes = kept_bytes
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, kept_bytes)

    def join_limits(
        self, traffic: traffic_control.TrafficControl, klass: peer_wire.ConnectionClass
    ) -> None:
        """Use the shared rate limits, and the DSCP of the connection's class."""
        self.upload, self.download = traffic.upload, traffic.download
        if dscp := traffic.dscp_of(klass):
            of_v6 = socket.IPPROTO_IPV6, socket.IPV6_TCLASS
            of_v4 = socket.IPPROTO_IP, socket.IP_TOS
            level, option = of_v6 if self._sock.family == socket.AF_INET6 else of_v4
            self._sock.setsockopt(level, option, dscp << _ECN_BITS)

    @property
    def undelivered_bytes(self) -> int:
        """Bytes in the kernel that the other side has not acknowledged."""
        fcntl.ioctl(self._sock, termios.TIOCOUTQ, _OUTQ)
        return _OUTQ[0]

    @property
    def is_delivered(self) -> bool:
        """Whether nearly all sent bytes have arrived."""
        return self.undelivered_bytes <= NEARLY_BYTES

    @property
    def is_far(self) -> bool:
        """Whether the round-trip time alone, without a queue, makes answers late."""
        return self.least_rtt_s >= FAR_S

    @property
    def least_rtt_s(self) -> float:
        """See :func:`tcp_info.least_rtt_s`."""
        return tcp_info.least_rtt_s(self._sock)

    async def wait_writable(self) -> None:
        """Wait until less than half of TCP_NOTSENT_LOWAT is unsent."""
        await trio.lowlevel.wait_writable(self._sock)

    def close(self) -> None:
        """Close the connection at once."""
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


SHORT_BYTES = 4 * geometry.KIB  # below this, waiting for complete data is not worth a system call


def rest_of(buffers: list[peer_wire.Buffer], sent: int) -> list[peer_wire.Buffer]:
    """Return what is left to send of ``buffers`` after ``sent`` bytes."""
    for number, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:] if sent else buffer, *buffers[number + 1 :]]
        sent -= len(buffer)
    return []


def first_of(buffers: Sequence[peer_wire.Buffer], most: int) -> list[memoryview]:
    """Return the first ``most`` bytes (1 or more) of ``buffers``."""
    found: list[memoryview] = []
    for buffer in buffers:
        found.append(memoryview(buffer)[:most])
        most -= len(found[-1])
        if not most:
            break
    return found
