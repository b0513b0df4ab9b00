# SPDX-License-Identifier: Apache-2.0
"""Where a host stands in the cloud, and how far two hosts are apart.

A location is a path from the widest place to the narrowest, such as
``site/pod/rack``; what the levels mean is the operator's business.  The distance
of two hosts is the number of levels up to their common ancestor: 0 within one
rack, 1 between racks of one pod, 2 between pods of one site, 3 between sites.

All locations of a table have the same number of levels.  Then "nearer than a
threshold" divides the hosts into groups that do not overlap.
"""

import re
from collections.abc import Sequence

MAX_LEVELS = 8
MAX_LOCATION_BYTES = 255

Levels = tuple[str, ...]
"""A location, split; a host that has none is in the place that contains everything: ``()``."""

_LEVEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def parse(text: str) -> Levels:
    """Return the levels of a location.

    >>> parse("paris/pod-1/rack7"), parse("")
    (('paris', 'pod-1', 'rack7'), ())

    :raises ValueError: it is too long or too deep, or a level has characters that none may have
    """
    levels = tuple(text.split("/")) if text else ()
    is_right = all(_LEVEL.fullmatch(level) for level in levels)
    if not is_right or len(levels) > MAX_LEVELS or len(text) > MAX_LOCATION_BYTES:
        raise ValueError(f"not a location (site/pod/rack is expected): {text[:300]!r}")
    return levels


def common_levels(one: Sequence[str], other: Sequence[str]) -> int:
    """Count the levels that two locations have in common from the widest on."""
    count = 0
    for ours, theirs in zip(one, other, strict=False):
        if ours != theirs:
            break
        count += 1
    return count


def distance(one: Levels, other: Levels) -> int:
    """Return the number of levels up to the common ancestor.

    >>> distance(("a", "1", "r1"), ("a", "1", "r1")), distance(("a", "1", "r1"), ("a", "2", "r1"))
    (0, 2)
    """
    return max(len(one), len(other)) - common_levels(one, other)


def ancestor(of: Levels, threshold: int) -> Levels:
    """Return the place whose hosts are nearer than ``threshold`` to each other.

    >>> ancestor(("a", "1", "r1"), 2), ancestor(("a", "1", "r1"), 9)
    (('a', '1'), ())
    """
    return of[: max(0, len(of) - threshold + 1)]
