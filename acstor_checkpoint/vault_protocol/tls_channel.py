# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 (h11) over TLS between a host and a vault, with timeouts; not thread-safe."""

import math
import ssl
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Final
from typing import NamedTuple

import h11

from acstor_common.wire import vault_paths

PROTOCOL: Final = vault_paths.PROTOCOL  # ALPN protocol
_MAX_HEAD_BYTES: Final = 16 * 1024


class ChannelLimits(NamedTuple):
    """Limits of a channel."""

    silence_s: float = 30.0  # timeout without data; tolerates slow disks
    min_bytes_per_s: int = 256 * 1024  # least rate of a body, because it holds a thread
    piece_bytes: int = 256 * 1024  # received or sent at a time

    def body_s(self, length: int) -> float:
        """Return the time for a body of this length."""
        return self.silence_s + length / self.min_bytes_per_s


LIMITS = ChannelLimits()


class ConnectionBroken(Exception):
    """The peer disconnected, is too slow, or violated HTTP: close the connection."""


class TlsChannel:
    """One side of a connection.  Its methods raise :class:`ConnectionBroken`."""

    def __init__(
        self,
        sock: ssl.SSLSocket,
        role: type[h11.CLIENT | h11.SERVER],
        limits: ChannelLimits = LIMITS,
        note_piece: Callable[[int], None] = lambda _size_bytes: None,  # size of each received piece
    ) -> None:
        self._sock, self._limits, self._note_piece = sock, limits, note_piece
        self._http = h11.Connection(role, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._until_s = math.inf

    def end_by(self, until_s: float) -> None:
        """Set a deadline for all further waits."""
        self._until_s = until_s

    def receive(self, within_s: float) -> h11.Event | None:
        """Return the next event; None if the peer paused."""
        until_s = time.monotonic() + within_s
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._wait_until(until_s)
                piece = self._sock.recv(self._limits.piece_bytes)
                self._note_piece(len(piece))
                self._http.receive_data(piece)
        except (OSError, h11.RemoteProtocolError) as e:
            raise ConnectionBroken(str(e) or type(e).__name__) from e
        return event if isinstance(event, h11.Event) else None

    def send(self, *events: h11.Event) -> None:
        """Send short events."""
        data = b"".join(self._http.send(event) or b"" for event in events)
        self._write(data, self._limits.silence_s)

    def send_body(self, pieces: Iterable[bytes | bytearray], length: int) -> None:
        """Send a body and its end."""
        until_s, limits = time.monotonic() + self._limits.body_s(length), self._limits
        for piece in pieces:
            view = memoryview(piece)
            for at in range(0, len(view), limits.piece_bytes):
                event = h11.Data(data=view[at : at + limits.piece_bytes])  # type: ignore[arg-type]
                for data in self._http.send_with_data_passthrough(event) or ():  # without a copy
                    self._write(data, min(limits.silence_s, until_s - time.monotonic()))
        self.send(h11.EndOfMessage())

    def iter_body(self, length: int) -> Iterator[bytes]:
        """Yield the next body, which must not be longer than announced."""
        until_s, silence_s = time.monotonic() + self._limits.body_s(length), self._limits.silence_s
        left_s, left = silence_s, length
        while isinstance(event := self.receive(left_s), h11.Data):
            left -= len(event.data)
            if left < 0:
                raise ConnectionBroken(
                    f"a body of more than the {length} bytes that were announced"
                )
            yield bytes(event.data)
            left_s = min(silence_s, until_s - time.monotonic())
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionBroken("it ended too early")

    def begin_again(self) -> bool:
        """Return whether the connection is reusable, and prepare it."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _wait_until(self, until_s: float) -> None:
        left_s = min(until_s, self._until_s) - time.monotonic()
        if left_s <= 0:
            raise ConnectionBroken("it is too slow")
        self._sock.settimeout(left_s)

    def _write(self, data: bytes, within_s: float) -> None:
        try:
            self._wait_until(time.monotonic() + within_s)
            self._sock.sendall(data)
        except OSError as e:
            raise ConnectionBroken(str(e) or type(e).__name__) from e


def content_length(message: h11.Request | h11.Response) -> int | None:
    """Return the announced length of a body; None without header."""
    for name, value in message.headers:
        if name == b"content-length":
            return int(value)  # h11 has validated it
    return None
