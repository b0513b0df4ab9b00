# SPDX-License-Identifier: Apache-2.0
"""The WSGI application: dispatches HTTP requests to operations, after all checks."""

import dataclasses
import functools
import http
import logging
from collections.abc import Callable
from typing import Any

import flask
import msgspec
import webob.exc
from keystoneauth1 import exceptions as keystone_exceptions
from oslo_config import cfg
from oslo_context import context
from oslo_policy import policy
from werkzeug import exceptions

from acstor_common import errors
from acstor_common.identity import token_validation
from acstor_common.service import tracing
from acstor_decision import conf as decision_conf
from acstor_decision import nova_client
from acstor_decision import rpc
from acstor_decision.api import glance_client
from acstor_decision.api import health_check
from acstor_decision.api import middleware
from acstor_decision.api import openapi
from acstor_decision.api import operation
from acstor_decision.api import policies
from acstor_decision.api import routes
from acstor_decision.api import status_page
from acstor_decision.db import database
from acstor_decision.identity import certificate_authority

LOG = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 1024
OPEN_PATHS = frozenset({"/", "/healthz", *status_page.MIME_TYPES})  # paths that need no token
KEYSTONE_IS_GONE = (
    "Keystone does not answer, or refuses the user of [keystone_authtoken] (see the log "
    "of this API), so this token cannot be validated: retry when that is fixed; hosts continue to "
    "read without it"
)
DATABASE_IS_GONE = (
    "the database in [database] connection of the REST API does not answer: the log of the API has "
    "its address and the reason"
)
_AWAY = (glance_client.GlanceUnreachable, nova_client.NovaUnreachable, rpc.BusUnreachable)
SEES_ALL = "acstor:image:hosts"  # policy of clients that may see the images of all projects


def make_app(
    conf: cfg.ConfigOpts, store: database.Database, *, is_traced: bool = False
) -> middleware.Wsgi:
    """Return the application, with :func:`check_tokens` unless ``auth`` is ``none``."""
    plain = make_plain_app(conf, store)
    if conf.acstor_decision_api.auth == "none":
        return middleware.wrap_app(tracing.wrap_app(plain, is_traced), conf)
    guarded = check_tokens(plain, conf)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        inner = plain if environ.get("PATH_INFO") in OPEN_PATHS else guarded
        return inner(environ, start_response)

    return middleware.wrap_app(tracing.wrap_app(app, is_traced), conf)


def check_tokens(plain: middleware.Wsgi, conf: cfg.ConfigOpts) -> middleware.Wsgi:
    """Check tokens first; raise Unusable if [keystone_authtoken] lacks credentials or URL."""
    try:
        made: middleware.Wsgi = token_validation.TokenCheck(
            plain, conf, _unavailable, KEYSTONE_IS_GONE
        )
    except keystone_exceptions.ClientException as e:
        raise errors.Unusable(
            "[keystone_authtoken]", str(e), "This section names Keystone and the service user"
        ) from e
    if not (conf.keystone_authtoken.auth_type or conf.keystone_authtoken.auth_section):
        raise errors.Unusable(
            "[keystone_authtoken] auth_type",
            "it is not set, so tokens cannot be validated",
            "Most clouds have password here, with auth_url, username and password",
        )
    return made


def _unavailable(message: str) -> webob.exc.HTTPServiceUnavailable:
    fault = _fault_of(http.HTTPStatus.SERVICE_UNAVAILABLE, message)
    return webob.exc.HTTPServiceUnavailable(
        body=msgspec.json.encode(fault), content_type="application/json"
    )


def make_plain_app(
    conf: cfg.ConfigOpts,
    store: database.Database,
    images: glance_client.GlanceClient | None = None,
    bus: rpc.TaskSender | None = None,
    nova: nova_client.NovaClient | None = None,
    authority: certificate_authority.CertificateAuthority | None = None,
) -> flask.Flask:
    """Return the application without the token check; it trusts all headers."""
    app = flask.Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.url_map.strict_slashes = False
    enforcer = policies.make_enforcer(conf)
    authority = authority or certificate_authority.CertificateAuthority(conf.acstor_decision, store)
    template = operation.Call(
        store=store,
        limits=decision_conf.membership_limits(conf.acstor_decision),
        images=images or glance_client.GlanceClient(conf),
        bus=bus or rpc.TaskSender(conf, authority.sign_payload),
        authority=authority,
        nova=nova or nova_client.NovaClient(conf, glance_client.CALLERS),
    )
    for known in routes.ALL:
        rule = known.path.replace("{", "<").replace("}", ">")
        view = _view(known, template, enforcer)
        app.add_url_rule(rule, known.name, view, methods=[known.method])
    app.add_url_rule("/", "versions", _versions)
    app.add_url_rule(
        "/healthz", "healthz", functools.partial(_healthz, health_check.HealthCheck(store))
    )
    app.add_url_rule("/v1/openapi.json", "openapi", openapi.document)
    for path, view in status_page.views().items():
        app.add_url_rule(path, path, view, strict_slashes=True)
    app.before_request(_check_version)
    app.register_error_handler(Exception, _fault)
    return app


def _view(
    known: operation.Operation, template: operation.Call, enforcer: policy.Enforcer
) -> Callable[..., flask.Response]:
    def view(**path: str) -> flask.Response:
        request = flask.request
        asking = context.RequestContext.from_environ(request.environ)
        if not enforcer.authorize(known.policy, {}, asking, do_raise=False):
            raise operation.RequestRefused(
                http.HTTPStatus.FORBIDDEN,
                f"the policy {known.policy} does not permit this request; it requires "
                f"{known.rule}, and a token of the scope {' or '.join(policies.SCOPES)}",
            )
        call = dataclasses.replace(
            template,
            path=path,
            query=_query(known),
            body=_body(known),
            sees_all=enforcer.authorize(SEES_ALL, {}, asking, do_raise=False),
            user_id=asking.user_id or "",
            address=middleware.client_address(request.remote_addr or ""),
            auth=request.environ.get("keystone.token_auth"),
        )
        with tracing.Span("acstor_api_call", operation=known.name, **path):
            return _json(known.handler(call), known.status)

    return view


def _body(known: operation.Operation) -> msgspec.Struct:
    """Return the decoded body; an empty one has the defaults."""
    raw = flask.request.get_data(cache=False).strip()
    try:
        return msgspec.json.decode(raw or b"{}", type=known.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise operation.RequestRefused(http.HTTPStatus.BAD_REQUEST, f"body: {e}") from e


def _query(known: operation.Operation) -> msgspec.Struct:
    try:
        return msgspec.convert(flask.request.args.to_dict(), known.query, strict=False)
    except msgspec.ValidationError as e:
        raise operation.RequestRefused(http.HTTPStatus.BAD_REQUEST, f"query: {e}") from e


def _check_version() -> None:
    service, _, wanted = flask.request.headers.get("OpenStack-API-Version", "").partition(" ")
    if service != "acstor" or wanted.strip() in ("latest", *openapi.VERSIONS):
        return
    raise operation.RequestRefused(
        http.HTTPStatus.NOT_ACCEPTABLE,
        f"version {wanted[:16]!r} is not supported, only {', '.join(openapi.VERSIONS)}",
    )


def _versions() -> flask.Response:
    version = {
        "id": "v1",
        "status": "CURRENT",
        "version": openapi.VERSION,
        "min_version": openapi.VERSIONS[0],
        "links": [{"rel": "self", "href": f"{flask.request.url_root}v1"}],
    }
    return _json({"versions": [version]})


def _healthz(check: health_check.HealthCheck) -> flask.Response:
    if check.has_database():
        return _json({"status": "ok"})
    return _json({"status": "no database"}, http.HTTPStatus.SERVICE_UNAVAILABLE)


def _fault(error: Exception) -> flask.Response:
    status, message = _status_of(error)
    answer = _json(_fault_of(status, message), status)
    if isinstance(error, exceptions.MethodNotAllowed):
        answer.headers["Allow"] = ", ".join(sorted(error.valid_methods or ()))
    return answer


def _status_of(error: Exception) -> tuple[http.HTTPStatus, str]:
    if isinstance(error, operation.RequestRefused):
        return error.status, str(error)
    if isinstance(error, exceptions.HTTPException):
        status = http.HTTPStatus(error.code or http.HTTPStatus.INTERNAL_SERVER_ERROR)
        return status, str(error.description or status.phrase)
    if isinstance(error, _AWAY):
        return http.HTTPStatus.SERVICE_UNAVAILABLE, str(error)
    if isinstance(error, errors.Unusable):
        LOG.error("a request failed: %s", error)
        message = "the configuration of the service prevents this; its log says why"
        return http.HTTPStatus.SERVICE_UNAVAILABLE, message
    if isinstance(error, database.DatabaseError):
        LOG.warning("the database fails: %s", error)
        return http.HTTPStatus.SERVICE_UNAVAILABLE, DATABASE_IS_GONE
    LOG.error("a request failed: %s", error, exc_info=error)
    return http.HTTPStatus.INTERNAL_SERVER_ERROR, "the service failed; its log says why"


def _fault_of(status: http.HTTPStatus, message: str) -> openapi.Fault:
    return openapi.Fault(openapi.Error(int(status), status.phrase, message))


def _json(answer: object, status: http.HTTPStatus = http.HTTPStatus.OK) -> flask.Response:
    headers = {
        "OpenStack-API-Version": f"acstor {openapi.VERSION}",
        "Cache-Control": "no-store",  # the response is for this token only, and may contain keys
        "X-Content-Type-Options": "nosniff",
    }
    body = msgspec.json.encode(answer)
    return flask.Response(body, status, headers, mimetype="application/json")
