# SPDX-License-Identifier: Apache-2.0
"""The calls of Keystone and Glance that the REST API uses, on one HTTP server.

The test sets tokens and images.  If ``is_up`` is false, every request fails.
"""

import contextlib
import datetime
import http.server
import json
import uuid
from collections.abc import Iterator
from typing import Any

from tests.fakes import server_threads

SERVICE = "service-token"
LIFETIME = datetime.timedelta(hours=1)


class CloudServices(http.server.ThreadingHTTPServer):
    """The HTTP server.

    :ivar roles: by token
    :ivar images: records of Glance's API
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.roles: dict[str, tuple[str, ...]] = {SERVICE: ("service",)}
        self.images: list[dict[str, Any]] = []
        self.is_up = True

    def token(self, text: str) -> dict[str, Any] | None:
        """Return Keystone's description of a token, None if it is invalid."""
        if text not in self.roles:
            return None
        now = datetime.datetime.now(datetime.UTC)
        domain = {"id": "default", "name": "Default"}
        return {
            "token": {
                "methods": ["password"],
                "audit_ids": [text],
                "issued_at": _time(now),
                "expires_at": _time(now + LIFETIME),
                "user": {
                    "id": uuid.uuid5(uuid.NAMESPACE_URL, text).hex,
                    "name": text,
                    "domain": domain,
                },
                "project": {"id": "p", "name": "admin", "domain": domain},
                "roles": [{"id": role, "name": role} for role in self.roles[text]],
                "catalog": [self._service("identity", "/v3"), self._service("image", "")],
            }
        }

    def _service(self, kind: str, path: str) -> dict[str, Any]:
        where = {"region": "RegionOne", "region_id": "RegionOne", "url": f"{self.url}{path}"}
        endpoints = [
            {"id": f"{kind}-{interface}", "interface": interface, **where}
            for interface in ("public", "internal", "admin")
        ]
        return {"id": kind, "type": kind, "name": kind, "endpoints": endpoints}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: CloudServices
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        if not self.server.is_up:
            self._answer(503, {})
        elif path == "/v3":
            links = [{"rel": "self", "href": f"{self.server.url}/v3/"}]
            version = {"id": "v3.14", "status": "stable", "links": links}
            self._answer(200, {"version": version})
        elif path == "/v3/auth/tokens":
            found = self.server.token(self.headers.get("X-Subject-Token", ""))
            self._answer(200 if found else 404, found or {})
        elif path == "/v2/images":
            self._answer(200, {"images": self.server.images})
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.is_up:
            self._answer(201, self.server.token(SERVICE) or {}, SERVICE)
        else:
            self._answer(503, {})

    def _answer(self, status: int, body: dict[str, Any], token: str = "") -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        if token:
            self.send_header("X-Subject-Token", token)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _time(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@contextlib.contextmanager
def serve() -> Iterator[CloudServices]:
    """Serve for the block."""
    server = CloudServices()
    with server_threads.serving(server):
        yield server
