# SPDX-License-Identifier: Apache-2.0
"""``openstack acstor server …``; figures are of all servers of an image on a host."""

import argparse
import contextlib
import json
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import msgspec
from osc_lib import exceptions
from osc_lib.cli import format_columns
from osc_lib.command import command

from acstor_common.model import boot_timeline
from acstor_common.service import boot_chart
from acstor_osc import client
from acstor_osc import command_arguments
from acstor_osc import fill_status
from acstor_osc import image_tasks
from acstor_osc import nova_events
from acstor_osc import output_columns
from acstor_osc.v1 import image


class _Place(NamedTuple):
    server_id: str
    image_id: str
    host: str


class ShowServer(output_columns.ShowOne):
    """Show the fill status of a server's image on its host, and what the server still depends on.

    The origins of the data are those of all servers of the image on that host together.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        return _with_server(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the fields and their values."""
        place = _place_of(self.app.client_manager, parsed_args.server)
        found = client.client_of(self).get(f"/v1/images/{place.image_id}/hosts")["hosts"]
        for host in found:
            if host["host"] == place.host:
                titles, values = image.fields({**place._asdict(), "fill": None, **host})
                values[titles.index("task")] = format_columns.DictColumn(host["task"] or {})
                values[titles.index("fill")] = fill_status.FillColumn(host["fill"])
                needed = fill_status.depends_on(host["fill"])
                if self._is_on_dead_mount(place):
                    needed = fill_status.ON_DEAD_MOUNT
                return [*titles, "depends_on"], [*values, needed]
        raise exceptions.CommandError(
            f"host {place.host} does not report image {place.image_id}: does the server's disk use "
            "acstor, and does the agent there run? (openstack acstor host list)"
        )

    def _is_on_dead_mount(self, place: _Place) -> bool:
        """Return whether the server uses a dead mount; False if hosts are hidden."""
        host: Mapping[str, Any] = {}
        with contextlib.suppress(exceptions.CommandError):
            host = client.client_of(self).get(f"/v1/hosts/{place.host}")
        return place.server_id in host.get("on_dead_mounts", ())


class ShowServerTimeline(command.Command):
    """Draw the timeline of a server's last boot: Nova, the agent, and the reads of the guest.

    If Nova does not show its part, the timeline begins on the server's host.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = _with_server(super().get_parser(prog_name))
        parser.add_argument("--json", action="store_true", help="print the timeline as JSON")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Print the timeline."""
        manager = self.app.client_manager
        place = _place_of(manager, parsed_args.server)
        found = client.client_of(self).get(f"/v1/servers/{place.server_id}/boots")["boots"]
        boot = next((candidate for candidate in found if candidate["host"] == place.host), None)
        if boot is None:
            raise exceptions.CommandError(
                f"host {place.host} has reported no boot of server {parsed_args.server}: agents "
                "report a boot every 30 s and at its end, and the service keeps the report for a "
                "week (on the host: acstor-agent-ctl timeline)"
            )
        timeline = msgspec.convert(boot["timeline"], boot_timeline.Timeline)
        events = nova_events.list_before(manager.sdk_connection.compute, place.server_id, timeline)
        if parsed_args.json:
            whole = {**boot, "nova": [event._asdict() for event in events]}
            self.app.stdout.write(json.dumps(whole, indent=2) + "\n")
        else:
            chart = boot_chart.draw(timeline, events)
            self.app.stdout.write(f"Host {boot['host']}, reported {boot['reported_at']}\n{chart}\n")


class PreSeedServer(output_columns.Lister):
    """Fetch all of a server's image to its host and pin it, at lower priority than reads."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        return command_arguments.with_wait(
            _with_server(super().get_parser(prog_name)), image_tasks.WAIT_S
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the host and its progress."""
        place = _place_of(self.app.client_manager, parsed_args.server)
        return image_tasks.send_task(
            self, parsed_args, place.image_id, "pre-seed", {"hosts": [place.host]}
        )


def _with_server(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("server", metavar="<server>", help="id or name of the server")
    return parser


def _place_of(manager: Any, name: str) -> _Place:
    server = manager.sdk_connection.compute.find_server(name, ignore_missing=False)
    server = manager.sdk_connection.compute.get_server(server.id)
    image_id = server.image.id if server.image else None
    if not image_id:
        raise exceptions.CommandError(
            f"server {name} boots from a volume, which acstor does not serve"
        )
    if not server.compute_host:
        raise exceptions.CommandError(
            f"Nova does not show you the host of server {name}: sign in as an administrator, or "
            "use the image (openstack acstor image show)"
        )
    return _Place(server.id, image_id, server.compute_host)
