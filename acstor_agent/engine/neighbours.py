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


def on_ring(
    hosts: Sequence[ids.HostId], here: ids.HostId, locations: Mapping[ids.HostId, str]
) -> tuple[ids.HostId, ...]:
    """Return the hosts before and after ``here`` in the order of the ring, as in both papers.

    >>> on_ring(["h1", "h2", "h3", "h4"], "h1", {})
    ('h2', 'h4')
    """
    others = followers(hosts, here)
    return tuple(dict.fromkeys([*others[:1], *others[-1:]]))


def followers(hosts: Sequence[ids.HostId], here: ids.HostId) -> list[ids.HostId]:
    """Return all other hosts from ``here`` on around the ring; none if it is not among them."""
    if here not in hosts:
        return []
    at = hosts.index(here)
    return [*hosts[at + 1 :], *hosts[:at]]
