# SPDX-License-Identifier: Apache-2.0
"""A way to a port of the loopback on which something happens when so many bytes have gone there."""

import contextlib
import socket
import threading
from collections.abc import Callable
from collections.abc import Iterator

PIECE_BYTES = 64 * 1024


@contextlib.contextmanager
def tripwire(port: int, after_bytes: int, action: Callable[[], object]) -> Iterator[int]:
    """Pass on connections to ``port`` until the block ends; yield the port to connect to.

    :param after_bytes: over one connection, before ``action`` is called, once, and waited for
    """
    wire = _Wire(port, after_bytes, action)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=wire.accept, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


class _Wire:
    def __init__(self, port: int, after_bytes: int, action: Callable[[], object]) -> None:
        self._port, self._after_bytes, self._action = port, after_bytes, action
        self._lock = threading.Lock()

    def accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        """Pass on one connection both ways, and close both ends: what is not read is lost then."""
        with contextlib.suppress(OSError), near:
            with socket.create_connection(("127.0.0.1", self._port)) as far:
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
            action, self._action = self._action, lambda: None
            action()
