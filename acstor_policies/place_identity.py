# SPDX-License-Identifier: Apache-2.0
"""Identity schemes by place: an OID is derived from image and offset, as in earlier systems."""

import functools
from collections.abc import Iterable

import blake3

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import content_index
from acstor_agent.engine import identity
from acstor_common.formats import chunk_map
from acstor_common.model import ids

MAX_NAMES = 64  # of one chunk; the latest ones


class ByPlace(identity.Identity):
    """Names a chunk by image and offset; equal bytes at two places have two names.

    A cached chunk is served under the names, in memory only, by which it arrived.  After a restart
    ``Authorization.may_serve`` lets requests that exclude reads of the source get it by any name.
    """

    is_by_place = True

    def __init__(self) -> None:
        self._names: dict[ids.Cid, tuple[ids.Oid, ...]] = {}
        self._cached_at_start: set[ids.Cid] = set()

    def oid_of(self, image_id: ids.ImageId, offset: int, cid: ids.Cid) -> ids.Oid:
        """Return the offset, mixed with keys that are derived from the image's ID."""
        return _mixer(image_id).oid(offset)

    def record_names(self, refs: Iterable[chunk_ref.ChunkRef]) -> None:
        """Record the names, the latest MAX_NAMES of each chunk."""
        for ref in refs:
            names = self._names.get(ref.cid, ())
            if ref.oid not in names:
                self._names[ref.cid] = (*names, ref.oid)[-MAX_NAMES:]

    def may_serve(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Return whether the chunk arrived under this name."""
        return oid in self.names_of(cid)

    def record_cached_at_start(self, cids: Iterable[ids.Cid]) -> None:
        """Record the chunks, until :meth:`drop_names`."""
        self._cached_at_start = set(cids)

    def was_cached_at_start(self, cid: ids.Cid) -> bool:
        """Return whether the chunk was cached at the start and still is."""
        return cid in self._cached_at_start

    def names_of(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Return the names under which the chunk arrived."""
        return self._names.get(cid, ())

    def drop_names(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Forget the chunk; return its names."""
        self._cached_at_start.discard(cid)
        return self._names.pop(cid, ())

    def make_index(self, image_map: chunk_map.ChunkMap) -> content_index.Index:
        """Return an index that computes chunk numbers from names."""
        return _PlaceIndex(image_map)


class ByOid(ByPlace):
    """Selects the host by place; the host finds the chunk by content (Wu et al. 2017, 3.4).

    It takes the CID from its chunk map, so a chunk that several images share has as many homes.
    """

    def may_serve(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Return True: a chunk with this CID is a hit under any OID."""
        return True

    def record_cached_at_start(self, cids: Iterable[ids.Cid]) -> None:
        """Do nothing: chunks are served under any name."""


_MASK = (1 << 64) - 1
# The finalizer of MurmurHash3 (A. Appleby, fmix64), which is a bijection, and its inverse.
_SHIFT = 33
_FACTORS = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_INVERSES = tuple(pow(factor, -1, 1 << 64) for factor in _FACTORS)
_ROUNDS = 2


class _Mixer:
    """A bijection from an image's offsets to OIDs, keyed by BLAKE3: tenants choose image IDs."""

    def __init__(self, image_id: ids.ImageId) -> None:
        raw = blake3.blake3(ids.image_id_bytes(image_id)).digest(length=8 * _ROUNDS)
        self._keys = [int.from_bytes(raw[at : at + 8], "big") for at in range(0, len(raw), 8)]

    def oid(self, offset: int) -> ids.Oid:
        value = offset
        for key in self._keys:
            value ^= key
            for factor in _FACTORS:
                value = (value ^ value >> _SHIFT) * factor & _MASK
            value ^= value >> _SHIFT
        return ids.Oid(value)

    def offset(self, oid: ids.Oid) -> int:
        """Return the offset of an OID; OIDs of other images give arbitrary numbers."""
        value = int(oid)
        for key in reversed(self._keys):
            value ^= value >> _SHIFT
            for inverse in reversed(_INVERSES):
                value = value * inverse & _MASK
                value ^= value >> _SHIFT
            value ^= key
        return value


class _PlaceIndex(content_index.Index):
    """Index of one image by place: each chunk is its own parent."""

    def __init__(self, image_map: chunk_map.ChunkMap) -> None:
        self._map, self._mixer = image_map, _mixer(image_map.image_id)

    def find_parent(self, oid: ids.Oid) -> int | None:
        chunk_no, within = divmod(self._mixer.offset(oid), self._map.geometry.chunk_bytes)
        if within or chunk_no >= len(self._map) or self._map.is_zero(chunk_no):
            return None
        return chunk_no

    def parent_of(self, chunk_no: int) -> int:
        if not 0 <= chunk_no < len(self._map):
            raise IndexError(f"image {self._map.image_id} has no chunk {chunk_no}")
        return chunk_no


@functools.lru_cache(maxsize=256)
def _mixer(image_id: ids.ImageId) -> _Mixer:
    return _Mixer(image_id)
