# SPDX-License-Identifier: Apache-2.0
"""Neighbours: the hosts that get a host's announcements."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from acstor_common.model import ids

Topology = Callable[
    [Sequence[ids.HostId], ids.HostId, Mapping[ids.HostId, str]], tuple[ids.HostId, ...]
]
"""Returns the neighbours of a host: from all hosts in the order of the ring, the host, and
``site/rack/host`` of each; none if the host is not among them."""


<<<<<<< ours
def on_ring(
    hosts: Sequence[ids.HostId], here: ids.HostId, locations: Mapping[ids.HostId, str]
) -> tuple[ids.HostId, ...]:
    """Return the hosts before and after ``here`` in the order of the ring, as in both papers.
=======
class Topology(enum.Enum):
    """How neighbours are selected."""

    RING = "ring"  # the hosts before and after it on the ring (both papers)
    NEAREST = "nearest"  # the hosts with the most location levels in common
    FULL = "full"  # all hosts, for small clouds


def neighbours(
    hosts: Sequence[ids.HostId],
    here: ids.HostId,
    topology: Topology,
    *,
    locations: Mapping[ids.HostId, str] | None = None,
    count: int = NEAREST_COUNT,
) -> tuple[ids.HostId, ...]:
    """Return the neighbours of ``here``; none if it is not among ``hosts``.
>>>>>>> theirs

    >>> on_ring(["h1", "h2", "h3", "h4"], "h1", {})
    ('h2', 'h4')
<<<<<<< ours
    """
    others = followers(hosts, here)
    return tuple(dict.fromkeys([*others[:1], *others[-1:]]))
=======
    >>> places = {"h1": "a/1/h1", "h2": "b/1/h2", "h3": "a/1/h3", "h4": "a/2/h4"}
    >>> neighbours(list(places), "h1", Topology.NEAREST, locations=places, count=2)
    ('h3', 'h4')

    :param hosts: all hosts, in ring order
    :param locations: ``site/rack/host`` of each host, for NEAREST
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
    # A stable sort of this order prefers hosts that are close on the ring.
    around = _alternate(followers)
    around.sort(key=lambda host: -location.common_levels(ours, where.get(host, "").split("/")))
    return tuple(around[:count])
>>>>>>> theirs


def followers(hosts: Sequence[ids.HostId], here: ids.HostId) -> list[ids.HostId]:
    """Return all other hosts from ``here`` on around the ring; none if it is not among them."""
    if here not in hosts:
        return []
    at = hosts.index(here)
    return [*hosts[at + 1 :], *hosts[:at]]
