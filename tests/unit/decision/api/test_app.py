# SPDX-License-Identifier: Apache-2.0
"""The API's application: policy, error responses, versions and the OpenAPI document."""

import json
import pathlib
import re

import msgspec
import pytest

from acstor_common.identity import certificates
from acstor_common.model import ids
from acstor_decision.api import openapi
from acstor_decision.api import policies
from acstor_decision.api import routes
from acstor_decision.db import database
from tests.fakes import checkpoint_hosts
from tests.unit.decision.api import conftest

ROOT = pathlib.Path(__file__).resolve().parents[4]
DOCUMENT = ROOT / "doc/source/api/openapi.json"
CHANGES = [known for known in routes.ALL if known.method != "GET"]
EXAMPLES = {
    "host": "h0000",
    "epoch": "1",
    "image_id": "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11",
    "server_id": "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12",
    "checkpoint_id": checkpoint_hosts.checkpoint_id(1),
}


SILENT = {**EXAMPLES, "host": "h0002"}


def path_of(known):
    examples = SILENT if known.name == "host:forget" else EXAMPLES
    return re.sub(r"{(\w+)}", lambda match: examples[match[1]], known.path)


BODIES = {
    "host:enrol": {
        "csr": certificates.request(ids.HostId(EXAMPLES["host"]), certificates.new_key()).decode()
    },
    "listener:report": {"listener": "controller1"},
    "checkpoint:create": {"instance_id": checkpoint_hosts.SERVER},
    **{f"image:{name}": {"hosts": ["h0000"]} for name in ("hydrate", "pause", "resume", "unpin")},
}


@pytest.fixture
def filled(store, glance):
    glance.add(EXAMPLES["image_id"])
    conftest.note(store, conftest.sample(0), conftest.sample(1))
    conftest.note(store, conftest.sample(2, sent_s=1.0))
    conftest.publish(store, 1, hosts=2)
    store.record_checkpoint(checkpoint_hosts.taken(1), conftest.NOW_S, 10)
    return store


def test_openapi_document_in_the_manual_matches_the_code():
    """Except the order of ``anyOf``, which differs between versions of msgspec."""
    document = in_one_order(json.loads(DOCUMENT.read_text()))
    assert document == in_one_order(openapi.document())


def test_request_schemas_refuse_zero_bytes_in_strings():
    for known in routes.ALL:
        for shape in (known.query, known.body):
            _, schemas = msgspec.json.schema_components([shape])
            for text in texts_of(schemas):
                pattern = text.get("pattern", "")
                assert pattern and not re.search(pattern, "\0"), (known.name, text)


def texts_of(schema):
    """Yield the schemas of texts."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(part, dict | list | tuple):
            yield from texts_of(part)


def test_no_schema_is_named_by_a_python_module():
    assert not [name for name in openapi.document()["components"]["schemas"] if "." in name]


def in_one_order(value):
    if isinstance(value, list):
        return [in_one_order(part) for part in value]
    if not isinstance(value, dict):
        return value
    ordered = {key: in_one_order(part) for key, part in value.items()}
    if isinstance(ordered.get("anyOf"), list):
        ordered["anyOf"].sort(key=json.dumps)
    return ordered


@pytest.mark.parametrize("known", routes.ALL, ids=lambda known: known.name)
def test_every_response_has_the_documented_type(known, client, filled):
    body = BODIES.get(known.name)
    answer = client.open(path_of(known), method=known.method, json=body)
    assert answer.status_code == known.status, answer.text
    msgspec.json.decode(answer.data, type=known.answer)
    assert answer.headers["OpenStack-API-Version"] == f"acstor {openapi.VERSION}"


def test_tenants_are_refused_everywhere(client, filled):
    for known in routes.ALL:
        answer = client.open(path_of(known), method=known.method, headers=conftest.TENANT)
        assert answer.status_code == 403, known.name
        assert known.policy in answer.json["error"]["message"]


def test_readers_may_not_change_anything(client, filled):
    for known in CHANGES:
        answer = client.open(path_of(known), method=known.method, headers=conftest.READER)
        assert answer.status_code == 403, known.name
        assert not filled.list_drained()


def test_system_readers_list_hosts(client, filled):
    answer = client.get("/v1/hosts", headers=conftest.READER)
    assert [host["host"] for host in answer.json["hosts"]] == ["h0000", "h0001", "h0002"]


@pytest.mark.filterwarnings("ignore::UserWarning")  # the library warns of each such token
def test_domain_scoped_tokens_are_refused(client, filled):
    for known in routes.ALL:
        answer = client.open(path_of(known), method=known.method, headers=conftest.OF_DOMAIN)
        assert answer.status_code == 403, known.name
        assert "scope system or project" in answer.json["error"]["message"]


def test_every_policy_rule_has_system_and_project_scope():
    assert {tuple(rule.scope_types) for rule in policies.list_rules()} == {("system", "project")}


def test_every_policy_rule_is_documented():
    names = {rule.name for rule in policies.list_rules()}
    assert {known.policy for known in routes.ALL} < names
    assert all(rule.description for rule in policies.list_rules())


def test_versions_health_and_document_need_no_role(client, filled):
    assert client.get("/", headers=conftest.TENANT).json["versions"][0]["id"] == "v1"
    assert client.get("/healthz", headers=conftest.TENANT).json == {"status": "ok"}
    assert client.get("/v1/openapi.json").json == openapi.document()


WRONG = [
    ("/v1/nothing", 404, "not found"),
    ("/v1/hosts/h9", 404, "host h9 is not known"),
    ("/v1/hosts/no%20host", 400, "no host"),
    ("/v1/hosts?limit=0", 400, "limit"),
    ("/v1/hosts?limit=many", 400, "limit"),
    ("/v1/hosts?sort=colour", 400, "sort"),
    ("/v1/hosts?sort=load%0A", 400, "sort"),
    ("/v1/hosts?sort=load:up", 400, "sort"),
    ("/v1/hosts?sort=load&marker=h9", 400, "marker: no host h9"),
    ("/v1/hosts?state=well", 400, "state"),
    ("/v1/hosts?enrolment=friend", 400, "enrolment"),
    ("/v1/hosts?colour=red", 400, "colour"),
    ("/v1/hosts?location=%00", 400, "location"),
    ("/v1/checkpoints?marker=%00", 400, "marker"),
    ("/v1/rings/7", 404, "epoch 7"),
    ("/v1/rings/x", 400, "'x' is not an epoch"),
    ("/v1/rings?marker=-1", 400, "marker"),
    ("/v1/traffic?last_s=1e9", 400, "last_s"),
    ("/v1/traffic?last_s=nan", 400, "last_s"),
    ("/v1/traffic?host=a%20b", 400, "host"),
]


def test_invalid_get_requests_fail_with_a_reason(client, filled):
    for path, status, words in WRONG:
        answer = client.get(path)
        assert answer.status_code == answer.json["error"]["code"] == status, path
        assert words.lower() in answer.json["error"]["message"].lower()


def test_unsupported_method_is_refused(client):
    answer = client.delete("/v1/hosts")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")


@pytest.mark.parametrize("size", [10, 10 << 20])
def test_malformed_and_oversized_bodies_are_refused(size, client, filled, bus):
    for known in CHANGES:
        answer = client.post(path_of(known), data=b"x" * size)
        assert answer.status_code == (400 if size < 100 else 413), known.name
        assert not filled.list_drained() and not bus.tasks and not bus.wanted


@pytest.mark.parametrize("body", [b'{"colour": 1}', b"[]", b"null", b"[" * 50_000, b'"\xff"', b"{"])
def test_bodies_that_do_not_match_the_schema_are_refused(body, client, filled, bus):
    for known in CHANGES:
        answer = client.post(path_of(known), data=body)
        found = (answer.status_code, answer.json["error"]["message"][:5])
        assert found == (400, "body:"), known.name
        assert not filled.list_drained() and not bus.tasks and not bus.wanted


@pytest.mark.parametrize("version", ["acstor 1.0", "acstor latest", "compute 2.99"])
def test_supported_and_latest_api_versions_are_served(version, client, filled):
    answer = client.get("/v1/hosts", headers={"OpenStack-API-Version": version})
    assert answer.status_code == 200


@pytest.mark.parametrize("version", ["acstor 1.1", "acstor 2.0", "acstor", "acstor x"])
def test_unsupported_api_version_is_refused_with_the_supported_ones(version, client, filled):
    answer = client.get("/v1/hosts", headers={"OpenStack-API-Version": version})
    assert answer.status_code == 406
    assert "only 1.0" in answer.json["error"]["message"]


@pytest.mark.allow_log(r"the database fails")
def test_database_failure_is_reported_without_its_address(client, filled, monkeypatch):
    def fail(*_args, **_more):
        raise database.DatabaseError("mysql://acstor:***@controller/acstor", "gone")

    monkeypatch.setattr(filled, "_read", fail)
    answer = client.get("/v1/hosts")
    assert answer.status_code == 503
    assert "[database] connection" in answer.json["error"]["message"]
    assert "controller" not in answer.text
    assert client.get("/healthz").status_code == 503


@pytest.mark.expect_log(r"a request failed: broken")
def test_internal_error_is_logged_and_not_disclosed(client, filled, monkeypatch):
    def fail(*_args, **_more):
        raise RuntimeError("broken")

    monkeypatch.setattr(filled, "_read", fail)
    answer = client.get("/v1/hosts")
    assert answer.status_code == 500
    assert "broken" not in answer.text
