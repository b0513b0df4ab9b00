# SPDX-License-Identifier: Apache-2.0
"""A server that sends given pieces, whatever the client does."""

import contextlib
import itertools
import socketserver
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

Pieces = Callable[[], Iterator[bytes]]
"""The pieces that answer a request."""


class Server(socketserver.ThreadingTCPServer):
    """Sends ``pieces`` after each request or connection, with a pause before each."""

    daemon_threads = True

    def __init__(self, pieces: Pieces, every_s: float, is_spoken_to: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pieces, self.every_s, self.is_spoken_to = pieces, every_s, is_spoken_to
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self.ended, self.connections = threading.Event(), 0

    def handle_error(self, *_: Any) -> None:
        """Ignore errors: the client disconnects."""


class Handler(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        self.server.connections += 1
        while not self.server.is_spoken_to or self._has_request():
            for piece in self.server.pieces():
                if self.server.ended.wait(self.server.every_s):
                    return
                self.wfile.write(piece)

    def _has_request(self) -> bool:
        """Read a request with a body of known length or in chunks."""
        lines = list(itertools.takewhile(bytes.strip, self.rfile))
        heads = dict(line.lower().strip().split(b": ", 1) for line in lines[1:])
        self.rfile.read(int(heads.get(b"content-length", 0)))
        if b"transfer-encoding" in heads:
            while size := int(self.rfile.readline(), 16):
                self.rfile.read(size + 2)
            self.rfile.readline()
        return bool(lines)


def drip(before: bytes = b"", again: bytes = b"x") -> Pieces:
    """Return pieces: ``before`` at once, then ``again`` repeatedly, a byte at a time."""
    return lambda: itertools.chain([before], (bytes([one]) for one in itertools.cycle(again)))


@contextlib.contextmanager
def serve(pieces: Pieces, every_s: float = 0.0, is_spoken_to: bool = True) -> Iterator[Server]:
    """Serve pieces at a free loopback port for the block.

    :param every_s: the pause before each piece
    :param is_spoken_to: send after a request, not after a connection
    """
    with Server(pieces, every_s, is_spoken_to) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()
