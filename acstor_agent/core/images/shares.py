# SPDX-License-Identifier: Apache-2.0
"""Which part of an image a host keeps where images stay whole in the cloud: its share.

A chunk belongs to the shares of the first COPIES owners of its OID on the ring: those that are
asked for it in any case, and in this order.  So nobody has to be told who keeps what, and the
loss of one host leaves a copy of everything where it is looked for next.

The one rule: a share follows from the chunk map and the v-node table alone, so hosts that have the
same table agree on it, and together they keep all of the image.
"""

import array
from collections.abc import Callable
from typing import NamedTuple

from acstor_common import chunk_map
from acstor_common import ids
from acstor_common import ring

COPIES = 2

OidOf = Callable[[ids.ImageId, int, ids.Cid], ids.Oid]
"""Returns the name of a chunk among hosts, from its image, its offset and its CID."""


def keepers(table: ring.Ring, here: ids.HostId) -> tuple[ids.HostId, ...]:
    """Return the hosts that have shares of what ``here`` uses: the homes of its group."""
    return tuple(ids.HostId(host.host) for host in table.group_of(here).hosts if host.vnodes)


def copies(table: ring.Ring, here: ids.HostId) -> int:
    """Return how many copies of a chunk there are: fewer where there are too few hosts.

    >>> host = ring.RingHost("h1", "10.0.0.1:7201", 100)
    >>> copies(ring.Ring(1, (host,)), ids.HostId("h1"))
    1
    """
    return min(COPIES, len(keepers(table, here)))


class Part(NamedTuple):
    """A part of an image that a host keeps.

    :param table: by which it is this part; None: it is all of the image, whatever table there is
    :param numbers: one chunk of each content that belongs to it, zeros left out
    :param total_bytes: of what belongs to it
    :param image_bytes: of the contents of the whole image
    """

    map: chunk_map.ChunkMap
    table: ring.Ring | None
    numbers: "array.array[int]"
    total_bytes: int
    image_bytes: int

    def contents(self) -> dict[ids.Cid, int]:
        """Return the contents, with their lengths; takes about 1 ms for 1,000 chunks."""
        length = self.map.geometry.chunk_length
        return {self.map.cid(number): length(number) for number in self.numbers}


def _part(
    image_map: chunk_map.ChunkMap,
    table: ring.Ring | None,
    numbers: "array.array[int]",
    image_bytes: int,
) -> Part:
    total_bytes = sum(map(image_map.geometry.chunk_length, numbers))
    return Part(image_map, table, numbers, total_bytes, image_bytes)


def both(one: Part, other: Part) -> Part:
    """Return what belongs to one of two parts of an image, by no table any more."""
    numbers = array.array("I", sorted({*one.numbers, *other.numbers}))
    return _part(one.map, None, numbers, one.image_bytes)


class Shares:
    """Says which part of images this host keeps.

    :param current_ring: returns the v-node table in force
    """

    def __init__(
        self, here: ids.HostId, current_ring: Callable[[], ring.Ring], oid_of: OidOf
    ) -> None:
        self._here, self._current_ring, self._oid_of = here, current_ring, oid_of

    def table(self) -> ring.Ring | None:
        """Return the table by which this host has shares; None: it is not on it, and keeps all."""
        table = self._current_ring()
        return table if self._here in table else None

    def part_of(self, image_map: chunk_map.ChunkMap, table: ring.Ring | None) -> Part:
        """Return this host's share of an image, all of it without a table.

        Takes about 5 ms for 1,000 chunks.
        """
        units = self._units(image_map)
        length = image_map.geometry.chunk_length
        image_bytes = sum(map(length, units.values()))
        if table is None:
            return _part(image_map, None, array.array("I", units.values()), image_bytes)
        group = table.group_of(self._here)
        mine = (at for (oid, _), at in units.items() if self._here in group.owners_at(oid, COPIES))
        return _part(image_map, table, array.array("I", mine), image_bytes)

    def _units(self, image_map: chunk_map.ChunkMap) -> dict[tuple[ids.Oid, ids.Cid], int]:
        """Return one chunk for each name of each content: only the same name has the same home."""
        found: dict[tuple[ids.Oid, ids.Cid], int] = {}
        offset_of = image_map.geometry.chunk_offset
        for number in range(len(image_map)):
            cid = image_map.cid(number)
            if cid != ids.ZERO_CID:
                oid = self._oid_of(image_map.image_id, offset_of(number), cid)
                found.setdefault((oid, cid), number)
        return found


def whole_of(image_map: chunk_map.ChunkMap) -> Part:
    """Return all of an image, each content once; takes about 1 ms for 1,000 chunks."""
    firsts: dict[ids.Cid, int] = {}
    for number in range(len(image_map)):
        firsts.setdefault(image_map.cid(number), number)
    firsts.pop(ids.ZERO_CID, None)
    numbers = array.array("I", firsts.values())
    part = _part(image_map, None, numbers, 0)
    return part._replace(image_bytes=part.total_bytes)
