# SPDX-License-Identifier: Apache-2.0
"""A v-node table that places segments of an image instead of chunks.

The owners of a chunk are those of the smallest OID in its segment (min-wise hashing, Broder 1997).
"""

from collections.abc import Sequence

from acstor_agent.engine import chunk_ref
from acstor_common import ids
from acstor_common import ring


def names_of(chunks: Sequence[chunk_ref.ChunkRef], segment_chunks: int) -> dict[ids.Oid, ids.Oid]:
    """Return the name of the segment of each chunk, by the chunk's OID.

    :param chunks: of an image, all of them in their order, no content twice
    """
    segments = [
        [chunk.oid for chunk in chunks[start : start + segment_chunks]]
        for start in range(0, len(chunks), segment_chunks)
    ]
    return {oid: min(oids) for oids in segments for oid in oids}


class SegmentRing(ring.Ring):
    """A table without groups of near hosts.

    :param names: of the segments, see :func:`names_of`
    """

    def __init__(self, table: ring.Ring, names: dict[ids.Oid, ids.Oid]) -> None:
        super().__init__(table.epoch, table.hosts)
        self._names = names

    def home_at(self, oid: ids.Oid) -> ids.HostId | None:
        """See :meth:`ring.Ring.home_at`."""
        return super().home_at(self._names.get(oid, oid))

    def owners_at(self, oid: ids.Oid, limit: int | None = None) -> tuple[ids.HostId, ...]:
        """See :meth:`ring.Ring.owners_at`."""
        return super().owners_at(self._names.get(oid, oid), limit)
