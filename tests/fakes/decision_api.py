# SPDX-License-Identifier: Apache-2.0
"""The REST API with its token check, on a server in this process."""

import contextlib
import json
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from typing import NamedTuple

from oslo_config import cfg
from werkzeug import serving

from acstor_decision import conf as decision_conf
from acstor_decision.api import app
from acstor_decision.api import conf as api_conf
from acstor_decision.api import middleware
from acstor_decision.db import database
from tests.fakes import server_threads
from tests.lab import decision


class Answer(NamedTuple):
    """A response of a proxy in front of the API."""

    status: str
    headers: Mapping[str, str] = MappingProxyType({"Content-Type": "text/html"})
    body: bytes = b"<p>sign in</p>"


@contextlib.contextmanager
def serve(
    folder: pathlib.Path,
    services_url: str,
    proxy_token: str = "",
    policies: Mapping[str, str] | None = None,
    answers: Mapping[str, Answer] = MappingProxyType({}),
) -> Iterator[str]:
    """Serve the database ``decision.sqlite`` of a folder; yield the URL.

    :param services_url: URL of Keystone and Glance
    :param proxy_token: a proxy adds this token to read-only requests
    :param answers: the proxy's own responses, by path; mutable
    """
    conf = _configuration(folder, services_url, policies or {})
    store = database.Database(conf)
    served = app.make_app(conf, store)
    if proxy_token:
        served = _with_token(served, proxy_token)
    served = _with_answers(served, answers)
    server = serving.make_server("127.0.0.1", 0, served, threaded=True, request_handler=_Handler)
    try:
        with server_threads.serving(server):
            yield f"http://127.0.0.1:{server.server_port}"
    finally:
        store.close()


def _configuration(
    folder: pathlib.Path, services_url: str, policies: Mapping[str, str]
) -> cfg.ConfigOpts:
    policy_file = folder / "policy.yaml"
    policy_file.write_text(json.dumps(policies))
    sections: dict[str, dict[str, object]] = {
        "database": {"connection": f"sqlite:///{folder}/decision.sqlite"},
        "glance": {"endpoint_override": services_url},
        "oslo_policy": {"policy_file": policy_file},
        "keystone_authtoken": {
            "auth_type": "password",
            "auth_url": f"{services_url}/v3",
            "www_authenticate_uri": f"{services_url}/v3",
            "username": "acstor",
            "password": "password",
            "project_name": "acstor",
            "user_domain_id": "default",
            "project_domain_id": "default",
            "token_cache_time": -1,  # a test revokes tokens
            "service_token_roles_required": True,
        },
    }
    file = decision.configure(folder / "api.conf", sections)
    conf = cfg.ConfigOpts()
    decision_conf.register_opts(conf)
    api_conf.register_opts(conf)
    conf(["--config-file", str(file)], project="acstor", default_config_dirs=[])
    return conf


def _with_token(served: middleware.Wsgi, token: str) -> middleware.Wsgi:
    def proxy(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["REQUEST_METHOD"] == "GET":
            environ["HTTP_X_AUTH_TOKEN"] = token
        return served(environ, start_response)

    return proxy


def _with_answers(served: middleware.Wsgi, answers: Mapping[str, Answer]) -> middleware.Wsgi:
    def proxy(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        answer = answers.get(environ["PATH_INFO"])
        if answer is None:
            return served(environ, start_response)
        start_response(answer.status, list(answer.headers.items()))
        return [answer.body]

    return proxy


class _Handler(serving.WSGIRequestHandler):
    def log(self, *_: object) -> None:
        """Log nothing."""
