# SPDX-License-Identifier: Apache-2.0
"""How far an image is from being whole on a host: all of it there, and there to stay.

The one rule: an image counts as used when that cannot be told, so whoever asks whether somebody
still depends on the image store never hears no too early.
"""

import enum
from typing import Annotated

import msgspec

from acstor_common import control_wire

MAX_WHY = 255
MAX_BYTES = (1 << 63) - 1

Bytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_BYTES)]
DueIn = Annotated[float, msgspec.Meta(ge=-MAX_BYTES, le=control_wire.MAX_WITHIN_S)]


class State(enum.StrEnum):
    """How far an image is."""

    BOOTING = "booting"  # a guest boots from it; what it reads comes first
    QUEUED = "queued"  # others come first
    FILLING = "filling"
    WHOLE = "whole"
    NO_ROOM = "no room"  # the cache lacks room for what is promised and this one
    PAUSED = "paused"  # by the operator
    FAILING = "failing"
    NOT_KEPT = "not kept"  # nobody uses it, nothing has shown yet that it is used, or by option


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """How far one image is on one host.

    :param is_used: instances of the host use it, or may use it; also where it is not kept or has
        no room
    :param why: it does not become whole, if so
    :param total_bytes: what of it is to be here: each content once, without zeros; 0: not known
    :param left_bytes: what of that is not here yet; None: not counted yet
    :param lacking_bytes: what the cache lacks for it
    :param bytes_s: how fast it comes
    :param left_s: how long the rest takes at that speed; None: it does not come, or nobody can tell
    :param due_in_s: until it is to be whole, as an operator asked; below 0: since when it is late
    :param is_late: it was not whole then, or will not be at that speed
    :param is_shared: hosts keep it together, each its share: whole means all of them have theirs
    :param is_asked: an operator wants it kept, whether it is used or not
    """

    state: State
    is_used: bool
    why: Annotated[str, msgspec.Meta(max_length=MAX_WHY)] = ""
    total_bytes: Bytes = 0
    left_bytes: Bytes | None = None
    lacking_bytes: Bytes = 0
    bytes_s: Bytes = 0
    left_s: Seconds | None = None
    due_in_s: DueIn | None = None
    is_late: bool | None = None
    is_shared: bool = False
    is_asked: bool = False
    pace: control_wire.Pace = control_wire.Pace.USUAL

    def __post_init__(self) -> None:
        if self.left_bytes is not None and self.left_bytes > self.total_bytes:
            raise ValueError("more of the image is left than it has")
        if self.is_whole and self.left_bytes != 0:
            raise ValueError("an image that is whole has nothing left")

    @property
    def is_whole(self) -> bool:
        """Say whether all of it is here to stay."""
        return self.state is State.WHOLE


def share(total_bytes: int, left_bytes: int | None) -> float | None:
    """Return how much of an image is here, from 0 to 1; None if that is not known.

    >>> share(8, 6)
    0.25
    """
    if left_bytes is None:
        return None
    return 1 - left_bytes / total_bytes if total_bytes else 1.0
