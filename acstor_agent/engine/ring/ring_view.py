# SPDX-License-Identifier: Apache-2.0
"""The homes and owners (``placement``) by the current and the former v-node table, cached."""

from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from acstor_agent.engine.ring import placement
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.ring import location
from acstor_common.wire.peer import peer_request

Mode = peer_request.Mode
Owners = tuple[tuple[ids.HostId, ...], ...]

CACHED_ARCS = 8192  # ring arcs whose owners are cached


class RingView:
    """The current and the former table, for ``own_host``."""

    def __init__(
        self,
        own_host: ids.HostId,
        table: hash_ring.Ring,
        former: hash_ring.Ring | None = None,
        cached_arcs: int = CACHED_ARCS,
    ) -> None:
        self.own_host, self._cached_arcs = own_host, cached_arcs
        self.set_tables(table, former)

    def set_tables(self, table: hash_ring.Ring, former: hash_ring.Ring | None) -> None:
        """Set the tables; ``former`` is None once its hosts are not worth asking."""
        self.table, self.former = table, former
        if former is not None and former.segment_chunks != table.segment_chunks:
            former = None  # its segments have other names, so homes are unknown
        self._former_homes = former
        self.near = table.group_of(self.own_host)  # the ring of this host's group
        self.home = self.near.home_at
        self._former_near = former.group_of(self.own_host) if former is not None else None
        self._outer = table.outer_group_of(self.own_host)
        self._failed_departed: set[ids.HostId] = set()
        self._may_serve_cache: dict[ids.HostId, bool] = {}  # hosts of the current table
        rings = (table, self.near, self._outer, former, self._former_near)
        self._rings = tuple({id(ring): ring for ring in rings if ring is not None}.values())
        self._owners_of_arcs: dict[Hashable, Owners] = {}

    def is_member(self, host: ids.HostId) -> bool:
        """Return whether a host is on one of the tables."""
        return host in self.table or (self.former is not None and host in self.former)

    def other_hosts(self) -> list[ids.HostId]:
        """Return all other hosts of the current table."""
        hosts = (ids.HostId(host.host) for host in self.table.hosts)
        return [host for host in hosts if host != self.own_host]

    def is_reachable(self, host: ids.HostId) -> bool:
        """Return whether to ask a host; one that left the ring, until it fails once."""
        if host in self.table:
            return True
        former = self.former
        return former is not None and host in former and host not in self._failed_departed

    def drop_departed_host(self, host: ids.HostId) -> None:
        """Record a failure: if the host has left the ring, it is not asked again."""
        self._failed_departed.add(host)

    def is_home(self, oid: ids.Oid) -> bool:
        """Return whether this host is the home."""
        return self.home(oid) == self.own_host

    def home_mode(self, host: ids.HostId, oid: ids.Oid) -> peer_request.Mode:
        """Return the mode in which to ask a home; a new one may lack the newest table."""
        former = self._former_near
        if former is None or former.home_at(oid) == host or self.near.home_at(oid) != host:
            return Mode.HOME
        return Mode.NEW_HOME

    def owners_of(self, oid: ids.Oid, limit: int) -> tuple[ids.HostId, ...]:
        """Return the owners, those of this host's group first."""
        return placement.owners(self.table, self.own_host, oid, limit)

    def all_owners(self, oid: ids.Oid) -> Owners:
        """Return every owner that source selection depends on, of both tables."""
        arcs = (
            self._rings[0].arc_at(oid)
            if len(self._rings) == 1
            else tuple([ring.arc_at(oid) for ring in self._rings])
        )
        found = self._owners_of_arcs.get(arcs)
        if found is None:
            if len(self._owners_of_arcs) >= self._cached_arcs:
                self._owners_of_arcs.clear()
            found = self._owners_of_arcs[arcs] = tuple(self._owners_by_table(oid))
        return found

    def _owners_by_table(self, oid: ids.Oid) -> Iterator[tuple[ids.HostId, ...]]:
        limit = placement.OWNERS_ASKED
        yield self.owners_of(oid, limit)
        if (outer := placement.outer_home(self.table, self.own_host, oid)) is not None:
            yield (outer,)
        if self._former_homes is not None:
            yield placement.owners(self._former_homes, self.own_host, oid, limit)

    def is_near(self, host: ids.HostId) -> bool:
        """Return whether a host is in this host's group."""
        return host in self.near

    def group_location(self, host: ids.HostId) -> location.Levels:
        """Return the location of a host's group."""
        return self.table.group_location(host)

    def nearer_home(self, oid: ids.Oid, far: ids.HostId) -> ids.HostId | None:
        """Return the home of a position among the hosts that are nearer than ``far``."""
        return placement.nearer_home(self.table, self.own_host, oid, far)

    def may_serve(self, host: ids.HostId) -> bool:
        """Return whether a host may be asked or named as a holder: near, and not deprioritized."""
        may_serve = self._may_serve_cache.get(host)
        if may_serve is None:
            may_serve = self.is_near(host) and not self.table.is_deprioritized(host)
            if host in self.table:
                self._may_serve_cache[host] = may_serve
        return may_serve

    def upstreams_of(
        self, oid: ids.Oid, requester: ids.HostId | None, is_moved: bool
    ) -> list[ids.HostId]:
        """Return the hosts that this host, acting as home, asks before the source."""
        table, former = self.table, self._former_homes
        if former is None and self._outer is None and not is_moved:
            return []  # nearly always
        return placement.upstreams(table, former, self.own_host, oid, requester, is_moved)

    def with_image_homes(
        self, upstreams: list[ids.HostId], image_id: ids.ImageId
    ) -> list[ids.HostId]:
        """Add the hosts that read a whole image: the former one, which has begun, first."""
        now = placement.image_home(self.table, image_id)
        former = placement.image_home(self.former, image_id) if self.former is not None else now
        first = former if former != now else None
        found = dict.fromkeys((first, *upstreams, now))
        return [host for host in found if host not in (None, self.own_host)]

    def is_left_to_new_home(self, oid: ids.Oid, requester: ids.HostId) -> bool:
        """Return whether this host, a former home, leaves a chunk to the new home."""
        return placement.is_left_to_new_home(
            self.table, self._former_homes, self.own_host, oid, requester
        )


Topology = Callable[
    [Sequence[ids.HostId], ids.HostId, Mapping[ids.HostId, str]], tuple[ids.HostId, ...]
]
"""Returns the neighbours of a host: from all hosts in the order of the ring, the host, and
``site/rack/host`` of each; none if the host is not among them."""


def on_ring(
    hosts: Sequence[ids.HostId], own_host: ids.HostId, locations: Mapping[ids.HostId, str]
) -> tuple[ids.HostId, ...]:
    """Return the hosts before and after ``own_host`` in the order of the ring, as in both papers.

    >>> on_ring(["h1", "h2", "h3", "h4"], "h1", {})
    ('h2', 'h4')
    """
    others = followers(hosts, own_host)
    return tuple(dict.fromkeys([*others[:1], *others[-1:]]))


def followers(hosts: Sequence[ids.HostId], own_host: ids.HostId) -> list[ids.HostId]:
    """Return all other hosts from ``own_host`` on around the ring; none if it is not among them."""
    if own_host not in hosts:
        return []
    at = hosts.index(own_host)
    return [*hosts[at + 1 :], *hosts[:at]]
