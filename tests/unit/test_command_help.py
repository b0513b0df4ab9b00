# SPDX-License-Identifier: Apache-2.0
"""Every command and every argument has a description without markup."""

import argparse
import importlib
import pathlib
import re
import tomllib
from collections.abc import Iterator

import pytest

from tests.unit.test_command_pages import command_pages
from tests.unit.test_commands import SCRIPTS
from tests.unit.test_commands import forked

PROJECT = tomllib.loads((pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text())
OF_OPENSTACK = PROJECT["project"]["entry-points"]["openstack.acstor.v1"]
MARKUP = re.compile(r"`|:\w+:`|\*\*")
PAGED = ("--limit", "--marker")
WINDOWED = {"acstor_traffic_list"}
"""Lists that show a window of time, not a page."""


SERVICES = {
    *("acstor-agent", "acstor-checkpointd", "acstor-decision"),
    *("acstor-glance-listener", "acstor-status"),
}
"""Commands with only oslo's options, which it describes in its own way."""


def every_parser(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, object]]:
    """Yield name, description and parser of a command and of all its subcommands."""
    yield name, parser.description or "", parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            said = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for word, below in action.choices.items():
                for full, reported, one in every_parser(f"{name} {word}", below):
                    yield full, reported or said.get(word, ""), one


def faults(name: str, said: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield faults of a command's help text."""
    if not said.strip():
        yield f"{name}: says nothing of itself"
    if MARKUP.search(said):
        yield f"{name}: {said}"
    for action in parser._actions:
        what = "/".join(action.option_strings) or action.dest
        if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        if not action.help:
            yield f"{name} {what}: says nothing of itself"
        elif MARKUP.search(action.help):
            yield f"{name} {what}: {action.help}"


@pytest.mark.parametrize("name", sorted(set(SCRIPTS) - SERVICES))
def test_every_argument_of_a_command_is_described(name):
    parser = command_pages.parser_of(name)
    found = [fault for one in every_parser(name, parser) for fault in faults(*one)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", sorted(SERVICES - {"acstor-status"}))  # oslo.upgradecheck's own
def test_every_service_has_a_description(name):
    done = forked(name, "--help")
    said = done.stdout.partition("\n\n")[2].partition("\n\n")[0]
    assert said.endswith(".") and not MARKUP.search(said), done.stdout


def parser_of_openstack(name: str) -> argparse.ArgumentParser:
    module, _, of_class = OF_OPENSTACK[name].partition(":")
    command = getattr(importlib.import_module(module), of_class)(argparse.Namespace(), None)
    made: argparse.ArgumentParser = command.get_parser(f"openstack {name.replace('_', ' ')}")
    return made


@pytest.mark.parametrize("name", OF_OPENSTACK)
def test_every_argument_of_an_openstack_command_is_described(name):
    parser = parser_of_openstack(name)
    found = list(faults(name, parser.description or "", parser))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", [name for name in OF_OPENSTACK if name.endswith("_list")])
def test_every_list_is_paged_in_the_same_way(name):
    known = {option for one in parser_of_openstack(name)._actions for option in one.option_strings}
    assert known.issuperset(PAGED) != (name in WINDOWED)


VERBS = {
    **{"list": "List", "show": "Show", "create": "Create", "delete": "Delete"},
    **{"allow": "Allow", "drain": "Drain", "enable": "Enable", "forget": "Forget"},
    **{"flatten": "Flatten", "hydrate": "Hydrate", "pause": "Pause", "pre-seed": "PreSeed"},
    **{"prepare": "Prepare", "record": "Record", "resume": "Resume", "revoke": "Revoke"},
    **{"status": "Show", "timeline": "Show", "unpin": "Unpin"},
}


@pytest.mark.parametrize("name", OF_OPENSTACK)
def test_verb_has_the_same_class_prefix_in_every_command(name):
    of_class = OF_OPENSTACK[name].partition(":")[2]
    assert of_class.startswith(VERBS[name.rpartition("_")[2]])
