# SPDX-License-Identifier: Apache-2.0
"""Fill status of an image: fully cached if every chunk is in the local cache and pinned."""

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
    """State of the background fill of an image."""

    BOOTING = "booting"  # deferred: a guest boots from it
    QUEUED = "queued"  # behind other images
    FILLING = "filling"
    FULLY_CACHED = "fully_cached"
    NO_SPACE = "no_space"  # images pinned before leave no space
    PAUSED = "paused"  # by an operator
    FAILING = "failing"
    EVICTABLE = "evictable"  # unused, or keep_images is none


class FillStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Fill status of one image on one host."""

    state: FillState
    is_used: bool  # by servers; also if this is unknown
    why: Annotated[str, msgspec.Meta(max_length=MAX_WHY)] = ""  # why the fill makes no progress
    total_bytes: Bytes = 0  # distinct non-zero chunks; 0: unknown
    remaining_bytes: Bytes | None = None  # not cached yet; None: unknown
    shortfall_bytes: Bytes = 0  # missing cache space
    rate_bytes_s: Bytes = 0
    remaining_s: Seconds | None = None  # estimated time to completion; None: unknown
    due_in_s: DueIn | None = None  # time to the operator's deadline; negative if it passed
    is_late: bool | None = None  # the deadline was missed, or will be at this rate
    is_shared: bool = False  # the hosts that use it keep one copy together
    is_pinned: bool = False  # pinned by an operator
    mode: control_wire.FillMode = control_wire.FillMode.NORMAL

    def __post_init__(self) -> None:
        if self.remaining_bytes is not None and self.remaining_bytes > self.total_bytes:
            raise ValueError("more data remains than the image has")
        if self.is_fully_cached and self.remaining_bytes != 0:
            raise ValueError("a fully cached image has no data that remains")

    @property
    def is_fully_cached(self) -> bool:
        """Whether the cache holds and pins all of the image."""
        return self.state is FillState.FULLY_CACHED


def cached_share(total_bytes: int, remaining_bytes: int | None) -> float | None:
    """Return the cached share of an image, from 0 to 1; None if unknown.

    >>> cached_share(8, 6)
    0.25
    """
    if remaining_bytes is None:
        return None
    return 1 - remaining_bytes / total_bytes if total_bytes else 1.0
