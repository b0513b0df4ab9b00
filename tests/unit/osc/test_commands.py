# SPDX-License-Identifier: Apache-2.0
"""The commands against the real API on SQLite, without HTTP."""

import argparse
import datetime
import json
import re
import sys
import time
import types
from typing import Any

import pytest
from flask import testing
from openstack import exceptions as sdk_exceptions
from openstack.compute.v2 import server_action
from osc_lib import exceptions

from acstor_common.identity import signing
from acstor_common.model import boot_timeline
from acstor_common.ring import location_policies
from acstor_common.wire import decision_messages
from acstor_decision.api import app
from acstor_decision.db import models
from acstor_osc import aggregates
from acstor_osc import api_versions
from acstor_osc import client
from acstor_osc import image_tasks
from acstor_osc.v1 import authority
from acstor_osc.v1 import boot_image
from acstor_osc.v1 import host
from acstor_osc.v1 import image
from acstor_osc.v1 import ring
from acstor_osc.v1 import server
from acstor_osc.v1 import traffic
from tests.unit.decision.api import conftest as samples

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-000000000010"
SERVER = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"


class InProcess(client.Client):
    """A client that calls the application directly."""

    def __init__(self, wsgi: testing.FlaskClient, asked: str = api_versions.MAJOR) -> None:
        self._adapter = types.SimpleNamespace(request=self._request)
        self._wsgi, self._asked = wsgi, asked

    def _request(
        self,
        path: str,
        method: str,
        raise_exc: bool,
        headers: dict[str, str],
        params: Any = None,
        json: Any = None,
    ) -> Any:
        answer = self._wsgi.open(
            path, method=method, query_string=params, json=json, headers=headers
        )
        return types.SimpleNamespace(
            status_code=answer.status_code,
            json=lambda: answer.json,
            reason="",
            url=path,
            headers=answer.headers,
        )


class Sdk:
    """An SDK connection that finds one image and one server."""

    def __init__(self) -> None:
        self.image = types.SimpleNamespace(
            find_image=lambda name, ignore_missing: types.SimpleNamespace(id=IMAGE)
        )
        found = types.SimpleNamespace(
            id=SERVER, image=types.SimpleNamespace(id=IMAGE), compute_host="h0001"
        )
        self.actions: list[server_action.ServerAction] = []
        self.aggregate_hosts: list[str] | None = []
        self.compute = types.SimpleNamespace(
            find_aggregate=lambda name, ignore_missing: types.SimpleNamespace(
                hosts=self.aggregate_hosts
            ),
            find_server=lambda name, ignore_missing: found,
            get_server=lambda server_id: found,
            server_actions=lambda server_id: iter(self.actions),
            get_server_action=self.action,
        )

    def action(self, request_id: str, server_id: str) -> server_action.ServerAction:
        return next(one for one in self.actions if one.request_id == request_id)


@pytest.fixture
def sdk():
    return Sdk()


@pytest.fixture
def manager(api_configuration, store, glance, bus, sdk):
    """Return a client manager with clients of acstor and other services."""
    samples.note(store, *(samples.sample(n, sent_s=time.time()) for n in range(3)), overloaded=0)
    samples.publish(store, 1, hosts=3, vnodes=4)
    asked = app.make_plain_app(api_configuration, store, glance, bus).test_client()
    asked.environ_base["HTTP_X_ROLES"] = "admin"
    asked.environ_base["keystone.token_auth"] = object()
    return types.SimpleNamespace(acstor=InProcess(asked), sdk_connection=sdk)


@pytest.fixture
def run(manager):
    """Return a function that runs a command with arguments."""

    def do(command: type, *argv: str) -> Any:
        command_app = types.SimpleNamespace(client_manager=manager, stdout=sys.stdout)
        made = command(command_app, argparse.Namespace())
        return made.take_action(made.get_parser("test").parse_args(argv))

    return do


@pytest.fixture
def agents(store, bus, monkeypatch):
    """Let hosts do their task while a command waits; return the fields that they report."""
    given: dict[str, Any] = {"state": "done"}

    def look_again(_seconds: float) -> None:
        task, to = bus.tasks[-1]
        hold(store, to, {**given, "request": task.request, "kind": task.kind.value})

    monkeypatch.setattr(
        client, "time", types.SimpleNamespace(monotonic=time.monotonic, sleep=look_again)
    )
    return given


def hold(store, hosts=None, task=None, **fields) -> None:
    """Let hosts, or all of them, report the image."""
    reported = {
        "size_bytes": 1 << 20,
        "cached_bytes": 1 << 20,
        "missing_bytes": 0,
        "boot_image": "ready",
        "boot_revision": 2,
        "read": {"local": 60, "boot": 30, "peer": 9, "source": 1},
        "task": task,
        **fields,
    }
    held = decision_messages.decode(reported, decision_messages.HeldImage)
    names = [f"h{n:04}" for n in range(3)] if hosts is None else hosts
    samples.note(
        store,
        *(
            samples.sample(int(name[1:]), sent_s=time.time(), images={IMAGE: held})
            for name in names
        ),
    )


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


def test_host_is_shown_with_its_last_sample(run):
    shown = fields(run(host.ShowHost, "h0001"))
    assert shown["host"] == "h0001"
    assert shown["rates"].machine_readable()["sent"] == 2000.0


def test_hosts_are_listed_with_their_enrolment_state(run, store):
    run(host.AllowHost, "h0001")
    run(host.RevokeHost, "h0002")
    rows = table(run(host.ListHost))
    assert [row["Enrolment"] for row in rows] == ["none", "allowed", "revoked"]


def test_host_is_allowed_and_revoked_before_its_first_sample(run):
    shown = fields(run(host.RevokeHost, "h9"))
    assert (shown["state"], shown["enrolment"].machine_readable()["state"]) == ("silent", "revoked")
    shown = fields(run(host.AllowHost, "h9"))
    assert shown["enrolment"].machine_readable()["state"] == "allowed"


def test_allow_names_the_trusted_key_and_user(
    run,
):
    shown = fields(run(host.AllowHost, "h9"))
    assert shown["trusts"].startswith("the next request for this name: any key, of any user")
    reported = fields(run(host.AllowHost, "h9", "--fingerprint", "AB:" * 31 + "AB", "--user", "u9"))
    assert reported["trusts"] == "the key of --fingerprint, of user u9"
    assert reported["enrolment"].machine_readable()["fingerprint"] == "ab" * 32
    rows = {row["Host"]: row for row in table(run(host.ListHost))}
    assert (rows["h9"]["Waiting Key"], rows["h0001"]["Waiting Key"]) == ("ab" * 32, "")


def test_invalid_fingerprint_is_refused(run, capsys):
    with pytest.raises(SystemExit):
        run(host.AllowHost, "h9", "--fingerprint", "abc")
    assert "not a SHA-256 in hex" in capsys.readouterr().err


def test_waiting_host_is_listed_with_its_key_and_allowed(run, store):
    key = signing.pem_of(signing.read_key(signing.new_key()).public_key())
    waits = {"user_id": "u9", "public_key": key, "address": "192.0.2.9", "asked_s": 1.0}
    store.change_enrolment("h9", lambda _: models.Enrolment(host="h9", state="waiting", **waits))
    [row] = [row for row in table(run(host.ListHost)) if row["Host"] == "h9"]
    assert re.fullmatch("[0-9a-f]{64}", row["Waiting Key"])
    trusts = fields(run(host.AllowHost, "h9"))["trusts"]
    assert f"the first request: key {row['Waiting Key']}, of user u9, from 192.0.2.9" in trusts


def test_host_is_forgotten_unless_it_is_live(run):
    run(host.AllowHost, "h9")
    run(host.ForgetHost, "h9")
    with pytest.raises(exceptions.CommandError, match="host h9 is not known"):
        run(host.ForgetHost, "h9")
    with pytest.raises(exceptions.CommandError, match="still sends samples"):
        run(host.ForgetHost, "h0001")


def test_authority_is_shown_with_revoked_hosts(run):
    run(host.RevokeHost, "h0002")
    shown = fields(run(authority.ShowAuthority))
    assert shown["enrolment"] == "automatic"
    for name in ("ca", "signers"):
        pem = shown[name].machine_readable()
        assert pem.startswith("-----BEGIN ") and pem.endswith("-----\n")
        assert shown[name].human_readable() == pem.strip()
    assert set(shown["revoked"].machine_readable()) == {"h0002"}


def test_unknown_host_is_named(run):
    with pytest.raises(exceptions.CommandError, match="host h9 is not known"):
        run(host.ShowHost, "h9")


def test_drain_and_enable(run, store):
    assert fields(run(host.DrainHost, "h0001"))["is_drained"]
    assert store.list_drained() == {"h0001"}
    assert not fields(run(host.EnableHost, "h0001"))["is_drained"]


def test_drain_waits_for_the_new_table(run, store, monkeypatch):
    looked = []

    def look_again(_seconds: float) -> None:
        looked.append(True)
        if len(looked) == 3:
            samples.publish(store, 2, hosts=1)

    own_time = types.SimpleNamespace(monotonic=time.monotonic, sleep=look_again)
    monkeypatch.setattr(client, "time", own_time)
    assert fields(run(host.DrainHost, "h0001", "--wait"))["vnodes"] == 0
    assert len(looked) == 3


def test_wait_times_out_while_the_drain_continues(run):
    with pytest.raises(exceptions.CommandError, match=r"0 of 4 after 0 s; it goes on"):
        run(host.DrainHost, "h0001", "--wait", "--timeout", "0")


def test_ring_tables_and_owners_are_shown(run, store):
    places = {"pod1/rack0": location_policies.LocationPolicy(20)}
    samples.publish(store, 5, hosts=2, thresholds=(1, 9), places=places)
    shown = fields(run(ring.ShowRing))
    assert (shown["epoch"], shown["threshold"], shown["outer_threshold"]) == (5, 1, 9)
    assert shown["places"].machine_readable() == {"pod1/rack0": {"share": 20}}
    assert fields(run(ring.ShowRing, "--epoch", "1"))["owners"].machine_readable()["h0002"] == 4
    assert [row["Epoch"] for row in table(run(ring.ListRing))] == [5, 1]
    assert all("V-nodes" in row for row in table(run(ring.ListRing)))  # named as in host list
    assert [row["Epoch"] for row in table(run(ring.ListRing, "--marker", "5"))] == [1]
    assert [row["Share %"] for row in table(run(ring.ListRingOwner))] == [50.0, 50.0]


def test_traffic_is_listed(run):
    assert [row["Sent"] for row in table(run(traffic.ListTraffic))] == [2000] * 3
    assert len(table(run(traffic.ListTraffic, "--host", "h0002", "--last", "60"))) == 1


def test_images_are_listed_with_the_sources_of_reads(run, store, glance):
    glance.add(IMAGE, acstor_boot_state="building")
    hold(store)
    [row] = table(run(image.ListImage))
    assert (row["ID"], row["Name"], row["State"]) == (IMAGE, "debian", "ready")
    assert row["Boot Image"] == "building"
    assert (row["Hosts"], row["Warm"]) == (3, 3)
    assert [row[f"{origin} %"] for origin in ("Local", "Boot", "Peer", "Source")] == [60, 30, 9, 1]


def test_image_is_shown_by_its_id_or_its_name(run, store, glance):
    glance.add(IMAGE)
    hold(store)
    shown = fields(run(image.ShowImage, "debian"))
    assert shown["read"].machine_readable() == {"local": 180, "boot": 90, "peer": 27, "source": 3}
    assert fields(run(image.ShowImage, IMAGE))["warm_hosts"] == 3
    with pytest.raises(exceptions.CommandError, match="is not known"):
        run(image.ShowImage, IMAGE[:-1] + "9")


def test_image_is_shown_with_its_parents(run, store, glance):
    base = f"{IMAGE[:-1]}8"
    glance.add(IMAGE, acstor_base=base, acstor_own_bytes="100000000")
    shown = fields(run(image.ShowImage, IMAGE))
    assert (shown["parents"].human_readable(), shown["depth"]) == (base, 1)
    assert shown["own_bytes"].human_readable() == "95.4 MiB"
    assert shown["shared_bytes"] == "unknown"


FILLING = {
    "state": "filling",
    "is_used": True,
    "total_bytes": 4_000_000,
    "remaining_bytes": 1_000_000,
    "rate_bytes_s": 10_000,
    "remaining_s": 100.0,
    "mode": "urgent",
}
OWNED = {"state": "fully_cached", "is_used": True, "total_bytes": 4_000_000, "remaining_bytes": 0}
NOT_USED = {"state": "evictable", "is_used": False, "why": "not used"}


def test_image_is_shown_with_its_fill_status_on_each_host(run, store, glance):
    glance.add(IMAGE)
    hold(store, ["h0000"], fill=OWNED)
    hold(store, ["h0001"], fill=FILLING)
    hold(store, ["h0002"], fill=NOT_USED)
    [row] = table(run(image.ListImage))
    assert (row["In Use"], row["Fully Cached"]) == (2, 1)
    shown = fields(run(image.ShowImage, IMAGE))
    assert shown["fully_cached"] == "on 1 of 2 hosts that use it"
    assert shown["fill_by_host"].human_readable().splitlines() == [
        "h0000: fully cached",
        "h0001: filling, 75 %, 0.0095 MiB/s, 1 min 40 s left, urgent",
    ]
    machine = shown["fill_by_host"].machine_readable()
    assert (machine["h0001"]["cached_share"], machine["h0001"]["remaining_s"]) == (0.75, 100.0)
    assert machine["h0002"]["is_used"] is False
    columns = [row["Fill"] for row in table(run(image.ListImageHost, IMAGE))]
    assert [one.human_readable() for one in columns][::2] == ["fully cached", "evictable: not used"]
    assert columns[0].machine_readable()["remaining_bytes"] == 0


@pytest.mark.parametrize(
    ("due_in_s", "is_late", "words"),
    [
        (200.0, False, "1 min 40 s left, due in 3 min 20 s"),
        (50.0, True, "due in 50 s, will be late"),
        (-7260.0, True, "was due 2 h 1 min ago"),
    ],
)
def test_image_deadline_is_shown_with_whether_it_will_be_missed(
    due_in_s, is_late, words, run, store, glance
):
    glance.add(IMAGE)
    hold(store, ["h0001"], fill={**FILLING, "due_in_s": due_in_s, "is_late": is_late})
    [row] = table(run(image.ListImageHost, IMAGE))
    assert row["Fill"].human_readable().endswith(words)


def test_image_without_users_is_shown_as_unused(run, store, glance):
    glance.add(IMAGE)
    hold(store, ["h0000"], fill=NOT_USED)
    assert fields(run(image.ShowImage, IMAGE))["fully_cached"] == "no host uses it"
    hold(store, ["h0000"])  # a host without a fill status may use the image
    shown = fields(run(image.ShowImage, IMAGE))
    assert shown["fully_cached"] == "on 0 of 1 hosts that use it"
    assert shown["fill_by_host"].human_readable() == ""
    [row] = table(run(image.ListImageHost, IMAGE))
    assert row["Fill"].human_readable() == "unknown"


def test_reports_of_hosts_cannot_control_the_terminal(run, store, glance, bus, agents):
    glance.add(IMAGE)
    why = "away\x1b]0;owned\x07\r\n"
    agents.update(state="failed", why=why)
    with pytest.raises(exceptions.CommandError) as raised:
        run(image.PauseImage, IMAGE, "--host", "h0001", "--wait")
    failing = {**FILLING, "state": "failing", "remaining_s": None, "why": why}
    task = {"request": 1, "kind": "pause", "state": "failed", "why": why}
    hold(store, ["h0001"], fill=failing, task=task)
    [row] = [row for row in table(run(image.ListImageHost, IMAGE)) if row["Host"] == "h0001"]
    depends_on = fields(run(server.ShowServer, "s1"))["depends_on"]
    for said in (str(raised.value), row["Fill"].human_readable(), row["Task"], depends_on):
        assert "away?]0;owned" in said and said.isprintable()


def test_fully_cached_count_is_shown_without_access_to_hosts(run, store, glance, monkeypatch):
    glance.add(IMAGE)
    hold(store, fill=OWNED)
    get = InProcess.get

    def refuse_hosts(asked, path, query=None):
        if path.endswith("/hosts"):
            raise client.Refused(status, "the policy does not permit this request")
        return get(asked, path, query)

    monkeypatch.setattr(InProcess, "get", refuse_hosts)
    status = 403
    shown = fields(run(image.ShowImage, IMAGE))
    assert shown["fully_cached"] == "on 3 of 3 hosts that use it"
    assert shown["fill_by_host"].machine_readable() == {}
    status = 503
    with pytest.raises(client.Refused, match="does not permit"):
        run(image.ShowImage, IMAGE)


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (image.HydrateImage, "hydrate"),
        (image.PauseImage, "pause"),
        (image.ResumeImage, "resume"),
        (image.UnpinImage, "unpin"),
    ],
)
def test_image_action_goes_to_the_hosts_that_use_it(command, kind, run, store, bus, agents):
    hold(store, ["h0000", "h0001"], fill=FILLING)
    rows = table(run(command, IMAGE, "--wait"))
    assert rows == [{"Host": name, "Task": f"{kind}: done"} for name in ("h0000", "h0001")]
    agents.update(state="failed", why="cannot be cached completely here")
    with pytest.raises(
        exceptions.CommandError, match="1 of 1 hosts: h0002: cannot be cached completely"
    ):
        run(command, IMAGE, "--host", "h0002", "--wait")


def test_hydrate_deadline_is_a_duration_or_a_time(run, store, bus, capsys):
    hold(store, ["h0000"], fill=FILLING)
    run(image.HydrateImage, IMAGE)
    run(image.HydrateImage, IMAGE, "--deadline", "1.5m")
    noon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    run(image.HydrateImage, IMAGE, "--deadline-at", noon.isoformat())
    asked_s = [task.deadline_s for task, _ in bus.tasks]
    assert asked_s[:2] == [0.0, 90.0] and 3000 < asked_s[2] <= 3600
    with pytest.raises(exceptions.CommandError, match="this time has passed"):
        run(image.HydrateImage, IMAGE, "--deadline-at", "2020-01-31T18:00")
    with pytest.raises(exceptions.CommandError, match="deadline_s"):  # too far in the future
        run(image.HydrateImage, IMAGE, "--deadline-at", "9999-12-31T23:59:59")
    for option, words in (
        ("--deadline-at", "write it as 2030-01-31T18:00"),
        ("--deadline", "as 90s or 2h"),
    ):
        with pytest.raises(SystemExit):
            run(image.HydrateImage, IMAGE, option, "tomorrow")
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        (OWNED, "nothing: its host has the image fully cached and pinned"),
        ({**OWNED, "is_shared": True}, "other hosts, any one of which may fail"),
        (
            FILLING,
            "other hosts and the image store, for 0.95 MiB of the 3.8 MiB of its image; "
            "for about 1 min 40 s",
        ),
        ({**FILLING, "remaining_s": None}, "of its image"),
        ({**FILLING, "state": "booting", "remaining_s": None}, "the fill goes on after the boot"),
        ({**FILLING, "state": "queued", "remaining_s": None}, "the host fills other images first"),
        ({**FILLING, "state": "paused", "remaining_s": None}, "openstack acstor image resume"),
        (
            {"state": "no_space", "is_used": True, "why": "the cache lacks 5 bytes"},
            "for the part of its image that is not cached; the cache lacks 5 bytes: "
            "raise cache_limit_bytes",
        ),
        (
            {**FILLING, "state": "failing", "remaining_s": None, "why": "the store is away {0}"},
            "the store is away {0}; the agent tries again",
        ),
        (NOT_USED, "the agent does not fill it: not used"),
        (None, "unknown: its host does not report"),
    ],
)
def test_server_is_shown_with_what_it_depends_on(reported, words, run, store, glance):
    glance.add(IMAGE)
    hold(store, fill=reported)
    shown = fields(run(server.ShowServer, "web"))
    assert words in shown["depends_on"] and "{why}" not in shown["depends_on"]
    assert (shown["fill"].machine_readable() or {}).get("state") == (reported or {}).get("state")


def test_server_on_a_dead_mount_is_shown(run, store, glance):
    glance.add(IMAGE)
    hold(store)
    health = decision_messages.HostHealth(on_dead_mounts=(SERVER,))
    samples.note(store, samples.sample(1, sent_s=time.time(), health=health))
    assert "a dead mount" in fields(run(server.ShowServer, "web"))["depends_on"]


def test_hosts_of_an_image_are_listed_with_what_they_hold(run, store, glance):
    glance.add(IMAGE)
    hold(store, size_bytes=None, cached_bytes=None, missing_bytes=None)
    [row, *_] = table(run(image.ListImageHost, IMAGE))
    assert (row["Host"], row["Boot Image"], row["Task"]) == ("h0000", "ready", "")
    assert row["Cached"].machine_readable() is None
    assert row["Cached"].human_readable()


def test_pre_seed_waits_until_all_hosts_are_done(run, store, glance, bus, agents):
    glance.add(IMAGE)
    rows = table(run(image.PreSeedImage, IMAGE, "--host", "h0001", "--host", "h0002", "--wait"))
    assert bus.tasks[0][1] == ["h0001", "h0002"]
    assert rows == [{"Host": name, "Task": "pre_seed: done, 100 %"} for name in ("h0001", "h0002")]
    assert table(run(image.PreSeedImage, IMAGE, "--count", "1")) == [{"Host": "h0000", "Task": ""}]


def test_pre_seed_of_an_aggregate_skips_its_hosts_that_send_no_samples(
    run, glance, bus, sdk, agents
):
    glance.add(IMAGE)
    sdk.aggregate_hosts = ["h0009", "h0002", "h0001", "other"]
    rows = table(run(image.PreSeedImage, IMAGE, "--aggregate", "new", "--wait"))
    assert bus.tasks[0][1] == ["h0001", "h0002"]
    assert {row["Host"]: row["Task"] for row in rows} == {
        **dict.fromkeys(("h0001", "h0002"), "pre_seed: done, 100 %"),
        **dict.fromkeys(("h0009", "other"), aggregates.SKIPPED),
    }


def test_hosts_of_an_aggregate_are_searched_on_all_pages(manager, sdk):
    sdk.aggregate_hosts = ["h0002", "h0009"]
    found = aggregates.find_hosts(manager, manager.acstor, "new", page_hosts=1)
    assert found == (["h0002"], ["h0009"])


@pytest.mark.parametrize("hosts", [None, [], ["h0009"]])
def test_pre_seed_of_an_aggregate_without_a_host_that_is_up_is_refused(
    hosts, run, glance, bus, sdk
):
    glance.add(IMAGE)
    sdk.aggregate_hosts = hosts
    with pytest.raises(exceptions.CommandError, match="no host of aggregate new sends samples"):
        run(image.PreSeedImage, IMAGE, "--aggregate", "new")
    assert bus.tasks == []


def test_pre_seed_of_an_aggregate_with_too_many_hosts_is_refused(run, store, glance, bus, sdk):
    glance.add(IMAGE)
    found = [samples.sample(n, sent_s=time.time()) for n in range(aggregates.MAX_HOSTS + 1)]
    samples.note(store, *found)
    sdk.aggregate_hosts = [reported.host for reported in found]
    with pytest.raises(exceptions.CommandError, match="has 1001 hosts that send samples"):
        run(image.PreSeedImage, IMAGE, "--aggregate", "new")
    assert bus.tasks == []


def test_failed_pre_seed_names_host_and_reason(run, glance, agents):
    glance.add(IMAGE)
    agents.update(state="failed", why="no place gives it")
    with pytest.raises(exceptions.CommandError, match="1 of 1 hosts: h0001: no place gives it"):
        run(image.PreSeedImage, IMAGE, "--host", "h0001", "--wait")


def test_pre_seed_timeout_names_the_command_to_check_it(run, glance, bus, agents):
    glance.add(IMAGE)
    agents.update(state="running", done=1, total=4)
    with pytest.raises(exceptions.CommandError, match=rf"image host list {IMAGE}"):
        run(image.PreSeedImage, IMAGE, "--host", "h0001", "--wait", "--timeout", "0")


def test_hosts_that_do_not_receive_a_pre_seed_are_named(run, glance, monkeypatch):
    glance.add(IMAGE)
    clock = iter([0.0, image_tasks.RECEIVED_WITHIN_S + 1.0])
    own_time = types.SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(image_tasks, "time", own_time)
    with pytest.raises(exceptions.CommandError, match=r"1 of 1 hosts did not receive it \(h0001\)"):
        run(image.PreSeedImage, IMAGE, "--host", "h0001", "--wait")


def test_prepare_waits_for_the_image_to_change(run, glance, bus, monkeypatch):
    glance.add(IMAGE, acstor_state="", acstor_chunk_map="")

    def look_again(_seconds: float) -> None:
        glance.add(IMAGE, updated_at="later")

    own_time = types.SimpleNamespace(monotonic=time.monotonic, sleep=look_again)
    monkeypatch.setattr(client, "time", own_time)
    assert fields(run(image.PrepareImage, IMAGE, "--wait"))["state"] == "ready"
    assert fields(run(image.PrepareImage, IMAGE, "--wait"))["state"] == "ready"
    assert [wanted.is_forced for wanted in bus.wanted] == [False, False]


def test_failed_prepare_gives_the_reason(run, glance, bus, monkeypatch):
    glance.add(IMAGE, acstor_state="")

    def look_again(_seconds: float) -> None:
        glance.add(IMAGE, acstor_state="failed", acstor_message="the disk is full")

    own_time = types.SimpleNamespace(monotonic=time.monotonic, sleep=look_again)
    monkeypatch.setattr(client, "time", own_time)
    with pytest.raises(exceptions.CommandError, match="is failed: the disk is full"):
        run(image.PrepareImage, IMAGE, "--wait", "--force")


def test_boot_image_is_shown_with_its_state_on_hosts(run, store, glance):
    glance.add(
        IMAGE,
        acstor_boot_image="7d2c1f9e-5d6b-4a5c-9c61-000000000002",
        acstor_boot_state="failed",
        acstor_boot_message="the builder was killed",
    )
    hold(store)
    shown = fields(run(boot_image.ShowBootImage, IMAGE))
    assert (shown["boot_state"], shown["boot_message"]) == ("failed", "the builder was killed")
    assert (shown["boot_image"][-1], shown["boot_revision"]) == ("2", 2)
    assert shown["hosts"].machine_readable()["h0002"] == "ready"


def test_boot_recording_is_requested_on_named_hosts(run, glance, bus, agents):
    glance.add(IMAGE)
    rows = table(
        run(boot_image.RecordBootImage, IMAGE, "--boots", "2", "--host", "h0000", "--wait")
    )
    assert rows == [{"Host": "h0000", "Task": "record_boots: done, 100 %"}]
    assert bus.tasks[0][0].boots == 2


def test_disks_are_flattened_on_named_hosts(run, store, bus, agents):
    hold(store)
    rows = table(run(image.FlattenImage, IMAGE, "--host", "h0002", "--wait"))
    assert rows == [{"Host": "h0002", "Task": "flatten: done, 100 %"}]
    assert bus.tasks[0][0].kind == "flatten"
    agents.update(state="failed", why="disk d: 3 chunks unavailable")
    with pytest.raises(exceptions.CommandError, match="h0000: disk d: 3 chunks unavailable"):
        run(image.FlattenImage, IMAGE, "--wait")


def test_server_is_shown_and_pre_seeded_on_its_host(run, store, glance, bus):
    glance.add(IMAGE)
    with pytest.raises(exceptions.CommandError, match="host h0001 does not report image"):
        run(server.ShowServer, "web")
    hold(store)
    shown = fields(run(server.ShowServer, "web"))
    assert (shown["server_id"], shown["host"]) == (SERVER, "h0001")
    assert shown["read"].machine_readable()["boot"] == 30
    assert table(run(server.PreSeedServer, "web")) == [{"Host": "h0001", "Task": ""}]
    assert bus.tasks[0][1] == ["h0001"]


BEGAN_AT_S = 1_800_000_000.25


def tell_of_boot(store, number, **fields):
    """Let a host report the server's boot."""
    reported = boot_timeline.Timeline(
        image_id=IMAGE,
        instance_id=SERVER,
        began_at_s=BEGAN_AT_S,
        opened_s=3.0,
        last_s=20.0,
        reads=7,
        waited_s={"source": 2.0},
        bytes={"boot": 3 << 20, "source": 1 << 20},
        slice_s=20.0,
        **fields,
    )
    samples.note(store, samples.sample(number, sent_s=time.time(), boots=(reported,)))


def asked_of_nova(action, before_s, *events):
    def reported(at_s):
        return datetime.datetime.fromtimestamp(at_s, datetime.UTC).replace(tzinfo=None).isoformat()

    return server_action.ServerAction(
        request_id=f"req-{action}-{before_s}",
        action=action,
        start_time=reported(int(BEGAN_AT_S - before_s)),
        events=[
            {
                "event": event,
                "start_time": reported(int(BEGAN_AT_S - from_s)),
                "finish_time": reported(int(BEGAN_AT_S - to_s)) if to_s is not None else None,
            }
            for event, from_s, to_s in events
        ],
    )


def test_boot_timeline_begins_with_the_request_to_nova(run, store, sdk, capsys):
    with pytest.raises(exceptions.CommandError, match="has reported no boot of server web"):
        run(server.ShowServerTimeline, "web")
    tell_of_boot(store, 2, boot_image="failed")  # a former host
    with pytest.raises(exceptions.CommandError, match="host h0001 has reported no boot"):
        run(server.ShowServerTimeline, "web")
    tell_of_boot(store, 1, boot_image="ready")
    sdk.actions = [
        asked_of_nova("create", 5000),
        asked_of_nova("start", 12, ("compute_start_instance", 10, None)),
        asked_of_nova("stop", 5),
        asked_of_nova("reboot", -100),  # after the boot
    ]
    run(server.ShowServerTimeline, "web")
    shown = capsys.readouterr().out
    assert "Host h0001" in shown and "boot image: ready" in shown
    assert "Nova: start requested" in shown and "Nova: start_instance" in shown
    assert "create" not in shown and "reboot" not in shown
    assert re.search(r"Nova: until it asked the agent +12\.25 ", shown)
    assert re.search(r"until the last read +32\.25", shown)
    assert "From the boot image: 75.0 %" in shown
    run(server.ShowServerTimeline, "web", "--json")
    reported = json.loads(capsys.readouterr().out)
    assert reported["host"] == "h0001" and reported["timeline"]["reads"] == 7
    assert [event["what"] for event in reported["nova"]] == ["start requested", "start_instance"]


@pytest.mark.parametrize(
    "actions",
    [
        [],
        [server_action.ServerAction(action="create", start_time="yesterday", request_id="r")],
        [server_action.ServerAction(action="create", start_time=None, request_id="r")],
    ],
)
def test_boot_timeline_is_drawn_without_usable_nova_actions(run, store, sdk, capsys, actions):
    tell_of_boot(store, 1)
    sdk.actions = actions
    run(server.ShowServerTimeline, "web")
    shown = capsys.readouterr().out
    assert "Nova: " not in shown
    assert re.search(r"until the last read +20\.00", shown)


def test_boot_timeline_is_drawn_when_nova_refuses(run, store, sdk, capsys):
    def refuse(server_id):
        raise sdk_exceptions.ForbiddenException("not yours")

    tell_of_boot(store, 1)
    sdk.compute.server_actions = refuse
    run(server.ShowServerTimeline, "web")
    assert "Nova: " not in capsys.readouterr().out
