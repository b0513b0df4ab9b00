# SPDX-License-Identifier: Apache-2.0
"""The checkpoint commands against the real API on SQLite."""

import argparse
import sys
import time
import types

import pytest
from osc_lib import exceptions

from acstor_decision.api import app
from acstor_osc import client
from acstor_osc.v1 import checkpoint
from tests.fakes import checkpoint_hosts
from tests.fakes import enrolled_hosts
from tests.unit.osc import test_commands as commands

SERVER = checkpoint_hosts.SERVER
taken, checkpoint_id = checkpoint_hosts.taken, checkpoint_hosts.checkpoint_id


@pytest.fixture
def bus(api_configuration, store):
    hosts = enrolled_hosts.EnrolledHosts(api_configuration, store, time.time)
    return checkpoint_hosts.Daemons(hosts)


@pytest.fixture
def nova():
    return checkpoint_hosts.Nova()


@pytest.fixture
def run(api_configuration, store, glance, bus, nova):
    """Return a function that runs a command with arguments."""
    asked = app.make_plain_app(api_configuration, store, glance, bus, nova).test_client()
    asked.environ_base["HTTP_X_ROLES"] = "admin"
    known = {"web": types.SimpleNamespace(id=SERVER)}
    compute = types.SimpleNamespace(find_server=lambda name, ignore_missing: known.get(name))
    manager = types.SimpleNamespace(
        acstor=commands.InProcess(asked), sdk_connection=types.SimpleNamespace(compute=compute)
    )

    def do(command, *argv):
        command_app = types.SimpleNamespace(client_manager=manager, stdout=sys.stdout)
        made = command(command_app, argparse.Namespace())
        return made.take_action(made.get_parser("test").parse_args(argv))

    return do


@pytest.fixture
def two(store):
    for number in (1, 2):
        store.record_checkpoint(taken(number), time.time() + number, 10)


@pytest.mark.parametrize("name", ["web", SERVER])
def test_checkpoints_of_a_server_are_listed(run, two, name):
    rows = commands.table(run(checkpoint.ListCheckpoint, "--server", name))
    assert [row["ID"] for row in rows] == [checkpoint_id(2), checkpoint_id(1)]
    assert rows[0]["Changed"].machine_readable() == 1 << 20
    assert rows[0]["Kept By"].machine_readable() == ["h2", "h3"]
    assert commands.table(run(checkpoint.ListCheckpoint, "--host", "h9")) == []


def test_checkpoint_is_shown_without_its_key(run, two):
    shown = commands.fields(run(checkpoint.ShowCheckpoint, checkpoint_id(1)))
    assert shown["instance_id"] == SERVER and "key" not in shown


def test_checkpoint_is_requested_from_the_host_of_a_server(run, bus):
    shown = commands.fields(run(checkpoint.CreateCheckpoint, "web"))
    assert (shown["host"], shown["latest"]) == ("h1", None)
    assert [wanted[:2] for wanted in bus.wanted] == [(SERVER, "h1")]


def waits(monkeypatch, look_again):
    clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=look_again)
    monkeypatch.setattr(client, "time", clock)


def test_wait_ends_with_a_checkpoint_begun_after_the_request(run, bus, two, store, monkeypatch):
    """Number 3 was in progress at the request; a checkpoint of another host does not count."""
    bus.reply_fields, looks = {"number": 3}, []

    def look_again(_seconds):
        looks.append(1)
        now = {2: taken(3), 4: taken(9, host="h4"), 6: taken(4)}.get(len(looks))
        if now is not None:
            store.record_checkpoint(now, time.time() + len(looks), 10)

    waits(monkeypatch, look_again)
    shown = commands.fields(run(checkpoint.CreateCheckpoint, "web", "--wait"))
    assert (shown["checkpoint_id"], len(looks)) == (checkpoint_id(4), 6)


def test_refused_checkpoint_is_not_waited_for(run, bus, monkeypatch):
    bus.reply_fields = {"why": "it has no interval"}
    waits(monkeypatch, lambda _seconds: pytest.fail("it waits"))
    with pytest.raises(exceptions.CommandError, match="h1: it has no interval"):
        run(checkpoint.CreateCheckpoint, "web", "--wait")


def test_wait_for_a_checkpoint_times_out(run, bus, two, monkeypatch):
    bus.reply_fields = {"number": 2}
    waits(monkeypatch, lambda _seconds: None)
    with pytest.raises(exceptions.CommandError, match="checkpoint list --server"):
        run(checkpoint.CreateCheckpoint, "web", "--wait", "--timeout", "0.05")


def test_known_checkpoints_are_deleted_despite_unknown_ones(run, two, store):
    unknown = checkpoint_id(9)
    with pytest.raises(exceptions.CommandError, match=f"{unknown}.*not known"):
        run(checkpoint.DeleteCheckpoint, unknown, checkpoint_id(1))
    assert [row.checkpoint_id for row in store.list_checkpoints("", 9, "", "")] == [
        checkpoint_id(2)
    ]


def test_checkpoint_under_recovery_is_deleted_only_by_force(run, two, store):
    store.record_recovery(checkpoint_id(1), time.time())
    with pytest.raises(exceptions.CommandError, match="--force deletes it now"):
        run(checkpoint.DeleteCheckpoint, checkpoint_id(1))
    run(checkpoint.DeleteCheckpoint, checkpoint_id(1), "--force")
    assert [row.checkpoint_id for row in store.list_checkpoints("", 9, "", "")] == [
        checkpoint_id(2)
    ]


@pytest.mark.parametrize(
    ("command", "name", "why"),
    [
        (checkpoint.CreateCheckpoint, "nobody", "no server nobody"),
        (checkpoint.ShowCheckpoint, "web", "is not a checkpoint id"),
        (checkpoint.ShowCheckpoint, checkpoint_id(1), "not known"),
        (checkpoint.CreateCheckpoint, checkpoint_hosts.OTHER_SERVER, "not known"),
    ],
)
def test_unknown_server_or_checkpoint_is_refused(run, command, name, why):
    with pytest.raises(exceptions.CommandError, match=why):
        run(command, name)
