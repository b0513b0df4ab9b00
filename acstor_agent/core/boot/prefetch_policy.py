# SPDX-License-Identifier: Apache-2.0
"""Which new boot images a host prefetches before a guest boots, and how slowly.

A host takes one only if its operator allows it, and if the image is public or of a project that the
host serves already. In a day it takes at most as many bytes as it keeps of boot images.
"""

import enum
from collections.abc import Iterable

from acstor_common.formats import chunk_map
from acstor_common.util import token_buckets

BEGIN_PER_S = 2.0
"""Hosts that begin per second, of all notified at once; each sends Glance about ten requests."""
LONGEST_SPREAD_S = 1800.0
DAY_S = 86400.0


class Mode(enum.StrEnum):
    """Boot images to prefetch; the values of option ``prefetch_boot_images``."""

    NONE = "none"
    BOOTED = "booted"  # of images that replace one that this host mirrors
    ALL = "all"  # these, and those of all public images


def is_for(mode: Mode, *, is_open: bool, has_former: bool) -> bool:
    """Return whether a host prefetches the boot image; ``has_former``: it mirrors the former image.

    >>> is_for(Mode.BOOTED, is_open=True, has_former=False)
    False
    >>> is_for(Mode.ALL, is_open=False, has_former=False)
    False
    """
    if mode is Mode.NONE:
        return False
    return has_former or (mode is Mode.ALL and is_open)


def is_served(keys: chunk_map.ScopeKeys, formers: Iterable[chunk_map.ScopeKeys]) -> bool:
    """Return whether this host serves the scope of an image; no ``keys``: plain CIDs."""
    return not keys or keys[0] in {its[0] for its in formers if its}  # its own scope is first


def spread_s(hosts: int) -> float:
    """Return the time over which so many hosts spread their start.

    >>> spread_s(2), spread_s(1000), spread_s(100_000)
    (1.0, 500.0, 1800.0)
    """
    return min(hosts / BEGIN_PER_S, LONGEST_SPREAD_S)


def daily(limit_bytes: int) -> token_buckets.Rate:
    """Return the rate limit: per day as many bytes as are kept, at once after a pause."""
    return token_buckets.Rate(per_s=limit_bytes / DAY_S, burst=float(limit_bytes))
