# SPDX-License-Identifier: Apache-2.0
"""The commands over the real API on SQLite; only HTTP between them is left out."""

import argparse
import time
import types
from typing import Any

import pytest
from flask import testing
from osc_lib import exceptions

from acstor_decision.api import app
from acstor_osc import client
from acstor_osc.v1 import host
from acstor_osc.v1 import ring
from acstor_osc.v1 import traffic
from tests.unit.decision.api import conftest as samples


class InProcess(client.Client):
    """A client whose requests go straight into the application."""

    def __init__(self, asked: testing.FlaskClient) -> None:
        self._adapter = types.SimpleNamespace(request=self._request)
        self._asked = asked

    def _request(self, path: str, method: str, raise_exc: bool, params: Any = None) -> Any:
        answer = self._asked.open(path, method=method, query_string=params)
        return types.SimpleNamespace(
            status_code=answer.status_code, json=lambda: answer.json, reason="", url=path
        )


@pytest.fixture
def run(api_configuration, store):
    """Return what runs a command with its arguments."""
    samples.note(store, *(samples.sample(n, sent_s=time.time()) for n in range(3)), overloaded=0)
    samples.publish(store, 1, hosts=3, vnodes=4)
    asked = app.make_plain_app(api_configuration, store).test_client()
    asked.environ_base["HTTP_X_ROLES"] = "admin"
    manager = types.SimpleNamespace(acstor=InProcess(asked))

    def do(command: type, *argv: str) -> Any:
        made = command(types.SimpleNamespace(client_manager=manager), argparse.Namespace())
        return made.take_action(made.get_parser("test").parse_args(argv))

    return do


def table(found: Any) -> list[dict[str, Any]]:
    columns, rows = found
    return [dict(zip(columns, row, strict=True)) for row in rows]


def fields(found: Any) -> dict[str, Any]:
    return dict(zip(*found, strict=True))


def test_hosts_are_listed_with_their_load(run):
    [first, *_] = rows = table(run(host.ListHost))
    assert [row["Host"] for row in rows] == ["h0000", "h0001", "h0002"]
    assert (first["State"], first["V-nodes"], first["Load %"]) == ("up", 4, 0)
    assert first["Cache"].machine_readable() == 1 << 20
    assert len(table(run(host.ListHost, "--limit", "1", "--marker", "h0001"))) == 1


def test_host_is_shown_with_all_that_it_told(run):
    shown = fields(run(host.ShowHost, "h0001"))
    assert shown["host"] == "h0001"
    assert shown["rates"].machine_readable()["sent"] == 2000.0


def test_unknown_host_is_named(run):
    with pytest.raises(exceptions.CommandError, match="host h9 is not known"):
        run(host.ShowHost, "h9")


def test_drain_and_enable(run, store):
    assert fields(run(host.DrainHost, "h0001"))["is_drained"]
    assert store.drained() == {"h0001"}
    assert not fields(run(host.EnableHost, "h0001"))["is_drained"]


def test_drain_waits_until_the_table_says_so(run, store, monkeypatch):
    monkeypatch.setattr(client, "LOOK_AGAIN_S", 0.0)
    looked = []

    def look_again(_seconds: float) -> None:
        looked.append(True)
        if len(looked) == 3:
            samples.publish(store, 2, hosts=1)

    own_time = types.SimpleNamespace(monotonic=time.monotonic, sleep=look_again)
    monkeypatch.setattr(client, "time", own_time)
    assert fields(run(host.DrainHost, "h0001", "--wait"))["vnodes"] == 0
    assert len(looked) == 3


def test_waiting_ends_and_says_that_the_work_goes_on(run):
    with pytest.raises(exceptions.CommandError, match=r"0 of 4 after 0 s; it goes on"):
        run(host.DrainHost, "h0001", "--wait", "--timeout", "0")


def test_tables_and_their_owners(run, store):
    samples.publish(store, 5, hosts=2)
    assert fields(run(ring.ShowRing))["epoch"] == 5
    assert fields(run(ring.ShowRing, "--epoch", "1"))["owners"].machine_readable()["h0002"] == 4
    assert [row["Epoch"] for row in table(run(ring.ListRing))] == [5, 1]
    assert [row["Epoch"] for row in table(run(ring.ListRing, "--before", "5"))] == [1]
    assert [row["Share %"] for row in table(run(ring.ListRingOwner))] == [50.0, 50.0]


def test_traffic_is_listed(run):
    assert [row["Sent"] for row in table(run(traffic.ListTraffic))] == [2000] * 3
    assert len(table(run(traffic.ListTraffic, "--host", "h0002", "--last", "60"))) == 1
