# SPDX-License-Identifier: Apache-2.0
"""The WSGI application: serves ranges of images, and flattens deltas into images.

``GET /v1/images/<id>/file`` answers a range as Glance does for a store with ranges; hosts with a
grant also get the record, at ``/v1/images/<id>``. ``PUT /v1/images/<id>/delta`` flattens, and
answers with lines of JSON meanwhile. Nothing is read before the token is validated.
"""

import contextlib
import functools
import http
import logging
import traceback
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import flask
import msgspec
import webob.exc
from oslo_config import cfg
from werkzeug import exceptions

from acstor_common.identity import token_validation
from acstor_common.model import ids
from acstor_common.service import tracing
from acstor_common.wire import image_grants
from acstor_glance.client import trust_store
from acstor_glance.gateway import gateway_metrics
from acstor_glance.gateway import grant_check
from acstor_glance.gateway import http_errors
from acstor_glance.gateway import image_lookup
from acstor_glance.gateway import range_reader
from acstor_glance.gateway import read_admission
from acstor_glance.gateway import stores
from acstor_glance.gateway.flatten import flatten_job
from acstor_glance.gateway.flatten import flatten_jobs
from acstor_glance.gateway.flatten import image_upload

LOG = logging.getLogger(__name__)

MAX_RANGE_BYTES = 8 << 20
"""Of a request, which may take so much memory; agents request 1 MiB at a time."""
OPEN_PATHS = frozenset({"/", "/healthz"})
KEYSTONE_UNAVAILABLE = (
    "Keystone does not answer, or refuses the user of [keystone_authtoken] (see the log of the "
    "gateway), so this token cannot be validated"
)
TOKEN_INFO = "keystone.token_info"
"""Present only after a valid token, whatever ``delay_auth_decision`` is."""
_SERVICE_ROLES = frozenset({"acstor-reader", "admin", "service"})  # of agents and services
VERSIONS = {"versions": [{"id": "v1", "status": "CURRENT"}]}

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Any]


def make_app(
    conf: cfg.ConfigOpts, counters: gateway_metrics.GatewayMetrics, *, is_traced: bool = False
) -> Wsgi:
    """Return the application, behind keystonemiddleware; traced if ``is_traced``."""
    lookup, image_stores = image_lookup.ImageLookup(conf, counters), stores.Stores(conf, counters)
    reader = range_reader.RangeReader(
        lookup, image_stores, MAX_RANGE_BYTES, read_admission.TIMEOUT_S
    )
    uploader = image_upload.ImageUploader(conf, lookup, image_stores.default_driver)
    ratio = conf.acstor_glance.max_expansion_ratio
    jobs = flatten_jobs.FlattenJobs(lookup, reader, uploader, ratio, counters)
    grants = grant_check.GrantCheck(conf, lookup, trust_store.TrustStore(conf))
    plain = make_plain_app(lookup, reader, jobs, grants)
    guarded = token_validation.TokenCheck(
        plain, conf, functools.partial(_unavailable, counters), KEYSTONE_UNAVAILABLE
    )

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ.get("PATH_INFO") in OPEN_PATHS:
            return plain(environ, start_response)

        def start(status: str, *more: Any) -> Any:
            counters.count_response(int(status[:3]))
            return start_response(status, *more)

        return guarded(environ, start)

    return tracing.wrap_app(app, is_traced)


def _unavailable(
    counters: gateway_metrics.GatewayMetrics, message: str
) -> webob.exc.HTTPServiceUnavailable:
    counters.count_service_fault("keystone")
    body = _fault_body(http.HTTPStatus.SERVICE_UNAVAILABLE, message)
    return webob.exc.HTTPServiceUnavailable(body=body, content_type="application/json")


def make_plain_app(
    lookup: image_lookup.ImageLookup,
    reader: range_reader.RangeReader,
    jobs: flatten_jobs.FlattenJobs,
    grants: grant_check.GrantCheck,
) -> flask.Flask:
    """Return the application without token validation: it trusts the environment."""
    app = flask.Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = 0
    app.add_url_rule("/", "versions", lambda: _json(VERSIONS))
    app.add_url_rule("/healthz", "healthz", lambda: _json({"status": "ok"}))
    app.add_url_rule(
        "/v1/images/<image_id>", "record", lambda image_id: _record(lookup, grants, image_id)
    )
    app.add_url_rule(
        "/v1/images/<image_id>/file", "file", lambda image_id: _file(reader, grants, image_id)
    )
    app.add_url_rule(
        "/v1/images/<image_id>/delta",
        "delta",
        lambda image_id: _delta(jobs, image_id),
        methods=["PUT"],
    )
    app.register_error_handler(Exception, _fault)
    return app


def _record(
    lookup: image_lookup.ImageLookup, grants: grant_check.GrantCheck, image_id: str
) -> flask.Response:
    wanted = _image_id(image_id)
    if image_grants.GRANT_HEADER not in flask.request.headers:
        raise exceptions.Forbidden("without a grant, request the record from Glance")
    with _permitted(grants, wanted, "") as caller:
        return _json(lookup.fetch_public_record(wanted, caller))


@contextlib.contextmanager
def _permitted(
    grants: grant_check.GrantCheck, wanted: ids.ImageId, rest: str
) -> Iterator[image_lookup.Caller]:
    """Yield the caller's credentials, or the gateway's own if the request has a valid grant."""
    headers, caller = flask.request.headers, _caller()
    if image_grants.GRANT_HEADER not in headers:
        yield caller
        return
    path = f"/v1/images/{wanted}{rest}"
    target = image_grants.target_of(path, headers.get("Range", ""))
    with grants.permit(grant_check.Request(wanted, target, dict(headers))) as own:
        yield own


def _file(
    reader: range_reader.RangeReader, grants: grant_check.GrantCheck, image_id: str
) -> flask.Response:
    request, wanted = flask.request, _image_id(image_id)
    answer = flask.Response(mimetype="application/octet-stream")
    answer.headers["Accept-Ranges"], answer.headers["Cache-Control"] = "bytes", "no-store"
    with (
        _permitted(grants, wanted, "/file") as caller,
        tracing.Span("acstor_range_read", image=wanted) as span,
    ):
        image = reader.find_image(wanted, caller)
        if image.etag:
            answer.headers["ETag"] = image.etag
        answer.make_conditional(request.environ)  # it may become 304 or 412
        if answer.status_code != http.HTTPStatus.OK:
            return answer
        if request.method == "HEAD":
            answer.content_length = image.size_bytes
            return answer
        wished, if_range = request.headers.get("Range", ""), request.headers.get("If-Range", "")
        found = reader.read_range(image, wished, caller, if_range)
        span.add_results(bytes=len(found.data))
    answer.set_data(found.data)
    if not found.is_whole:
        answer.status_code = http.HTTPStatus.PARTIAL_CONTENT
        answer.headers["Content-Range"] = found.requested.content_range(image.size_bytes)
    return answer


def _delta(jobs: flatten_jobs.FlattenJobs, image_id: str) -> flask.Response:
    request = flask.request
    wanted, caller = _image_id(image_id), _caller()
    disk_format = request.args.get("format", "")
    if disk_format not in flatten_job.FORMATS:
        raise http_errors.HttpError(http.HTTPStatus.BAD_REQUEST, "set format=qcow2 or format=raw")
    length_bytes = request.content_length
    if length_bytes is None:
        words = "specify the length of the body in Content-Length"
        raise http_errors.HttpError(http.HTTPStatus.LENGTH_REQUIRED, words)
    lines = jobs.start_job(
        flatten_job.FlattenRequest(wanted, disk_format, caller),
        request.headers.get("X-Project-Id", ""),  # from keystonemiddleware, not the client
        request.environ["wsgi.input"],  # werkzeug's own stream is limited to 0 bytes
        length_bytes,
    )
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return flask.Response(lines, headers=headers, mimetype="application/x-ndjson")


def _image_id(text: str) -> ids.ImageId:
    try:
        return ids.parse_image_id(text)
    except ValueError as error:
        raise http_errors.HttpError(http.HTTPStatus.BAD_REQUEST, str(error)) from error


def _caller() -> image_lookup.Caller:
    headers = flask.request.headers
    token = headers.get("X-Auth-Token", "")
    if flask.request.environ.get(TOKEN_INFO) is None or not token:
        raise exceptions.Unauthorized
    is_service = _SERVICE_ROLES.intersection(headers.get("X-Roles", "").split(","))
    project_id = (
        read_admission.SERVICE if is_service else headers.get("X-Project-Id") or "no project"
    )
    return image_lookup.Caller(token, headers.get("X-Service-Token", ""), project_id)


def _fault(error: Exception) -> flask.Response:
    """Return the answer for an error; only the log has details of internal ones."""
    if isinstance(error, http_errors.HttpError):
        return _error_response(error.status, error.message, error.headers)
    if isinstance(error, exceptions.HTTPException):
        status = http.HTTPStatus(error.code or http.HTTPStatus.INTERNAL_SERVER_ERROR)
        methods = getattr(error, "valid_methods", None)  # of 405
        headers = {"Allow": ", ".join(sorted(methods))} if methods else None
        return _error_response(status, str(error.description or status.phrase), headers)
    where = "".join(traceback.format_tb(error.__traceback__))  # its text may hold a password
    LOG.error("a request failed: %s\n%s", type(error).__name__, where)
    words = "the gateway failed; its log says why"
    return _error_response(http.HTTPStatus.INTERNAL_SERVER_ERROR, words)


def _error_response(
    status: http.HTTPStatus, message: str, headers: dict[str, str] | None = None
) -> flask.Response:
    body = _fault_body(status, message)
    return flask.Response(body, status, headers, mimetype="application/json")


def _fault_body(status: http.HTTPStatus, message: str) -> bytes:
    return msgspec.json.encode({"error": http_errors.error_body(status, message)})


def _json(answer: object) -> flask.Response:
    return flask.Response(msgspec.json.encode(answer), mimetype="application/json")
