# SPDX-License-Identifier: Apache-2.0
"""Which boot images come to a host before a guest of it asks for them, and how slowly.

Hosts are told of a new boot image by the decision service; each decides for itself.  A host takes
only what its operator wants here, of images that every project may read or of a project whose
images it serves already, and no more in a day than it keeps of such.
"""

import enum
from collections.abc import Iterable

from acstor_common.formats import chunk_map
from acstor_common.util import token_buckets

BEGIN_PER_S = 2.0
"""Hosts that begin in a second, of all that are told at once: each asks Glance some ten times."""
LONGEST_SPREAD_S = 1800.0
DAY_S = 86400.0


class Mode(enum.StrEnum):
    """Whose boot images come; the values of the option ``prefetch_boot_images``."""

    NONE = "none"
    BOOTED = "booted"  # of images that come after one that this host mirrors
    ALL = "all"  # of these, and of all that every project may read


def is_for(mode: Mode, *, is_open: bool, has_former: bool) -> bool:
    """Say whether a host takes the boot image of an image.

    :param is_open: every project may read the image
    :param has_former: this host mirrors an image that came before it

    >>> is_for(Mode.BOOTED, is_open=True, has_former=False)
    False
    >>> is_for(Mode.ALL, is_open=False, has_former=False)
    False
    """
    if mode is Mode.NONE:
        return False
    return has_former or (mode is Mode.ALL and is_open)


def is_served(keys: chunk_map.ScopeKeys, formers: Iterable[chunk_map.ScopeKeys]) -> bool:
    """Say whether an image is of a scope that this host serves: of everybody's, or a project's.

    :param keys: of the image's chunk map, the key of its own scope first; none: its names are plain
    :param formers: those of the images before it that this host mirrors
    """
    return not keys or keys[0] in {its[0] for its in formers if its}


def spread_s(hosts: int) -> float:
    """Return the time, from when they were told, over which so many hosts are to begin.

    >>> spread_s(2), spread_s(1000), spread_s(100_000)
    (1.0, 500.0, 1800.0)
    """
    return min(hosts / BEGIN_PER_S, LONGEST_SPREAD_S)


def daily(limit_bytes: int) -> token_buckets.Rate:
    """Return how many bytes may come: in a day as many as are kept, after a pause at once.

    :param limit_bytes: what is kept
    """
    return token_buckets.Rate(per_s=limit_bytes / DAY_S, burst=float(limit_bytes))
