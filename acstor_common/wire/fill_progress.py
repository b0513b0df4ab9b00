# SPDX-License-Identifier: Apache-2.0
"""The fill status of an image on a host: how much of it the host's cache holds and keeps.

An image is fully cached when every chunk is in the local cache and pinned there.  An image whose
use is not known counts as used, so no service takes it for unneeded too early.
"""

import enum
from typing import Annotated

import msgspec

from acstor_common.wire import control_wire

MAX_WHY = 255
MAX_BYTES = (1 << 63) - 1

Bytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_BYTES)]
DueIn = Annotated[float, msgspec.Meta(ge=-MAX_BYTES, le=control_wire.MAX_DEADLINE_S)]


class FillState(enum.StrEnum):
    """What the agent does to cache an image completely."""

    BOOTING = "booting"  # a guest boots from it; the fill begins after the boot
    QUEUED = "queued"  # the agent fills other images first
    FILLING = "filling"
    FULLY_CACHED = "fully_cached"
    NO_SPACE = "no_space"  # the cache has no space for it beside the images pinned before it
    PAUSED = "paused"  # by an operator
    FAILING = "failing"
    EVICTABLE = "evictable"  # not pinned: no server uses it, or keep_images is none


class FillStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Fill status of one image on one host.

    :param is_used: servers of the host use the image, or may use it
    :param why: reason why it is not fully cached and does not progress
    :param total_bytes: data to cache: each distinct chunk once, without zeros; 0: not known
    :param remaining_bytes: data that is not cached yet; None: not counted yet
    :param shortfall_bytes: space that the cache lacks for the image
    :param rate_bytes_s: fill rate
    :param remaining_s: time to the end at this rate; None: not known
    :param due_in_s: time to the operator's deadline; below 0: the deadline has passed
    :param is_late: it missed the deadline, or will miss it at this rate
    :param is_shared: the hosts that use it keep one copy together, each a part of it
    :param is_pinned: an operator pinned it: the cache keeps it when no server uses it
    :param mode: fill mode that an operator chose
    """

    state: FillState
    is_used: bool
    why: Annotated[str, msgspec.Meta(max_length=MAX_WHY)] = ""
    total_bytes: Bytes = 0
    remaining_bytes: Bytes | None = None
    shortfall_bytes: Bytes = 0
    rate_bytes_s: Bytes = 0
    remaining_s: Seconds | None = None
    due_in_s: DueIn | None = None
    is_late: bool | None = None
    is_shared: bool = False
    is_pinned: bool = False
    mode: control_wire.FillMode = control_wire.FillMode.NORMAL

    def __post_init__(self) -> None:
        if self.remaining_bytes is not None and self.remaining_bytes > self.total_bytes:
            raise ValueError("more data remains than the image has")
        if self.is_fully_cached and self.remaining_bytes != 0:
            raise ValueError("a fully cached image has no data that remains")

    @property
    def is_fully_cached(self) -> bool:
        """Say whether the cache holds and keeps all of the image."""
        return self.state is FillState.FULLY_CACHED


def cached_share(total_bytes: int, remaining_bytes: int | None) -> float | None:
    """Return the part of an image that is cached, from 0 to 1; None if it is not known.

    >>> cached_share(8, 6)
    0.25
    """
    if remaining_bytes is None:
        return None
    return 1 - remaining_bytes / total_bytes if total_bytes else 1.0
