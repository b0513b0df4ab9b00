# SPDX-License-Identifier: Apache-2.0
"""Every command has a manual page and a completion that name its subcommands and options."""

import argparse
import importlib.util
import re
import subprocess

import pytest

from tests.fakes import forked_command
from tests.unit.test_commands import ROOT
from tests.unit.test_commands import SCRIPTS

SPEC = importlib.util.spec_from_file_location("command_pages", ROOT / "packaging/command_pages.py")
assert SPEC is not None and SPEC.loader is not None
command_pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(command_pages)


def words_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the subcommands and long options of a parser and of all its subparsers."""
    found: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= set(action.choices).union(*map(words_of, action.choices.values()))
        elif action.help != argparse.SUPPRESS:
            found |= {option for option in action.option_strings if option.startswith("--")}
    return found - {"--help"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_command_has_a_page_and_a_completion(name: str) -> None:
    def check() -> int:
        parser = command_pages.parser_of(name)
        page, completion = command_pages.files(name, parser).values()
        page = page.replace("\\-", "-")
        assert re.search(rf"^\.SH NAME\n{name} - \w.+\w\n\.SH SYNOPSIS\n", page, re.MULTILINE)
        words = words_of(parser)
        assert [word for word in words if word not in page] == []
        if name != "acstor-status":  # shtab omits subcommands without help: oslo.upgradecheck's
            assert [word for word in words if word not in completion] == []
        subprocess.run(["bash", "-n"], input=completion, text=True, check=True)
        return 0

    done = forked_command.run(check, name=name)
    assert done.returncode == 0, done.stderr
