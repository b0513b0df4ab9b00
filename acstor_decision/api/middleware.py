# SPDX-License-Identifier: Apache-2.0
"""What every request passes before the application, made of oslo.middleware.

The one rule: all of it is done before anybody is known by a token, so none of it shows anything of
the cloud.  Headers of proxies are believed only where an operator says that there is a proxy.
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

from acstor_decision.db import database

HEALTH_PATH = "/healthcheck"

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Any]


class DatabaseAnswers(pluginbase.HealthcheckBaseExtension):
    """Is well while the database answers; a plug-in of the health check, ``acstor_database``."""

    def __init__(self, oslo_conf: cfg.ConfigOpts, conf: dict[str, Any]) -> None:
        super().__init__(oslo_conf, conf)
        self._store = database.Database(oslo_conf)

    def healthcheck(self, server_port: int) -> pluginbase.HealthcheckResult:
        """Ask the database."""
        try:
            self._store.latest_epoch()
        except database.DatabaseError:
            return pluginbase.HealthcheckResult(available=False, reason="no database")
        return pluginbase.HealthcheckResult(available=True, reason="OK")


def wrap_app(inner: Wsgi, conf: cfg.ConfigOpts) -> Wsgi:
    """Return the application with all that is done around it.

    :param inner: what checks tokens, and answers
    """
    health = healthcheck.Healthcheck(None, conf)

    def chosen(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        context.RequestContext(  # what is logged from here on carries the request's id
            request_id=environ[request_id.ENV_REQUEST_ID],
            global_request_id=environ.get(request_id.GLOBAL_REQ_ID),
        )
        asked = health if environ.get("PATH_INFO") == HEALTH_PATH else inner
        return asked(environ, start_response)

    named = request_id.RequestId(chosen, conf)
    made: Wsgi = cors.CORS(http_proxy_to_wsgi.HTTPProxyToWSGI(named, conf), conf)
    return made


def client_address(told: str) -> str:
    """Return the address that a request comes from; empty if what is told is none.

    Behind a proxy it is what the client's own proxies told, the first of them first.

    >>> headers = ("192.0.2.7, 10.0.0.1", '"[2001:db8::7]:4711"', "x" * 9999)
    >>> [client_address(header) for header in headers]
    ['192.0.2.7', '2001:db8::7', '']
    """
    first = told[:256].partition(",")[0].strip().strip('"')
    plain = first[1:].partition("]")[0] if first.startswith("[") else first
    for one in (plain, plain.rpartition(":")[0]):
        try:
            return str(ipaddress.ip_address(one))
        except ValueError:
            continue
    return ""
