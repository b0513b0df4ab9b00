# SPDX-License-Identifier: Apache-2.0
"""The blocking agent client: replies, refusals, and unreachable, silent or malformed agents."""

import pytest

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.wire import control_wire
from acstor_nova import agent_client
from tests.fakes import scripted_agent

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
SOON_S = 0.2


@pytest.fixture
def path(tmp_path):
    return tmp_path / "control.sock"


@pytest.fixture
def client(path):
    return agent_client.AgentClient(str(path), 30.0)


def test_replies_of_the_agent_are_returned(path, client):
    answers = {
        control_wire.AttachImage: scripted_agent.done({"disk_format": "qcow2", "stored_bytes": 7}),
        control_wire.Status: scripted_agent.done({"host": "h1"}),
        control_wire.PowerOff: scripted_agent.done({"processes": 1}),
        control_wire.CountFallback: scripted_agent.done(),
        control_wire.Zeros: scripted_agent.done(
            {"size_bytes": 9 << 16, "chunk_bytes": 1 << 16, "zeros": b"\xff\x01"}
        ),
    }
    with scripted_agent.running(path, answers) as agent:
        assert client.attach_image(IMAGE) == ("qcow2", 7)
        cut = geometry.Geometry(9 << 16, 1 << 16)
        older = chunk_map.UNKNOWN_OS_HASH
        assert client.zero_map(IMAGE) == agent_client.ZeroMap(cut, b"\xff\x01", older)
        assert client.agent_status() == {"host": "h1"}
        client.notify_power_off(IMAGE, 20.0)
        client.count_fallback(control_wire.Fallback.DISK_FORMAT, 3)
    assert agent.asked == [
        control_wire.AttachImage(IMAGE),
        control_wire.Zeros(IMAGE),
        control_wire.Status(),
        control_wire.PowerOff(IMAGE),
        control_wire.CountFallback(control_wire.Fallback.DISK_FORMAT, 3),
    ]


def test_progress_messages_are_skipped(path, client):
    reported = control_wire.encode(control_wire.Progress(1, 2)) * 3
    answers = {control_wire.PreSeed: lambda r: reported + scripted_agent.done({})(r)}
    with scripted_agent.running(path, answers):
        client.pre_seed(IMAGE, 30.0)


def test_refusal_keeps_its_kind(path, client):
    answers = {control_wire.AttachImage: scripted_agent.failed("ChunkMissing", "no map")}
    with (
        scripted_agent.running(path, answers),
        pytest.raises(errors.AgentRefused, match="no map") as e,
    ):
        client.attach_image(IMAGE)
    assert e.value.kind == "ChunkMissing"


def test_unreachable_agent_is_named_by_its_socket(path, client):
    with pytest.raises(errors.AgentUnreachable, match=str(path)):
        client.agent_status()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "within 0.2 s"),
        (control_wire.encode(control_wire.Progress(1, 2)), "within 0.2 s"),
        (b"hello\n", "broke the protocol"),
        (b"x" * (control_wire.MAX_LINE_BYTES + 70_000), "a line of over"),
    ],
)
def test_silent_or_malformed_agent_is_unreachable(path, said, why):
    quick = agent_client.AgentClient(str(path), 30.0 if len(said) > 100 else SOON_S)
    with (
        scripted_agent.running(path, {control_wire.Status: lambda request: said}),
        pytest.raises(errors.AgentUnreachable, match=why),
    ):
        quick.agent_status()


def test_agent_that_closes_the_connection_is_unreachable(path, client, monkeypatch):
    monkeypatch.setattr(scripted_agent.ScriptedAgent, "hangs_up", True)
    with (
        scripted_agent.running(path, {control_wire.Status: lambda request: b""}),
        pytest.raises(errors.AgentUnreachable, match="before it answered"),
    ):
        client.agent_status()
