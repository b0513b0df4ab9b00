# SPDX-License-Identifier: Apache-2.0
"""Variants: named changes of :class:`acstor_agent.policies.Policies`; guests read equal bytes."""

import enum
from typing import Any

from acstor_policies import cache_orders
from acstor_policies import disk_schedulers
from acstor_policies import learned_ring
from acstor_policies import place_identity
from acstor_policies import prefetch_by_limit
from acstor_policies import topologies
from acstor_policies import unit_readahead

Changes = dict[str, Any]


class Variant(enum.StrEnum):
    """The names of the variants, which are those of the entry points."""

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
    LINUX_DISK_SCHEDULERS = "linux-disk-schedulers"


NO_ADVERTISEMENTS: Changes = {"topology": None}  # the host neither sends nor accepts announcements

ADVERTISE_NEAREST: Changes = {"topology": topologies.nearest}
"""Announcements go to the nearest hosts by location instead of the neighbours on the ring."""

ADVERTISE_FULL: Changes = {"topology": topologies.all_hosts}  # announcements go to every host

NO_PREFETCH: Changes = {"prefetcher": None}  # advertised chunks are not prefetched

UNBOUNDED_PREFETCH: Changes = {"prefetcher": prefetch_by_limit.unbounded}
"""All advertised chunks are prefetched."""

PREFETCH_BY_LIMIT: Changes = {"prefetcher": prefetch_by_limit.limited}
"""Advertised chunks are prefetched while fewer chunks than the limit are here and unread."""

NO_READ_AHEAD: Changes = {"read_ahead": None}  # the agent does not read ahead

READ_AHEAD_BY_UNITS: Changes = {"read_ahead": unit_readahead.UnitReadahead}
"""The agent fetches the whole unit of the image that a guest reads."""

NO_REFERRALS: Changes = {"may_refer": False}  # a busy host refers requesters to no other host

NO_HEDGES: Changes = {"may_hedge": False}  # the agent sends no hedged requests

NO_SOURCE_FIRST: Changes = {"may_ask_source_first": False}
"""Guests' reads go to other hosts before the source, however slow they are."""

NO_COPY_HINTS: Changes = {"gives_copy_hints": False}  # homes tell no holder to evict surplus copies

RING: Changes = {"lockstep_scheme": learned_ring.LearnedRing, "may_refer": True}
"""Hosts that read an image in lock-step over slow links form a ring; on all hosts or on none."""

BY_PLACE: Changes = {"identity_scheme": place_identity.ByPlace}
"""Image and offset make the OID: hosts exchange within one image; on all hosts or on none."""

BY_OID: Changes = {"identity_scheme": place_identity.ByOid}
"""The OID names the host, which looks up the content in its map; on all hosts or on none."""

HOMES_KEEP: Changes = {"homes_keep": True, "prefetcher": None, "read_ahead": None}
"""A host caches only chunks that it is the home of, and fetches nothing ahead."""

CACHE_LFU: Changes = {"cache_order": cache_orders.LfuOrder}
"""The least frequently used chunk is evicted first."""

CACHE_FIFO: Changes = {"cache_order": cache_orders.FifoOrder}  # the oldest chunk is evicted first

LINUX_DISK_SCHEDULERS: Changes = {"disk_schedulers": disk_schedulers.SCHEDULERS}
"""``acstor-agent-ctl set-disk-policy`` takes ``deadline``, ``anticipatory`` and ``cfq``, too."""
