# SPDX-License-Identifier: Apache-2.0
"""Writes the manual page and bash completion of each command, from its parser.

Usage: command_pages.py PREFIX [COMMAND …]; PREFIX is as /usr/local.
"""

import argparse
import concurrent.futures
import functools
import importlib
import pathlib
import sys
import tomllib
from unittest import mock

import shtab
from argparse_manpage import manpage

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
DESCRIPTIONS = {"acstor-status": "check that the decision service can start or be upgraded"}
"""Of commands whose parser has none."""


class ParserFound(BaseException):
    """A command is about to parse its command line."""


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return a command's parser: starts the command until it parses its command line."""

    def stop(parser: argparse.ArgumentParser, *_args: object, **_more: object) -> None:
        raise ParserFound(parser)

    methods = dict.fromkeys(("parse_args", "parse_known_args"), stop)
    module, _, function = SCRIPTS[command].partition(":")
    start = getattr(importlib.import_module(module), function)
    try:
        with (
            mock.patch.multiple(argparse.ArgumentParser, **methods),
            mock.patch.object(sys, "argv", [command, "--help"]),
        ):
            status = start()
    except ParserFound as found:
        parser: argparse.ArgumentParser = found.args[0]
        return parser
    raise RuntimeError(f"{command}: no command line was parsed (status {status})")


def page(command: str, parser: argparse.ArgumentParser) -> str:
    """Return the manual page of a command in roff."""
    for group in parser._action_groups:
        group.title = group.title or "commands"  # argparse_manpage needs one
    made = manpage.Manpage(parser)
    first = (parser.description or DESCRIPTIONS[command]).partition("\n\n")[0]
    made.description = " ".join(first.removeprefix(f"{command}: ").split()).rstrip(".")
    made.source = made.manual = "acstor"
    return str(made)


def files(command: str, parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the content of both files of a command, by their path below the prefix."""
    return {
        f"share/man/man1/{command}.1": page(command, parser),
        f"share/bash-completion/completions/{command}": shtab.complete(parser, shell="bash"),
    }


def write(prefix: pathlib.Path, command: str) -> None:
    """Write both files of a command below a prefix."""
    for path, text in files(command, parser_of(command)).items():
        (prefix / path).parent.mkdir(parents=True, exist_ok=True)
        (prefix / path).write_text(text)


if __name__ == "__main__":
    # A process for each: commands register options in oslo.config's one global registry.
    with concurrent.futures.ProcessPoolExecutor(1, max_tasks_per_child=1) as processes:
        write_one = functools.partial(write, pathlib.Path(sys.argv[1]))
        list(processes.map(write_one, sys.argv[2:] or SCRIPTS))
