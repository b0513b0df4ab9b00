# SPDX-License-Identifier: Apache-2.0
"""A link to a port of the loopback whose answers take their time."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator


@contextlib.contextmanager
def slow_link(port: int, delay_s: float) -> Iterator[int]:
    """Pass on connections to ``port`` until the block ends; yield the port to connect to.

    :param delay_s: what comes back is held so long, piece by piece
    """
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as ends:
        threads = [threading.Thread(target=_accept, args=(listener, port, delay_s, ends))]
        threads[0].start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            threads[0].join()


def _accept(listener: socket.socket, port: int, delay_s: float, ends: contextlib.ExitStack) -> None:
    with contextlib.suppress(OSError):
        while True:
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", port))
            for end in (near, far):
                ends.callback(_hang_up, end)
            for arguments in ((near, far, 0.0), (far, near, delay_s)):
                threading.Thread(target=_pass_on, args=arguments, daemon=True).start()


def _pass_on(source: socket.socket, to: socket.socket, delay_s: float) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 20):
            time.sleep(delay_s)
            to.sendall(data)
    _hang_up(to)


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
