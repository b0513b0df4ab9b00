# SPDX-License-Identifier: Apache-2.0
"""A gateway that stores what it receives, and responds well or badly."""

import contextlib
import http.server
import json
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping

from tests.fakes import server_threads

UPLOADING, DONE = {"state": "uploading", "sent_bytes": 1}, {"state": "done", "size": 7}


class Gateway:
    """A running gateway.

    :ivar composed: path and body of each request to make an image
    :ivar asked: headers of all requests
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.lines: list[object] = [UPLOADING, DONE]
        self.refused: dict[str, tuple[int, str]] = {}
        self.takes_bytes: int | None = None
        self.stalls_s = 0.0
        self.composed: list[tuple[str, bytes]] = []
        self.asked: list[Mapping[str, str]] = []
        self.before_answer: Callable[[], None] = lambda: None

    def refuse(self, method: str, status: int, message: str) -> None:
        """Refuse all requests with this method."""
        self.refused[method] = (status, message)


@contextlib.contextmanager
def running() -> Iterator[Gateway]:
    """Serve at a free loopback port for the block."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.gateway = Gateway(f"http://127.0.0.1:{server.server_address[1]}")
    with server_threads.serving(server):
        yield server.gateway


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        gateway = self.server.gateway
        gateway.asked.append(dict(self.headers))
        if not self._refuses():
            is_file = self.path.endswith("/file")
            self._answer(206 if is_file else 200, b"\0" if is_file else b"{}")

    def do_PUT(self) -> None:
        gateway = self.server.gateway
        gateway.asked.append(dict(self.headers))
        if gateway.takes_bytes is not None:
            self.rfile.read(gateway.takes_bytes)
            return  # and disconnect
        gateway.composed.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        gateway.before_answer()
        time.sleep(gateway.stalls_s)
        if not self._refuses():
            lines = [one if isinstance(one, str) else json.dumps(one) for one in gateway.lines]
            self._answer(200, "".join(f"{line}\n" for line in lines).encode())

    def _refuses(self) -> bool:
        refused = self.server.gateway.refused.get(self.command)
        if refused is not None:
            status, message = refused
            error = {"code": status, "title": "no", "message": message}
            self._answer(status, json.dumps({"error": error}).encode())
        return refused is not None

    def _answer(self, status: int, body: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Log nothing."""
