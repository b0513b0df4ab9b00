# SPDX-License-Identifier: Apache-2.0
"""Neighbours: the hosts that a host sends its announcements to.

Each host computes them from the same v-node table.
"""

import enum
from collections.abc import Mapping
from collections.abc import Sequence

from acstor_common.model import ids
from acstor_common.ring import location

NEAREST_COUNT = 4


class Topology(enum.Enum):
    """Whom a host tells what it has."""

    RING = "ring"  # the hosts before and after it in the order of the ring (both papers)
    NEAREST = "nearest"  # those whose location has most in common with its own
    FULL = "full"  # everybody: for small clouds


def neighbours(
    hosts: Sequence[ids.HostId],
    here: ids.HostId,
    topology: Topology,
    *,
    locations: Mapping[ids.HostId, str] | None = None,
    count: int = NEAREST_COUNT,
) -> tuple[ids.HostId, ...]:
    """Return whom ``here`` tells what it has; nobody if it is not among ``hosts``.

    >>> neighbours(["h1", "h2", "h3", "h4"], "h1", Topology.RING)
    ('h2', 'h4')
    >>> places = {"h1": "a/1/h1", "h2": "b/1/h2", "h3": "a/1/h3", "h4": "a/2/h4"}
    >>> neighbours(list(places), "h1", Topology.NEAREST, locations=places, count=2)
    ('h3', 'h4')

    :param hosts: all hosts, in the order of the ring
    :param locations: ``site/rack/host`` of each host, for NEAREST; who has none is near nobody
    :param count: how many, for NEAREST; those equally near follow in the order of the ring
    """
    if here not in hosts:
        return ()
    at = hosts.index(here)
    followers = [*hosts[at + 1 :], *hosts[:at]]
    if topology is Topology.FULL:
        return tuple(followers)
    if topology is Topology.RING:
        return tuple(dict.fromkeys([*followers[:1], *followers[-1:]]))
    where = locations or {}
    ours = where.get(here, "").split("/")
    # Alternately from both sides, so that equally near ones are the closest on the ring.
    around = _alternate(followers)
    around.sort(key=lambda host: -location.common_levels(ours, where.get(host, "").split("/")))
    return tuple(around[:count])


def _alternate(followers: Sequence[ids.HostId]) -> list[ids.HostId]:
    """Return the next host on the ring, the previous, the one after next, and so on."""
    half = (len(followers) + 1) // 2
    order = [host for pair in zip(followers[:half], followers[::-1], strict=False) for host in pair]
    return list(dict.fromkeys(order))
