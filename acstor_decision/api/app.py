# SPDX-License-Identifier: Apache-2.0
"""The application: from HTTP to an operation, and back.

The one rule: a handler runs only after the token, the policy and the form of the
request have been checked, and what it raises becomes an answer in one place here.
"""

import dataclasses
import http
import logging
from collections.abc import Callable
from typing import Any

import flask
import msgspec
from keystonemiddleware import auth_token
from oslo_config import cfg
from oslo_context import context
from oslo_policy import policy
from werkzeug import exceptions

from acstor_decision import conf as decision_conf
from acstor_decision.api import openapi
from acstor_decision.api import operation
from acstor_decision.api import operations
from acstor_decision.api import policies
from acstor_decision.db import database

LOG = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 1024
OPEN_PATHS = frozenset({"/", "/healthz"})
"""What is answered without a token: who asks has nothing to send one to yet."""

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Any]


def make_app(conf: cfg.ConfigOpts, store: database.Database) -> Wsgi:
    """Return the WSGI application, behind keystonemiddleware unless ``api_auth`` is ``none``."""
    plain = make_plain_app(conf, store)
    if conf.acstor_decision_api.auth == "none":
        return plain
    guarded = auth_token.AuthProtocol(plain, {"oslo_config_config": conf})

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        inner = plain if environ.get("PATH_INFO") in OPEN_PATHS else guarded
        return inner(environ, start_response)

    return app


def make_plain_app(conf: cfg.ConfigOpts, store: database.Database) -> flask.Flask:
    """Return the application without the check of tokens: it believes the headers that it gets."""
    app = flask.Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.url_map.strict_slashes = False
    enforcer = policies.make_enforcer(conf)
    template = operation.Call(store, decision_conf.limits(conf.acstor_decision), {}, None, None)
    for known in operations.ALL:
        rule = known.path.replace("{", "<").replace("}", ">")
        view = _view(known, template, enforcer)
        app.add_url_rule(rule, known.name, view, methods=[known.method])
    app.add_url_rule("/", "versions", _versions)
    app.add_url_rule("/healthz", "healthz", lambda: _healthz(store))
    app.add_url_rule("/v1/openapi.json", "openapi", openapi.document)
    app.register_error_handler(Exception, _fault)
    return app


def _view(
    known: operation.Operation, template: operation.Call, enforcer: policy.Enforcer
) -> Callable[..., flask.Response]:
    def view(**path: str) -> flask.Response:
        request = flask.request
        asking = context.RequestContext.from_environ(request.environ)
        if not enforcer.authorize(known.policy, {}, asking, do_raise=False):
            raise operation.Refused(
                http.HTTPStatus.FORBIDDEN,
                f"the policy {known.policy} does not let you do this; it asks for {known.rule}",
            )
        _refuse_body(request)
        call = dataclasses.replace(
            template,
            path=path,
            query=_query(known),
            auth=request.environ.get("keystone.token_auth"),
        )
        return _json(known.handler(call), known.status)

    return view


def _refuse_body(request: flask.Request) -> None:
    """Refuse a body that says something: no operation has anything to be told that way yet.

    :raises operation.Refused: there is one
    """
    if request.get_data(cache=False).strip() not in (b"", b"{}", b"null"):
        raise operation.Refused(http.HTTPStatus.BAD_REQUEST, "this request takes no body")


def _query(known: operation.Operation) -> msgspec.Struct:
    try:
        return msgspec.convert(flask.request.args.to_dict(), known.query, strict=False)
    except msgspec.ValidationError as e:
        raise operation.Refused(http.HTTPStatus.BAD_REQUEST, f"query: {e}") from e


def _versions() -> flask.Response:
    version = {
        "id": "v1",
        "status": "CURRENT",
        "version": openapi.VERSION,
        "links": [{"rel": "self", "href": f"{flask.request.url_root}v1"}],
    }
    return _json({"versions": [version]})


def _healthz(store: database.Database) -> flask.Response:
    """Say whether the API can do its work: whether its database answers."""
    try:
        store.latest_epoch()
    except database.DatabaseError as e:
        LOG.warning("the database fails: %s", str(e).partition("\n")[0])
        return _json({"status": "no database"}, http.HTTPStatus.SERVICE_UNAVAILABLE)
    return _json({"status": "ok"})


def _fault(error: Exception) -> flask.Response:
    """Answer what somebody can do something about, and keep the rest for the log."""
    if isinstance(error, operation.Refused):
        status, message = error.status, str(error)
    elif isinstance(error, exceptions.HTTPException):
        status = http.HTTPStatus(error.code or http.HTTPStatus.INTERNAL_SERVER_ERROR)
        message = str(error.description or status.phrase)
    elif isinstance(error, database.DatabaseError):
        LOG.warning("the database fails: %s", str(error).partition("\n")[0])
        status, message = http.HTTPStatus.SERVICE_UNAVAILABLE, "the database does not answer"
    else:
        LOG.error("a request failed: %s", error, exc_info=error)
        status = http.HTTPStatus.INTERNAL_SERVER_ERROR
        message = "the service failed; its log says why"
    return _json(openapi.Fault(openapi.Error(int(status), status.phrase, message)), status)


def _json(answer: object, status: http.HTTPStatus = http.HTTPStatus.OK) -> flask.Response:
    headers = {"OpenStack-API-Version": f"acstor {openapi.VERSION}"}
    body = msgspec.json.encode(answer)
    return flask.Response(body, status, headers, mimetype="application/json")
