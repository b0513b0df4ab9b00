# SPDX-License-Identifier: Apache-2.0
"""Listeners beside Glance report that they run; a silent listener is a finding."""

import time

import pytest

from acstor_decision.core import health_checks
from acstor_decision.db import listener_queries


@pytest.mark.parametrize(
    ("roles", "status"),
    [("admin", 200), ("acstor-prepare", 200), ("acstor-reader", 403), ("member,reader", 403)],
)
def test_listener_report_is_authorized_by_role(roles, status, client, store):
    answer = client.post("/v1/listeners", json={"listener": "c1"}, headers={"X-Roles": roles})
    assert answer.status_code == status
    assert [row.listener for row in store.list_listeners()] == (["c1"] if status == 200 else [])


@pytest.mark.parametrize("name", ["", "a b", "\x1b[31m", "x" * 256])
def test_invalid_listener_name_is_refused(name, client):
    assert client.post("/v1/listeners", json={"listener": name}).status_code == 400


def test_silent_listener_is_shown_in_list_and_status(client, store):
    now_s = time.time()
    store.record_listener("c1", now_s)
    store.record_listener("c2", now_s - health_checks.LISTENER_S - 1)
    listed = client.get("/v1/listeners").json["listeners"]
    assert [(one["listener"], one["is_silent"]) for one in listed] == [("c1", False), ("c2", True)]
    found = {one["code"]: one for one in client.get("/v1/status").json["findings"]}
    assert found["listener-silent"]["subjects"] == ["c2: for 3 min"]
    client.post("/v1/listeners", json={"listener": "c2"})
    codes = [one["code"] for one in client.get("/v1/status").json["findings"]]
    assert "listener-silent" not in codes


def test_listeners_are_limited_in_number(client, store):
    for number in range(listener_queries.MAX_LISTENERS):
        assert store.record_listener(f"c{number}", time.time())
    answer = client.post("/v1/listeners", json={"listener": "one-more"})
    assert (
        answer.status_code == 409 and len(store.list_listeners()) == listener_queries.MAX_LISTENERS
    )
    assert client.post("/v1/listeners", json={"listener": "c7"}).status_code == 200
