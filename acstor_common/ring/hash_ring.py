# SPDX-License-Identifier: Apache-2.0
"""The hash ring: maps content to its home and the other owners (``doc/source/format/ring.rst``).

The mapping is a pure function of the v-node table and the OID, equal on all hosts: consistent
hashing (Karger et al., STOC 1997) of content, so equal chunks of different images have one home.
With locations and a threshold, each host asks the first owner nearer than the threshold (Wu et al.
2017, Algorithm 1).
"""

import array
import bisect
import collections
import functools
import itertools
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated
from typing import Protocol

import msgspec

from acstor_common import errors
from acstor_common.model import addresses
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.ring import location
from acstor_common.ring import location_policies
from acstor_common.ring import vnode

FORMAT_VERSION = 1
MAX_EPOCH = (1 << 53) - 1  # largest integer that every JSON reader represents exactly
MAX_LEAP = 1_000_000  # epochs that a host may have missed: two months of a new table every 5 s
MAX_THRESHOLD = location_policies.MAX_THRESHOLD
MAX_HOSTS = 16384
MAX_REVOKED = 4096
MAX_VNODES = 10_000
MAX_POINTS = 1 << 20  # limit of all v-nodes together; building such a ring takes a few seconds
MAX_FILE_BYTES = 8 * 1024 * 1024
_LAST_OID = (1 << 64) - 1


class RingHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One host of the v-node table."""

    host: str
    address: str  # of its agent, ``ip:port`` or ``[ipv6]:port``
    vnodes: int
    location: str = ""  # ``site/pod/rack``; empty if unknown
    names: dict[str, str] | None = None  # packed v-nodes; None: its first ``vnodes``

    def iter_vnodes(self) -> Iterator[vnode.VNode]:
        """Yield its v-nodes; ValueError if ``names`` is malformed."""
        if self.names is not None:
            return vnode.unpack(self.names)
        return iter(vnode.first_vnodes(ids.HostId(self.host), self.vnodes))


def named_host(
    host: ids.HostId, address: str, names: frozenset[vnode.VNode], place: str = ""
) -> RingHost:
    """Return a host with these v-nodes, in the shortest form."""
    is_plain = names == vnode.first_vnodes(host, len(names)) and names
    packed = None if is_plain else vnode.pack(names)
    return RingHost(host, address, len(names), place, packed)


_Epoch = Annotated[int, msgspec.Meta(ge=0, le=MAX_EPOCH)]
_Threshold = Annotated[int, msgspec.Meta(ge=1, le=MAX_THRESHOLD)] | None
_Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_VNODES)]
_Names = Annotated[dict[str, str], msgspec.Meta(max_length=MAX_VNODES)]
_BeforeS = Annotated[int, msgspec.Meta(ge=0, le=MAX_EPOCH)]


class _FileHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    host: str
    address: str
    vnodes: _Count | _Names
    location: str = ""


class _RingFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    version: int
    epoch: _Epoch
    hosts: Annotated[tuple[_FileHost, ...], msgspec.Meta(max_length=MAX_HOSTS)]
    threshold: _Threshold = None
    outer_threshold: _Threshold = None
    places: Annotated[
        dict[str, location_policies.LocationPolicy], msgspec.Meta(max_length=MAX_HOSTS)
    ] = {}
    revoked: Annotated[dict[str, _BeforeS], msgspec.Meta(max_length=MAX_REVOKED)] = {}
    segment_chunks: Annotated[int, msgspec.Meta(ge=1, le=segments.MAX_CHUNKS)] = 1


class _Versioned(msgspec.Struct):
    version: int


class Ring:
    """A v-node table and the ring derived from it.

    >>> ring = Ring(7, (RingHost("h1", "10.0.0.1:7201", 100), RingHost("h2", "10.0.0.2:7201", 100)))
    >>> ring.owners_of(ids.cid_of(b"a chunk"))
    ('h2', 'h1')

    :param epoch: number of the table; a higher one replaces a lower one
    :param threshold: hosts nearer than this share homes; None: all hosts share homes
    :param outer_threshold: before a home reads the source, it asks the home among the hosts nearer
        than this; None: it does not
    :param policies: by location
    :param within: the location of this ring, if it is that of a group
    :param revoked: by host, for :func:`acstor_common.identity.certificates.is_revoked`
    :raises ValueError: duplicate hosts, values out of range, or inconsistent locations
    """

    def __init__(
        self,
        epoch: int,
        hosts: tuple[RingHost, ...],
        threshold: int | None = None,
        outer_threshold: int | None = None,
        revoked: Mapping[str, int] = MappingProxyType({}),
        policies: location_policies.LocationPolicies = MappingProxyType({}),
        within: location.Levels = (),
        segment_chunks: int = 1,
    ) -> None:
        _check(hosts)
        segments.check(segment_chunks)
        self.segment_chunks = segment_chunks
        location_policies.check_policies(policies, threshold, outer_threshold)
        for host in revoked:
            ids.parse_host_id(host)
        self.revoked = dict(revoked)
        self.epoch = epoch
        self.threshold = threshold
        self.outer_threshold = outer_threshold
        self.policies = dict(policies)
        self._levels = {ids.HostId(host.host): location.parse(host.location) for host in hosts}
        self._groups: dict[location.Levels, Ring] = {}
        self.hosts = tuple(sorted(hosts, key=lambda host: host.host))
        self._ids = tuple(ids.HostId(host.host) for host in self.hosts)
        self._addresses = {ids.HostId(host.host): host.address for host in self.hosts}
        points = _sorted_points(self.hosts, policies, within)
        self._vnodes = {ids.HostId(host.host): host.vnodes for host in self.hosts}
        self._homes = sum(count > 0 for count in self._vnodes.values())
        owned = sum(self._vnodes.values())
        self._deprioritized = {h.host for h in self.hosts if 2 * h.vnodes * len(self.hosts) < owned}
        self._points = array.array("Q", [point for point, _ in points])
        self._owner_of_point = array.array("H", [number for _, number in points])
        self._ends = _ends_of_runs(self._owner_of_point)

    def __contains__(self, host: ids.HostId) -> bool:
        return host in self._addresses

    def address_of(self, host: ids.HostId) -> str:
        """Return the address of a host's agent; KeyError if the host is unknown."""
        return self._addresses[host]

    def hosts_at(self, ip: str) -> int:
        """Return the number of hosts with an IP address (canonical form)."""
        return self._hosts_by_ip[ip]

    @functools.cached_property
    def _hosts_by_ip(self) -> collections.Counter[str]:
        return collections.Counter(addresses.parse(host.address)[0] for host in self.hosts)

    def is_deprioritized(self, host: ids.HostId) -> bool:
        """Return whether a host has less than half an even share of v-nodes: its link is loaded."""
        return host in self._deprioritized

    def is_drained(self, host: ids.HostId) -> bool:
        """Return whether an operator took all v-nodes of a host (traffic leaves one)."""
        return self._vnodes.get(host) == 0

    def vnodes_of(self, host: ids.HostId) -> int:
        """Return a host's number of v-nodes; 0 if it is unknown."""
        return self._vnodes.get(host, 0)

    def host_locations(self) -> dict[ids.HostId, str]:
        """Return the location of each host."""
        return {ids.HostId(host.host): host.location for host in self.hosts}

    def group_location(self, host: ids.HostId) -> location.Levels:
        """Return the location that the hosts of a host's group have in common."""
        levels = self._levels.get(host, ())
        return () if self.threshold is None else location.ancestor(levels, self.threshold)

    def group_of(self, host: ids.HostId) -> "Ring":
        """Return the ring of the hosts nearer to ``host`` than the threshold, or this ring."""
        return self._nearer_than(self.threshold, host)

    def outer_group_of(self, host: ids.HostId) -> "Ring | None":
        """Return the ring that a home asks before the source; None if there is none."""
        if self.threshold is None or self.outer_threshold is None:
            return None
        group = location.ancestor(self._levels.get(host, ()), self.threshold)
        outer = location_policies.outer_threshold_of(self.policies, group, self.outer_threshold)
        return None if outer == location_policies.FROM_SOURCE else self._nearer_than(outer, host)

    def ring_within(self, host: ids.HostId, far: ids.HostId) -> "Ring":
        """Return the ring of the hosts that are nearer to ``host`` than ``far``."""
        levels = self._levels.get(host, ()), self._levels.get(far, ())
        return self._nearer_than(location.distance(*levels), host)

    def _nearer_than(self, threshold: int | None, host: ids.HostId) -> "Ring":
        if threshold is None or host not in self:
            return self
        place = location.ancestor(self._levels[host], threshold)
        if place not in self._groups:
            depth = len(place)
            near = [h for h in self.hosts if self._levels[ids.HostId(h.host)][:depth] == place]
            is_all = len(near) == len(self.hosts)
            self._groups[place] = (
                self
                if is_all
                else Ring(
                    *(self.epoch, tuple(near), self.threshold, self.outer_threshold),
                    policies=self.policies,
                    within=place,
                    segment_chunks=self.segment_chunks,
                )
            )
        return self._groups[place]

    def owners_of(self, cid: ids.Cid, limit: int | None = None) -> tuple[ids.HostId, ...]:
        """Return the owners of content: its home, then the stand-ins; ``limit`` None: all hosts.

        The order is that of their next points, so many hosts share the load of a failed home.
        """
        return self.owners_at(ids.oid_of(cid), limit)

    def owners_at(self, oid: ids.Oid, limit: int | None = None) -> tuple[ids.HostId, ...]:
        """Return the owners of a ring position; see :meth:`owners_of`."""
        wanted = self._homes if limit is None else min(limit, self._homes)
        found: dict[ids.HostId, None] = {}
        for number in self._walk(oid):
            if len(found) >= wanted:
                break
            found.setdefault(self._ids[number])
        return tuple(found)

    def arc_at(self, oid: ids.Oid) -> int:
        """Return the index of a position's arc; positions of an arc have equal owners."""
        at = bisect.bisect_left(self._points, oid)
        return at if at < len(self._points) else 0

    def last_with_same_owners(self, oid: ids.Oid) -> ids.Oid:
        """Return the last position, from ``oid`` on, with the same owners."""
        at = bisect.bisect_left(self._points, oid)
        return ids.Oid(self._points[at]) if at < len(self._points) else ids.Oid(_LAST_OID)

    def home_at(self, oid: ids.Oid) -> ids.HostId | None:
        """Return the home of a position; None if there are no v-nodes."""
        if not self._points:
            return None
        at = bisect.bisect_left(self._points, oid)
        return self._ids[self._owner_of_point[at if at < len(self._points) else 0]]

    def _walk(self, oid: ids.Oid) -> Iterator[int]:
        """Yield the host index of each run of points, once round the ring from ``oid``."""
        start = bisect.bisect_left(self._points, oid)
        for at, end in (start, len(self._points)), (0, start):
            while at < end:
                yield self._owner_of_point[at]
                at = self._ends[at]


class RingProvider(Protocol):
    """Knows the current v-node table."""

    def current_ring(self) -> Ring:
        """Return the current table."""


def _sorted_points(
    hosts: Iterable[RingHost], policies: location_policies.LocationPolicies, within: location.Levels
) -> list[tuple[int, int]]:
    return sorted(
        (vnode.point_of(name), number)
        for number, host in enumerate(hosts)
        for name in location_policies.counted_vnodes(
            policies, host.iter_vnodes(), location.parse(host.location), within
        )
    )


def _ends_of_runs(owners: Iterable[int]) -> Sequence[int]:
    """Return for each point the end of its run of points of one host.

    >>> list(_ends_of_runs([0, 0, 1, 0]))
    [2, 2, 3, 4]
    """
    ends = array.array("I")
    for _, run in itertools.groupby(owners):
        length = len(list(run))
        ends.extend(itertools.repeat(len(ends) + length, length))
    return ends


def _check(hosts: tuple[RingHost, ...]) -> None:
    seen: set[object] = set()
    for host in hosts:
        ids.parse_host_id(host.host)
        address = addresses.parse(host.address)
        for text in (host.host, address):
            if text in seen:
                raise ValueError(f"{text!r} appears twice")
            seen.add(text)
        if len(location.parse(host.location)) != len(location.parse(hosts[0].location)):
            raise ValueError(
                f"{host.host}: location {host.location!r} has more or fewer levels than "
                f"{hosts[0].location!r} of {hosts[0].host}"
            )
        _check_vnodes(host)
    if len(hosts) > MAX_HOSTS:
        raise ValueError(f"{len(hosts)} hosts, at most {MAX_HOSTS} are allowed")
    if (points := sum(host.vnodes for host in hosts)) > MAX_POINTS:
        raise ValueError(f"{points} v-nodes in all, at most {MAX_POINTS} are allowed")
    if any(host.names is not None for host in hosts):
        _check_owners(hosts)


def _check_vnodes(host: RingHost) -> None:
    least = 1 if host.names is None else 0
    if not least <= host.vnodes <= MAX_VNODES:
        raise ValueError(f"{host.host}: {host.vnodes} v-nodes, {least} to {MAX_VNODES} are allowed")


def _check_owners(hosts: tuple[RingHost, ...]) -> None:
    owners: dict[vnode.VNode, str] = {}
    for host in hosts:
        for name in host.iter_vnodes():
            other = owners.setdefault(name, host.host)
            if other != host.host:
                raise ValueError(f"v-node {name} appears twice: at {other} and at {host.host}")


def decode(data: bytes, what: str) -> Ring:
    """Parse a v-node table in JSON, or raise RingFormatError about ``what`` (a path)."""
    if len(data) > MAX_FILE_BYTES:
        raise errors.RingFormatError(
            what, MAX_FILE_BYTES, f"longer than {MAX_FILE_BYTES} bytes, no v-node table is"
        )
    try:
        return _decode(data)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        place = re.search(r"\(byte (\d+)\)", str(error))
        raise errors.RingFormatError(what, int(place[1]) if place else 0, str(error)) from error


def _decode(data: bytes) -> Ring:
    version = msgspec.json.decode(data, type=_Versioned).version
    if version != FORMAT_VERSION:
        raise ValueError(f"version {version} is unknown, {FORMAT_VERSION} is expected")
    table = msgspec.json.decode(data, type=_RingFile)
    hosts = tuple(_read_host(host) for host in table.hosts)
    thresholds = table.threshold, table.outer_threshold
    return Ring(
        *(table.epoch, hosts, *thresholds, table.revoked, table.places),
        segment_chunks=table.segment_chunks,
    )


def _read_host(host: _FileHost) -> RingHost:
    if isinstance(host.vnodes, int):
        return RingHost(host.host, host.address, host.vnodes, host.location)
    count = sum(1 for _ in itertools.islice(vnode.unpack(host.vnodes), MAX_VNODES + 1))
    return RingHost(host.host, host.address, count, host.location, host.vnodes)


def encode(ring: Ring) -> bytes:
    """Return ``ring`` as a v-node table in JSON, hosts sorted by ID."""
    hosts = tuple(
        _FileHost(h.host, h.address, h.vnodes if h.names is None else h.names, h.location)
        for h in ring.hosts
    )
    both = ring.threshold, ring.outer_threshold
    return msgspec.json.encode(
        _RingFile(
            *(FORMAT_VERSION, ring.epoch, hosts, *both),
            *(ring.policies, ring.revoked, ring.segment_chunks),
        )
    )
