# SPDX-License-Identifier: Apache-2.0
"""Which hosts are a content's owners for this host, and whom a home asks before the source.

A home is found by the requester's location (Zhang et al. 2017, Algorithm 1): the
first owner that is nearer to it than the table's threshold.  So each group of near
hosts reads the source once.  Before it does, its home may ask others that are
likely to have the chunk: *upstreams*.

The one rule: an upstream is asked with ``is_relayed`` and then asks nobody itself,
so a question has one link more than without, whatever tables the hosts have.
"""

from typing import NamedTuple

from acstor_common import ids
from acstor_common import ring


class Upstream(NamedTuple):
    """A host that a home asks before it reads the source.

    :param may_read_source: it is the one that reads the source for this home as well
    """

    host: ids.HostId
    may_read_source: bool


def owners(table: ring.Ring, here: ids.HostId, oid: ids.Oid, limit: int) -> tuple[ids.HostId, ...]:
    """Return the owners of a content, those near ``here`` first; at most twice ``limit``.

    Those that are too far come last: they are of use when nobody near can help.
    """
    near = table.group_of(here)
    found = near.owners_at(oid, limit)
    if near is table:
        return found
    far = (host for host in table.owners_at(oid, limit) if host not in near)
    return (*found, *far)


def home(table: ring.Ring, here: ids.HostId, oid: ids.Oid) -> ids.HostId | None:
    """Return the home of a content as ``here`` sees it; None if the table is empty."""
    return next(iter(table.group_of(here).owners_at(oid, 1)), None)


def upstreams(
    table: ring.Ring,
    former: ring.Ring | None,
    here: ids.HostId,
    oid: ids.Oid,
    requester: ids.HostId | None = None,
) -> list[Upstream]:
    """Return whom ``here``, which acts as the home of a content, asks before the source.

    While a table is new, its home asks the home of the former table, which may hold the chunk; and
    the former home, asked by a host that has not got the new table yet, asks the new home: so one
    of them reads the source.  The home of the outer group comes last.

    :param former: the table that was in force before, as long as it is remembered
    :param requester: the peer that asks ``here``; it has not got the chunk
    """
    found: dict[ids.HostId, Upstream] = {}
    now = home(table, here, oid)
    if former is not None and now is not None:
        before = home(former, here, oid)
        if now == here and before is not None and not _is_too_far(table, here, before):
            found[before] = Upstream(before, may_read_source=False)
        elif before == here:
            found[now] = Upstream(now, may_read_source=True)
    outer = table.outer_group_of(here)
    if outer is not None:
        for host in outer.owners_at(oid, 1):
            found[host] = Upstream(host, may_read_source=True)
    return [upstream for host, upstream in found.items() if host not in (here, requester)]


def _is_too_far(table: ring.Ring, here: ids.HostId, host: ids.HostId) -> bool:
    """Say that ``host`` is on the ring, but in no group from which ``here`` takes chunks.

    Of one that has left the ring nobody knows where it stands; it was near once.
    """
    widest = table.outer_group_of(here) or table.group_of(here)
    return host in table and host not in widest
