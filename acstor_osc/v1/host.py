# SPDX-License-Identifier: Apache-2.0
"""``openstack acstor host …``."""

import argparse
from typing import Any

from osc_lib.cli import format_columns
from osc_lib.command import command

from acstor_common.model import ids
from acstor_osc import client
from acstor_osc import command_arguments
from acstor_osc import output_columns

COLUMNS = (
    ("Host", "host"),
    ("State", "state"),
    ("Enrolment", "identity"),
    ("Valid Until", "not_after"),
    ("Waiting Key", "fingerprint"),
    ("Drained", "is_drained"),
    ("Location", "location"),
    ("V-nodes", "vnodes"),
    ("Epoch", "ring_epoch"),
    ("Load %", "load"),
    ("Cache", "cache_bytes"),
    ("Last Seen", "last_seen_at"),
)
LONG = (
    ("Address", "address"),
    ("Received B/s", "received"),
    ("Sent B/s", "sent"),
    ("Link B/s", "link_bytes_s"),
    ("Cache Limit", "cache_limit_bytes"),
    ("User", "user_id"),
    ("First Seen", "first_seen_at"),
)
STATES = ("up", "overloaded", "silent")
IDENTITIES = ("enrolled", "waiting", "allowed", "revoked", "none")
SORTED_BY = (
    *("host", "state", "location", "vnodes", "ring_epoch"),
    *("load", "cache_bytes", "last_seen_at"),
)
WAIT_S = 120.0


class ListHost(output_columns.Lister):
    """List hosts, with their v-nodes, certificates and load."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = command_arguments.with_page(super().get_parser(prog_name), "host", 10_000)
        command_arguments.with_long(
            parser, "addresses, rates, Keystone users, and times of the first samples"
        )
        parser.add_argument("--state", choices=STATES, help="show only hosts in this state")
        parser.add_argument(
            "--enrolment", choices=IDENTITIES, help="show only hosts with this enrolment state"
        )
        parser.add_argument(
            "--location",
            metavar="<location>",
            help="show only hosts at this location, as pod1 or pod1/rack3",
        )
        parser.add_argument(
            "--sort",
            type=_sort,
            metavar="<key>[:asc|desc]",
            help="sort all hosts by this key before a page of them is taken: "
            f"{', '.join(SORTED_BY)} (default: host; --sort-column sorts what is shown)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the columns and the rows."""
        chosen = {
            "state": parsed_args.state,
            "enrolment": parsed_args.enrolment,
            "location": parsed_args.location,
            "sort": parsed_args.sort,
        }
        api = client.client_of(self)
        found = api.get("/v1/hosts", {**command_arguments.page(parsed_args), **chosen})["hosts"]
        rows = [
            {**host, **_identity(host), **host["rates"], "load": _load_percent(host)}
            for host in found
        ]
        columns = (*COLUMNS, *LONG) if parsed_args.long else COLUMNS
        return (
            [title for title, _ in columns],
            [[_shown(name, row[name]) for _, name in columns] for row in rows],
        )


class _HostCommand(output_columns.ShowOne):
    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        return _with_host(super().get_parser(prog_name))


class ShowHost(_HostCommand):
    """Show a host, with its chunk traffic with each peer."""

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the fields and their values."""
        return _fields(client.client_of(self).get(f"/v1/hosts/{parsed_args.host}"))


class _SetDrained(_HostCommand):
    action = ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        return command_arguments.with_wait(
            parser, WAIT_S, "the current v-node table has the change"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        api = client.client_of(self)
        path = f"/v1/hosts/{parsed_args.host}"
        before = api.post(f"{path}/{self.action}")["vnodes"]
        if parsed_args.wait:
            client.wait_until_done(
                f"{self.action} {parsed_args.host}",
                lambda: self.progress(before, api.get(path)["vnodes"]),
                parsed_args.timeout,
            )
        return _fields(api.get(path))

    def progress(self, before: int, now: int) -> tuple[int, int]:
        """Return the number of moved v-nodes, and the total to move."""
        raise NotImplementedError


class DrainHost(_SetDrained):
    """Move all v-nodes away from a host; its guests continue to read."""

    action = "drain"

    def progress(self, before: int, now: int) -> tuple[int, int]:
        """Return the number of removed v-nodes, and the initial number."""
        return before - now, before


class EnableHost(_SetDrained):
    """Give v-nodes to a drained host again."""

    action = "enable"

    def progress(self, before: int, now: int) -> tuple[int, int]:
        """Return 1 of 1 once the host has v-nodes."""
        return min(now, 1), 1


class AllowHost(_HostCommand):
    """Allow a host to enrol once: for the first time, or with another key or Keystone user.

    The field trusts shows which key may enrol.  Without --fingerprint it is the key of the first
    request under this name, or, if no request waits, the key of the next one.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--fingerprint",
            type=_fingerprint,
            default="",
            metavar="<sha256>",
            help="allow only this key; acstor-agent-ctl status on the host shows it",
        )
        parser.add_argument(
            "--user", default="", metavar="<user-id>", help="allow only this Keystone user"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the fields of the host and their values."""
        asked = {"fingerprint": parsed_args.fingerprint, "user_id": parsed_args.user}
        found = client.client_of(self).post(f"/v1/hosts/{parsed_args.host}/allow", asked)
        names, values = _fields(found)
        trusts = _trusted(found["enrolment"], parsed_args.fingerprint)
        return [*names, "trusts"], [*values, trusts]


class RevokeHost(_HostCommand):
    """Revoke a host's certificates; the host leaves the v-node table."""

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the fields of the host and their values."""
        return _fields(client.client_of(self).post(f"/v1/hosts/{parsed_args.host}/revoke"))


class ForgetHost(command.Command):
    """Delete the record of a decommissioned host; its certificates become invalid."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        return _with_host(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete the host's record."""
        client.client_of(self).post(f"/v1/hosts/{parsed_args.host}/forget")


def _sort(text: str) -> str:
    key, colon, way = text.partition(":")
    if key not in SORTED_BY or (colon and way not in ("asc", "desc")):
        known = ", ".join(SORTED_BY)
        raise argparse.ArgumentTypeError(f"not one of {known}, with :asc or :desc: {text!r}")
    return text


def _fingerprint(text: str) -> str:
    try:
        return ids.parse_fingerprint(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def _trusted(enrolment: dict[str, Any], fingerprint: str) -> str:
    user = f"user {enrolment['user_id']}" if enrolment["user_id"] else "any user who may enrol"
    if fingerprint:
        return f"the key of --fingerprint, of {user}"
    if enrolment["fingerprint"]:
        return (
            f"the first request: key {enrolment['fingerprint']}, of {user}, from "
            f"{enrolment['address']}; if acstor-agent-ctl status on the host shows another key, "
            "the request came from elsewhere: revoke it, and use --fingerprint"
        )
    return f"the next request for this name: any key, of {user}; --fingerprint restricts it"


def _identity(host: dict[str, Any]) -> dict[str, Any]:
    nothing = {"state": "none", "not_after": None, "fingerprint": "", "user_id": ""}
    found = host.get("enrolment") or nothing
    is_open = found["state"] in ("waiting", "allowed")
    return {
        "identity": found["state"],
        "not_after": found["not_after"],
        "fingerprint": found["fingerprint"] if is_open else "",
        "user_id": found["user_id"],
    }


def _with_host(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("host", metavar="<host>", help="id of the host")
    return parser


def _load_percent(host: dict[str, Any]) -> int:
    busier = max(host["rates"]["received"], host["rates"]["sent"])
    return round(100 * busier / host["link_bytes_s"]) if host["link_bytes_s"] else 0


def _shown(name: str, value: Any) -> Any:
    if name in ("received", "sent"):
        return round(value)
    return output_columns.SizeColumn(value) if name.startswith("cache_") else value


def _fields(host: dict[str, Any]) -> tuple[list[str], list[Any]]:
    shown = {**host, "load_percent": _load_percent(host), "enrolment": host["enrolment"] or {}}
    for name in ("rates", "peers", "enrolment"):
        shown[name] = format_columns.DictColumn(shown[name])
    return list(shown), list(shown.values())
