# SPDX-License-Identifier: Apache-2.0
"""A relay to a loopback port that delays responses."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator


@contextlib.contextmanager
def slow_link(port: int, delay_s: float) -> Iterator[int]:
    """Relay connections to ``port`` for the block; yield the relay's port.

    :param delay_s: delay of each received piece of a response
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
