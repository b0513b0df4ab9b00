# SPDX-License-Identifier: Apache-2.0
"""Locations of hosts in the cloud, and distances between them.

A location is a path of levels that operators choose, the widest first, such as ``site/pod/rack``.
The distance of two hosts is the number of levels up to their common ancestor: 0 within a rack, 1
between racks of a pod.  All locations of a table have one depth, so "nearer than a threshold"
divides the hosts into disjoint groups.
"""

import re
from collections.abc import Sequence

MAX_LEVELS = 8
MAX_LOCATION_BYTES = 255

Levels = tuple[str, ...]  # a location, split; ``()`` for a host without one

_LEVEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def parse(text: str) -> Levels:
    """Return the levels of a location, or raise ValueError.

    >>> parse("paris/pod-1/rack7"), parse("")
    (('paris', 'pod-1', 'rack7'), ())
    """
    levels = tuple(text.split("/")) if text else ()
    is_right = all(_LEVEL.fullmatch(level) for level in levels)
    if not is_right or len(levels) > MAX_LEVELS or len(text) > MAX_LOCATION_BYTES:
        raise ValueError(f"not a location (site/pod/rack is expected): {text[:300]!r}")
    return levels


def common_levels(first: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of leading levels that two locations have in common."""
    count = 0
    for ours, theirs in zip(first, other, strict=False):
        if ours != theirs:
            break
        count += 1
    return count


def distance(first: Levels, other: Levels) -> int:
    """Return the number of levels up to the common ancestor.

    >>> distance(("a", "1", "r1"), ("a", "1", "r1")), distance(("a", "1", "r1"), ("a", "2", "r1"))
    (0, 2)
    """
    return max(len(first), len(other)) - common_levels(first, other)


def ancestor(of: Levels, threshold: int) -> Levels:
    """Return the location of all hosts nearer than ``threshold``.

    >>> ancestor(("a", "1", "r1"), 2), ancestor(("a", "1", "r1"), 9)
    (('a', '1'), ())
    """
    return of[: max(0, len(of) - threshold + 1)]
