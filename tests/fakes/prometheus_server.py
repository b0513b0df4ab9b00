# SPDX-License-Identifier: Apache-2.0
"""The part of Prometheus' HTTP API that switch loads use: instant queries.

Responses have the documented form: values are strings, and an error has a status field besides
the HTTP status.
"""

import http.server
import json
import threading
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any
from typing import Self

Vector = Mapping[tuple[str, str], float]


def vector(values: Vector) -> dict[str, Any]:
    """Return the response to an instant query: series with labels level and switch."""
    result = [
        {
            "metric": {"level": level, "switch": switch},
            "value": [round(time.time(), 3), "NaN" if value != value else str(value)],
        }
        for (level, switch), value in values.items()
    ]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


class PrometheusServer:
    """Context manager: a server on loopback.

    :ivar vectors: responses by query
    :ivar answer: status and body of all responses, instead of ``vectors``
    """

    def __init__(self) -> None:
        self.vectors: dict[str, Vector] = {}
        self.answer: tuple[int, str] | None = None

    def __enter__(self) -> Self:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = outer.respond(self.path)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def respond(self, target: str) -> tuple[int, bytes]:
        """Return the status and body for a request."""
        parts = urllib.parse.urlsplit(target)
        query = urllib.parse.parse_qs(parts.query).get("query", [""])[0]
        if self.answer is not None:
            return self.answer[0], self.answer[1].encode()
        if parts.path != "/api/v1/query":
            return 404, b"404 page not found\n"
        if query not in self.vectors:
            wrong = {"status": "error", "errorType": "bad_data", "error": f"unknown: {query}"}
            return 400, json.dumps(wrong).encode()
        return 200, json.dumps(vector(self.vectors[query])).encode()
