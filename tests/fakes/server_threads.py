# SPDX-License-Identifier: Apache-2.0
"""Server threads that run for a block."""

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
    """Run ``accept_all`` until the listener is shut down; then close connections."""
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
    """Run ``work`` in a thread for the block; set its event at the end."""
    is_over = threading.Event()
    thread = threading.Thread(target=work, args=(is_over,))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def shut_down(links: Iterable[socket.socket]) -> None:
    """Shut connections down; ignore ended ones."""
    for link in links:
        with contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serving(server: http.server.ThreadingHTTPServer) -> Iterator[None]:
    """Serve requests for the block; do not wait for pending ones at its end."""
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
