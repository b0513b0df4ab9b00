# SPDX-License-Identifier: Apache-2.0
"""``openstack acstor image …``."""

import argparse
import http
import time
import uuid
from collections.abc import Mapping
from typing import Any

from osc_lib import exceptions
from osc_lib.cli import format_columns
from osc_lib.command import command

from acstor_common.service import argument_types
from acstor_common.wire import control_wire
from acstor_osc import client
from acstor_osc import command_arguments
from acstor_osc import fill_status
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
WAIT_S = 3600.0
RECEIVED_WITHIN_S = 60.0
"""Time until a host reports that it received a task, several collections."""
INSTANT = ("hydrate", "pause", "resume", "unpin")
"""Kinds of tasks that a host completes on receipt."""
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
        api, image_id = client.client_of(self), id_of(self.app.client_manager, parsed_args.image)
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
        image_id = id_of(self.app.client_manager, parsed_args.image)
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
                    _task(host["task"]),
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
            command_arguments.with_image(super().get_parser(prog_name)), WAIT_S
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
        path = f"/v1/images/{id_of(self.app.client_manager, parsed_args.image)}"
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
            command_arguments.with_image(super().get_parser(prog_name)), WAIT_S
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
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the hosts and the progress of each."""
        image_id = id_of(self.app.client_manager, parsed_args.image)
        where = {"hosts": parsed_args.hosts, "count": parsed_args.count}
        return give_task(self, parsed_args, image_id, "pre-seed", where)


class FlattenImage(output_columns.Lister):
    """Copy an image into the writable disks that are based on it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = command_arguments.with_wait(
            command_arguments.with_image(super().get_parser(prog_name)), WAIT_S
        )
        command_arguments.with_hosts(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the hosts and the progress of each."""
        image_id = id_of(self.app.client_manager, parsed_args.image)
        return give_task(self, parsed_args, image_id, "flatten", {"hosts": parsed_args.hosts})


class _ReplicaTask(output_columns.Lister):
    action = ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = command_arguments.with_image(super().get_parser(prog_name))
        command_arguments.with_hosts(parser, "all that use it or have it pinned")
        return command_arguments.with_wait(parser, RECEIVED_WITHIN_S, "the hosts have received it")

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the hosts and the progress of each."""
        image_id = id_of(self.app.client_manager, parsed_args.image)
        body = {"hosts": parsed_args.hosts, **self.request_fields(parsed_args)}
        return give_task(self, parsed_args, image_id, self.action, body)

    def request_fields(self, parsed_args: argparse.Namespace) -> dict[str, object]:
        """Return further fields of the request."""
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


def id_of(manager: Any, name: str) -> str:
    """Return the ID of an image; ``name`` is its ID or its name in Glance."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        found: str = manager.sdk_connection.image.find_image(name, ignore_missing=False).id
        return found


def give_task(
    asking: command.Command,
    parsed_args: argparse.Namespace,
    image_id: str,
    what: str,
    body: Mapping[str, object],
) -> Any:
    """Give hosts a task for an image; return the columns and rows of their progress.

    :raises exceptions.CommandError: a host failed, did not receive the task, or is too slow
    """
    given = _GivenTask(client.client_of(asking), image_id, what, body)
    known: Mapping[str, dict[str, Any]] = {}
    if parsed_args.wait:
        if given.hosts:
            client.wait_until_done(
                f"{what} {image_id}",
                given.progress,
                parsed_args.timeout,
                f"openstack acstor image host list {image_id}",
            )
        known = given.reports()
        given.check_failures(known)
    return ["Host", "Task"], [[host, _task(known.get(host))] for host in given.hosts]


class _GivenTask:
    """A task for an image that was given to hosts, and their reports of it."""

    def __init__(
        self, api: client.Client, image_id: str, what: str, body: Mapping[str, object]
    ) -> None:
        self._api, self._image_id, self._what = api, image_id, what
        answer = api.post(f"/v1/images/{image_id}/{what}", body)
        self.hosts: list[str] = answer["hosts"]
        self._request = answer["request"]
        self._received_by_s = time.monotonic() + RECEIVED_WITHIN_S

    def reports(self) -> dict[str, dict[str, Any]]:
        """Return the reports of the hosts that received the task."""
        found = self._api.get(f"/v1/images/{self._image_id}/hosts")["hosts"]
        return {
            host["host"]: host["task"]
            for host in found
            if host["task"] and host["task"]["request"] == self._request
        }

    def progress(self) -> tuple[int, int]:
        """Return how much is done, of how much; CommandError if hosts did not receive it."""
        known = self.reports()
        silent = [host for host in self.hosts if host not in known]
        if silent and time.monotonic() > self._received_by_s:
            raise exceptions.CommandError(
                f"{self._what} {self._image_id}: {len(silent)} of {len(self.hosts)} hosts did not "
                f"receive it ({', '.join(silent[:5])}): they were cut off from the message bus, or "
                "got another task meanwhile. Repeat the command"
            )
        return sum(map(_percent, known.values())), 100 * len(self.hosts)

    def check_failures(self, known: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise CommandError if the task failed on a host."""
        failed = {
            host: output_columns.text(task["why"])
            for host, task in known.items()
            if task["state"] == "failed"
        }
        if failed:
            shown = "; ".join(f"{host}: {why}" for host, why in sorted(failed.items())[:5])
            raise exceptions.CommandError(
                f"{self._what} failed on {len(failed)} of {len(self.hosts)} hosts: {shown}"
            )


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
    """Return the fill status by host; empty if the user may not see hosts."""
    try:
        found = api.get(f"/v1/images/{image_id}/hosts")["hosts"]
    except client.Refused as e:
        if e.status != http.HTTPStatus.FORBIDDEN:
            raise
        return {}
    return {host["host"]: host["fill"] for host in found}


def _percent(task: Mapping[str, Any]) -> int:
    if task["state"] in ("done", "failed"):
        return 100
    return min(99, 100 * task["done"] // task["total"]) if task["total"] else 0


def _task(task: Mapping[str, Any] | None) -> str:
    if not task:
        return ""
    text = f"{task['kind']}: {task['state']}"
    if task["why"]:
        return f"{text}, {output_columns.text(task['why'])}"
    return text if task["kind"] in INSTANT else f"{text}, {_percent(task)} %"


def _share_titles() -> list[str]:
    return [f"{origin.title()} %" for origin in ORIGINS]


def _shares(read: Mapping[str, int]) -> list[float]:
    every = sum(read.values()) or 1
    return [round(100 * read[origin] / every, 1) for origin in ORIGINS]
