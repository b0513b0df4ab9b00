# SPDX-License-Identifier: Apache-2.0
"""A minimal network service for Nova, for servers without networks.

It has no ports and no networks, refuses to create any, and returns empty lists.
``application`` is the WSGI application; :class:`Neutron` runs it.
"""

import json
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from tests.lab.openstack import api

_NO_GROUP = {
    "id": "00000000-0000-0000-0000-000000000001",
    "name": "default",
    "description": "",
    "security_group_rules": [],
    "tenant_id": "",
    "project_id": "",
}


class Neutron(api.Api):
    """The network endpoint of the catalog."""

    module = "tests.lab.openstack.neutron"

    def configure(self) -> None:
        """Do nothing: there is no configuration."""

    def environment(self) -> Mapping[str, str]:
        """Return no variables: there is no configuration."""
        return {}


_LIMITS = ("network", "subnet", "port", "router", "security_group", "security_group_rule")
_NO_LIMITS = {"quota": dict.fromkeys((*_LIMITS, "floatingip"), -1)}


def _answer(method: str, parts: list[str], host: str) -> tuple[str, dict[str, Any] | None]:
    if method == "DELETE":
        return "204 No Content", None
    if method == "GET" and parts[1:2] == ["quotas"] and len(parts) == 3:
        return "200 OK", _NO_LIMITS  # Nova checks it before it builds a server with a network
    if method != "GET" or len(parts) > 2:
        return "404 Not Found", {"NeutronError": {"type": "NotFound", "message": "", "detail": ""}}
    if not parts:
        links = [{"rel": "self", "href": f"http://{host}/v2.0/"}]
        return "200 OK", {"versions": [{"id": "v2.0", "status": "CURRENT", "links": links}]}
    if len(parts) == 1:
        return "200 OK", {"resources": []}
    kind = parts[1].replace("-", "_")
    return "200 OK", {kind: [_NO_GROUP] if kind == "security_groups" else []}


def application(
    environ: Mapping[str, str], start_response: Callable[[str, list[tuple[str, str]]], object]
) -> list[bytes]:
    """Answer one request."""
    parts = [part for part in environ["PATH_INFO"].split("/") if part]
    status, body = _answer(environ["REQUEST_METHOD"], parts, environ["HTTP_HOST"])
    data = b"" if body is None else json.dumps(body).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
    start_response(status, headers)
    return [data]
