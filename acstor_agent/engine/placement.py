# SPDX-License-Identifier: Apache-2.0
"""Placement: the owners of a chunk for this host, and the hosts that a home asks before the source.

The home depends on the requester's location (Wu et al. 2017, Algorithm 1): the first owner that is
nearer than the table's threshold.  So each group of near hosts reads the source once.  Before it
does, its home may ask other hosts that probably hold the chunk, its *upstreams*.  They are asked
with ``is_relayed`` and ask no other host, so a request takes one hop more at most, whatever tables
the hosts have.
"""

import enum
from typing import NamedTuple

import blake3

from acstor_common.model import ids
from acstor_common.ring import hash_ring

OWNERS_ASKED = 8
"""Owners of a chunk that are looked at: those asked, and some to spare for hosts out of use."""


class SourceAccess(enum.Enum):
    """How the source gives what lies somewhere in an image to this host."""

    IN_PARTS = enum.auto()
    WHOLE = enum.auto()  # with all of it alone, so one host takes it for all
    WHOLE_HERE = enum.auto()  # and this host has taken it, or does


class Upstream(NamedTuple):
    """A host that a home asks before it reads the source.

    :param may_read_source: it is the one that reads the source for this home as well
    """

    host: ids.HostId
    may_read_source: bool


def owners(
    table: hash_ring.Ring, here: ids.HostId, oid: ids.Oid, limit: int
) -> tuple[ids.HostId, ...]:
    """Return the owners of a content, those near ``here`` first; at most twice ``limit``.

    Those that are too far come last: they are of use when nobody near can help.
    """
    near = table.group_of(here)
    found = near.owners_at(oid, limit)
    if near is table:
        return found
    far = (host for host in table.owners_at(oid, limit) if host not in near)
    return (*found, *far)


def home(table: hash_ring.Ring, here: ids.HostId, oid: ids.Oid) -> ids.HostId | None:
    """Return the home of a content as ``here`` sees it; None if the table is empty."""
    return table.group_of(here).home_at(oid)


def image_home(table: hash_ring.Ring, image_id: ids.ImageId) -> ids.HostId | None:
    """Return the one host that takes an image as a whole for all; None if the table is empty.

    It follows from the image's id, since a host may know no more of an image that it asks for.
    """
    digest = blake3.blake3(ids.image_id_bytes(image_id)).digest(length=8)
    return table.home_at(ids.Oid(int.from_bytes(digest, "big")))


def outer_home(table: hash_ring.Ring, here: ids.HostId, oid: ids.Oid) -> ids.HostId | None:
    """Return the home of a content in the outer group of ``here``; None if there is no such group.

    The outer ring says in which place that is, and the ring of the place's own group which host: so
    it is the home of those near it as well.
    """
    outer = table.outer_group_of(here)
    found = outer.owners_at(oid, 1) if outer is not None else ()
    if not found or not table.outward:  # all count in full: it is the home of its group already
        return next(iter(found), None)
    return home(table, found[0], oid)


def upstreams(
    table: hash_ring.Ring,
    former: hash_ring.Ring | None,
    here: ids.HostId,
    oid: ids.Oid,
    requester: ids.HostId | None = None,
    is_moved: bool = False,
) -> list[Upstream]:
    """Return whom ``here``, which acts as the home of a content, asks before the source.

    While a table is new, its home asks the home of the former table, which may hold the chunk or
    not have the new table yet; the former home, asked by a host that has not got the new table yet,
    asks the new home; and a new home that does not know of it asks the home that it knows.  So one
    of them reads the source, whoever has which table: where both have the new one, the new home
    (:func:`is_left_to`), else the former one.  A former home whose v-nodes went because of traffic
    is left alone: what it holds the source gives as well.  One that has as many as before, among
    others that have got more, has nothing else to carry.  The home of the outer group comes last.

    :param former: the table that was in force before, as long as it is remembered
    :param requester: the peer that asks ``here``; it has not got the chunk
    :param is_moved: by the requester's table ``here`` is the home, and was not by the one before
    """
    found: dict[ids.HostId, Upstream] = {}
    now = home(table, here, oid)
    if former is not None and now is not None:
        before = home(former, here, oid)
        if before is not None and now == here:
            is_bad = _is_too_far(table, here, before) or _is_overloaded(table, former, before)
            if before != requester and not is_bad:
                found[before] = Upstream(before, may_read_source=True)
        elif before == here:  # also where it is the new home that asks: it has the former table
            found[now] = Upstream(now, may_read_source=True)
    if is_moved and now not in (None, requester):
        found[now] = Upstream(now, may_read_source=True)
    outer = outer_home(table, here, oid)
    if outer not in (None, requester):
        found[outer] = Upstream(outer, may_read_source=True)
    return [upstream for host, upstream in found.items() if host != here]


def is_left_to(
    table: hash_ring.Ring,
    former: hash_ring.Ring | None,
    here: ids.HostId,
    oid: ids.Oid,
    requester: ids.HostId | None,
) -> bool:
    """Say whether ``here``, the former home, leaves a content to the new one that asks it.

    Both have the new table then.  A former home that has not got it reads for the new home and for
    those who ask by the former table alike.
    """
    is_former_home = former is not None and home(former, here, oid) == here
    return is_former_home and home(table, here, oid) == requester != here


def _is_too_far(table: hash_ring.Ring, here: ids.HostId, host: ids.HostId) -> bool:
    """Say that ``host`` is on the ring, but in no group from which ``here`` takes chunks.

    Of one that has left the ring nobody knows where it stands; it was near once.
    """
    widest = table.outer_group_of(here) or table.group_of(here)
    return host in table and host not in widest


def _is_overloaded(table: hash_ring.Ring, former: hash_ring.Ring, host: ids.HostId) -> bool:
    """Say that traffic took v-nodes of ``host``: few are left, not none as a drained one has."""
    has_lost = table.vnodes_of(host) < former.vnodes_of(host)
    return has_lost and table.is_spared(host) and not table.is_drained(host)
