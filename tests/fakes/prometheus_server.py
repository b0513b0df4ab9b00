# SPDX-License-Identifier: Apache-2.0
"""The part of Prometheus' HTTP API that switch loads use: instant queries.

Responses have the documented form: values are strings, and an error has a status field besides
the HTTP status.
"""

import http.server
import json
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from tests.fakes import loopback_service

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


class PrometheusServer(loopback_service.LoopbackService):
    """A server on the loopback.

    :ivar vectors: responses by query
    :ivar answer: status and body of all responses, instead of ``vectors``
    """

    def __init__(self) -> None:
        self.vectors: dict[str, Vector] = {}
        self.answer: tuple[int, str] | None = None

    def respond(
        self, request: http.server.BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, bytes]:
        """Return the response to a query."""
        parts = urllib.parse.urlsplit(request.path)
        query = urllib.parse.parse_qs(parts.query).get("query", [""])[0]
        if self.answer is not None:
            return self.answer[0], self.answer[1].encode()
        if parts.path != "/api/v1/query":
            return 404, b"404 page not found\n"
        if query not in self.vectors:
            wrong = {"status": "error", "errorType": "bad_data", "error": f"unknown: {query}"}
            return 400, json.dumps(wrong).encode()
        return 200, json.dumps(vector(self.vectors[query])).encode()
