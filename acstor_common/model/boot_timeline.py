# SPDX-License-Identifier: Apache-2.0
"""Timeline of one boot on its host, as the agent records and reports it.

A boot begins when a process opens an image, or with its preparation, and ends when reads pause.
Times are monotonic seconds since then.  Field names must not change; a new field needs a default.
"""

import enum
from typing import Annotated

import msgspec

from acstor_common.model import ids
from acstor_common.model import text_constraints

MAX_SPANS = 32
MAX_SLICES = 64
MAX_LONGEST = 16
MAX_WHY = 255

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1 << 40)]
WallClock = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]
"""At most the end of year 9999, the limit of :class:`datetime.datetime`."""
Name = Annotated[str, text_constraints.full_match("[a-z ]{1,32}")]
Bytes = Annotated[dict[Name, Count], msgspec.Meta(max_length=16)]
"""Counts by :class:`Via`; a newer agent may send other keys."""


class Via(enum.StrEnum):
    """Where the bytes of a read came from; of several origins, the last in this order."""

    ZERO = "zero"  # zeros according to the chunk map
    BOOT = "boot"  # the boot image, in memory
    CACHE = "cache"  # the cache of this host
    FRAME = "frame"  # the boot image, after its frame arrived
    PEER = "peer"  # another host
    HOME = "home"  # another host, as the home of the chunk
    SOURCE = "source"  # the source


BOOT_IMAGE = frozenset({Via.BOOT, Via.FRAME})
FAILED = "failed"
"""Key of the time that failed reads took."""
PENDING = "pending"
"""Key of the time that pending reads have taken so far."""


class Span(msgspec.Struct, frozen=True):
    """One step of the boot's preparation, and the bytes that it fetched."""

    what: Name
    from_s: Moment
    to_s: Moment
    bytes: Bytes = {}


class Slice(msgspec.Struct, frozen=True):
    """Reads of one time slice.

    :param reads: reads that began in it
    :param waited_s: time with at least one read pending
    :param bytes: bytes of the reads that ended in it
    """

    reads: Count = 0
    waited_s: Moment = 0.0
    bytes: Bytes = {}


class LongRead(msgspec.Struct, frozen=True):
    """One of the longest reads; ``why`` has the reasons of failed attempts."""

    at_s: Moment
    took_s: Moment
    offset: Count
    length: Count
    bytes: Bytes = {}
    why: Annotated[str, msgspec.Meta(max_length=MAX_WHY)] = ""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Timeline of one boot.

    :param instance_id: Nova's; empty if the process has no disk of a Nova instance
    :param began_at_s: wall clock of second 0
    :param boot_image: state of the image's boot image (``ready``, ``none``, …)
    :param spans: by their begin
    :param opened_s: when a process opened the image
    :param last_s: when the last read was answered; 0 before the first
    :param waited_s: time with a read pending, by the origin that the oldest read waited for
    :param slice_s: length of a slice; the first one begins at ``opened_s``
    """

    image_id: Annotated[str, msgspec.Meta(max_length=36)]
    instance_id: Annotated[str, msgspec.Meta(max_length=36)] = ""
    began_at_s: WallClock
    boot_image: Annotated[str, text_constraints.full_match("[a-z]{0,16}")] = ""
    spans: Annotated[tuple[Span, ...], msgspec.Meta(max_length=MAX_SPANS)] = ()
    opened_s: Moment
    last_s: Moment = 0.0
    is_over: bool = False
    reads: Count = 0
    waited_s: Annotated[dict[Name, Moment], msgspec.Meta(max_length=16)] = {}
    bytes: Bytes = {}
    slice_s: Annotated[float, msgspec.Meta(gt=0, le=1 << 20)]
    slices: Annotated[tuple[Slice, ...], msgspec.Meta(max_length=MAX_SLICES)] = ()
    longest: Annotated[tuple[LongRead, ...], msgspec.Meta(max_length=MAX_LONGEST)] = ()

    def __post_init__(self) -> None:
        ids.parse_image_id(self.image_id)
        if self.instance_id:
            ids.parse_image_id(self.instance_id)


def boot_image_share(read: Bytes) -> float | None:
    """Return the boot image's share of all non-zero bytes; None if there are none.

    >>> boot_image_share({"zero": 7, "boot": 60, "frame": 30, "source": 10})
    0.9
    """
    whole = sum(count for via, count in read.items() if via != Via.ZERO)
    return sum(read.get(via, 0) for via in BOOT_IMAGE) / whole if whole else None
