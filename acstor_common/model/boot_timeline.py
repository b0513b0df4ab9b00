# SPDX-License-Identifier: Apache-2.0
"""Where the time of one boot went on its host: what an agent notes, tells and shows of it.

A boot begins when a process opens an image, or with what was done for it just before that, and is
over when nothing of the image was read for a while.  Moments are seconds from the beginning, by a
clock that is never set; one moment, the beginning, is known by the wall clock as well.

A timeline has no byte of an image and a bounded size, whatever a guest reads.  Names
of fields are never changed; a new field has a default.
"""

import enum
from typing import Annotated

import msgspec

from acstor_common.model import ids
from acstor_common.model import patterns

MAX_SPANS = 32
MAX_SLICES = 64
MAX_LONGEST = 16
MAX_WHY = 255

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1 << 40)]
WallClock = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]
"""Until the end of the year 9999, which is the last one that has dates."""
Name = Annotated[str, patterns.full_match("[a-z ]{1,32}")]
Bytes = Annotated[dict[Name, Count], msgspec.Meta(max_length=16)]
"""By :class:`Via`; an agent that is newer may know other ones."""


class Via(enum.StrEnum):
    """By which way bytes came to a read; who waits for several waits for the last of these."""

    ZERO = "zero"  # the chunk map says that they are zeros
    BOOT = "boot"  # the boot image, which was in memory
    CACHE = "cache"  # this host's cache
    FRAME = "frame"  # the boot image, of which a part had to come first
    PEER = "peer"  # another host
    HOME = "home"  # another host, as the home of the chunk
    SOURCE = "source"  # the source


BOOT_IMAGE = frozenset({Via.BOOT, Via.FRAME})
FAILED = "failed"
"""What a read waited for that got nothing."""
PENDING = "pending"
"""What reads wait for that are still under way."""


class Span(msgspec.Struct, frozen=True):
    """Something that was done for a boot.

    :param bytes: that came for it, by which way
    """

    what: Name
    from_s: Moment
    to_s: Moment
    bytes: Bytes = {}


class Slice(msgspec.Struct, frozen=True):
    """A part of the boot's time.

    :param reads: that began in it
    :param waited_s: how much of it a read was under way
    :param bytes: that reads got which ended in it
    """

    reads: Count = 0
    waited_s: Moment = 0.0
    bytes: Bytes = {}


class LongRead(msgspec.Struct, frozen=True):
    """One of the reads that took longest.

    :param why: what did not give the bytes meanwhile, in words; empty where nothing failed
    """

    at_s: Moment
    took_s: Moment
    offset: Count
    length: Count
    bytes: Bytes = {}
    why: Annotated[str, msgspec.Meta(max_length=MAX_WHY)] = ""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """One boot.

    :param instance_id: of Nova's; empty: the process has no disk of an instance of Nova's
    :param began_at_s: wall clock of moment 0
    :param boot_image: what has become of the image's boot image (``ready``, ``none``, …)
    :param spans: what was done for it, in the order of their beginnings
    :param opened_s: when a process opened the image
    :param last_s: when the last read had its answer; 0 before the first
    :param is_over: nothing is read any more
    :param waited_s: for how long a read was under way, by what the oldest of them waited for
    :param bytes: that were read
    :param slice_s: length of a slice; the first one begins when the image was opened
    """

    image_id: Annotated[str, msgspec.Meta(max_length=36)]
    instance_id: Annotated[str, msgspec.Meta(max_length=36)] = ""
    began_at_s: WallClock
    boot_image: Annotated[str, patterns.full_match("[a-z]{0,16}")] = ""
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
    """Return which share of what was read, without zeros, the boot image had; None of nothing.

    >>> boot_image_share({"zero": 7, "boot": 60, "frame": 30, "source": 10})
    0.9
    """
    whole = sum(count for via, count in read.items() if via != Via.ZERO)
    return sum(read.get(via, 0) for via in BOOT_IMAGE) / whole if whole else None
