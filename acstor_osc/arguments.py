# SPDX-License-Identifier: Apache-2.0
"""Arguments that commands about several nouns take, so that they look alike everywhere."""

import argparse
import datetime
from typing import Any


def with_page(parser: argparse.ArgumentParser, noun: str) -> argparse.ArgumentParser:
    """Add which part of a list is wanted to a command line."""
    parser.add_argument("--limit", type=int, metavar="<n>", help=f"{noun}s at most")
    parser.add_argument("--marker", metavar=f"<{noun}>", help=f"begin behind the {noun} of this id")
    return parser


def page(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """Return which part of a list is wanted, as the API is asked for it."""
    return {"limit": parsed_args.limit, "marker": parsed_args.marker}


def with_image(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the image to a command line."""
    parser.add_argument("image", metavar="<image>", help="id or name of the image")
    return parser


def with_hosts(parser: Any, default: str = "all that are up") -> None:
    """Add hosts to a command line, or to a group of arguments that exclude each other.

    :param default: who is asked if none is named
    """
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        dest="hosts",
        metavar="<host>",
        help=f"this host; may be given more than once (default: {default})",
    )


def with_wait(
    parser: argparse.ArgumentParser, longest_s: float, until: str = "it is done, with its progress"
) -> argparse.ArgumentParser:
    """Add the options about waiting to a command line.

    :param longest_s: how long is waited if nothing else is said
    """
    parser.add_argument("--wait", action="store_true", help=f"until {until}")
    parser.add_argument(
        "--timeout",
        type=float,
        default=longest_s,
        metavar="<seconds>",
        help=f"wait no longer than this (default: {longest_s:g})",
    )
    return parser


def moment(text: str) -> float:
    """Return the seconds since 1970 of a time; one without a zone is of this machine's.

    :raises argparse.ArgumentTypeError: it is none
    """
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as e:
        raise argparse.ArgumentTypeError(f"{e}: write it as 2030-01-31T18:00") from e
