# SPDX-License-Identifier: Apache-2.0
"""``openstack acstor status``."""

import argparse
from collections.abc import Mapping
from typing import Any

from cliff import columns

from acstor_osc import client
from acstor_osc import output_columns

EXITS = {"ok": 0, "warning": 1, "error": 2}
"""Exit statuses as in monitoring plug-ins, where 3 is "unknown"."""


class ShowStatus(output_columns.ShowOne):
    """Show the status of the cloud: findings with remedies, hosts, images and servers.

    The exit status is 0 if there is no finding, 1 for warnings, 2 for errors.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._exit = 0

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--json",
            dest="formatter",
            action="store_const",
            const="json",
            help="print all fields as JSON; the same as -f json",
        )
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; return the exit status of the health."""
        return super().run(parsed_args) or self._exit

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the fields and their values."""
        found = client.client_of(self).get("/v1/status")
        self._exit = EXITS.get(found["health"], max(EXITS.values()))
        shown = {
            **found,
            **{name: to_text(found[name]) for name, to_text in _COLUMNS.items()},
        }
        return list(shown), list(shown.values())


class _TextColumn(columns.FormattableColumn[Any]):
    """Data for machines, with a text for people."""


def _text_column(to_text: Any) -> type[_TextColumn]:
    """Return a column class whose text is ``to_text`` of the sanitized data."""

    class TextColumn(_TextColumn):
        def human_readable(self) -> str:
            return str(to_text(output_columns.data(self._value)))

    return TextColumn


def _findings(found: list[Mapping[str, Any]]) -> str:
    return "\n".join(_finding(finding) for finding in found) or "none"


def _finding(finding: Mapping[str, Any]) -> str:
    counted = f" ({finding['count']})" if finding["count"] else ""
    lines = [f"{finding['severity'].upper()}: {finding['message']}{counted}"]
    lines += [f"    {subject}" for subject in finding["subjects"]]
    if finding["count"] > len(finding["subjects"]):
        lines.append(f"    and {finding['count'] - len(finding['subjects'])} more")
    return "\n".join([*lines, f"  > {finding['remedy']}"])


def _hosts(counts: Mapping[str, Any]) -> str:
    shown = [f"{counts['up']} up"]
    shown += [f"{counts[name]} {name}" for name in ("overloaded", "silent") if counts[name]]
    shown += [f"{counts['waiting']} waiting for approval"] if counts["waiting"] else []
    shown += [f"{counts['drained']} drained"] if counts["drained"] else []
    versions = [version for version in counts["versions"] if version]
    return ", ".join(shown) + (f"; acstor {', '.join(versions)}" if versions else "")


def _ring(ring: Mapping[str, Any] | None) -> str:
    if ring is None:
        return "no v-node table was published"
    return (
        f"epoch {ring['epoch']}, {ring['hosts']} hosts, published at {ring['published_at']}; "
        f"{ring['up_to_date_hosts']} hosts use it"
    )


def _images(counts: Mapping[str, Any] | None) -> str:
    if counts is None:
        return "Glance does not answer"
    shown = [f"{counts['ready']} ready"]
    shown += [f"{counts[name]} {name}" for name in ("preparing", "failed") if counts[name]]
    lines = [
        ", ".join(shown) + ("" if counts["is_complete"] else ", counted in the first images only")
    ]
    if counts["unsupported_total"]:
        lines.append(f"{counts['unsupported_total']} unsupported:")
        lines += [f"    {times}: {why}" for why, times in counts["unsupported"].items()]
    return "\n".join(lines)


def _uses(counts: Mapping[str, Any]) -> str:
    return f"{counts['fully_cached']} of {counts['used']} fully cached"


def _guests(counts: Mapping[str, Any]) -> str:
    lines = ["no read waits"]
    if waiting := counts["waiting_requests"]:
        lines = [f"{waiting} reads wait, the oldest for {counts['longest_wait_s']:.0f} s"]
    if counts["failed_reads"]:
        lines.append(f"{counts['failed_reads']} reads failed in the last hour")
    lines += [
        f"fallbacks to Nova's download in the last hour: {why}, {times}"
        for why, times in counts["fallbacks"].items()
    ]
    return "\n".join(lines)


def _checkpoints(counts: Mapping[str, Any]) -> str:
    if not counts["servers"]:
        return "none"
    return f"{counts['servers']} servers, the oldest {counts['oldest_age_s'] / 60:.0f} min ago"


_COLUMNS = {
    "findings": _text_column(_findings),
    "hosts": _text_column(_hosts),
    "ring": _text_column(_ring),
    "images": _text_column(_images),
    "images_in_use": _text_column(_uses),
    "guests": _text_column(_guests),
    "checkpoints": _text_column(_checkpoints),
}
