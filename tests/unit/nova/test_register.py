# SPDX-License-Identifier: Apache-2.0
"""What is put around functions of Nova; ``test_nova_versions.py`` has real ones."""

import types

import pytest

from acstor_nova import imagebackend
from acstor_nova import register

INSTANCE = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"


class NotEndedError(Exception):
    """As libvirt's when it restarts meanwhile."""


@pytest.fixture
def nova(monkeypatch):
    """Return Nova's module of guests, whose instances are on mirrors, and what is done in order."""
    done, host = [], object()

    class Guest:
        uuid = INSTANCE
        fails = False

        def poweroff(self):
            done.append("poweroff")
            if self.fails:
                raise NotEndedError

    def switch_off(where, instance_id, *, is_taken_back=False):
        assert (where, instance_id) == (host, INSTANCE)
        done.append("taken back" if is_taken_back else "told")

    monkeypatch.setattr(register.seams, "check", lambda version, modules: None)
    monkeypatch.setattr(register, "nova_version", lambda: 34)
    monkeypatch.setattr(register, "_backend", lambda module: types.SimpleNamespace(host=host))
    monkeypatch.setattr(register.importlib, "import_module", lambda name: None)
    monkeypatch.setattr(imagebackend, "switch_off", switch_off)
    module = types.SimpleNamespace(Guest=Guest, done=done)
    register._register_poweroff(module)
    return module


def test_agent_is_told_before_an_instance_is_ended(nova):
    nova.Guest().poweroff()
    assert nova.done == ["told", "poweroff"]


def test_agent_is_told_that_an_instance_lives_which_could_not_be_ended(nova, monkeypatch):
    monkeypatch.setattr(nova.Guest, "fails", True)
    with pytest.raises(NotEndedError):
        nova.Guest().poweroff()
    assert nova.done == ["told", "poweroff", "taken back"]


@pytest.mark.expect_log("the agent was not told")
def test_what_fails_when_the_agent_is_told_changes_nothing_for_nova(nova, monkeypatch):
    def fail(*args, **more):
        raise RuntimeError("a fault")

    monkeypatch.setattr(imagebackend, "switch_off", fail)
    nova.Guest().poweroff()
    monkeypatch.setattr(nova.Guest, "fails", True)
    with pytest.raises(NotEndedError):
        nova.Guest().poweroff()
    assert nova.done == ["poweroff", "poweroff"]
