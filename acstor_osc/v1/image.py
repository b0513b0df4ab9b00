# SPDX-License-Identifier: Apache-2.0
"""``openstack acstor image …``."""

import argparse
import time
import uuid
from collections.abc import Mapping
from typing import Any

from osc_lib import exceptions
from osc_lib.cli import format_columns
from osc_lib.command import command

from acstor_osc import arguments
from acstor_osc import client

ORIGINS = ("local", "boot", "peer", "source")
SIZES = ("size_bytes", "cached_bytes")
WAIT_S = 3600.0
TAKEN_S = 60.0
"""Within this time a host that hears of a task says so: several collections."""
FINAL = ("ready", "refused", "failed")


class ListImage(command.Lister):
    """List the images that hosts hold, and where guests' reads found their bytes."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        return arguments.with_page(super().get_parser(prog_name), "image")

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the columns and the rows."""
        query = arguments.page(parsed_args)
        found = client.of(self).get("/v1/images", query)["images"]
        return (
            ["ID", "Name", "State", "Size", "Hosts", "Warm", *_share_titles()],
            [
                [
                    *(image[name] for name in ("image_id", "name", "state")),
                    format_columns.SizeColumn(image["size_bytes"]),
                    image["hosts"],
                    image["warm_hosts"],
                    *_shares(image["read"]),
                ]
                for image in found
            ],
        )


class ShowImage(command.ShowOne):
    """Show how far an image is prepared, where it is warm, and where its bytes came from."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        return arguments.with_image(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the fields and their values."""
        image_id = id_of(self.app.client_manager, parsed_args.image)
        return fields(client.of(self).get(f"/v1/images/{image_id}"))


class ListImageHost(command.Lister):
    """List the hosts of an image: what each holds of it, and how far its last task is."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        return arguments.with_image(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the columns and the rows."""
        image_id = id_of(self.app.client_manager, parsed_args.image)
        found = client.of(self).get(f"/v1/images/{image_id}/hosts")["hosts"]
        return (
            ["Host", "Cached", "Boot Image", *_share_titles(), "Task"],
            [
                [
                    host["host"],
                    format_columns.SizeColumn(host["cached_bytes"]),
                    host["boot_image"],
                    *_shares(host["read"]),
                    _task(host["task"]),
                ]
                for host in found
            ],
        )


class PrepareImage(command.ShowOne):
    """Have an image prepared now: its chunk map made, and its boot image."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = arguments.with_wait(arguments.with_image(super().get_parser(prog_name)), WAIT_S)
        parser.add_argument(
            "--force", action="store_true", help="again, even if it is prepared or was refused"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the fields of the image and their values."""
        api = client.of(self)
        path = f"/v1/images/{id_of(self.app.client_manager, parsed_args.image)}"
        before = api.post(f"{path}/prepare", {"force": parsed_args.force})
        is_ready = before["state"] == "ready" and not parsed_args.force

        def look() -> tuple[int, int]:
            now = api.get(path)
            has_changed = any(now[name] != before[name] for name in ("state", "updated_at"))
            return int(is_ready or (has_changed and now["state"] in FINAL)), 1

        if parsed_args.wait:
            client.wait(f"prepare {parsed_args.image}", look, parsed_args.timeout)
        image = api.get(path)
        if parsed_args.wait and image["state"] != "ready":
            raise exceptions.CommandError(
                f"image {image['image_id']} is {image['state']}: {image['message']}"
            )
        return fields(image)


class PreSeedImage(command.Lister):
    """Have all of an image brought to hosts, behind everything that guests wait for."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = arguments.with_wait(arguments.with_image(super().get_parser(prog_name)), WAIT_S)
        where = parser.add_mutually_exclusive_group()
        arguments.with_hosts(where)
        where.add_argument(
            "--count",
            type=int,
            default=0,
            metavar="<n>",
            help="so many hosts, the least busy of those that have not all of it",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the hosts that were asked and how far they are."""
        image_id = id_of(self.app.client_manager, parsed_args.image)
        where = {"hosts": parsed_args.hosts, "count": parsed_args.count}
        return ask(self, parsed_args, image_id, "pre-seed", where)


class HydrateImage(command.Lister):
    """Copy what writable disks still have of the image that they began as into their own files."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = arguments.with_wait(arguments.with_image(super().get_parser(prog_name)), WAIT_S)
        arguments.with_hosts(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the hosts that were asked and how far they are."""
        image_id = id_of(self.app.client_manager, parsed_args.image)
        return ask(self, parsed_args, image_id, "hydrate", {"hosts": parsed_args.hosts})


def id_of(manager: Any, name: str) -> str:
    """Return the id of an image that was named by it, or as it is called in Glance."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        found: str = manager.sdk_connection.image.find_image(name, ignore_missing=False).id
        return found


def ask(
    asking: command.Command,
    parsed_args: argparse.Namespace,
    image_id: str,
    what: str,
    body: Mapping[str, object],
) -> Any:
    """Ask hosts for something about an image; return the columns and the rows of their tasks.

    :raises exceptions.CommandError: some failed, did not hear of it, or take longer than waited for
    """
    api = client.of(asking)
    asked = api.post(f"/v1/images/{image_id}/{what}", body)
    taken_by_s = time.monotonic() + TAKEN_S

    def tasks() -> dict[str, dict[str, Any]]:
        found = api.get(f"/v1/images/{image_id}/hosts")["hosts"]
        return {
            host["host"]: host["task"]
            for host in found
            if host["task"] and host["task"]["request"] == asked["request"]
        }

    def look() -> tuple[int, int]:
        known = tasks()
        silent = [host for host in asked["hosts"] if host not in known]
        if silent and time.monotonic() > taken_by_s:
            raise exceptions.CommandError(
                f"{what} {image_id}: {len(silent)} of {len(asked['hosts'])} hosts did not hear of "
                f"it ({', '.join(silent[:5])}): were they cut off from the message bus? Ask again"
            )
        return sum(map(_percent, known.values())), 100 * len(asked["hosts"])

    if parsed_args.wait and asked["hosts"]:
        client.wait(
            f"{what} {image_id}",
            look,
            parsed_args.timeout,
            f"openstack acstor image host list {image_id}",
        )
    known = tasks() if parsed_args.wait else {}
    failed = {host: task["why"] for host, task in known.items() if task["state"] == "failed"}
    if failed:
        told = "; ".join(f"{host}: {why}" for host, why in sorted(failed.items())[:5])
        raise exceptions.CommandError(
            f"{what} failed on {len(failed)} of {len(asked['hosts'])} hosts: {told}"
        )
    return ["Host", "Task"], [[host, _task(known.get(host))] for host in asked["hosts"]]


def fields(image: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """Return an image's fields and their values, as they are shown."""
    shown = dict(image)
    for name in SIZES:
        shown[name] = format_columns.SizeColumn(shown[name])
    for name in ("read", "fetched"):
        shown[name] = format_columns.DictColumn(shown[name])
    return list(shown), list(shown.values())


def _percent(task: Mapping[str, Any]) -> int:
    if task["state"] in ("done", "failed"):
        return 100
    return min(99, 100 * task["done"] // task["total"]) if task["total"] else 0


def _task(task: Mapping[str, Any] | None) -> str:
    if not task:
        return ""
    told = f"{task['kind']}: {task['state']}"
    return f"{told}, {task['why']}" if task["why"] else f"{told}, {_percent(task)} %"


def _share_titles() -> list[str]:
    return [f"{origin.title()} %" for origin in ORIGINS]


def _shares(read: Mapping[str, int]) -> list[float]:
    """Return what share of guests' reads was found where, in percent."""
    whole = sum(read.values()) or 1
    return [round(100 * read[origin] / whole, 1) for origin in ORIGINS]
