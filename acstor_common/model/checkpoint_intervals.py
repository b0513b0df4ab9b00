# SPDX-License-Identifier: Apache-2.0
"""How often checkpoints are taken, as flavors, host aggregates and servers of Nova's say it.

Words that are no number say nothing, so that what counted before goes on counting.
"""

from typing import Final

NAME: Final = "acstor:checkpoint_interval_s"
"""Of the extra spec of a flavor, and in the metadata of an aggregate or a server; 0: never."""
MIN_S: Final = 30
MAX_S: Final = 30 * 86_400
_MAX_DIGITS: Final = 11


def parse(words: object) -> int | None:
    """Return the seconds that words mean, within the bounds; 0: never; None: they say nothing.

    >>> parse(" 600 "), parse("5"), parse("99999999"), parse("0"), parse("soon"), parse(None)
    (600, 30, 2592000, 0, None, None)
    """
    text = words.strip() if isinstance(words, str) else ""
    if not text.isascii() or not text.isdecimal() or len(text) > _MAX_DIGITS:
        return None
    return clamp(int(text))


def clamp(interval_s: int, least_s: int = MIN_S) -> int:
    """Return an interval that is neither too short nor too long; 0 stays 0."""
    return min(max(interval_s, least_s, MIN_S), MAX_S) if interval_s > 0 else 0


def shortest(intervals_s: list[int]) -> int | None:
    """Return what counts of what several aggregates of a host say; None if none says anything.

    >>> shortest([0, 600, 3600]), shortest([0]), shortest([])
    (600, 0, None)
    """
    if not intervals_s:
        return None
    return min(filter(None, intervals_s), default=0)
