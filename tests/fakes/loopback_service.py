# SPDX-License-Identifier: Apache-2.0
"""An HTTP service on the loopback."""

import abc
import http.server
from typing import Self

from tests.fakes import server_threads


class LoopbackService(abc.ABC):
    """Context manager: serves GET and POST on a free port; subclasses make the responses."""

    @abc.abstractmethod
    def respond(
        self, request: http.server.BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, bytes]:
        """Return status and body of the response to a request, which has ``body``."""

    def __enter__(self) -> Self:
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                received = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, body = service.respond(self, received)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._serving = server_threads.serving(self.server)
        self._serving.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._serving.__exit__(None, None, None)
