# SPDX-License-Identifier: Apache-2.0
"""WSGI middleware from oslo.middleware, before authentication: it must reveal nothing.

Headers of proxies are trusted only if an option says so.
"""

import ipaddress
from collections.abc import Callable
from typing import Any

from oslo_config import cfg
from oslo_context import context
from oslo_middleware import cors
from oslo_middleware import healthcheck
from oslo_middleware import http_proxy_to_wsgi
from oslo_middleware import request_id
from oslo_middleware.healthcheck import pluginbase

from acstor_decision.api import health_check
from acstor_decision.db import database

HEALTH_PATH = "/healthcheck"

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Any]


class DatabaseAnswers(pluginbase.HealthcheckBaseExtension):
    """Health check plug-in ``acstor_database``: healthy while the database responds."""

    def __init__(self, oslo_conf: cfg.ConfigOpts, conf: dict[str, Any]) -> None:
        super().__init__(oslo_conf, conf)
        self._check = health_check.HealthCheck(database.Database(oslo_conf))

    def healthcheck(self, server_port: int) -> pluginbase.HealthcheckResult:
        """Check the database."""
        if self._check.has_database():
            return pluginbase.HealthcheckResult(available=True, reason="OK")
        return pluginbase.HealthcheckResult(available=False, reason="no database")


def wrap_app(inner: Wsgi, conf: cfg.ConfigOpts) -> Wsgi:
    """Return an application inside all middleware."""
    health = healthcheck.Healthcheck(None, conf)

    def chosen(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        context.RequestContext(  # log records from here on have the request's ID
            request_id=environ[request_id.ENV_REQUEST_ID],
            global_request_id=environ.get(request_id.GLOBAL_REQ_ID),
        )
        asked = health if environ.get("PATH_INFO") == HEALTH_PATH else inner
        return asked(environ, start_response)

    named = request_id.RequestId(chosen, conf)
    made: Wsgi = cors.CORS(http_proxy_to_wsgi.HTTPProxyToWSGI(named, conf), conf)
    return made


def client_address(forwarded: str) -> str:
    """Return the client's address, the first in ``forwarded``; empty if it is malformed.

    >>> headers = ("192.0.2.7, 10.0.0.1", '"[2001:db8::7]:4711"', "x" * 9999)
    >>> [client_address(header) for header in headers]
    ['192.0.2.7', '2001:db8::7', '']
    """
    first = forwarded[:256].partition(",")[0].strip().strip('"')
    plain = first[1:].partition("]")[0] if first.startswith("[") else first
    for text in (plain, plain.rpartition(":")[0]):
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            continue
    return ""
