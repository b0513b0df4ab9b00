# SPDX-License-Identifier: Apache-2.0
"""Threads of servers that tests run until a block ends."""

import contextlib
import http.server
import socket
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator


@contextlib.contextmanager
def accepting(
    listener: socket.socket, accept_all: Callable[[], None], links: Iterable[socket.socket] = ()
) -> Iterator[None]:
    """Run ``accept_all``, which ends with the listener; then end the connections, too."""
    thread = threading.Thread(target=accept_all)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        shut_down(links)


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run ``work`` in a thread until the block ends, which sets its event."""
    is_over = threading.Event()
    thread = threading.Thread(target=work, args=(is_over,))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def shut_down(links: Iterable[socket.socket]) -> None:
    """End connections, of which some may have ended."""
    for link in links:
        with contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serving(server: http.server.ThreadingHTTPServer) -> Iterator[None]:
    """Answer requests; the end of the block waits for none of them."""
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
