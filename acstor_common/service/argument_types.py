# SPDX-License-Identifier: Apache-2.0
"""Types of command-line arguments for argparse, with helpful error messages."""

import argparse
import re
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def help_text(docstring: str | None) -> str:
    """Return a module's docstring as help text, without markup.

    >>> help_text("``acstor-x``: does it.")
    'acstor-x: does it.'
    """
    return (docstring or "").replace("``", "").strip()


def argument_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return ``parse`` as an argparse type that shows the ValueError's message."""

    def parse_argument(text: str) -> T:
        try:
            return parse(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from exc

    return parse_argument


def duration(longest_s: float) -> Callable[[str], float]:
    """Return an argparse type for seconds, also written in minutes, hours or days.

    >>> [duration(1e6)(text) for text in ("90", "90s", "1.5m", "2h", "1d")]
    [90.0, 90.0, 90.0, 7200.0, 86400.0]
    """

    def parse(text: str) -> float:
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", text)
        seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
        if not 0 < seconds <= longest_s:
            raise ValueError(f"not a time up to {longest_s:.0f} s, as 90s or 2h: {text!r}")
        return seconds

    return argument_type(parse)


def number_between(lowest: int, highest: int, unit: int = 1) -> Callable[[str], int]:
    """Return an argparse type for an integer in a range, multiplied by ``unit``.

    >>> number_between(1, 64, unit=1024)("3")
    3072
    """

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not lowest <= int(text) <= highest:
            raise ValueError(f"not a number from {lowest} to {highest}: {text!r}")
        return int(text) * unit

    return argument_type(parse)
