# SPDX-License-Identifier: Apache-2.0
"""A server that accepts connections, reads, and never responds."""

import contextlib
import socket
from collections.abc import Iterator

from tests.fakes import server_threads

LOOPBACK = "127.0.0.1"


class SilentServer:
    """A running server; ``connections`` counts the accepted ones."""

    def __init__(self, address: str) -> None:
        self.address, self.connections = address, 0

    @property
    def url(self) -> str:
        """The server's HTTP URL."""
        return f"http://{self.address}"


@contextlib.contextmanager
def serve(host: str = LOOPBACK) -> Iterator[SilentServer]:
    """Accept connections on a free port for the block."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server((host, 0), backlog=128))
        made = SilentServer(f"{host}:{listening.getsockname()[1]}")

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    stack.enter_context(listening.accept()[0])
                    made.connections += 1

        with server_threads.accepting(listening, accept):
            yield made
