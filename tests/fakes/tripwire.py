# SPDX-License-Identifier: Apache-2.0
"""A relay to a loopback port that runs an action after a number of bytes."""

import contextlib
import socket
import threading
from collections.abc import Callable
from collections.abc import Iterator

PIECE_BYTES = 64 * 1024


@contextlib.contextmanager
def tripwire(port: int, after_bytes: int) -> Iterator["Tripwire"]:
    """Relay connections to ``port`` for the block.

    :param after_bytes: of one connection, before the relay runs the action once and waits for it
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wire = Tripwire(port, after_bytes, listener.getsockname()[1])
        thread = threading.Thread(target=wire.accept, args=(listener,))
        thread.start()
        try:
            yield wire
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _nothing() -> None:
    pass


class Tripwire:
    """The relay's ``port``, and its ``action``."""

    def __init__(self, to_port: int, after_bytes: int, port: int) -> None:
        self.port = port
        self.action: Callable[[], object] = _nothing
        self._to_port, self._after_bytes = to_port, after_bytes
        self._lock = threading.Lock()

    def accept(self, listener: socket.socket) -> None:
        """Relay connections until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        """Relay one connection both ways, and close both ends; unread bytes are lost."""
        with contextlib.suppress(OSError), near:
            with socket.create_connection(("127.0.0.1", self._to_port)) as far:
                back = threading.Thread(target=self._pass_on, args=(far, near, False), daemon=True)
                back.start()
                self._pass_on(near, far, True)
                back.join()

    def _pass_on(self, source: socket.socket, to: socket.socket, is_watched: bool) -> None:
        passed_bytes = 0
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                to.sendall(data)
                passed_bytes += len(data)
                if is_watched and passed_bytes >= self._after_bytes:
                    self._trip()
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _trip(self) -> None:
        with self._lock:
            action, self.action = self.action, _nothing
            action()
