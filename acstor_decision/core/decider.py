# SPDX-License-Identifier: Apache-2.0
"""Decides whether the v-node table changes, and into what; only v-nodes that must move do.

A table changes if hosts joined, left, moved or were drained, if a host was overloaded for several
collections in a row, or if a threshold, the segment length or a location policy changed.
"""

import collections
import dataclasses
import enum
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from typing import TypeVar

from acstor_common.model import ids
from acstor_common.model import minhash
from acstor_common.ring import hash_ring
from acstor_common.ring import location
from acstor_common.ring import location_policies
from acstor_decision.core import link_capacity
from acstor_decision.core import location_tuning
from acstor_decision.core import remap
from acstor_decision.core import segment_length
from acstor_decision.core import streak
from acstor_decision.core import threshold
from acstor_decision.core import vnode_counts
from acstor_decision.core.membership import members

V = TypeVar("V")

UNPLACED = "unplaced"  # location of hosts whose locations have fewer or more levels than most


@dataclasses.dataclass(frozen=True)
class RemapPolicy:
    """Parameters of decisions.

    :param vnodes_per_host: of a host that joins. With 100 the shares of equal hosts deviate from
        their mean by 7 to 10 % (standard deviation, 10 to 1,000 hosts), with 50 by 14 %
    :param weight_limit: limit of one host's v-nodes, in multiples of ``vnodes_per_host``; it also
        limits hosts that lie about their traffic
    :param traffic_floor: traffic, as a share of the link's rate, below which hosts count as equal,
        because Equation 1 divides by it; it is above the traffic of chunk headers
    :param least_moved: smallest share of the overloaded hosts' v-nodes worth moving, as moved
        v-nodes cause chunks to be fetched again
    :param factor: lambda of Equation 1, as printed in the paper; None: keep the number of v-nodes
    """

    vnodes_per_host: int = 100
    weight_limit: float = 10.0
    traffic_floor: float = 0.1
    least_moved: float = 0.05
    may_remap: bool = True  # whether overload moves v-nodes
    factor: float | None = None
    max_vnodes: int = hash_ring.MAX_POINTS  # limit of a table's v-nodes


class TableHost(NamedTuple):
    """One host of a table."""

    address: str
    location: str
    names: remap.Names


class VNodeTable(NamedTuple):
    """A v-node table; see :class:`acstor_common.ring.hash_ring.Ring`."""

    hosts: Mapping[ids.HostId, TableHost]
    thresholds: threshold.Thresholds = threshold.Thresholds()
    revoked: Mapping[str, int] = MappingProxyType({})
    policies: location_policies.LocationPolicies = MappingProxyType({})
    segment_chunks: int = 1

    def vnodes_by_host(self) -> remap.Owners:
        """Return the v-nodes of each host."""
        return {host: place.names for host, place in self.hosts.items()}


class ChangeReason(enum.Enum):
    """Why a table replaced another; the values appear in the table history."""

    MEMBERS = "members"  # hosts joined, left, moved, or were drained or enabled
    OVERLOAD = "overload"  # a host was overloaded for several collections in a row
    THRESHOLD = "threshold"  # the load of switches or the locations of hosts changed
    PLACES = "places"  # the capacity of a location's uplink changed
    SEGMENTS = "segments"  # the rate of most links changed
    REVOKED = "revoked"  # certificates of a host were revoked
    EPOCH = "epoch"  # agents had a higher epoch than the database, or its newest row is damaged


class Decision(NamedTuple):
    """A new table."""

    table: VNodeTable
    reason: ChangeReason
    moved: int  # v-nodes that are new, gone or have another owner
    overloaded: tuple[ids.HostId, ...] = ()  # the hosts whose overload caused it


class Decider:
    """Decides about tables, from the members and their loads."""

    def __init__(self, policy: RemapPolicy, known: members.Members, table: VNodeTable) -> None:
        self.policy = policy
        self.table = table
        self._members = known
        self._thresholds = streak.Streak(table.thresholds)
        self._segment_chunks = streak.Streak(table.segment_chunks)
        self._busy: Collection[int] = ()
        self._collections = 0
        needed = known.limits.overload_collections
        self._location_tuner = location_tuning.LocationTuner(needed, table.policies)
        self._revoked: Mapping[str, int] = table.revoked

    def observe_loads(self, busy: Collection[int] | None = ()) -> None:
        """Record slowness and busy levels (None: the last ones), once in a collection."""
        self._busy = self._busy if busy is None else busy
        levels = {host: location.parse(place.location) for host, place in self.table.hosts.items()}
        self._observe_places(levels)
        self._thresholds.count_value(threshold.thresholds_for(levels.values(), self._busy))
        self._segment_chunks.count_value(self._chunks_for_links())

    def _chunks_for_links(self) -> int:
        known = [self._members[host] for host in self.table.hosts if host in self._members]
        links = [member.last.link_bytes_s for member in known if member.has_samples]
        return segment_length.chunks_for(links, self.table.segment_chunks)

    def _observe_places(self, levels: Mapping[ids.HostId, location.Levels]) -> None:
        near, outer = self.table.thresholds
        if near is None:
            return
        self._collections += 1
        known = sorted(host for host in levels if host in self._members)
        readers = {
            host: link_capacity.peer_waits(levels[host], self._members[host].last)
            for host in link_capacity.select_hosts(known, self._collections)
        }
        self._location_tuner.record_slowness(link_capacity.slowness(readers, levels))
        if outer is None:
            return
        groups: dict[str, dict[ids.HostId, link_capacity.PeerWaits]] = collections.defaultdict(dict)
        for host, reader in readers.items():
            groups["/".join(location.ancestor(reader.levels, near))][host] = reader
        depth = len(next(iter(levels.values())))
        outers = [outer, *range(near + 1, min(outer, depth + 1))]
        self._location_tuner.record_waits(
            outer,
            {
                name: link_capacity.group_waits(group, levels, near, outers)
                for name, group in groups.items()
            },
        )

    def set_revoked(self, revoked: Mapping[str, int]) -> None:
        """Set the revocations that the next table carries."""
        self._revoked = dict(revoked)

    def decide_table(self, now_s: float, drained: Collection[str] = ()) -> Decision | None:
        """Return the table to put in force, without ``drained`` homes; None: no change."""
        living = self._members.list_live(now_s)
        if self._revoked != self.table.revoked and (living or self.table.hosts):
            return self._decision(self._steady(living, drained), ChangeReason.REVOKED)
        if not living:
            return None
        wanted = self._steady(living, drained)
        overloaded = tuple(self._members.list_overloaded(now_s)) if self.policy.may_remap else ()
        if overloaded:
            remapped = self._decision(self._by_traffic(wanted), ChangeReason.OVERLOAD, overloaded)
            if self._is_relief(wanted, remapped):
                return remapped
        steady = self._decision(wanted, ChangeReason.MEMBERS)
        if steady.table == self.table:
            return None
        if steady.table.hosts != self.table.hosts:
            return steady
        if steady.table.segment_chunks != self.table.segment_chunks:
            return steady._replace(reason=ChangeReason.SEGMENTS)
        is_threshold = steady.table.thresholds != self.table.thresholds
        return steady._replace(
            reason=ChangeReason.THRESHOLD if is_threshold else ChangeReason.PLACES
        )

    def commit_decision(self, decision: Decision) -> None:
        """Adopt a table that was published."""
        self.table = decision.table
        if decision.reason is ChangeReason.OVERLOAD:
            self._members.forget_overloads()

    def load_table(self, table: VNodeTable) -> None:
        """Adopt a table that another instance published."""
        if table != self.table:
            self.table = table
            self._location_tuner.load_policies(table.policies)
            self._members.forget_overloads()

    def _steady(
        self, living: Collection[ids.HostId], drained: Collection[str]
    ) -> vnode_counts.Counts:
        base = min(self.policy.vnodes_per_host, self.policy.max_vnodes // max(1, len(living)))
        owned = {host: len(place.names) for host, place in self.table.hosts.items()}
        counts = {host: 0 if host in drained else owned.get(host) or base for host in living}
        if sum(counts.values()) <= self.policy.max_vnodes:
            return counts
        return {host: min(count, base) for host, count in counts.items()}

    def _is_relief(self, steady: vnode_counts.Counts, remapped: Decision) -> bool:
        places = remapped.table.hosts
        owned = sum(steady[host] for host in remapped.overloaded)
        lost = owned - sum(len(places[host].names) for host in remapped.overloaded)
        return lost > self.policy.least_moved * owned

    def _by_traffic(self, steady: vnode_counts.Counts) -> vnode_counts.Counts:
        """Return the counts of Equation 1 for homes; drained hosts keep none."""
        homes = [host for host, count in steady.items() if count]
        fastest = max((self._members[host].last.link_bytes_s for host in homes), default=1)
        traffic = {host: self._traffic(host, fastest) for host in homes}
        most = int(self.policy.weight_limit * self.policy.vnodes_per_host)
        most = min(most, hash_ring.MAX_VNODES)
        if self.policy.factor is not None:
            most = min(most, self.policy.max_vnodes // max(1, len(homes)))
            return steady | vnode_counts.printed_counts(traffic, self.policy.factor, most)
        return steady | vnode_counts.bounded_counts(traffic, sum(steady.values()), most)

    def _traffic(self, host: ids.HostId, fastest_bytes_s: int) -> float:
        member = self._members[host]
        share = max(self.policy.traffic_floor, member.traffic_share())
        link_bytes_s = member.last.link_bytes_s if member.has_samples else fastest_bytes_s
        return share * fastest_bytes_s / link_bytes_s

    def _decision(
        self,
        wanted: vnode_counts.Counts,
        reason: ChangeReason,
        overloaded: tuple[ids.HostId, ...] = (),
    ) -> Decision:
        old = self.table.vnodes_by_host()
        owners = remap.remap_vnodes(old, wanted, self._similarity)
        levels = self._usual_levels(owners)
        places = {
            host: TableHost(self._members[host].last.address, self._location(host, levels), names)
            for host, names in owners.items()
        }
        thresholds = threshold.Thresholds()
        if levels is not None:
            thresholds = self._settled(self._thresholds, self.table.thresholds)
        moved = remap.count_moved(old, owners)
        policies = self._find_policies(places.values(), thresholds.near)
        segment_chunks = self._settled(self._segment_chunks, self.table.segment_chunks)
        table = VNodeTable(places, thresholds, self._revoked, policies, segment_chunks)
        return Decision(table, reason, moved, overloaded)

    def _find_policies(
        self, places: Iterable[TableHost], near: int | None
    ) -> location_policies.LocationPolicies:
        if near is None:
            return {}
        where = {location.parse(place.location) for place in places}
        names = {
            "/".join(levels[:depth]) for levels in where for depth in range(1, len(levels) + 1)
        }
        groups = {"/".join(location.ancestor(levels, near)) for levels in where}
        return self._location_tuner.make_policies(names, groups, near)

    def _usual_levels(self, hosts: Collection[ids.HostId]) -> int | None:
        counts = collections.Counter(self._depth(host) for host in hosts)
        levels, times = counts.most_common(1)[0] if counts else (0, 0)
        return levels if 2 * times > len(hosts) else None

    def _depth(self, host: ids.HostId) -> int:
        return len(location.parse(self._members[host].last.location))

    def _location(self, host: ids.HostId, levels: int | None) -> str:
        if levels is None or self._depth(host) == levels:
            return self._members[host].last.location if levels else ""
        return "/".join([UNPLACED] * levels)

    def _settled(self, observed: streak.Streak[V], current: V) -> V:
        needed = self._members.limits.overload_collections
        return observed.value if observed.times >= needed else current

    def _similarity(self, first: ids.HostId, other: ids.HostId) -> float:
        return minhash.similarity(
            self._members[first].last.sketch, self._members[other].last.sketch
        )
