# SPDX-License-Identifier: Apache-2.0
"""Topologies beside the agent's ring (``engine/ring/ring_view``): the nearest hosts, and all."""

from collections.abc import Mapping
from collections.abc import Sequence

from acstor_agent.engine.ring import ring_view
from acstor_common.model import ids
from acstor_common.ring import location

NEAREST_COUNT = 4


def nearest(
    hosts: Sequence[ids.HostId],
    own_host: ids.HostId,
    locations: Mapping[ids.HostId, str],
    count: int = NEAREST_COUNT,
) -> tuple[ids.HostId, ...]:
    """Return ``count`` hosts whose locations have most in common with that of ``own_host``.

    >>> places = {"h1": "a/1/h1", "h2": "b/1/h2", "h3": "a/1/h3", "h4": "a/2/h4"}
    >>> nearest(list(places), "h1", places, count=2)
    ('h3', 'h4')
    """
    ours = locations.get(own_host, "").split("/")
    # Alternately from both sides, so that equally near ones are the closest on the ring.
    around = _alternate(ring_view.followers(hosts, own_host))
    around.sort(key=lambda host: -location.common_levels(ours, locations.get(host, "").split("/")))
    return tuple(around[:count])


def all_hosts(
    hosts: Sequence[ids.HostId], own_host: ids.HostId, locations: Mapping[ids.HostId, str]
) -> tuple[ids.HostId, ...]:
    """Return all other hosts: for small clouds."""
    return tuple(ring_view.followers(hosts, own_host))


def _alternate(followers: Sequence[ids.HostId]) -> list[ids.HostId]:
    """Return the next host on the ring, the previous, the one after next, and so on."""
    half = (len(followers) + 1) // 2
    order = [host for pair in zip(followers[:half], followers[::-1], strict=False) for host in pair]
    return list(dict.fromkeys(order))
