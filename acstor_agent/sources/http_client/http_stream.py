# SPDX-License-Identifier: Apache-2.0
"""One connection to a web server, in clear text or TLS.

Every wait has a timeout of silence. The socket is called directly: a turn of trio costs more.
"""

import socket
import ssl
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence

import trio

from acstor_agent.runtime import low_water
from acstor_agent.runtime import tcp_info
from acstor_agent.runtime import tls_session
from acstor_agent.sources.http_client import http_connector
from acstor_common import errors
from acstor_common.model import geometry

TLS_BYTES_PER_CALL = 128 * geometry.KIB  # bytes received at a time with TLS: eight records
CALLS_PER_TURN = 16  # socket calls in a row before other tasks get a turn
MAX_LOW_WATER_BYTES = 32 * geometry.KIB
"""SO_RCVLOWAT at most, for LOW_WATER_S; a new connection's receive window is twice as large."""
LOW_WATER_S = 0.25


class Stream:
    """A connection in clear text; ``silence_s`` is its timeout of silence."""

    def __init__(self, sock: socket.socket, silence_s: float) -> None:
        self._sock, self._silence_s = sock, silence_s
        self._calls = 0
        self._low_water = low_water.LowWaterMark(sock)

    @property
    def peer(self) -> str:
        """The server's IP address; raises OSError if the connection is lost."""
        return str(self._sock.getpeername()[0])

    def least_rtt_s(self) -> float:
        """Return the least round-trip time of the last five minutes, by the kernel; 0: unknown."""
        return tcp_info.least_rtt_s(self._sock)

    def is_idle(self) -> bool:
        """Return whether the connection is open and has no unrequested data."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    async def send(self, data: bytes) -> None:
        """Send all data; raise OSError if the connection is lost or the server does not read."""
        while data:
            try:
                data = data[self._sock.send(data) :]
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_writable)

    async def receive_into(
        self, buffers: Sequence[bytearray | memoryview], useful_bytes: int = 1
    ) -> int:
        """Fill the buffers in order; return the number of bytes, 0 at the end, or raise OSError.

        :param useful_bytes: the server sends at least as many; fewer need not wake this task
        """
        while True:
            self._calls += 1
            if self._calls >= CALLS_PER_TURN:
                self._calls = 0
                await trio.lowlevel.checkpoint()
            try:
                count = self._receive_nowait(buffers)
            except BlockingIOError:
                await self._wait_for_bytes(self._awaited_bytes(useful_bytes))
                continue
            if count is not None:
                return count

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _receive_nowait(self, buffers: Sequence[bytearray | memoryview]) -> int | None:
        """Make one socket call if needed; return None if there is nothing to read yet."""
        return self._sock.recvmsg_into(buffers)[0]

    def _awaited_bytes(self, useful_bytes: int) -> int:
        """Return how many bytes the socket must receive until so many can be read."""
        return useful_bytes

    async def _wait_for_bytes(self, count_bytes: int) -> None:
        waited_s = 0.0
        if count_bytes > 1:
            self._low_water.set_bytes(min(count_bytes, MAX_LOW_WATER_BYTES))
            waited_s = min(LOW_WATER_S, self._silence_s / 2)
            with trio.move_on_after(waited_s):
                await trio.lowlevel.wait_readable(self._sock)
                return
        self._low_water.set_bytes(1)  # readable at once if anything was received
        await self._wait(trio.lowlevel.wait_readable, waited_s)

    async def _wait(
        self, until: Callable[[socket.socket], Awaitable[None]], waited_s: float = 0.0
    ) -> None:
        with trio.move_on_after(self._silence_s - waited_s):
            await until(self._sock)
            return
        raise TimeoutError(f"the server did not respond for {self._silence_s:g} s")


class TlsStream(Stream):
    """A TLS connection."""

    def __init__(
        self, sock: socket.socket, silence_s: float, session: tls_session.TlsSession
    ) -> None:
        super().__init__(sock, silence_s)
        self._session = session

    async def handshake(self) -> None:
        """Do the TLS handshake, or raise OSError if the certificate is invalid."""
        try:
            while not self._session.continue_handshake():
                await super().send(self._session.take_outgoing())
                await trio.lowlevel.checkpoint()  # TLS may ignore everything
                await self._receive_records()
                if self._session.is_over:
                    raise OSError("closed during the handshake")
        except ssl.SSLError:
            self._send_alert()
            raise
        await super().send(self._session.take_outgoing())
        self._session.add_received(self._session.take_undecrypted())

    def is_idle(self) -> bool:
        """See :meth:`Stream.is_idle`."""
        session = self._session
        is_nothing_here = not (session.readable_bytes or session.unread_bytes)
        return is_nothing_here and not session.is_over and super().is_idle()

    async def send(self, data: bytes) -> None:
        """See :meth:`Stream.send`."""
        await super().send(self._session.encrypt(data))

    def _receive_nowait(self, buffers: Sequence[bytearray | memoryview]) -> int | None:
        session, space = self._session, memoryview(buffers[0])
        count = session.read_into(space, space)
        if not count and not session.is_over:
            self._put(self._sock.recv(TLS_BYTES_PER_CALL))
            count = session.read_into(space, space)
        return count if count or session.is_over else None

    def _awaited_bytes(self, useful_bytes: int) -> int:
        session = self._session
        return max(1, useful_bytes - session.unread_bytes, session.record_missing_bytes)

    async def _receive_records(self) -> None:
        while True:
            try:
                return self._put(self._sock.recv(TLS_BYTES_PER_CALL))
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_readable)

    def _put(self, records: bytes) -> None:
        if records:
            self._session.add_received(records)
        else:
            self._session.receive_eof()

    def _send_alert(self) -> None:
        try:
            self._sock.send(self._session.take_outgoing())
        except OSError:
            return


async def connect(
    connector: http_connector.HttpConnector,
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    silence_s: float,
) -> Stream:
    """Connect to a server, in clear text if ``context`` is None.

    :raises OSError: it cannot be reached in ``silence_s``, or its certificate is invalid
    :raises errors.SourceUnreachable: see :meth:`http_connector.HttpConnector.connect_socket`
    """
    with trio.move_on_after(silence_s):
        sock = await connector.connect_socket(host, port)
        if context is None:
            return Stream(sock, silence_s)
        stream = None
        try:
            session = tls_session.TlsSession(context, is_server=False, server_hostname=host)
            stream = TlsStream(sock, silence_s, session)
            await stream.handshake()
        except BaseException:
            sock.close()
            raise
        return stream
    raise TimeoutError(f"no connection within {silence_s:g} s")


def tls_context(what: str, ca_file: str | None) -> ssl.SSLContext:
    """Return a TLS context (no ``ca_file``: the system's authorities); Unusable for a bad file."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # includes ssl.SSLError
        raise errors.Unusable(f"[{what}] ca_file", f"{ca_file}: {error}") from error
    context.set_alpn_protocols(["http/1.1"])
    return context
