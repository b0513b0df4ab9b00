# SPDX-License-Identifier: Apache-2.0
"""``openstack acstor image …``."""

import argparse
import http
import time
from collections.abc import Mapping
from typing import Any

from osc_lib import exceptions
from osc_lib.cli import format_columns

from acstor_common.service import argument_types
from acstor_common.wire import control_wire
from acstor_osc import aggregates
from acstor_osc import client
from acstor_osc import command_arguments
from acstor_osc import fill_status
from acstor_osc import image_tasks
from acstor_osc import output_columns

LONG = (
    ("Status", "status"),
    ("Cached", "cached_bytes"),
    ("Chunk Map", "chunk_map"),
    ("Boot Image ID", "boot_image"),
    ("Message", "message"),
    ("Boot Message", "boot_message"),
    ("Updated At", "updated_at"),
)
ORIGINS = ("local", "boot", "peer", "source")
SIZES = ("size_bytes", "cached_bytes", "missing_bytes", "own_bytes", "shared_bytes")
FINAL = ("ready", "refused", "failed")


class ListImage(output_columns.Lister):
    """List the images in hosts' caches, with the origins of the data that guests read."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = command_arguments.with_page(super().get_parser(prog_name), "image")
        return command_arguments.with_long(
            parser, "status, chunk map, boot image, cached data and messages"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the columns and the rows."""
        query = command_arguments.page(parsed_args)
        found = client.client_of(self).get("/v1/images", query)["images"]
        long = LONG if parsed_args.long else ()
        return (
            [
                *("ID", "Name", "State", "Boot Image", "Size"),
                *("Hosts", "Warm", "In Use", "Fully Cached", *_share_titles()),
                *(title for title, _ in long),
            ],
            [
                [
                    *(image[name] for name in ("image_id", "name", "state")),
                    image["boot_state"],
                    output_columns.SizeColumn(image["size_bytes"]),
                    image["hosts"],
                    image["warm_hosts"],
                    *(image[name] for name in ("using_hosts", "fully_cached_hosts")),
                    *_shares(image["read"]),
                    *(_long(image, name) for _, name in long),
                ]
                for image in found
            ],
        )


class ShowImage(output_columns.ShowOne):
    """Show the preparation, the parents and the fill status of an image.

    parents lists the images that it descends from, the nearest first; depth is their number.  Every
    image is one complete file whatever its parents, so you may delete each of them.  own_bytes is
    the data that differs from the nearest parent; shared_bytes is the part of its file that shares
    blocks with the parent's file in the store.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        return command_arguments.with_image(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the fields and their values."""
        api, image_id = (
            client.client_of(self),
            image_tasks.image_id_of(self.app.client_manager, parsed_args.image),
        )
        found = api.get(f"/v1/images/{image_id}")
        titles, values = fields(found)
        by_host = fill_status.FillByHostColumn(_fill_by_host(api, image_id))
        return [*titles, "fully_cached", "fill_by_host"], [
            *values,
            fill_status.count_full_hosts(found),
            by_host,
        ]


class ListImageHost(output_columns.Lister):
    """List the hosts of an image, with the fill status and the last task of each."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = command_arguments.with_page(
            command_arguments.with_image(super().get_parser(prog_name)), "host"
        )
        return command_arguments.with_long(
            parser, "sizes, missing data, and the origins of the data"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the columns and the rows."""
        image_id = image_tasks.image_id_of(self.app.client_manager, parsed_args.image)
        found = client.client_of(self).get(f"/v1/images/{image_id}/hosts")["hosts"]
        return (
            [
                *("Host", "Cached", "Fill", "Boot Image", *_share_titles(), "Task"),
                *(("Size", "Missing", "Boot Revision", "Fetched") if parsed_args.long else ()),
            ],
            [
                [
                    host["host"],
                    output_columns.SizeColumn(host["cached_bytes"]),
                    fill_status.FillColumn(host["fill"]),
                    host["boot_image"],
                    *_shares(host["read"]),
                    image_tasks.task_text(host["task"]),
                    *(_host_long(host) if parsed_args.long else ()),
                ]
                for host in command_arguments.page_of(found, parsed_args, "host")
            ],
        )


class PrepareImage(output_columns.ShowOne):
    """Prepare an image now: make its chunk map and its boot image."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = command_arguments.with_wait(
            command_arguments.with_image(super().get_parser(prog_name)), image_tasks.WAIT_S
        )
        parser.add_argument(
            "--force",
            action="store_true",
            help="prepare it again, even if it is ready or was refused",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the fields of the image and their values."""
        api = client.client_of(self)
        path = f"/v1/images/{image_tasks.image_id_of(self.app.client_manager, parsed_args.image)}"
        before = api.post(f"{path}/prepare", {"force": parsed_args.force})
        is_ready = before["state"] == "ready" and not parsed_args.force

        def look() -> tuple[int, int]:
            now = api.get(path)
            has_changed = any(now[name] != before[name] for name in ("state", "updated_at"))
            return int(is_ready or (has_changed and now["state"] in FINAL)), 1

        if parsed_args.wait:
            client.wait_until_done(f"prepare {parsed_args.image}", look, parsed_args.timeout)
        image = api.get(path)
        if parsed_args.wait and image["state"] != "ready":
            raise exceptions.CommandError(
                f"image {image['image_id']} is {image['state']}: "
                f"{output_columns.text(image['message'])}"
            )
        return fields(image)


class PreSeedImage(output_columns.Lister):
    """Fetch all of an image to hosts and pin it, at lower priority than guests' reads."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = command_arguments.with_wait(
            command_arguments.with_image(super().get_parser(prog_name)), image_tasks.WAIT_S
        )
        where = parser.add_mutually_exclusive_group()
        command_arguments.with_hosts(where)
        where.add_argument(
            "--count",
            type=argument_types.number_between(1, 1 << 16),
            default=0,
            metavar="<n>",
            help="number of hosts, the least loaded of those that lack a part of it",
        )
        where.add_argument(
            "--aggregate",
            metavar="<aggregate>",
            help="id or name of a host aggregate in Nova: those of its hosts that are up",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the hosts and the progress of each."""
        manager, chosen = self.app.client_manager, parsed_args.hosts
        down: list[str] = []
        image_id = image_tasks.image_id_of(manager, parsed_args.image)
        if parsed_args.aggregate:
            api = client.client_of(self)
            chosen, down = aggregates.find_hosts(manager, api, parsed_args.aggregate)
        where = {"hosts": chosen, "count": parsed_args.count}
        titles, rows = image_tasks.send_task(self, parsed_args, image_id, "pre-seed", where)
        return titles, [*rows, *([host, aggregates.SKIPPED] for host in down)]


class FlattenImage(output_columns.Lister):
    """Copy an image into the writable disks that are based on it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = command_arguments.with_wait(
            command_arguments.with_image(super().get_parser(prog_name)), image_tasks.WAIT_S
        )
        command_arguments.with_hosts(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the hosts and the progress of each."""
        image_id = image_tasks.image_id_of(self.app.client_manager, parsed_args.image)
        return image_tasks.send_task(
            self, parsed_args, image_id, "flatten", {"hosts": parsed_args.hosts}
        )


class _ReplicaTask(output_columns.Lister):
    action = ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = command_arguments.with_image(super().get_parser(prog_name))
        command_arguments.with_hosts(parser, "all that use it or have it pinned")
        return command_arguments.with_wait(
            parser, image_tasks.RECEIVED_WITHIN_S, "the hosts have received it"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        image_id = image_tasks.image_id_of(self.app.client_manager, parsed_args.image)
        body = {"hosts": parsed_args.hosts, **self.request_fields(parsed_args)}
        return image_tasks.send_task(self, parsed_args, image_id, self.action, body)

    def request_fields(self, parsed_args: argparse.Namespace) -> dict[str, object]:
        return {}


class HydrateImage(_ReplicaTask):
    """Cache an image completely before others, by a deadline or as soon as possible."""

    action = "hydrate"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = super().get_parser(prog_name)
        until = parser.add_mutually_exclusive_group()
        until.add_argument(
            "--deadline",
            type=argument_types.duration(control_wire.MAX_DEADLINE_S),
            default=0.0,
            metavar="<duration>",
            help="time from now until the image must be fully cached, as 90s, 15m, 2h or 1d "
            "(default: as soon as possible)",
        )
        until.add_argument(
            "--deadline-at",
            type=command_arguments.parse_time,
            metavar="<time>",
            help="time when the image must be fully cached, as 2030-01-31T18:00 in the time zone "
            "of this machine",
        )
        return parser

    def request_fields(self, parsed_args: argparse.Namespace) -> dict[str, object]:
        """Return the deadline."""
        if parsed_args.deadline_at is None:
            return {"deadline_s": parsed_args.deadline}
        deadline_s = parsed_args.deadline_at - time.time()
        if deadline_s <= 0:
            raise exceptions.CommandError("--deadline-at: this time has passed")
        return {"deadline_s": deadline_s}


class PauseImage(_ReplicaTask):
    """Stop filling caches with an image."""

    action = "pause"


class ResumeImage(_ReplicaTask):
    """Fill caches with an image at the normal rate; ends a hydrate and a pause."""

    action = "resume"


class UnpinImage(_ReplicaTask):
    """Keep an image only as long as servers use it, although it was pre-seeded."""

    action = "unpin"


def fields(image: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """Return an image's fields and their columns."""
    shown = dict(image)
    for name in shown.keys() & set(SIZES):
        known = shown[name] is not None
        shown[name] = output_columns.SizeColumn(shown[name]) if known else fill_status.UNKNOWN
    if "parents" in shown:
        shown["parents"] = format_columns.ListColumn(shown["parents"])
    for name in ("read", "fetched"):
        shown[name] = output_columns.SizesColumn(shown[name])
    return list(shown), list(shown.values())


def _long(image: Mapping[str, Any], name: str) -> Any:
    value = image[name]
    return output_columns.SizeColumn(value) if name in SIZES else value


def _host_long(host: Mapping[str, Any]) -> tuple[Any, ...]:
    sizes = (host["size_bytes"], host["missing_bytes"])
    fetched = output_columns.SizesColumn(host["fetched"])
    return (*map(output_columns.SizeColumn, sizes), host["boot_revision"], fetched)


def _fill_by_host(api: client.Client, image_id: str) -> dict[str, Any]:
    try:
        found = api.get(f"/v1/images/{image_id}/hosts")["hosts"]
    except client.Refused as e:
        if e.status != http.HTTPStatus.FORBIDDEN:
            raise
        return {}
    return {host["host"]: host["fill"] for host in found}


def _share_titles() -> list[str]:
    return [f"{origin.title()} %" for origin in ORIGINS]


def _shares(read: Mapping[str, int]) -> list[float]:
    every = sum(read.values()) or 1
    return [round(100 * read[origin] / every, 1) for origin in ORIGINS]
