# SPDX-License-Identifier: Apache-2.0
"""How the commands read what they are given; who gives nonsense is told what would make sense."""

import argparse
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def typed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make of ``parse`` a type for argparse that shows what its ValueError says."""

    def parse_argument(text: str) -> T:
        try:
            return parse(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from exc

    return parse_argument


def number(lowest: int, highest: int, unit: int = 1) -> Callable[[str], int]:
    """Return a type for argparse: whole numbers of a range, of so many of the unit.

    >>> number(1, 64, unit=1024)("3")
    3072
    """

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not lowest <= int(text) <= highest:
            raise ValueError(f"not a number from {lowest} to {highest}: {text!r}")
        return int(text) * unit

    return typed(parse)
