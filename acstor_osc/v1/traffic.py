# SPDX-License-Identifier: Apache-2.0
"""``openstack acstor traffic …``."""

import argparse
from typing import Any

from acstor_common.service import argument_types
from acstor_osc import client
from acstor_osc import output_columns

LONGEST_S = 86_400.0
RATES = ("received", "sent", "chunks_received", "chunks_sent")


class ListTraffic(output_columns.Lister):
    """List the traffic of hosts in bytes per second, one row for each collection."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--host", metavar="<host>", help="show only this host")
        parser.add_argument(
            "--last",
            type=argument_types.duration(LONGEST_S),
            metavar="<duration>",
            help="show all collections of this period, as 90s or 2h (default: each host's last)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the columns and the rows."""
        query = {"host": parsed_args.host, "last_s": parsed_args.last}
        found = client.client_of(self).get("/v1/traffic", query)["traffic"]
        return (
            ["Host", "Collected At", *(name.replace("_", " ").title() for name in RATES)],
            [
                [row["host"], row["collected_at"], *(round(row["rates"][name]) for name in RATES)]
                for row in found
            ],
        )
