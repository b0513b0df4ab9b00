# SPDX-License-Identifier: Apache-2.0
"""The WSGI middleware around the application: health check, request ids, proxies, CORS, traces."""

import io
import logging
import re

import pytest
from keystoneauth1 import loading
from keystonemiddleware.auth_token import _opts as keystone_opts
from oslo_log import formatters
from oslo_middleware.healthcheck import opts as health_opts
from osprofiler import _utils as signatures
from osprofiler import notifier
from osprofiler import web
from werkzeug import test

from acstor_common import errors
from acstor_decision.api import app
from acstor_decision.api import health_check
from acstor_decision.api import middleware
from acstor_decision.db import database
from tests.unit.decision.api import conftest as samples

BASE_ID = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
ORIGIN = "https://horizon.example"


@pytest.fixture
def served(api_configuration, store):
    """Return a factory of clients of the whole application with given options."""

    def make(auth: str = "none", **options: object) -> test.Client:
        api_configuration.set_override("auth", auth, "acstor_decision_api")
        first = app.make_app(api_configuration, store)  # the library registers its options
        if not options:
            return test.Client(first)
        for name, value in options.items():
            group, _, option = name.partition("__")
            api_configuration.set_override(option, value, group)
        return test.Client(app.make_app(api_configuration, store))

    return make


@pytest.fixture
def keystone(api_configuration):
    """Return a configuration with the service's credentials for Keystone."""
    for group, options in keystone_opts.list_opts():
        api_configuration.register_opts(options, group=group)
    given = {"auth_type": "password", "www_authenticate_uri": "http://127.0.0.1:1/v3"}
    for name, value in given.items():
        api_configuration.set_override(name, value, "keystone_authtoken")
    return api_configuration


def test_health_check_needs_no_token_and_other_paths_do(served, keystone):
    with pytest.raises(errors.Unusable, match=r"not given: auth_url") as raised:
        served("keystone")
    assert "names Keystone and the service user" in str(raised.value)
    options = loading.get_auth_plugin_conf_options("password")
    [auth_url] = [option for option in options if option.dest == "auth_url"]
    keystone.register_opt(auth_url, "keystone_authtoken")
    keystone.set_override("auth_url", "http://127.0.0.1:1/v3", "keystone_authtoken")
    asked = served("keystone")
    healthy = asked.get("/healthcheck")
    assert (healthy.status_code, healthy.text) == (200, "OK")
    reported = asked.get("/healthcheck", headers={"Accept": "application/json"}).json
    assert reported == {"detailed": False, "reasons": ["OK"]}
    assert asked.get("/healthz").status_code == 200
    for path in ("/v1/hosts", "/healthcheck/", "/healthcheck/../v1/hosts", "/v1/openapi.json"):
        assert asked.get(path).status_code == 401, path


def test_missing_keystone_auth_type_is_named(served, keystone):
    keystone.set_override("auth_type", None, "keystone_authtoken")
    with pytest.raises(errors.Unusable, match=r"\[keystone_authtoken\] auth_type: it is not set"):
        served("keystone")


def test_health_checks_query_the_database_once_a_second(served, monkeypatch):
    asked, queries = served(), []
    monkeypatch.setattr(database.Database, "latest_epoch", lambda store: queries.append(store))
    monkeypatch.setattr(health_check, "KEPT_S", 60.0)
    assert [asked.get("/healthcheck").status_code for _ in range(20)] == [200] * 20
    assert len(queries) == 1


@pytest.mark.expect_log("the database fails: .*gone")
def test_health_check_fails_without_the_database(served, monkeypatch):
    asked = served()

    def fail(*_args):
        raise database.DatabaseError("sqlite://", "gone")

    monkeypatch.setattr(database.Database, "latest_epoch", fail)
    unhealthy = asked.get("/healthcheck")
    assert (unhealthy.status_code, unhealthy.text) == (503, "no database")


def test_instance_is_disabled_by_a_file(served, api_configuration, tmp_path):
    api_configuration.register_opts(health_opts.DISABLE_BY_FILE_OPTS, group="healthcheck")
    away = tmp_path / "away"
    asked = served(
        healthcheck__backends=["disable_by_file", "acstor_database"],
        healthcheck__disable_by_file_path=str(away),
    )
    assert asked.get("/healthcheck").status_code == 200
    away.touch()
    assert asked.get("/healthcheck").status_code == 503


def test_every_response_has_the_request_id_of_the_log(served, store, monkeypatch):
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(
        formatters.ContextFormatter(fmt="%(request_id)s %(message)s", config=_LogOptions())
    )
    asked = served()
    logger = logging.getLogger("acstor_decision.api.app")
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.addHandler(handler)
    try:

        def fail(*_args):
            logger.info("asked")
            return []

        monkeypatch.setattr(store, "list_rings", fail)
        answers = [asked.get("/v1/rings", headers=samples.ADMIN) for _ in range(2)]
        ids = [answer.headers["x-openstack-request-id"] for answer in answers]
    finally:
        logger.removeHandler(handler)
    assert all(re.fullmatch(r"req-[0-9a-f-]{36}", one) for one in ids) and ids[0] != ids[1]
    assert lines.getvalue() == "".join(f"{one} asked\n" for one in ids)
    assert "x-openstack-request-id" in asked.get("/v1/nothing").headers
    assert "x-openstack-request-id" in asked.get("/healthcheck").headers


class _LogOptions:
    logging_context_format_string = "%(request_id)s %(message)s"
    logging_default_format_string = "- %(message)s"
    logging_exception_prefix = logging_user_identity_format = logging_debug_format_suffix = ""
    use_json = False

    def __getattr__(self, name: str) -> str:
        return ""


def test_proxy_headers_are_used_only_if_enabled(served):
    forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "cloud.example"}

    def link(asked: test.Client) -> str:
        return asked.get("/", headers=forwarded).json["versions"][0]["links"][0]["href"]

    assert link(served()) == "http://localhost/v1"
    asked = served(oslo_middleware__enable_proxy_headers_parsing=True)
    assert link(asked) == "https://cloud.example/v1"


@pytest.mark.parametrize(
    ("reported", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7:4711, 10.0.0.1", "192.0.2.7"),
        ('"[2001:db8::7]:4711"', "2001:db8::7"),
        ("2001:db8::7", "2001:db8::7"),
        ("unknown", ""),
        ("\x1b[2J", ""),
        ("[", ""),
        ("9" * 100_000, ""),
        ("", ""),
    ],
)
def test_client_address_is_parsed_from_the_proxy_header(reported, address):
    assert middleware.client_address(reported) == address


def test_cors_allows_only_configured_origins(served):
    asking = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-auth-token",
    }
    refused = served().options("/v1/hosts", headers=asking)
    assert "Access-Control-Allow-Origin" not in refused.headers
    asked = served(cors__allowed_origin=[ORIGIN])
    allowed = asked.options("/v1/hosts", headers=asking)
    assert allowed.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert "Access-Control-Allow-Credentials" not in allowed.headers
    other = asked.options("/v1/hosts", headers={**asking, "Origin": "https://evil.example"})
    assert "Access-Control-Allow-Origin" not in other.headers
    answer = asked.get("/", headers={"Origin": ORIGIN})
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert "OpenStack-API-Version" in answer.headers["Access-Control-Expose-Headers"]


def test_requests_are_logged_with_the_address_from_the_proxy_header(served, store, monkeypatch):
    samples.note(store, samples.sample(0))
    asked = served(oslo_middleware__enable_proxy_headers_parsing=True)
    seen = []
    monkeypatch.setattr(
        "acstor_decision.api.v1.enrolments._log", lambda call, what: seen.append(call.address)
    )
    for reported in ("192.0.2.9", "x" * 500):
        headers = {"X-Roles": "admin", "X-Forwarded-For": reported}
        assert asked.post("/v1/hosts/h0000/allow", headers=headers).status_code == 202
    assert seen == ["192.0.2.9", ""]


def test_requests_with_a_valid_hmac_are_traced_with_their_operation(
    api_configuration, store, monkeypatch
):
    points = []
    monkeypatch.setattr(web, "_ENABLED", True)
    monkeypatch.setattr(web, "_HMAC_KEYS", ["key"])
    monkeypatch.setattr(notifier, "notify", points.append)
    api_configuration.set_override("auth", "none", "acstor_decision_api")
    client = test.Client(app.make_app(api_configuration, store, is_traced=True))
    for key in ("another", "key"):
        packed, mac = signatures.signed_pack({"base_id": BASE_ID, "parent_id": BASE_ID}, key)
        trace = {web.X_TRACE_INFO: packed.decode(), web.X_TRACE_HMAC: mac}
        answer = client.get("/v1/hosts", headers={**samples.ADMIN, **trace})
        assert answer.status_code == 200
        assert bool(points) == (key == "key")
    request, call = points[:2]
    assert [one["name"] for one in points] == [
        "wsgi-start",
        "acstor_api_call-start",
        "acstor_api_call-stop",
        "wsgi-stop",
    ]
    assert {one["base_id"] for one in points} == {BASE_ID}
    assert call["parent_id"] == request["trace_id"]
    assert call["info"]["function"]["kwargs"] == "operation=host:list"
