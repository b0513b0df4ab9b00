# SPDX-License-Identifier: Apache-2.0
"""What an agent can do in another way than is best, so that experiments can compare both.

The one rule: guests read the same bytes with each of them.
"""

import enum
from collections.abc import Collection

from acstor_common import errors


class Variant(enum.StrEnum):
    """One thing that is done in another way; the values are those of the option ``variants``."""

    NO_ADVERTISEMENTS = "no-advertisements"
    ADVERTISE_NEAREST = "advertise-nearest"
    ADVERTISE_FULL = "advertise-full"
    NO_PREFETCH = "no-prefetch"
    UNBOUNDED_PREFETCH = "unbounded-prefetch"
    PREFETCH_BY_LIMIT = "prefetch-by-limit"
    NO_READ_AHEAD = "no-read-ahead"
    READ_AHEAD_BY_UNITS = "read-ahead-by-units"
    NO_REFERRALS = "no-referrals"
    NO_HEDGES = "no-hedges"
    NO_SOURCE_FIRST = "no-source-first"
    NO_COPY_HINTS = "no-copy-hints"
    RING = "ring"
    BY_PLACE = "by-place"
    BY_OID = "by-oid"
    HOMES_KEEP = "homes-keep"
    CACHE_LFU = "cache-lfu"
    CACHE_FIFO = "cache-fifo"


MEANINGS = {
    Variant.NO_ADVERTISEMENTS: "nobody is told which chunks are here, and nobody is listened to",
    Variant.ADVERTISE_NEAREST: "the nearest hosts by location are told, not those beside it on "
    "the ring",
    Variant.ADVERTISE_FULL: "every host is told",
    Variant.NO_PREFETCH: "nothing is fetched ahead because a neighbour advertised it",
    Variant.UNBOUNDED_PREFETCH: "all that neighbours advertise is fetched ahead",
    Variant.PREFETCH_BY_LIMIT: "what neighbours advertise is fetched ahead while fewer chunks "
    "than the limit are here that no guest has read, whatever proved right before",
    Variant.NO_READ_AHEAD: "nothing is fetched ahead of who reads in order",
    Variant.READ_AHEAD_BY_UNITS: "all of the part of an image that is being read is fetched, in "
    "whatever order",
    Variant.NO_REFERRALS: "a busy host names no others to ask instead",
    Variant.NO_HEDGES: "a slow answer is waited for until it fails",
    Variant.NO_SOURCE_FIRST: "the source is not asked first, however slow other hosts are",
    Variant.NO_COPY_HINTS: "no holder is told to let chunks go that many hosts hold",
    Variant.RING: "hosts that read an image at the same time over slow links learn a ring and "
    "give it round there; on all hosts or on none",
    Variant.BY_PLACE: "a chunk is an offset of an image, and hosts exchange inside one image only; "
    "on all hosts or on none",
    Variant.BY_OID: "image and offset say which host is asked for a chunk, and that host finds it "
    "by content; on all hosts or on none",
    Variant.HOMES_KEEP: "only what this host is the home of is kept, and nothing is fetched ahead",
    Variant.CACHE_LFU: "the chunk that was used least makes room for a new one",
    Variant.CACHE_FIFO: "the oldest chunk makes room for a new one",
}

_ALTERNATIVES = (
    {Variant.NO_ADVERTISEMENTS, Variant.ADVERTISE_NEAREST, Variant.ADVERTISE_FULL},
    {Variant.NO_PREFETCH, Variant.UNBOUNDED_PREFETCH, Variant.PREFETCH_BY_LIMIT},
    {Variant.NO_READ_AHEAD, Variant.READ_AHEAD_BY_UNITS},
    {Variant.NO_REFERRALS, Variant.RING},
    {Variant.BY_PLACE, Variant.BY_OID},
    {Variant.HOMES_KEEP, Variant.READ_AHEAD_BY_UNITS},
    {Variant.HOMES_KEEP, Variant.UNBOUNDED_PREFETCH, Variant.PREFETCH_BY_LIMIT},
    {Variant.CACHE_LFU, Variant.CACHE_FIFO},
)


def check(chosen: Collection[str]) -> None:
    """Refuse variants that exclude each other.

    :raises errors.Unusable: two of them are answers to the same question
    """
    for alternatives in _ALTERNATIVES:
        both = sorted(alternatives & set(chosen))
        if len(both) > 1:
            why = f"{' and '.join(both)} exclude each other"
            raise errors.Unusable("[acstor_agent] variants", why, "Leave one of them")
