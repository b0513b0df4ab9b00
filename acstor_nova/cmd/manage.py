# SPDX-License-Identifier: Apache-2.0
"""``acstor-nova-manage``: tells an operator on a compute host what is wrong with acstor there."""

import argparse
import dataclasses
import json
import sys

import prettytable
from oslo_config import cfg

from acstor_common import errors
from acstor_nova import check
from acstor_nova import compute_user


def main() -> int:
    """Carry out a command; return 0 when all is well, 1 when something is wrong, 2 for misuse."""
    options = _parser().parse_args()
    try:
        user = compute_user.find(options.user)
        findings = check.check(check.load_conf(options.config_file), user)
    except (cfg.Error, errors.Unusable) as e:
        print(f"acstor-nova-manage: {e}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        print(_table(findings))
    return int(any(finding.level == check.Level.ERROR for finding in findings))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acstor-nova-manage", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    text = "look at this host and say what keeps Nova from using acstor"
    added = commands.add_parser("check", help=text, description=text)
    added.add_argument(
        "--config-file",
        action="append",
        default=[],
        help="a file that nova-compute reads (those that the running one was given, or else those "
        "that it finds by itself); may be repeated",
    )
    added.add_argument(
        "--user",
        default="",
        help="with whose rights agent and mirror are looked at, if root runs this (whoever runs "
        f"nova-compute, or else {compute_user.ACCOUNT})",
    )
    added.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser


def _table(findings: list[check.Finding]) -> str:
    table = prettytable.PrettyTable(["What", "Level", "Detail", "What to do"], align="l")
    table.max_width = 60
    table.add_rows([[item.what, item.level, item.detail, item.remedy] for item in findings])
    return str(table)


if __name__ == "__main__":
    sys.exit(main())
