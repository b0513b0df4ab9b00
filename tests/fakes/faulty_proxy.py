# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that relays, hangs or refuses connections to a real server.

``hang`` imitates a stopped process: the kernel accepts connections and acknowledges bytes, and
no response comes on new or open connections.  ``refuse`` resets open and new connections.
"""

import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Iterator

LOOPBACK = "127.0.0.1"
PIECE_BYTES = 1 << 16
CONNECT_S = 10.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


class Mode(enum.Enum):
    """How the proxy treats connections."""

    PASS = enum.auto()
    HANG = enum.auto()
    REFUSE = enum.auto()


class FaultyProxy:
    """A running proxy; ``connections`` counts the accepted ones.

    :param port: of the server, on the loopback
    """

    def __init__(self, port: int, listening: socket.socket) -> None:
        self.port, self.connections = listening.getsockname()[1], 0
        self._to_port, self._listening = port, listening
        self._mode, self._changed = Mode.PASS, threading.Condition()
        self._links: list[socket.socket] = []

    @property
    def address(self) -> str:
        """The proxy's address."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        """The proxy's HTTP URL."""
        return f"http://{self.address}"

    def pass_on(self) -> None:
        """Relay everything, including what arrived while it hung."""
        self._become(Mode.PASS)

    def hang(self) -> None:
        """Accept connections and bytes without any response."""
        self._become(Mode.HANG)

    def refuse(self) -> None:
        """Reset open and new connections."""
        self._become(Mode.REFUSE)
        for link in self._taken():
            _reset(link)

    def run(self) -> None:
        """Accept connections until the proxy is closed."""
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._listening.accept()
                self.connections += 1
                if self._mode is Mode.REFUSE:
                    _reset(link)
                    continue
                self._keep(link)
                threading.Thread(target=self._join, args=(link,), daemon=True).start()

    def close(self) -> None:
        """Close all connections."""
        self.refuse()
        self._listening.shutdown(socket.SHUT_RDWR)

    def _become(self, mode: Mode) -> None:
        with self._changed:
            self._mode = mode
            self._changed.notify_all()

    def _keep(self, link: socket.socket) -> None:
        with self._changed:
            self._links = [one for one in self._links if one.fileno() >= 0]
            self._links.append(link)

    def _taken(self) -> list[socket.socket]:
        with self._changed:
            links, self._links = self._links, []
        return links

    def _passes(self) -> bool:
        """Wait while it hangs; return whether to relay afterwards."""
        with self._changed:
            self._changed.wait_for(lambda: self._mode is not Mode.HANG)
            return self._mode is Mode.PASS

    def _join(self, link: socket.socket) -> None:
        if not self._passes():
            return
        try:
            other = socket.create_connection((LOOPBACK, self._to_port), CONNECT_S)
        except OSError:
            _reset(link)
            return
        other.settimeout(None)
        self._keep(other)
        for ends in ((link, other), (other, link)):
            threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(PIECE_BYTES)) and self._passes():
                target.sendall(data)
        for link in (source, target):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)


def _reset(link: socket.socket) -> None:
    """Reset a connection, even if another thread blocks on it."""
    with contextlib.suppress(OSError):
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        link.shutdown(socket.SHUT_RDWR)  # wakes that thread
    link.close()


@contextlib.contextmanager
def before(port: int) -> Iterator[FaultyProxy]:
    """Run a proxy in front of a loopback port for the block."""
    with socket.create_server((LOOPBACK, 0), backlog=128) as listening:
        made = FaultyProxy(port, listening)
        thread = threading.Thread(target=made.run)
        thread.start()
        try:
            yield made
        finally:
            made.close()
            thread.join()
