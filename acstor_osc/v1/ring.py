# SPDX-License-Identifier: Apache-2.0
"""``openstack acstor ring …``."""

import argparse
from typing import Any

from osc_lib.cli import format_columns
from osc_lib.command import command

from acstor_common.service import argument_types
from acstor_osc import client
from acstor_osc import command_arguments
from acstor_osc import output_columns

EPOCH = argument_types.number_between(1, 1 << 62)
TITLES = {"vnodes": "V-nodes", "moved_vnodes": "Moved V-nodes"}
HISTORY = (
    *("epoch", "published_at", "reason", "overloaded_hosts", "moved_vnodes", "vnodes"),
    *("hosts", "instance"),
)


class ShowRing(output_columns.ShowOne):
    """Show the current v-node table, or that of an epoch."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        return _with_epoch(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the fields and their values."""
        shown = _table(self, parsed_args)
        shown["owners"] = format_columns.DictColumn(
            {owner["host"]: owner["vnodes"] for owner in shown["owners"]}
        )
        shown["places"] = format_columns.DictColumn(shown["places"])
        shown["overloaded_hosts"] = format_columns.ListColumn(shown["overloaded_hosts"])
        return list(shown), list(shown.values())


class ListRingOwner(output_columns.Lister):
    """List the hosts of a v-node table with their shares of the v-nodes."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        return command_arguments.with_page(_with_epoch(super().get_parser(prog_name)), "host")

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the columns and the rows."""
        table = _table(self, parsed_args)
        whole = table["vnodes"] or 1
        return (
            ["Host", "Address", "Location", "V-nodes", "Share %"],
            [
                [
                    *(owner[name] for name in ("host", "address", "location", "vnodes")),
                    round(100 * owner["vnodes"] / whole, 1),
                ]
                for owner in command_arguments.page_of(table["owners"], parsed_args, "host")
            ],
        )


class ListRing(output_columns.Lister):
    """List the published v-node tables, the newest first, with reasons."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--limit",
            type=argument_types.number_between(1, 1000),
            metavar="<n>",
            help="show at most this many tables, at most 1000",
        )
        parser.add_argument(
            "--marker",
            type=EPOCH,
            metavar="<epoch>",
            help="begin after the table of this epoch",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the columns and the rows."""
        query = {"limit": parsed_args.limit, "marker": parsed_args.marker}
        found = client.client_of(self).get("/v1/rings", query)["rings"]
        return (
            [TITLES.get(name, name.replace("_", " ").title()) for name in HISTORY],
            [
                [
                    format_columns.ListColumn(row[name])
                    if name == "overloaded_hosts"
                    else row[name]
                    for name in HISTORY
                ]
                for row in found
            ],
        )


def _with_epoch(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument(
        "--epoch",
        type=EPOCH,
        metavar="<epoch>",
        help="show the table of this epoch (default: the current one)",
    )
    return parser


def _table(asking: command.Command, parsed_args: argparse.Namespace) -> dict[str, Any]:
    path = "/v1/ring" if parsed_args.epoch is None else f"/v1/rings/{parsed_args.epoch}"
    found: dict[str, Any] = client.client_of(asking).get(path)
    return found
