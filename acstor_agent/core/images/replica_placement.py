# SPDX-License-Identifier: Apache-2.0
"""Replica placement: the share of an image that each host keeps.

A chunk belongs to the shares of the first COPIES owners of its OID on the ring, so hosts with the
same chunk map and v-node table agree. The map's index lists contents in ring order, so a share is a
few ranges of it. Contents missing from a wrong index are kept by no host.
"""

import array
import itertools
from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.model import ids
from acstor_common.ring import hash_ring

COPIES = 2
LEAST_STORED_SHARE = 1 / 16  # a higher compression does not accelerate a fill
_LOOKED_AT, _NAMED = 8192, 128  # chunks examined, and chunks named by place, between two pauses

OidOf = Callable[[ids.ImageId, int, ids.Cid], ids.Oid]


def replica_hosts(table: hash_ring.Ring, own_host: ids.HostId) -> tuple[ids.HostId, ...]:
    """Return the hosts with shares of images used by ``own_host``: the homes of its group."""
    return tuple(ids.HostId(host.host) for host in table.group_of(own_host).hosts if host.vnodes)


def copy_count(table: hash_ring.Ring, own_host: ids.HostId) -> int:
    """Return the number of copies: fewer than COPIES where there are too few hosts.

    >>> host = hash_ring.RingHost("h1", "10.0.0.1:7201", 100)
    >>> copy_count(hash_ring.Ring(1, (host,)), ids.HostId("h1"))
    1
    """
    return min(COPIES, len(replica_hosts(table, own_host)))


class ReplicaPart(NamedTuple):
    """The part of an image that a host keeps."""

    map: chunk_map.ChunkMap
    table: hash_ring.Ring | None  # v-node table that defines it; None: the whole image
    numbers: "array.array[int]"  # one chunk of each content in it, ascending, without zeros
    total_bytes: int
    image_bytes: int

    @property
    def stored_share(self) -> float:
        """Bytes of the image's stored file for each byte of its contents, by the map."""
        stored_bytes = self.map.subject.stored.size_bytes
        return min(1.0, max(LEAST_STORED_SHARE, stored_bytes / max(1, self.image_bytes)))

    def list_contents(self) -> dict[ids.Cid, int]:
        """Return contents with lengths; takes about 1 ms for 1,000 chunks."""
        length = self.map.geometry.chunk_length
        return {self.map.cid_of(number): length(number) for number in self.numbers}


def _part(
    image_map: chunk_map.ChunkMap,
    table: hash_ring.Ring | None,
    marks: bytearray,
    image_bytes: int | None,
    pause: layout.Pause,
) -> ReplicaPart:
    numbers = array.array("I")
    for start in range(0, len(marks), _LOOKED_AT):
        stop = min(start + _LOOKED_AT, len(marks))
        numbers.extend(itertools.compress(range(start, stop), marks[start:stop]))
        pause()
    total_bytes = _bytes_of(image_map, len(numbers), has_last=bool(marks[-1]))
    return ReplicaPart(image_map, table, numbers, total_bytes, image_bytes or total_bytes)


def _bytes_of(image_map: chunk_map.ChunkMap, count: int, *, has_last: bool) -> int:
    cut = image_map.geometry
    short_bytes = cut.chunk_bytes - cut.chunk_length(len(image_map) - 1)
    return count * cut.chunk_bytes - (short_bytes if has_last else 0)


def union_of_parts(first: ReplicaPart, other: ReplicaPart) -> ReplicaPart:
    """Return the union of two parts of an image, not tied to a table."""
    marks = bytearray(len(first.map))
    for part in (first, other):
        for number in part.numbers:
            marks[number] = 1
    return _part(first.map, None, marks, first.image_bytes, layout.no_pause)


class ReplicaPlacement:
    """Computes the part of images that this host keeps; ``is_by_place``: OIDs ignore the CID."""

    def __init__(
        self,
        own_host: ids.HostId,
        rings: hash_ring.RingProvider,
        oid_of: OidOf,
        *,
        is_by_place: bool = False,
    ) -> None:
        self._own_host, self._rings, self._oid_of = own_host, rings, oid_of
        self._is_by_place = is_by_place

    def share_table(self) -> hash_ring.Ring | None:
        """Return the table that defines this host's shares; None: it keeps whole images."""
        table = self._rings.current_ring()
        return table if self._own_host in table else None

    def part_of(
        self,
        image_map: chunk_map.ChunkMap,
        table: hash_ring.Ring | None,
        pause: layout.Pause = layout.no_pause,  # called about every 0.5 ms of work
    ) -> ReplicaPart:
        """Return this host's share of an image; all of it without a table."""
        if table is not None and table.segment_chunks > 1:
            return self._part_by_segment(image_map, table, pause)
        if self._is_by_place:
            return self._part_by_place(image_map, table, pause)
        if table is None:
            return whole_image(image_map, pause)
        marks = bytearray(len(image_map))
        group = table.group_of(self._own_host)
        for first, stop in self._ranges(image_map, group):
            _mark(marks, image_map, first, stop, pause)
        count, has_last = image_map.tables.contents, not image_map.is_zero(len(image_map) - 1)
        image_bytes = _bytes_of(image_map, count, has_last=has_last)
        return _part(image_map, table, marks, image_bytes, pause)

    def _ranges(
        self, image_map: chunk_map.ChunkMap, group: hash_ring.Ring
    ) -> Iterator[tuple[int, int]]:
        first, contents = 0, image_map.tables.contents
        while first < contents:
            oid = ids.oid_of(image_map.cid_of(image_map.first_chunk(first)))
            stop = max(
                first + 1, image_map.first_content_above(group.last_with_same_owners(oid), first)
            )
            if self._own_host in group.owners_at(oid, COPIES):
                yield first, stop
            first = stop

    def _part_by_place(
        self, image_map: chunk_map.ChunkMap, table: hash_ring.Ring | None, pause: layout.Pause
    ) -> ReplicaPart:
        marks, count, has_last = bytearray(len(image_map)), 0, False
        group = None if table is None else table.group_of(self._own_host)
        offset_of = image_map.geometry.chunk_offset
        for number in range(len(image_map)):
            if number % _NAMED == 0:
                pause()
            cid = image_map.cid_of(number)
            if has_last := cid != ids.ZERO_CID:
                count += 1
                oid = self._oid_of(image_map.image_id, offset_of(number), cid)
                marks[number] = group is None or self._own_host in group.owners_at(oid, COPIES)
        image_bytes = _bytes_of(image_map, count, has_last=has_last)
        return _part(image_map, table, marks, image_bytes, pause)

    def _part_by_segment(
        self, image_map: chunk_map.ChunkMap, table: hash_ring.Ring, pause: layout.Pause
    ) -> ReplicaPart:
        marks, count, has_last = bytearray(len(image_map)), 0, False
        group, size = table.group_of(self._own_host), image_map.geometry.chunk_bytes
        length, image_id = table.segment_chunks, image_map.image_id
        for looked_at, first in enumerate(range(0, len(image_map), length)):
            if looked_at % _NAMED == 0:
                pause()
            cids = image_map.cids_between(first, min(first + length, len(image_map)))
            named = [number for number, cid in enumerate(cids, first) if cid != ids.ZERO_CID]
            has_last = bool(named) and named[-1] == len(image_map) - 1
            if not named:
                continue
            count += len(named)
            oids = [self._oid_of(image_id, n * size, cids[n - first]) for n in named]
            if self._own_host in group.owners_at(min(oids), COPIES):
                for number in named:
                    marks[number] = 1
        image_bytes = _bytes_of(image_map, count, has_last=has_last)
        return _part(image_map, table, marks, image_bytes, pause)


def whole_image(
    image_map: chunk_map.ChunkMap, pause: layout.Pause = layout.no_pause
) -> ReplicaPart:
    """Return the whole image, each content once."""
    marks = bytearray(len(image_map))
    _mark(marks, image_map, 0, image_map.tables.contents, pause)
    return _part(image_map, None, marks, None, pause)


def _mark(
    marks: bytearray, image_map: chunk_map.ChunkMap, first: int, stop: int, pause: layout.Pause
) -> None:
    for start in range(first, stop, _LOOKED_AT):
        if start > first:
            pause()
        for number in image_map.first_chunks(start, min(start + _LOOKED_AT, stop)):
            marks[number] = 1
