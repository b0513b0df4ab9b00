# SPDX-License-Identifier: Apache-2.0
"""API versions of commands: negotiation and errors for unsupported versions."""

import argparse
import types

import pytest
from osc_lib import exceptions

from acstor_decision.api import app
from acstor_decision.api import openapi
from acstor_osc import api_versions
from acstor_osc import plugin
from acstor_osc.v1 import status
from tests.unit.decision.api import conftest as samples
from tests.unit.osc import test_commands as commands


@pytest.fixture
def run(api_configuration, store, glance, bus):
    """Return a function that runs a command with a requested API version."""
    samples.note(store, *(samples.sample(number) for number in range(3)))
    wsgi = app.make_plain_app(api_configuration, store, glance, bus).test_client()
    wsgi.environ_base["HTTP_X_ROLES"] = "admin"

    def do(asked, command, *argv):
        manager = types.SimpleNamespace(acstor=commands.InProcess(wsgi, asked))
        made = command(types.SimpleNamespace(client_manager=manager), argparse.Namespace())
        return made.take_action(made.get_parser("test").parse_args(argv))

    return do


def test_client_and_service_know_the_same_versions():
    assert api_versions.KNOWN == openapi.VERSIONS


class NeedsMore(status.ShowStatus):
    since = "1.1"


@pytest.fixture
def later(monkeypatch):
    """Give client and service two versions, and the client a third one."""
    monkeypatch.setattr(api_versions, "KNOWN", ("1.0", "1.1", "1.2"))
    monkeypatch.setattr(openapi, "VERSIONS", ("1.0", "1.1"))


@pytest.mark.parametrize("asked", ["1", "1.1"])
def test_command_works_with_every_supporting_version(asked, run, later):
    assert run(asked, NeedsMore)


def test_command_refuses_a_version_that_is_too_early(run, later):
    with pytest.raises(exceptions.CommandError, match=r"needs version 1\.1 .* is 1\.0"):
        run("1.0", NeedsMore)


def test_unsupported_version_of_the_service_is_named_with_the_remedy(run, later, monkeypatch):
    assert run("1", status.ShowStatus)
    monkeypatch.setattr(NeedsMore, "since", "1.2")
    with pytest.raises(exceptions.CommandError) as raised:
        run("1", NeedsMore)
    assert "there is no version '1.2' here, but 1.0, 1.1" in str(raised.value)
    assert f"choose one with {api_versions.OPTION}, or upgrade the service" in str(raised.value)


@pytest.mark.parametrize("text", ["1.99", "2", "1.x", "", "newest", "1.1.1"])
def test_unknown_version_is_refused(text, capsys):
    parser = plugin.build_option_parser(argparse.ArgumentParser())
    with pytest.raises(SystemExit):
        parser.parse_args([api_versions.OPTION, text])
    assert "this client supports 1.0 to 1.0, and latest" in capsys.readouterr().err
    with pytest.raises(exceptions.CommandError, match="needs a later acstor"):
        plugin.check_api_version(text)  # from clouds.yaml


def test_latest_means_the_newest_common_version():
    parser = plugin.build_option_parser(argparse.ArgumentParser())
    assert parser.parse_args([api_versions.OPTION, "latest"]).os_acstor_api_version == "1"
    assert parser.parse_args([]).os_acstor_api_version == "1"
    assert plugin.check_api_version("1") and plugin.check_api_version("1.0")
    with pytest.raises(exceptions.CommandError, match=r"set 1 in clouds\.yaml"):
        plugin.check_api_version("latest")


def test_client_uses_the_requested_version(later):
    given = types.SimpleNamespace(
        session=types.SimpleNamespace(timeout=None),
        region_name=None,
        interface=None,
        _api_version={"acstor": "1.0"},
    )
    with pytest.raises(exceptions.CommandError, match=r"is 1\.0"):
        plugin.make_client(given).require_version("1.8")
