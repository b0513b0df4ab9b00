# SPDX-License-Identifier: Apache-2.0
"""Enrolment over HTTP: roles, responses, refusals and log lines."""

import logging
import time

import pytest

from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.wire import signed_messages
from acstor_decision.api import app
from acstor_decision.core import enrolment_rules
from tests.unit.decision.api import conftest

Limits = enrolment_rules.EnrolmentLimits
PATIENT = Limits(least_interval_s=60.0)
"""A minute between certificates, so that a slow machine cannot reach the end of the interval."""
PATH = "/v1/hosts/h1/certificate"
AGENT = {"X-Roles": "acstor-reader", "X-User-Id": "agent-of-h1", "X-Project-Id": "service"}
KEY = certificates.new_key()
CSR = certificates.request(ids.HostId("h1"), KEY)


def ask(client, headers=AGENT, csr=CSR, proof="", path=PATH):
    body = {"csr": csr.decode(), "proof": proof}
    return client.post(path, json=body, headers=headers)


def test_host_gets_a_certificate_for_the_name_in_the_path(client, caplog):
    caplog.set_level(logging.INFO)
    csr = certificates.request(ids.HostId("h9"), KEY)  # the name in the request is ignored
    answer = ask(client, csr=csr)
    assert answer.status_code == 200, answer.text
    reported = answer.json
    ca = reported["ca"].encode()
    read = certificates.read_host_certificate(reported["certificate"].encode(), ca)
    assert read.host == "h1" and read.not_after_s == reported["not_after"]
    assert abs(reported["now"] - time.time()) < 60
    assert signing.read_public_keys(reported["signers"].encode())
    assert "host h1: certificate for user agent-of-h1 at 127.0.0.1" in caplog.text


@pytest.mark.parametrize("role", ["acstor-reader", "admin"])
def test_enrolment_is_allowed_to_some_roles(client, role):
    assert ask(client, {**AGENT, "X-Roles": role}).status_code == 200


@pytest.mark.parametrize("role", ["service", "acstor-prepare", "member", "reader", ""])
def test_enrolment_is_refused_to_other_roles(client, role):
    answer = ask(client, {**AGENT, "X-Roles": role})
    assert answer.status_code == 403 and "acstor:host:enrol" in answer.text


@pytest.mark.expect_log("host h1: no certificate for user thief at 127.0.0.1: another Keystone")
@pytest.mark.expect_log("host h1: no certificate for user agent-of-h1 at .*its key did not sign")
def test_stolen_password_without_the_hosts_key_is_refused_and_logged(client):
    assert ask(client).status_code == 200
    answer = ask(client, {**AGENT, "X-User-Id": "thief"})
    assert answer.status_code == 409 and "openstack acstor host allow h1" in answer.text
    other = certificates.request(ids.HostId("h1"), certificates.new_key())
    assert ask(client, csr=other).status_code == 409


@pytest.mark.parametrize("enrolment_limits", [Limits(least_interval_s=0.0)])
def test_host_renews_its_certificate_with_a_proof(client):
    ask(client)
    csr = certificates.request(ids.HostId("h1"), certificates.new_key())
    proof = signed_messages.signature_of(signing.RENEWAL, csr, KEY)
    assert ask(client, csr=csr, proof=proof).status_code == 200


@pytest.mark.parametrize("enrolment_limits", [PATIENT])
@pytest.mark.expect_log("no certificate for user agent-of-h1")
def test_repeated_request_is_refused_as_too_frequent(client):
    ask(client)
    assert ask(client).status_code == 429


@pytest.mark.expect_log("no certificate for user agent-of-h1.*it is revoked")
def test_revoked_host_gets_no_certificate_until_allowed(client):
    ask(client)
    answer = client.post("/v1/hosts/h1/revoke")
    assert answer.status_code == 202 and answer.json["enrolment"]["state"] == "revoked"
    assert set(client.get("/v1/authority").json["revoked"]) == {"h1"}
    assert ask(client).status_code == 403
    answer = client.post("/v1/hosts/h1/allow")
    assert answer.status_code == 202 and answer.json["enrolment"]["state"] == "allowed"
    assert ask(client).status_code == 200


@pytest.mark.expect_log("no certificate for user agent-of-h1.*operator has to allow it")
def test_host_waiting_for_approval_is_listed_with_its_key(api_configuration, store, glance, bus):
    api_configuration.set_override("enrolment", "approved", "acstor_decision")
    client = app.make_plain_app(api_configuration, store, glance, bus).test_client()
    answer = ask(client)
    assert answer.status_code == 409 and "openstack acstor host allow h1" in answer.text
    [host] = client.get("/v1/hosts", headers=conftest.ADMIN).json["hosts"]
    waiting = host["enrolment"]
    assert (host["host"], host["state"]) == ("h1", "silent")
    assert (waiting["state"], waiting["user_id"]) == ("waiting", "agent-of-h1")
    assert waiting["fingerprint"] == certificates.fingerprint(signing.read_key(KEY).public_key())
    client.post("/v1/hosts/h1/allow", headers=conftest.ADMIN)
    assert ask(client).status_code == 200


@pytest.mark.expect_log("no certificate for user agent-of-h1.*PKCS #10")
def test_malformed_request_is_refused(client):
    assert ask(client, csr=b"nonsense").status_code == 400
    assert ask(client, csr=b"x" * 9000).status_code == 400
    assert ask(client, path="/v1/hosts/no%20host/certificate").status_code == 400
    assert ask(client, proof="x" * 200).status_code == 400


@pytest.mark.expect_log("no certificate for user agent-of-h1.*allowed_hosts")
def test_host_outside_allowed_hosts_gets_no_certificate(api_configuration, store, glance, bus):
    api_configuration.set_override("allowed_hosts", ["compute*"], "acstor_decision")
    client = app.make_plain_app(api_configuration, store, glance, bus).test_client()
    assert ask(client).status_code == 403
    path = "/v1/hosts/compute1/certificate"
    assert ask(client, path=path).status_code == 200


@pytest.mark.expect_log("a request failed: .*ca_dir.*No such file")
def test_unusable_authority_is_logged_and_not_disclosed(api_configuration, store, glance, bus):
    api_configuration.set_override("ca_dir", "/nonexistent", "acstor_decision")
    client = app.make_plain_app(api_configuration, store, glance, bus).test_client()
    answer = ask(client)
    assert answer.status_code == 503 and "nonexistent" not in answer.text


def test_authority_shows_public_data_to_services_and_readers(client):
    for headers in (AGENT, conftest.READER, conftest.ADMIN):
        answer = client.get("/v1/authority", headers=headers)
        assert answer.status_code == 200
        assert "PRIVATE" not in answer.text and answer.json["enrolment"] == "automatic"
    assert client.get("/v1/authority", headers=conftest.TENANT).status_code == 403


def print_of(key):
    return certificates.fingerprint(signing.read_key(key).public_key())


@pytest.mark.expect_log("no certificate for user agent-of-h1.*an operator allowed another key")
def test_operator_allows_one_key_and_one_user(client, store):
    body = {"fingerprint": print_of(KEY), "user_id": "agent-of-h1"}
    shown = client.post("/v1/hosts/h1/allow", json=body).json["enrolment"]
    assert (shown["state"], shown["fingerprint"]) == ("allowed", print_of(KEY))
    assert shown["user_id"] == "agent-of-h1"
    other = certificates.request(ids.HostId("h1"), certificates.new_key())
    assert ask(client, csr=other).status_code == 409
    assert ask(client).status_code == 200
    assert store.refused_enrolments() == {"not_let_in": 1}
    for fault in ("f" * 63, "F" * 64, "g" * 64):
        assert client.post("/v1/hosts/h1/allow", json={"fingerprint": fault}).status_code == 400


@pytest.mark.expect_log("no certificate for user agent-of-h1.*2 hosts of this user that never")
@pytest.mark.parametrize("enrolment_limits", [Limits(unseen_per_user=2)])
def test_user_enrols_a_limited_number_of_unheard_hosts(client, store):
    for number in range(2):
        assert ask(client, path=f"/v1/hosts/n{number}/certificate").status_code == 200
    for _ in range(3):
        answer = ask(client)
        assert answer.status_code == 429 and "openstack acstor host forget NAME" in answer.text
    assert store.refused_enrolments() == {"no_room": 3}
    answer = client.post("/v1/hosts/n0/forget")
    assert answer.status_code == 200 and answer.json == {"host": "n0"}
    assert [host["host"] for host in client.get("/v1/hosts").json["hosts"]] == ["n1"]
    assert client.get("/v1/hosts/n0").status_code == 404
    assert client.post("/v1/hosts/n0/forget").status_code == 404
    assert ask(client).status_code == 200


def test_live_host_is_not_forgotten_and_only_admins_may_forget(client, store):
    conftest.note(store, conftest.sample(1, host="h1", sent_s=time.time()))
    answer = client.post("/v1/hosts/h1/forget")
    assert answer.status_code == 409 and "still sends samples" in answer.text
    for headers in (AGENT, conftest.READER, conftest.TENANT):
        assert client.post("/v1/hosts/h1/forget", headers=headers).status_code == 403


@pytest.mark.parametrize("enrolment_limits", [PATIENT])
@pytest.mark.expect_log("no certificate for user agent-of-h1")
def test_refusals_are_counted_by_reason(client, store):
    ask(client)
    ask(client)
    ask(client, csr=b"nonsense")
    assert store.refused_enrolments() == {"malformed": 1, "too_often": 1}
