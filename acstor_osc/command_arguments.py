# SPDX-License-Identifier: Apache-2.0
"""Arguments that commands share."""

import argparse
import datetime
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from acstor_common.service import argument_types


def with_page(
    parser: argparse.ArgumentParser, noun: str, most: int = 1000
) -> argparse.ArgumentParser:
    """Add the options of a page; ``most`` is the API's largest page."""
    parser.add_argument(
        "--limit",
        type=argument_types.number_between(1, most),
        metavar="<n>",
        help=f"show at most this many {noun}s, at most {most}",
    )
    parser.add_argument(
        "--marker",
        metavar=f"<{noun}>",
        help=f"begin after this {noun}, the last one of the previous page",
    )
    return parser


def page(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """Return the page as fields of a request."""
    return {"limit": parsed_args.limit, "marker": parsed_args.marker}


def page_of(
    found: Iterable[Mapping[str, Any]], parsed_args: argparse.Namespace, name: str
) -> list[Mapping[str, Any]]:
    """Return the requested page of a complete list, sorted by the field ``name``."""
    behind = parsed_args.marker or ""
    rows = sorted((row for row in found if row[name] > behind), key=lambda row: str(row[name]))
    return rows[: parsed_args.limit]


def with_long(parser: argparse.ArgumentParser, more: str) -> argparse.ArgumentParser:
    """Add the option for more columns; ``more`` describes them."""
    parser.add_argument("--long", action="store_true", help=f"also show {more}")
    return parser


def with_image(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the image argument."""
    parser.add_argument("image", metavar="<image>", help="id or name of the image")
    return parser


def with_hosts(parser: Any, default: str = "all that are up") -> None:
    """Add the host option to a parser or a group; ``default`` describes its absence."""
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        dest="hosts",
        metavar="<host>",
        help=f"this host; repeat the option for more hosts (default: {default})",
    )


def with_wait(
    parser: argparse.ArgumentParser,
    longest_s: float,
    until: str = "it is done, and show the progress",
) -> argparse.ArgumentParser:
    """Add the options about waiting; ``longest_s`` is the default timeout."""
    parser.add_argument("--wait", action="store_true", help=f"wait until {until}")
    parser.add_argument(
        "--timeout",
        type=float,
        default=longest_s,
        metavar="<seconds>",
        help=f"wait no longer than this (default: {longest_s:g})",
    )
    return parser


def parse_time(text: str) -> float:
    """Return a time in seconds since 1970, local without a zone, or raise ArgumentTypeError."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as e:
        raise argparse.ArgumentTypeError(f"{e}: write it as 2030-01-31T18:00") from e
