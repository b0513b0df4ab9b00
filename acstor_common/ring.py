# SPDX-License-Identifier: Apache-2.0
"""The v-node ring: which host is the home of a segment, and who comes after it.

The one rule: the answer is a pure function of the v-node table, the image and
the segment, the same on every host, Python version and day.

Homes are chosen by consistent hashing with bounded loads (Mirrokni, Thorup and
Zadimoghaddam, SODA 2018).  Plain consistent hashing is even on average only: of
32 segments over 16 equal hosts the heaviest host gets 4 to 6 instead of 2, and
the whole cloud waits for it.  Here the segments of an image form runs of 1,024.
Within a run they are placed in order, each on the first host at or after its
position that is below its bound, and the bound of a host is its share (by
v-nodes, rounded up) of the first 1, 2, 4, 8 … 1,024 segments of the run: the
smallest of these prefixes that the segment lies in.

Bounds that step with every segment instead of doubling would be tight at every
prefix, but then one host of 16 that leaves moves 8 times its own share; with
doubling bounds it moves 2.2 times, and 10 % more v-nodes on one host move 4 %
of the segments instead of 42 % (measured, 12 images).

The file format is described byte by byte in doc/source/format/ring.rst.
"""

import array
import bisect
import collections
import ipaddress
import itertools
import re
from collections.abc import Iterator
from typing import Annotated

import msgspec
import xxhash

from acstor_common import errors
from acstor_common import ids

FORMAT_VERSION = 1
RUN_SEGMENTS = 1024
MAX_HOSTS = 16384
MAX_VNODES = 10_000
MAX_POINTS = 1 << 20
"""Bound on the v-nodes of all hosts together: a ring of this size is built in a few seconds."""
MAX_FILE_BYTES = 8 * 1024 * 1024
RUNS_CACHED = 256


class RingHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One host of the ring.

    :param address: where its agent listens, ``ip:port`` or ``[ipv6]:port``
    :param vnodes: its number of points on the ring, which is its weight
    """

    host: str
    address: str
    vnodes: Annotated[int, msgspec.Meta(ge=1, le=MAX_VNODES)]


class _Versioned(msgspec.Struct):
    """The one field that every version of the format has."""

    version: int


class _RingFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    epoch: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    hosts: Annotated[tuple[RingHost, ...], msgspec.Meta(max_length=MAX_HOSTS)]


def parse_address(text: str) -> tuple[str, int]:
    """Return the IP address and the port of ``text``.

    >>> parse_address("10.0.0.1:7201"), parse_address("[::1]:7201")
    (('10.0.0.1', 7201), ('::1', 7201))

    :raises ValueError: it is not ``ip:port`` or ``[ipv6]:port`` with a port from 1 to 65535
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+)):([0-9]{1,5})", text, re.ASCII)
    try:
        if not match or not 1 <= int(match[3]) <= 65535:
            raise ValueError(text)
        ip = ipaddress.IPv6Address(match[1]) if match[1] else ipaddress.IPv4Address(match[2])
    except ValueError:
        raise ValueError(f"not an address (ip:port is expected): {text[:64]!r}") from None
    return str(ip), int(match[3])


class Ring:
    """A v-node table and the points that follow from it.

    >>> ring = Ring(7, (RingHost("h1", "10.0.0.1:7201", 100), RingHost("h2", "10.0.0.2:7201", 100)))
    >>> ring.owners(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), 0)
    ('h2', 'h1')

    :param epoch: number of the table; a higher one replaces a lower one
    :param hosts: in any order
    :raises ValueError: two hosts have one id or one address, or something of them is out of range
    """

    def __init__(self, epoch: int, hosts: tuple[RingHost, ...]) -> None:
        _check(hosts)
        self.epoch = epoch
        self.hosts = tuple(sorted(hosts, key=lambda host: host.host))
        self._ids = tuple(ids.HostId(host.host) for host in self.hosts)
        self._addresses = {ids.HostId(host.host): host.address for host in self.hosts}
        points = sorted(
            (xxhash.xxh3_64_intdigest(f"{host.host}#{k}".encode()), number)
            for number, host in enumerate(self.hosts)
            for k in range(host.vnodes)
        )
        self._points = array.array("Q", [point for point, _ in points])
        self._owner_of_point = array.array("H", [number for _, number in points])
        self._runs: collections.OrderedDict[tuple[ids.ImageId, int], array.array[int]] = (
            collections.OrderedDict()
        )

    def __contains__(self, host: ids.HostId) -> bool:
        return host in self._addresses

    def address_of(self, host: ids.HostId) -> str:
        """Return where the agent of ``host`` listens.

        :raises KeyError: the host is not on the ring
        """
        return self._addresses[host]

    def home(self, image_id: ids.ImageId, segment_no: int) -> ids.HostId | None:
        """Return the home of a segment; None if the ring is empty."""
        if not self.hosts:
            return None
        run_no, place = divmod(segment_no, RUN_SEGMENTS)
        return self._ids[self._run(image_id, run_no)[place]]

    def owners(
        self, image_id: ids.ImageId, segment_no: int, limit: int | None = None
    ) -> tuple[ids.HostId, ...]:
        """Return the home of a segment, then every other host in the order to ask them.

        The others follow in the order of their next points round the ring from the segment's
        position, so the load of a dead home is spread over many hosts.

        :param limit: how many hosts are wanted at most; without it, all of them
        """
        home = self.home(image_id, segment_no)
        if home is None:
            return ()
        wanted = len(self.hosts) if limit is None else min(limit, len(self.hosts))
        found = {home: None}
        for number in self._walk(ids.segment_position(image_id, segment_no)):
            if len(found) >= wanted:
                break
            found.setdefault(self._ids[number])
        return tuple(found)[:wanted]

    def owners_of(self, cid: ids.Cid, limit: int) -> tuple[ids.HostId, ...]:
        """Return the home of a content, then the hosts that follow it round the ring."""
        found: dict[ids.HostId, None] = {}
        wanted = min(limit, len(self.hosts))
        for number in self._walk(int.from_bytes(cid[:8], "big")):
            if len(found) >= wanted:
                break
            found.setdefault(self._ids[number])
        return tuple(found)

    def _walk(self, position: int) -> Iterator[int]:
        """Return the host number of each point, once round the ring from ``position``."""
        start = bisect.bisect_left(self._points, position)
        owners = memoryview(self._owner_of_point)
        return itertools.chain(owners[start:], owners[:start])

    def _run(self, image_id: ids.ImageId, run_no: int) -> "array.array[int]":
        """Return the homes (host numbers) of a run; the runs used last are remembered."""
        key = (image_id, run_no)
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = self._place_run(image_id, run_no)
            if len(self._runs) > RUNS_CACHED:
                self._runs.popitem(last=False)
        else:
            self._runs.move_to_end(key)
        return run

    def _place_run(self, image_id: ids.ImageId, run_no: int) -> "array.array[int]":
        owner_of_point, count = self._owner_of_point, len(self._points)
        held = [0] * len(self.hosts)
        homes = array.array("H")
        for j in range(RUN_SEGMENTS):
            if j & (j - 1) == 0:  # a new prefix begins after 1, 2, 4, 8 … segments
                bounds = self._bounds(1 << j.bit_length())
            position = ids.segment_position(image_id, run_no * RUN_SEGMENTS + j)
            i = bisect.bisect_left(self._points, position) % count
            while held[owner_of_point[i]] >= bounds[owner_of_point[i]]:
                i = (i + 1) % count
            held[owner_of_point[i]] += 1
            homes.append(owner_of_point[i])
        return homes

    def _bounds(self, prefix: int) -> list[int]:
        """Return how many of the first ``prefix`` segments each host may hold: its share, up."""
        return [-(-prefix * host.vnodes // len(self._points)) for host in self.hosts]


def _check(hosts: tuple[RingHost, ...]) -> None:
    seen: set[object] = set()
    for host in hosts:
        ids.parse_host_id(host.host)
        address = parse_address(host.address)
        for thing in (host.host, address):
            if thing in seen:
                raise ValueError(f"{thing!r} is there twice")
            seen.add(thing)
        if not 1 <= host.vnodes <= MAX_VNODES:
            raise ValueError(f"{host.host}: {host.vnodes} v-nodes, 1 to {MAX_VNODES} are allowed")
    if len(hosts) > MAX_HOSTS:
        raise ValueError(f"{len(hosts)} hosts, at most {MAX_HOSTS} are allowed")
    if (points := sum(host.vnodes for host in hosts)) > MAX_POINTS:
        raise ValueError(f"{points} v-nodes in all, at most {MAX_POINTS} are allowed")


def decode(data: bytes, what: str) -> Ring:
    """Return the ring that a v-node table in JSON describes.

    :param what: the table as its owner knows it, for the error (a path)
    :raises errors.RingFormatError: it is not a v-node table of this version, or one that
        contradicts itself
    """
    if len(data) > MAX_FILE_BYTES:
        raise errors.RingFormatError(
            what, MAX_FILE_BYTES, f"longer than {MAX_FILE_BYTES} bytes, no v-node table is"
        )
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != FORMAT_VERSION:
            raise ValueError(f"version {version} is unknown, {FORMAT_VERSION} is expected")
        table = msgspec.json.decode(data, type=_RingFile)
        return Ring(table.epoch, table.hosts)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        place = re.search(r"\(byte (\d+)\)", str(error))
        raise errors.RingFormatError(what, int(place[1]) if place else 0, str(error)) from error


def encode(ring: Ring) -> bytes:
    """Return ``ring`` as a v-node table in JSON, hosts sorted by id."""
    return msgspec.json.encode(_RingFile(FORMAT_VERSION, ring.epoch, ring.hosts))
