# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the API: which roles may list, recover, delete and request them."""

import time

import pytest

from acstor_common.identity import signing
from acstor_decision import nova_client
from acstor_decision import rpc
from acstor_decision.api import app
from acstor_decision.db import checkpoint_queries
from tests.fakes import checkpoint_hosts
from tests.fakes import enrolled_hosts
from tests.unit.decision.api import conftest

SERVER, NOW_S = checkpoint_hosts.SERVER, checkpoint_hosts.NOW_S
taken, checkpoint_id = checkpoint_hosts.taken, checkpoint_hosts.checkpoint_id
ONE = f"/v1/checkpoints/{checkpoint_id(1)}"
SERVICE = {"X-Roles": "service", "X-User-Id": "nova"}
RECOVERY = {"X-Roles": "acstor-recovery", "X-User-Id": "masakari"}
AGENT = {"X-Roles": "acstor-reader", "X-User-Id": "agent"}


@pytest.fixture
def nova():
    return checkpoint_hosts.Nova()


@pytest.fixture
def bus(api_configuration, store):
    hosts = enrolled_hosts.EnrolledHosts(api_configuration, store, time.time)
    return checkpoint_hosts.Daemons(hosts)


@pytest.fixture
def client(api_configuration, store, glance, bus, nova):
    made = app.make_plain_app(api_configuration, store, glance, bus, nova).test_client()
    admin = conftest.ADMIN.items()
    made.environ_base.update({f"HTTP_{k.upper().replace('-', '_')}": v for k, v in admin})
    return made


@pytest.fixture
def three(store):
    for number in (1, 2, 3):
        store.record_checkpoint(taken(number), NOW_S + number, 10)


def listed(client, query=""):
    answer = client.get(f"/v1/checkpoints{query}")
    assert answer.status_code == 200, answer.text
    return [one["checkpoint_id"] for one in answer.json["checkpoints"]]


def test_newest_checkpoint_is_listed_first(client, three):
    everything = [checkpoint_id(number) for number in (3, 2, 1)]
    assert listed(client) == listed(client, f"?instance={SERVER}&host=h1") == everything
    assert listed(client, "?limit=1") == everything[:1]
    assert listed(client, f"?limit=1&marker={everything[0]}") == everything[1:2]
    assert listed(client, f"?instance={checkpoint_hosts.OTHER_SERVER}") == []
    assert listed(client, "?host=h2") == []


def test_checkpoint_is_shown_without_its_key(client, three):
    answer = client.get(ONE)
    assert answer.json["taken_at"] == "2027-01-15T08:00:00.001000Z"
    assert answer.json["holders"] == ["h2", "h3"]
    assert answer.json["server_deleted_at"] is None
    for path in (ONE, "/v1/checkpoints"):
        assert "cd" * 32 not in client.get(path).text


def test_recovery_response_has_all_that_an_agent_needs(client, three):
    assert client.get(f"{ONE}/recovery").json == {
        "checkpoint_id": checkpoint_id(1),
        "instance_id": SERVER,
        "image_id": checkpoint_hosts.IMAGE,
        "owner": "h1",
        "vault_disk": "6b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e21",
        "manifest_name": f"{1:064x}",
        "holders": [
            {"host": "h2", "address": "10.0.0.2:7205"},
            {"host": "h3", "address": "[fd00::3]:1"},
        ],
        "key": "cd" * 32,
        "taken_at": "2027-01-15T08:00:00.001000Z",
    }


@pytest.mark.parametrize(
    ("who", "path", "method", "status"),
    [
        (conftest.ADMIN, f"{ONE}/recovery", "get", 200),
        (RECOVERY, f"{ONE}/recovery", "get", 200),
        (RECOVERY, ONE, "get", 200),
        (RECOVERY, "/v1/checkpoints", "get", 200),
        (RECOVERY, f"{ONE}/delete", "post", 403),
        (SERVICE, f"{ONE}/recovery", "get", 403),
        (conftest.READER, f"{ONE}/recovery", "get", 403),
        (AGENT, f"{ONE}/recovery", "get", 403),
        (conftest.TENANT, f"{ONE}/recovery", "get", 403),
        (conftest.READER, ONE, "get", 200),
        (conftest.TENANT, ONE, "get", 403),
        (conftest.TENANT, "/v1/checkpoints", "get", 403),
        (conftest.READER, f"{ONE}/delete", "post", 403),
        (SERVICE, f"{ONE}/delete", "post", 403),
        (conftest.READER, "/v1/checkpoints", "post", 403),
    ],
)
def test_checkpoint_requests_are_authorized_by_role(client, three, who, path, method, status):
    assert getattr(client, method)(path, headers=who).status_code == status


def test_recovery_response_forbids_caching(client, three):
    answer = client.get(f"{ONE}/recovery", headers=RECOVERY)
    assert answer.status_code == 200 and answer.headers["Cache-Control"] == "no-store"


def test_deleted_checkpoint_is_not_found(client, three):
    assert client.post(f"{ONE}/delete").json == {"checkpoint_id": checkpoint_id(1)}
    assert client.get(ONE).status_code == client.post(f"{ONE}/delete").status_code == 404
    assert checkpoint_id(1) not in listed(client)


def test_checkpoint_under_recovery_is_deleted_only_by_force(client, three):
    assert client.get(ONE).json["recovered_at"] is None
    client.get(f"{ONE}/recovery")
    assert client.get(ONE).json["recovered_at"]
    answer = client.post(f"{ONE}/delete")
    assert answer.status_code == 409
    assert "a recovery from checkpoint" in answer.json["error"]["message"]
    assert client.get(ONE).status_code == 200
    assert client.post(f"{ONE}/delete", json={"force": True}).status_code == 200
    assert client.get(ONE).status_code == 404


def test_checkpoint_pruned_before_its_recovery_is_recorded_is_not_found(
    client, three, store, monkeypatch
):
    note = store.record_recovery

    def pruned_before(checkpoint_id, now_s):
        store.delete_checkpoint(checkpoint_id)
        return note(checkpoint_id, now_s)

    monkeypatch.setattr(store, "record_recovery", pruned_before)
    answer = client.get(f"{ONE}/recovery")
    assert answer.status_code == 404 and "cd" * 32 not in answer.text


def test_recovery_protects_a_checkpoint_for_three_days(client, three, store):
    for ago_s, status in (
        (checkpoint_queries.PROTECTION_S - 60, 409),
        (checkpoint_queries.PROTECTION_S + 60, 200),
    ):
        store.record_recovery(checkpoint_id(1), time.time() - ago_s)
        assert client.post(f"{ONE}/delete").status_code == status


def test_checkpoint_request_goes_to_the_host_of_the_server(client, bus, three):
    bus.reply_fields = {"number": 7}
    answer = client.post("/v1/checkpoints", json={"instance_id": SERVER})
    assert answer.status_code == 202, answer.text
    request = answer.json["request"]
    assert answer.json == {
        "request": request,
        "instance_id": SERVER,
        "host": "h1",
        "latest": checkpoint_id(3),
        "previous_number": 7,
    }
    assert bus.wanted == [(SERVER, "h1", request)]


@pytest.mark.parametrize(
    ("prepare", "status"),
    [
        (lambda nova, bus: nova.servers.clear(), 404),
        (lambda nova, bus: nova.servers.update({SERVER: nova_client.Server("", "p")}), 409),
        (lambda nova, bus: setattr(nova, "failure", nova_client.NovaUnreachable("HTTP 503")), 503),
        (lambda nova, bus: setattr(bus, "failure", rpc.BusUnreachable("gone")), 503),
    ],
)
def test_impossible_checkpoint_request_is_refused_with_a_message(
    client, nova, bus, prepare, status
):
    prepare(nova, bus)
    answer = client.post("/v1/checkpoints", json={"instance_id": SERVER})
    assert answer.status_code == status and answer.json["error"]["message"]
    assert bus.wanted == []


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ({"why": "it has no interval"}, "h1: it has no interval"),
        (None, "acstor-checkpointd of h1 does not answer"),
        ({"host": "h2"}, "or another host"),
        ({"request": 1}, "to another request"),
        ({"number": -1}, "number"),
    ],
)
def test_host_that_declines_a_checkpoint_is_named_with_the_reason(client, bus, reply, why):
    bus.reply_fields = reply
    answer = client.post("/v1/checkpoints", json={"instance_id": SERVER})
    assert answer.status_code == 409 and why in answer.json["error"]["message"]


@pytest.mark.parametrize("changed", [{"signer": "h2"}, {"purpose": signing.CHECKPOINT}])
def test_response_not_signed_by_the_host_is_refused(client, bus, changed):
    for name, value in changed.items():
        setattr(bus, name, value)
    assert client.post("/v1/checkpoints", json={"instance_id": SERVER}).status_code == 409


def test_response_of_a_revoked_host_is_refused(client, bus, api_configuration, store):
    hosts = enrolled_hosts.EnrolledHosts(api_configuration, store, time.time)
    hosts.identity("h1")
    hosts.keeper.revoke_host("h1")
    answer = client.post("/v1/checkpoints", json={"instance_id": SERVER})
    assert answer.status_code == 409 and "revoked" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    "query", ["?instance=web", "?limit=0", "?limit=1001", f"?marker={'x' * 37}", "?order=asc"]
)
def test_invalid_query_is_refused(client, query):
    assert client.get(f"/v1/checkpoints{query}").status_code == 400


@pytest.mark.parametrize("path", ["/v1/checkpoints/web", "/v1/checkpoints/web/recovery"])
def test_invalid_checkpoint_id_is_refused(client, path):
    assert client.get(path).status_code == 400


def test_time_beyond_the_calendar_is_shown_as_its_last_year(client, store):
    store.record_checkpoint(taken(1, taken_ms=(1 << 63) - 1), NOW_S, 10)
    assert client.get(ONE).json["taken_at"].startswith("9999")
