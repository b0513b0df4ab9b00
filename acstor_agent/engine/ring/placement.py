# SPDX-License-Identifier: Apache-2.0
"""Placement: owners of a chunk, and the hosts that a home asks before the source.

The home depends on the requester's location (Wu et al. 2017, Algorithm 1): the first owner within
the table's distance threshold, so each group of near hosts reads the source once. Before that, a
home may ask its *upstreams*, which probably hold the chunk, in mode RELAYED. They ask no other
host, so a request takes one more hop at most, whatever tables the hosts have.
"""

import enum

import blake3

from acstor_common.model import ids
from acstor_common.ring import hash_ring

OWNERS_ASKED = 8
"""Owners that are considered: those to ask, and some spare ones for hosts in backoff."""


class SourceAccess(enum.Enum):
    """How the source serves an image to this host."""

    IN_PARTS = enum.auto()
    WHOLE = enum.auto()  # only as a whole image, which one host reads for all
    WHOLE_HERE = enum.auto()  # as a whole image, which this host has read or reads


def owners(
    table: hash_ring.Ring, own_host: ids.HostId, oid: ids.Oid, limit: int
) -> tuple[ids.HostId, ...]:
    """Return up to ``limit`` owners of the group of ``own_host``, then as many others."""
    near = table.group_of(own_host)
    found = near.owners_at(oid, limit)
    if near is table:
        return found
    far = (host for host in table.owners_at(oid, limit) if host not in near)
    return (*found, *far)


def home(table: hash_ring.Ring, own_host: ids.HostId, oid: ids.Oid) -> ids.HostId | None:
    """Return the home of a chunk for ``own_host``; None if the table is empty."""
    return table.group_of(own_host).home_at(oid)


def image_home(table: hash_ring.Ring, image_id: ids.ImageId) -> ids.HostId | None:
    """Return the host that reads a whole image for all; None if the table is empty."""
    digest = blake3.blake3(ids.image_id_bytes(image_id)).digest(length=8)
    return table.home_at(ids.Oid(int.from_bytes(digest, "big")))


def outer_home(table: hash_ring.Ring, own_host: ids.HostId, oid: ids.Oid) -> ids.HostId | None:
    """Return the chunk's home in the outer group of ``own_host``; None: no such group."""
    outer = table.outer_group_of(own_host)
    found = outer.owners_at(oid, 1) if outer is not None else ()
    if not found or not table.policies:  # in such a table it is the home of its group already
        return next(iter(found), None)
    return home(table, found[0], oid)  # the outer ring selects a group, its own ring the host


def nearer_home(
    table: hash_ring.Ring, own_host: ids.HostId, oid: ids.Oid, far: ids.HostId
) -> ids.HostId | None:
    """Return the chunk's home among the hosts that are nearer to ``own_host`` than ``far``."""
    found = table.ring_within(own_host, far).home_at(oid)
    return home(table, found, oid) if found is not None else None


def upstreams(
    table: hash_ring.Ring,
    former: hash_ring.Ring | None,  # the previous table, while it is remembered
    own_host: ids.HostId,
    oid: ids.Oid,
    requester: ids.HostId | None = None,
    is_moved: bool = False,  # own_host is home by the requester's table, and was not before
) -> list[ids.HostId]:
    """Return the hosts that ``own_host``, acting as home, asks before the source.

    After a remap, the new home asks the former home, which may hold the chunk or lack the new
    table. A former home, asked by a host without the new table, asks the new home. A home that does
    not know yet that it is one asks the home that it knows. So one of them reads the source: the
    new home if both have the new table (:func:`is_left_to_new_home`), else the former. A former
    home that lost v-nodes because of traffic is not asked. The home of the outer group comes last.
    """
    found: list[ids.HostId | None] = []
    now = home(table, own_host, oid)
    if former is not None and now is not None:
        before = home(former, own_host, oid)
        if before is not None and now == own_host:
            is_bad = _is_too_far(table, own_host, before) or _is_overloaded(table, former, before)
            if before != requester and not is_bad:
                found.append(before)
        elif before == own_host:  # even if the new home asks, since that has the former table
            found.append(now)
    if is_moved and now not in (None, requester):
        found.append(now)
    outer = outer_home(table, own_host, oid)
    if outer not in (None, requester):
        found.append(outer)
    return [host for host in dict.fromkeys(found) if host is not None and host != own_host]


def is_left_to_new_home(
    table: hash_ring.Ring,
    former: hash_ring.Ring | None,
    own_host: ids.HostId,
    oid: ids.Oid,
    requester: ids.HostId | None,
) -> bool:
    """Return whether ``own_host``, a former home, leaves a chunk to the new home asking."""
    is_former_home = former is not None and home(former, own_host, oid) == own_host
    return is_former_home and home(table, own_host, oid) == requester != own_host


def _is_too_far(table: hash_ring.Ring, own_host: ids.HostId, host: ids.HostId) -> bool:
    """Return whether ``host`` is on the ring, but in no group that serves ``own_host``."""
    widest = table.outer_group_of(own_host) or table.group_of(own_host)
    return host in table and host not in widest


def _is_overloaded(table: hash_ring.Ring, former: hash_ring.Ring, host: ids.HostId) -> bool:
    """Return whether ``host`` lost v-nodes because of traffic, and is not drained."""
    has_lost = table.vnodes_of(host) < former.vnodes_of(host)
    return has_lost and table.is_deprioritized(host) and not table.is_drained(host)
