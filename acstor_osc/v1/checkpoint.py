# SPDX-License-Identifier: Apache-2.0
"""``openstack acstor checkpoint …``: checkpoints of servers' disks."""

import argparse
from typing import Any

from osc_lib import exceptions
from osc_lib.cli import format_columns
from osc_lib.command import command

from acstor_common.model import ids
from acstor_osc import client
from acstor_osc import command_arguments
from acstor_osc import output_columns

COLUMNS = (
    ("ID", "checkpoint_id"),
    ("Server", "instance_id"),
    ("Taken At", "taken_at"),
    ("Host", "host"),
    ("Consistency", "consistency"),
    ("Changed", "changed_bytes"),
    ("Kept By", "holders"),
)
LONG = (
    ("Image", "image_id"),
    ("Project", "project_id"),
    ("Number", "number"),
    ("Size", "size_bytes"),
    ("Sent", "sent_bytes"),
    ("Interval", "interval_s"),
    ("Registered At", "registered_at"),
    ("Server Deleted At", "server_deleted_at"),
)
WAIT_S = 900.0
LOOK_WITH = "openstack acstor checkpoint list --server"


class ListCheckpoint(output_columns.Lister):
    """List checkpoints, the newest first."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = command_arguments.with_page(super().get_parser(prog_name), "checkpoint")
        command_arguments.with_long(parser, "images, projects, sizes and intervals")
        parser.add_argument(
            "--server", metavar="<server>", help="show only checkpoints of this server (id or name)"
        )
        parser.add_argument(
            "--host", metavar="<host>", help="show only checkpoints that this host took"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the columns and the rows."""
        query = {**command_arguments.page(parsed_args), "host": parsed_args.host}
        if parsed_args.server:
            query["instance"] = _server_id(self.app.client_manager, parsed_args.server)
        found = client.client_of(self).get("/v1/checkpoints", query)["checkpoints"]
        columns = (*COLUMNS, *LONG) if parsed_args.long else COLUMNS
        return (
            [title for title, _ in columns],
            [[_shown(name, row[name]) for _, name in columns] for row in found],
        )


class ShowCheckpoint(output_columns.ShowOne):
    """Show one checkpoint."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = super().get_parser(prog_name)
        parser.add_argument("checkpoint", metavar="<checkpoint>", help="id of the checkpoint")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the fields and their values."""
        return _fields(client.client_of(self).get(f"/v1/checkpoints/{_id(parsed_args.checkpoint)}"))


class CreateCheckpoint(output_columns.ShowOne):
    """Take a checkpoint of a server now; without --wait, show the host that takes it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = super().get_parser(prog_name)
        parser.add_argument("server", metavar="<server>", help="id or name of the server")
        return command_arguments.with_wait(parser, WAIT_S, "other hosts keep it")

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the fields of the request, or of the checkpoint."""
        api = client.client_of(self)
        server_id = _server_id(self.app.client_manager, parsed_args.server)
        asked = api.post("/v1/checkpoints", {"instance_id": server_id})
        if not parsed_args.wait:
            return _fields(asked)

        def look() -> tuple[int, int]:
            newest = _newest(api, server_id)
            is_of_host = newest.get("host") == asked["host"]
            return int(is_of_host and newest["number"] > asked["previous_number"]), 1

        what = f"checkpoint of {parsed_args.server} on {asked['host']}"
        client.wait_until_done(what, look, parsed_args.timeout, f"{LOOK_WITH} {server_id}")
        return _fields(_newest(api, server_id))


class DeleteCheckpoint(command.Command):
    """Delete checkpoints; the host that took them deletes their copies."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "checkpoints", metavar="<checkpoint>", nargs="+", help="id of the checkpoint"
        )
        parser.add_argument(
            "--force",
            action="store_true",
            help="also checkpoints that a recovery may still read; its server then lacks data",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete as many checkpoints as possible; CommandError names the others with reasons."""
        api, failed = client.client_of(self), []
        body = {"force": True} if parsed_args.force else {}
        for checkpoint in parsed_args.checkpoints:
            try:
                api.post(f"/v1/checkpoints/{_id(checkpoint)}/delete", body)
            except exceptions.CommandError as e:
                failed.append(f"{checkpoint}: {e}")
        if failed:
            raise exceptions.CommandError("\n".join(failed))


def _newest(api: client.Client, server_id: str) -> dict[str, Any]:
    found = api.get("/v1/checkpoints", {"instance": server_id, "limit": 1})["checkpoints"]
    newest: dict[str, Any] = found[0] if found else {}
    return newest


def _server_id(manager: Any, name: str) -> str:
    """Return the ID of a server; one that Nova deleted must be named by its ID."""
    found = manager.sdk_connection.compute.find_server(name, ignore_missing=True)
    if found is not None:
        return str(found.id)
    try:
        return ids.parse_image_id(name)
    except ValueError:
        raise exceptions.CommandError(f"Nova has no server {name} that you may see") from None


def _id(text: str) -> str:
    try:
        return ids.parse_image_id(text)
    except ValueError:
        raise exceptions.CommandError(
            f"{text} is not a checkpoint id (openstack acstor checkpoint list)"
        ) from None


def _shown(name: str, value: Any) -> Any:
    if name.endswith("_bytes"):
        return output_columns.SizeColumn(value)
    return format_columns.ListColumn(value) if isinstance(value, list) else value


def _fields(found: dict[str, Any]) -> tuple[list[str], list[Any]]:
    return list(found), [_shown(name, value) for name, value in found.items()]
