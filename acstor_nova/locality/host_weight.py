# SPDX-License-Identifier: Apache-2.0
"""The weight of a host for an image, from 0 to 1."""

from collections.abc import Mapping
from typing import NamedTuple

from acstor_common.wire import decision_messages

BOOT_SET_PART = 0.8  # part of the weight for the boot set; the rest is for the image
MANY_BUILDS = 4  # builds under way that halve the weight, as a full link does


class CachedImage(NamedTuple):
    """An image on one host: its cached share and the load of the link, each from 0 to 1."""

    share: float
    link_load: float


LocalityTable = Mapping[str, CachedImage]
"""The hosts that have data of one image, by Nova's name of the host."""


def make_table(found: decision_messages.ImageLocality) -> LocalityTable:
    """Return the table of an answer; the image's share stands for an unknown boot set's."""
    return {one.host: CachedImage(_share(one), one.link_load) for one in found.hosts}


def _share(one: decision_messages.HostLocality) -> float:
    boot_set = one.image_share if one.boot_set_share is None else one.boot_set_share
    return BOOT_SET_PART * boot_set + (1 - BOOT_SET_PART) * one.image_share


def weight_of(cached: CachedImage | None, builds: int) -> float:
    """Return the weight of a host (None: it has nothing of the image).

    Each build and the link's load lower it, so a burst of servers of one image spreads over the
    hosts that have the image, and then over others.

    >>> weight_of(CachedImage(1.0, 0.0), 0), weight_of(CachedImage(1.0, 0.0), 4), weight_of(None, 0)
    (1.0, 0.5, 0.0)
    """
    if cached is None:
        return 0.0
    return cached.share / (1 + max(0, builds) / MANY_BUILDS + cached.link_load)
