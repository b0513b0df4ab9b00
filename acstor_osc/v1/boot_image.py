# SPDX-License-Identifier: Apache-2.0
"""``openstack acstor boot image …``."""

import argparse
from typing import Any

from osc_lib.cli import format_columns

from acstor_common.service import argument_types
from acstor_osc import client
from acstor_osc import command_arguments
from acstor_osc import image_tasks
from acstor_osc import output_columns


class ShowBootImage(output_columns.ShowOne):
    """Show an image's boot image, and its state on each host."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        return command_arguments.with_image(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the fields and their values."""
        api = client.client_of(self)
        image_id = image_tasks.image_id_of(self.app.client_manager, parsed_args.image)
        found = api.get(f"/v1/images/{image_id}")
        hosts = api.get(f"/v1/images/{image_id}/hosts")["hosts"]
        states = {host["host"]: host["boot_image"] for host in hosts if host["boot_image"]}
        names = ("image_id", "boot_image", "boot_state", "boot_message", "boot_revision")
        read = found["read"]["boot"]
        return (
            [*names, "read_bytes", "hosts"],
            [
                *(found[name] for name in names),
                output_columns.SizeColumn(read),
                format_columns.DictColumn(states),
            ],
        )


class RecordBootImage(output_columns.Lister):
    """Record the next boots from an image; the listener makes its boot image from them."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = command_arguments.with_wait(
            command_arguments.with_image(super().get_parser(prog_name)), image_tasks.WAIT_S
        )
        command_arguments.with_hosts(parser)
        parser.add_argument(
            "--boots",
            type=argument_types.number_between(1, 100),
            default=1,
            metavar="<n>",
            help="boots to record on each host (default: 1)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the hosts and the progress of each."""
        image_id = image_tasks.image_id_of(self.app.client_manager, parsed_args.image)
        what = {"hosts": parsed_args.hosts, "boots": parsed_args.boots}
        return image_tasks.send_task(self, parsed_args, image_id, "record-boots", what)
