# SPDX-License-Identifier: Apache-2.0
"""Every documented command is run or parsed by a test, or excluded with a reason.

``run``: a functional test requests the commands of this section and runs them.  ``parsed``: the
program's own parser accepts the exact line, with words in place of those in capitals.  ``left``:
commands of other programs that no test runs, each with the reason.
"""

import argparse
import ast
import collections
import functools
import importlib
import importlib.metadata
import pathlib
import re
import shlex
import sys
import tomllib
from typing import Any

import pytest
from oslo_config import cfg

from tests.lab import documents

PROJECT = tomllib.loads((documents.ROOT / "pyproject.toml").read_text())["project"]
SCRIPTS = PROJECT["scripts"]
UUID = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
WORDS = {
    "BYTES": "10737418240",
    "CHECKPOINT": UUID,
    "DISK": UUID,
    "DURATION": "15m",
    "EPOCH": "7",
    "ID": UUID,
    "IMAGE": UUID,
    "KEY": "0f" * 32,
    "N": "2",
    "POLICY": "none",
    "SECONDS": "60",
    "SERVER": UUID,
    "TIME": "2026-11-24T06:00:00",
}
"""Replacements of the documents' words in capitals; others are names."""
GROUPS = ("openstack.common", "openstack.identity.v3", "openstack.image.v2", "openstack.compute.v2")
LEFT: dict[tuple[str, str], str] = {
    ("README.rst", "git"): "tools/fresh-root.sh makes a clone of what is committed",
    ("README.rst", "demo.sh"): "tools/fresh-root.sh runs it on fresh systems",
    ("README.rst", "test.sh"): "tools/fresh-root.sh runs it on fresh systems",
    ("README.rst", "clean.sh"): "takes away what other tests of this checkout use",
    ("user/try_it.rst", "demo.sh"): "tools/fresh-root.sh runs it on fresh systems",
    ("user/try_it.rst", "clean.sh"): "takes away what other tests of this checkout use",
    (
        "user/try_it.rst",
        "openstack-lab.sh",
    ): "tools/test.sh installs and starts clouds with its parts",
    ("user/index.rst", "ssh"): "needs a second machine",
    ("user/index.rst", "scp"): "needs a second machine",
    ("devstack/README.rst", "sudo"): "needs a DevStack",
    (
        "install/quickstart.rst",
        "package.sh",
    ): "tests/lab/debian_root.py builds the packages with it",
    ("install/quickstart.rst", "scp"): "needs a second machine",
    ("install/quickstart.rst", "rabbitmqctl"): "needs RabbitMQ's own node, with its cookie",
    ("install/quickstart.rst", "curl"): "test_packages.py asks the API behind the proxy",
    (
        "admin/decision.rst",
        "mariadb",
    ): "the lab's databases are made by tests/lab/openstack/mariadb.py",
    ("admin/decision.rst", "rabbitmqctl"): "needs RabbitMQ's own node, with its cookie",
    ("install/deployment_tools.rst", "cd"): "test_kolla_ansible_recipe.py copies from there",
    ("install/deployment_tools.rst", "kolla-ansible"): "needs hosts with Kolla's containers",
    ("install/deployment_tools.rst", "openstack-ansible"): "needs a cloud of OpenStack-Ansible",
    ("install/deployment_tools.rst", "kubectl"): "needs a Kubernetes",
    ("install/deployment_tools.rst", "for"): "needs a Kubernetes",
    ("admin/failures.rst", "virsh"): "needs an instance with a broken disk",
    ("admin/nova.rst", "virsh"): "a synopsis; test_nova_moves.py flattens with libvirt's own words",
    (
        "admin/gateway.rst",
        "uwsgi",
    ): "tests/lab/openstack/acstor_gateway.py starts it with these options",
    (
        "admin/gateway.rst",
        "curl",
    ): "needs a token in the shell; test_glance_gateway.py asks for ranges",
    ("admin/rest_api.rst", "uwsgi"): "tests/lab/openstack/acstor_decision.py starts it so",
}
"""Exclusions by page and program."""
ANYWHERE = {
    "apt-get": "packages of a distribution: needs its mirrors",
    "apparmor_parser": "needs a kernel with AppArmor; the profile is parsed by test_packaging.py",
    "pip": "needs a package index; test_installed_role.py installs a role so",
    "python3": "makes the virtualenv for pip",
    "systemctl": "needs services that are configured; test_systemd.py runs the units",
    "$EDITOR": "is for a person",
}
"""Exclusions by program, on any page, in sections that no test runs."""
LEAST_RUN = 95
MOST_LEFT = 80


@functools.cache
def all_commands() -> list[documents.Command]:
    return [one for page in documents.PAGES for one in documents.commands(page)]


@functools.cache
def run_sections() -> set[tuple[str, ...]]:
    """Return the arguments of all calls of :func:`documents.section` in functional tests."""
    found = set()
    for path in sorted((documents.ROOT / "tests").glob("[cf]*/test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "documents.section":
                found.add(tuple(ast.literal_eval(word) for word in node.args))
    return found


def is_run(one: documents.Command) -> bool:
    wanted = {(one.page, one.section), (one.page, one.section, one.program)}
    return not one.is_inline and bool(wanted & run_sections())


def is_ours(one: documents.Command) -> bool:
    return one.program in SCRIPTS or one.program == "openstack"


def why_left(one: documents.Command) -> str | None:
    return LEFT.get((one.page, one.program)) or ANYWHERE.get(one.program)


def class_of(one: documents.Command) -> str:
    if is_run(one):
        return "run"
    if is_ours(one):
        return "parsed"
    return "left" if why_left(one) else "nowhere"


def test_every_documented_command_is_run_or_parsed_or_excluded() -> None:
    counts = collections.Counter(class_of(one) for one in all_commands())
    print(f"commands of the documents: {dict(counts)}")
    nowhere = [
        (one.page, one.section, one.line) for one in all_commands() if class_of(one) == "nowhere"
    ]
    assert nowhere == [], "run them in a functional test (documents.section), or say their language"
    assert counts["run"] >= LEAST_RUN
    assert counts["left"] <= MOST_LEFT


def test_every_section_that_a_test_runs_exists() -> None:
    for words in run_sections():
        assert documents.section(*words)


def test_no_exclusion_is_unused() -> None:
    left = {(one.page, one.program) for one in all_commands() if class_of(one) == "left"}
    assert set(LEFT) - left == set()
    assert set(ANYWHERE) - {program for _, program in left} == set()


def test_continued_commands_are_joined_and_comments_removed(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.rst"
    page.write_text(
        "Page\n====\n\nDo::\n\n    # first\n    one --a \\\n        two  # why\n\nShown::\n\n"
        "    $ three\n    output\n\nA file::\n\n    [group]\n    a = b\n\n``acstor-x y``\n"
    )
    found = list(documents.commands(page, "page.rst"))
    assert [one.line for one in found] == ["one --a two", "three", "acstor-x y"]
    assert {one.section for one in found} == {"Page"}


class _ParsedError(BaseException):
    """The program's parser accepted its arguments; no work is to be done."""


def filled(line: str, *, with_options: bool) -> str:
    """Return a line as a user would type it: without the parts in brackets, or with them."""
    chosen = r" \1" if with_options else ""
    line = re.sub(r"\s*\[([^][|]+)(?:\|[^][]*)?\]", chosen, line)
    line = re.sub(r"\s(?:&&|\||>>?|&)(?:\s.*|$)", "", line)
    line = re.sub(r" …|\.\.\.", "", line)

    def word(match: re.Match[str]) -> str:
        return WORDS.get(match[1], match[1].lower())

    return re.sub(r"(?<![\w/.=-])([A-Z][A-Z_]*)(?![\w=])", word, line)


@pytest.mark.parametrize("path", documents.PAGES, ids=documents.name_of)
def test_documented_lines_parse(
    path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for one in filter(is_ours, documents.commands(path)):
        for with_options in (False, True):
            argv = shlex.split(filled(one.line, with_options=with_options))
            while pathlib.PurePath(argv[0]).name != one.program:
                del argv[0]  # sudo, and variables of the command
            try:
                if one.program == "openstack":
                    parse_openstack(argv[1:])
                else:
                    parse_script(one.program, argv[1:], monkeypatch, tmp_path)
            except SystemExit:  # running text may name a command without its required arguments
                said = capsys.readouterr().err
                assert one.is_inline, f"{one.line}: {said}"
                assert "the following arguments are required" in said


def parse_script(
    name: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Let a script parse its arguments, up to the start of its work."""
    empty = tmp_path / "empty.conf"
    empty.touch()
    argv = [str(empty) if re.fullmatch(r"/etc/acstor/\S+\.conf", word) else word for word in words]
    module, _, function = SCRIPTS[name].partition(":")
    parse = argparse.ArgumentParser.parse_args

    def parse_and_end(self: argparse.ArgumentParser, *given: Any, **named: Any) -> None:
        parse(self, *given, **named)
        raise _ParsedError

    with monkeypatch.context() as patched:
        patched.setattr(sys, "argv", [name, *argv])
        patched.setattr(argparse.ArgumentParser, "parse_args", parse_and_end)
        patched.setattr(cfg, "CONF", cfg.ConfigOpts())  # other tests have parsed theirs into it
        with pytest.raises(_ParsedError):
            getattr(importlib.import_module(module), function)()


@functools.cache
def openstack_commands() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the commands by name; acstor's from this tree, not from an older installation."""
    own = PROJECT["entry-points"]["openstack.acstor.v1"].items()
    points = [
        *(importlib.metadata.EntryPoint(name, at, "openstack.acstor.v1") for name, at in own),
        *(one for group in GROUPS for one in importlib.metadata.entry_points(group=group)),
    ]
    return {point.name.replace("_", " "): point for point in points}


def parse_openstack(words: list[str]) -> None:
    """Let the command that the words start with parse the rest."""
    known = openstack_commands()
    names = [" ".join(words[:count]) for count in range(len(words), 0, -1)]
    [name, *_] = [one for one in names if one in known] or [""]
    assert name, f"there is no command openstack {' '.join(words)}"
    rest = words[len(name.split()) :]
    command = known[name].load()
    made = command.__new__(command)
    app = argparse.Namespace(client_manager=argparse.Namespace(), options=argparse.Namespace())
    made.__init__(app, argparse.Namespace())
    made.get_parser(f"openstack {name}").parse_args(rest)
