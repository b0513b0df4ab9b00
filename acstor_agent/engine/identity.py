# SPDX-License-Identifier: Apache-2.0
"""Identity schemes: how hosts name chunks, as OIDs.

<<<<<<< ours
An OID is derived from the bytes: equal bytes in any image, at any offset, have one OID, one home
and one announcement (Nicolae 2015).  Other schemes are policies (``acstor_agent.policies``).

An OID locates and never identifies: bytes are checked against the CID, and the cache stores each
content once.
=======
*By content* (default): equal chunks of any image have one name, home and announcement (Nicolae
2015). *By place*: the name is derived from image and offset, so hosts exchange within one image
only. *By OID*: the place selects the host, which finds the content by its chunk map (Wu et al.
2017, 3.4). In all schemes, bytes are verified against the CID, and the cache stores each content
once.
>>>>>>> theirs
"""

import abc
from collections.abc import Iterable
from typing import ClassVar

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import content_index
from acstor_common.formats import chunk_map
from acstor_common.model import ids

<<<<<<< ours
=======
MOST_NAMES = 64
"""Names of a chunk that are remembered, by place: the latest ones."""

>>>>>>> theirs

class Identity(abc.ABC):
    """Scheme by which hosts name chunks."""

    is_by_place: ClassVar[bool] = False  # the name is derived from the offset

    @abc.abstractmethod
    def oid_of(self, image_id: ids.ImageId, offset: int, cid: ids.Cid) -> ids.Oid:
        """Return the name of a chunk."""

    def oids_of(
        self, image_id: ids.ImageId, offsets: Iterable[int], cids: Iterable[ids.Cid]
    ) -> list[ids.Oid]:
        """Return the names of chunks of an image."""
        return [self.oid_of(image_id, *chunk) for chunk in zip(offsets, cids, strict=True)]

    @abc.abstractmethod
    def record_names(self, refs: Iterable[chunk_ref.ChunkRef]) -> None:
        """Record the names under which chunks arrived."""

    @abc.abstractmethod
    def may_give(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Return whether a cached chunk may be given to a peer that requests it by a name."""

    def may_give_all(self, refs: Iterable[chunk_ref.ChunkRef]) -> bool:
        """Return whether :meth:`may_give` allows each chunk."""
        return all([self.may_give(ref.cid, ref.oid) for ref in refs])

    @abc.abstractmethod
    def restore_names(self, cids: Iterable[ids.Cid]) -> None:
        """Record the chunks that were cached at the start; their names are unknown."""

    @abc.abstractmethod
    def is_of_before(self, cid: ids.Cid) -> bool:
        """Return whether a chunk is cached since before the start, under unknown names."""

    @abc.abstractmethod
    def names_of(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Return the names of a cached chunk."""

    @abc.abstractmethod
    def drop_names(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Forget a chunk that left the cache; return its names."""

    @abc.abstractmethod
    def make_index(self, image_map: chunk_map.ChunkMap) -> content_index.Index:
        """Return an index that finds chunks of an image by name."""


class ByContent(Identity):
    """Names chunks by their bytes."""

    def oid_of(self, image_id: ids.ImageId, offset: int, cid: ids.Cid) -> ids.Oid:
        """Return the first 8 bytes of the CID."""
        return ids.oid_of(cid)

    def oids_of(
        self, image_id: ids.ImageId, offsets: Iterable[int], cids: Iterable[ids.Cid]
    ) -> list[ids.Oid]:
        """Return the first 8 bytes of each CID."""
        return ids.oids_of(cids)

    def record_names(self, refs: Iterable[chunk_ref.ChunkRef]) -> None:
        """Do nothing: the name is derived from the CID."""

    def may_give(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Return True: equal CIDs are equal bytes."""
        return True

    def may_give_all(self, refs: Iterable[chunk_ref.ChunkRef]) -> bool:
        """Return True."""
        return True

    def restore_names(self, cids: Iterable[ids.Cid]) -> None:
        """Do nothing: the name is derived from the CID."""

    def is_of_before(self, cid: ids.Cid) -> bool:
        """Return False: all names are known."""
        return False

    def names_of(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Return the OID of the CID."""
        return (ids.oid_of(cid),)

    def drop_names(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Return the OID of the CID."""
        return self.names_of(cid)

    def make_index(self, image_map: chunk_map.ChunkMap) -> content_index.Index:
        """Return an index by CID."""
        return content_index.ContentIndex(image_map)
<<<<<<< ours
=======


class ByPlace(Identity):
    """Names chunks by image and offset; names are kept in memory only."""

    is_by_place = True

    def __init__(self) -> None:
        self._names: dict[ids.Cid, tuple[ids.Oid, ...]] = {}
        self._of_before: set[ids.Cid] = set()

    def oid_of(self, image_id: ids.ImageId, offset: int, cid: ids.Cid) -> ids.Oid:
        """Return the offset, mixed with keys derived from the image ID."""
        return _mixer(image_id).oid_of(offset)

    def record_names(self, refs: Iterable[chunk_ref.ChunkRef]) -> None:
        """Remember the names, at most MOST_NAMES for each CID."""
        for ref in refs:
            names = self._names.get(ref.cid, ())
            if ref.oid not in names:
                self._names[ref.cid] = (*names, ref.oid)[-MOST_NAMES:]

    def may_give(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Return whether the chunk arrived under this name."""
        return oid in self.names_of(cid)

    def restore_names(self, cids: Iterable[ids.Cid]) -> None:
        """Remember the chunks until they are evicted."""
        self._of_before = set(cids)

    def is_of_before(self, cid: ids.Cid) -> bool:
        """Return whether the chunk is cached since before the start."""
        return cid in self._of_before

    def names_of(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Return the names under which the chunk arrived."""
        return self._names.get(cid, ())

    def drop_names(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Forget and return the names."""
        self._of_before.discard(cid)
        return self._names.pop(cid, ())

    def make_index(self, image_map: chunk_map.ChunkMap) -> content_index.Index:
        """Return an index that computes the offset from the name."""
        return _PlaceIndex(image_map)


class ByOid(ByPlace):
    """Selects hosts by place and finds chunks by content (Wu et al. 2017, 3.4)."""

    def may_give(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Return True: equal CIDs are equal bytes."""
        return True

    def restore_names(self, cids: Iterable[ids.Cid]) -> None:
        """Do nothing: names do not matter to :meth:`may_give`."""


_MASK = (1 << 64) - 1
# The finalizer of MurmurHash3 (A. Appleby, fmix64), a bijection, and its inverse.
_SHIFT = 33
_FACTORS = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_INVERSES = tuple(pow(factor, -1, 1 << 64) for factor in _FACTORS)
_ROUNDS = 2


class _Mixer:
    """A bijection from offsets to spread OIDs, keyed with BLAKE3 of the image ID."""

    def __init__(self, image_id: ids.ImageId) -> None:
        raw = blake3.blake3(ids.image_id_bytes(image_id)).digest(length=8 * _ROUNDS)
        self._keys = [int.from_bytes(raw[at : at + 8], "big") for at in range(0, len(raw), 8)]

    def oid_of(self, offset: int) -> ids.Oid:
        value = offset
        for key in self._keys:
            value ^= key
            for factor in _FACTORS:
                value = (value ^ value >> _SHIFT) * factor & _MASK
            value ^= value >> _SHIFT
        return ids.Oid(value)

    def offset_of(self, oid: ids.Oid) -> int:
        """Return the offset of an OID; for OIDs of other images mostly beyond the end."""
        value = int(oid)
        for key in reversed(self._keys):
            value ^= value >> _SHIFT
            for inverse in reversed(_INVERSES):
                value = value * inverse & _MASK
                value ^= value >> _SHIFT
            value ^= key
        return value


class _PlaceIndex(content_index.Index):
    """Finds chunks of one image by place; no two chunks are equal."""

    def __init__(self, image_map: chunk_map.ChunkMap) -> None:
        self._map, self._mixer = image_map, _mixer(image_map.image_id)

    def find(self, oid: ids.Oid) -> int | None:
        """Return the chunk at the offset of the OID."""
        chunk_no, within = divmod(self._mixer.offset_of(oid), self._map.geometry.chunk_bytes)
        if within or chunk_no >= len(self._map) or self._map.is_zero(chunk_no):
            return None
        return chunk_no

    def first_same(self, chunk_no: int) -> int:
        """Return the chunk itself."""
        if not 0 <= chunk_no < len(self._map):
            raise IndexError(f"image {self._map.image_id} has no chunk {chunk_no}")
        return chunk_no


@functools.lru_cache(maxsize=256)
def _mixer(image_id: ids.ImageId) -> _Mixer:
    return _Mixer(image_id)
>>>>>>> theirs
