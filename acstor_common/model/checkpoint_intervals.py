# SPDX-License-Identifier: Apache-2.0
"""Checkpoint intervals, as set on flavors, host aggregates and servers of Nova."""

from typing import Final

NAME: Final = "acstor:checkpoint_interval_s"
"""Key in a flavor's extra specs and in metadata of aggregates and servers."""
MIN_S: Final = 30
MAX_S: Final = 30 * 86_400
_MAX_DIGITS: Final = 11


def parse(words: object) -> int | None:
    """Return the interval in seconds, clamped; 0: never; None: no number.

    >>> parse(" 600 "), parse("5"), parse("99999999"), parse("0"), parse("soon"), parse(None)
    (600, 30, 2592000, 0, None, None)
    """
    text = words.strip() if isinstance(words, str) else ""
    if not text.isascii() or not text.isdecimal() or len(text) > _MAX_DIGITS:
        return None
    return clamp(int(text))


def clamp(interval_s: int, least_s: int = MIN_S) -> int:
    """Return an interval within the limits; 0 stays 0."""
    return min(max(interval_s, least_s, MIN_S), MAX_S) if interval_s > 0 else 0


def shortest(intervals_s: list[int]) -> int | None:
    """Return the shortest interval of a host's aggregates; None if none sets one.

    >>> shortest([0, 600, 3600]), shortest([0]), shortest([])
    (600, 0, None)
    """
    if not intervals_s:
        return None
    return min(filter(None, intervals_s), default=0)
