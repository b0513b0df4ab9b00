# SPDX-License-Identifier: Apache-2.0
"""``acstor-nova-manage``: enables, disables and checks acstor in nova-compute."""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import prettytable
from oslo_config import cfg

from acstor_common import errors
from acstor_common.service import argument_types
from acstor_common.service import console_script
from acstor_common.util import printable_text
from acstor_nova import compute_user
from acstor_nova import enable
from acstor_nova.checks import host_check


def main() -> int:
    """Run a command; return 0 for success, 1 for a fault, 2 for wrong usage."""
    options = _parser().parse_args()
    try:
        return int(options.run(options))
    except (cfg.Error, errors.Unusable) as e:
        print(f"acstor-nova-manage: {console_script.error_text(e)}", file=sys.stderr)
        return 1


def _check(options: argparse.Namespace) -> int:
    user = compute_user.find_user(options.user)
    findings = host_check.check_host(host_check.load_conf(options.config_file), user)
    if options.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        print(_table(findings))
    return int(any(finding.level == host_check.Level.ERROR for finding in findings))


def _enable(options: argparse.Namespace) -> int:
    return _print_result(options, enable.enable(options.folder, is_trial=options.check))


def _disable(options: argparse.Namespace) -> int:
    status = _print_result(options, enable.disable(options.folder, is_trial=options.check))
    left = enable.find_other_settings(host_check.load_conf(options.config_file), options.folder)
    for line in left:
        print(f"acstor-nova-manage: remove this line yourself: {line}", file=sys.stderr)
    return 1 if left else status


def _print_result(options: argparse.Namespace, is_changed: bool) -> int:
    file = options.folder / enable.NAME
    if not is_changed:
        print(f"unchanged: {file}")
    elif options.check:
        print(f"would be changed: {file}")
    else:
        print(f"changed: {file}; restart nova-compute")
    return int(is_changed and options.check)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acstor-nova-manage", description=argument_types.help_text(__doc__)
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    added = _command(
        commands, "check", _check, "check this host and report what prevents Nova from using acstor"
    )
    added.add_argument(
        "--user",
        default="",
        help="user whose access to agent and mirror is checked, if root runs this (default: the "
        f"user of nova-compute, or {compute_user.ACCOUNT})",
    )
    added.add_argument("--json", action="store_true", help="print the findings as JSON")
    for name, run, text in (
        ("enable", _enable, "enable acstor in nova-compute from its next start on"),
        ("disable", _disable, "disable acstor in nova-compute from its next start on"),
    ):
        added = _command(commands, name, run, text)
        added.add_argument(
            "--check",
            action="store_true",
            help="only show the changes; the exit status is 1 if there are any",
        )
        added.add_argument(
            "--folder",
            type=pathlib.Path,
            default=enable.FOLDER,
            help="folder with further configuration files of nova-compute (default: %(default)s)",
        )
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    added.set_defaults(run=run)
    added.add_argument(
        "--config-file",
        action="append",
        default=[],
        help="configuration file of nova-compute; repeat the option for more files (default: those "
        "of the running nova-compute, or its usual ones)",
    )
    return added


def _table(findings: list[host_check.CheckResult]) -> str:
    table = prettytable.PrettyTable(["Check", "Level", "Detail", "Remedy"], align="l")
    table.max_width = 60
    for item in findings:
        words = (item.what, item.level, item.detail, item.remedy)
        table.add_row([printable_text.lines(str(word)) for word in words])
    return str(table)


if __name__ == "__main__":
    sys.exit(main())
