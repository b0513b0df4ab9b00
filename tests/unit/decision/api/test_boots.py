# SPDX-License-Identifier: Apache-2.0
"""Boots of servers as hosts report them, for users who may see all hosts."""

import datetime

import pytest

from acstor_common.model import boot_timeline
from tests.unit.decision.api import conftest

SERVER = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
PATH = f"/v1/servers/{SERVER}/boots"


OTHER = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a13"


def report_boot(store, number, sent_s, server=SERVER, **fields):
    boot = boot_timeline.Timeline(
        image_id="7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11",
        instance_id=server,
        began_at_s=sent_s - 30,
        opened_s=1.0,
        slice_s=0.25,
        **fields,
    )
    conftest.note(store, conftest.sample(number, sent_s=sent_s, boots=(boot,)))


def test_last_boot_on_each_host_is_listed_newest_last(client, store):
    assert client.get(PATH).json == {"server_id": SERVER, "boots": []}
    report_boot(store, 2, conftest.NOW_S, reads=1)
    report_boot(store, 1, conftest.NOW_S + 5, reads=2, bytes={"boot": 7})
    reported = client.get(PATH).json["boots"]
    assert [(boot["host"], boot["timeline"]["reads"]) for boot in reported] == [
        ("h0002", 1),
        ("h0001", 2),
    ]
    assert reported[1]["timeline"]["bytes"] == {"boot": 7}
    at = datetime.datetime.fromtimestamp(conftest.NOW_S + 5, datetime.UTC)
    assert datetime.datetime.fromisoformat(reported[1]["reported_at"]) == at


def test_newest_boots_are_listed_first_without_timelines(client, store):
    assert client.get("/v1/boots").json == {"boots": []}
    report_boot(store, 1, conftest.NOW_S, last_s=7.5, waited_s={"peer": 1.0, "source": 0.25})
    report_boot(store, 2, conftest.NOW_S + 5, OTHER, is_over=True)
    reported = client.get("/v1/boots").json["boots"]
    assert [(boot["server_id"], boot["host"]) for boot in reported] == [
        (OTHER, "h0002"),
        (SERVER, "h0001"),
    ]
    assert [(boot["took_s"], boot["waited_s"], boot["is_over"]) for boot in reported] == [
        (0.0, 0.0, True),
        (7.5, 1.25, False),
    ]
    began_at = datetime.datetime.fromisoformat(reported[1]["began_at"])
    assert began_at.timestamp() == conftest.NOW_S - 30
    assert "timeline" not in reported[0]
    assert [boot["host"] for boot in client.get("/v1/boots?limit=1").json["boots"]] == ["h0002"]


@pytest.mark.parametrize("limit", ["0", "101", "all", "-1"])
def test_boot_list_refuses_invalid_limits(limit, client):
    assert client.get(f"/v1/boots?limit={limit}").status_code == 400


@pytest.mark.parametrize("path", [PATH, "/v1/boots"])
@pytest.mark.parametrize(("who", "status"), [(conftest.READER, 200), (conftest.TENANT, 403)])
def test_tenants_may_not_see_boots_of_their_own_servers(client, store, who, status, path):
    report_boot(store, 1, conftest.NOW_S)
    answer = client.get(path, headers=who)
    assert answer.status_code == status
    assert ("h0001" in answer.text) == (status == 200)


def test_invalid_server_id_is_refused(client):
    assert client.get("/v1/servers/web/boots").status_code == 400
