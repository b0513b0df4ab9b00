# SPDX-License-Identifier: Apache-2.0
"""``acstor-decision-manage``: what an operator does on the service's own host.

It works on the database alone, so it needs neither the service nor the broker.
"""

import argparse
import sys
import time

from oslo_config import cfg

from acstor_common import arguments
from acstor_common import errors
from acstor_decision.cmd import decision
from acstor_decision.db import database

HISTORY_LIMIT = 10_000


def main() -> int:
    """Do what the command line says; return an exit status."""
    arguments = _parser().parse_args()
    files = ["--config-file", arguments.config_file] if arguments.config_file else []
    try:
        store = database.Database(decision.load_conf(files))
        arguments.do(store, arguments)
    except (errors.Unusable, cfg.Error, database.DatabaseError, OSError) as e:
        print(f"acstor-decision-manage: {e}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acstor-decision-manage", description=__doc__)
    parser.add_argument("--config-file", help="the service's configuration")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    sync = commands.add_parser("db-sync", help="make the database's tables, or bring them up")
    sync.set_defaults(do=lambda store, _: store.upgrade())
    for name, is_drained, text in (
        ("drain", True, "let a host be home of nothing"),
        ("enable", False, "let a drained host be a home again"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("host")
        command.set_defaults(do=_set_drained, is_drained=is_drained)
    history = commands.add_parser("history", help="show the v-node tables that were published")
    history.add_argument("--limit", type=arguments.number(1, HISTORY_LIMIT), default=20)
    history.set_defaults(do=_show_history)
    return parser


def _set_drained(store: database.Database, arguments: argparse.Namespace) -> None:
    if not store.set_drained(arguments.host, arguments.is_drained):
        raise errors.Unusable(f"host {arguments.host}", "it has never been heard of")


def _show_history(store: database.Database, arguments: argparse.Namespace) -> None:
    for ring in store.rings(limit=arguments.limit):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ring.published_s))
        print(
            f"{when}  epoch {ring.epoch}  {ring.reason:9}  {ring.moved} of {ring.vnodes} v-nodes "
            f"moved  {ring.hosts} hosts  {' '.join(ring.overloaded)}".rstrip()
        )


if __name__ == "__main__":
    sys.exit(main())
