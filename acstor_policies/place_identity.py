# SPDX-License-Identifier: Apache-2.0
"""Identity schemes by place: an OID is derived from image and offset, as in earlier systems.

With :class:`ByPlace` hosts exchange within one image only.  :class:`ByOid` is the two-level
addressing of Wu et al. 2017, 3.4: the place selects the host, and that host looks up the content
in its chunk map.
"""

import functools
from collections.abc import Iterable

import blake3

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import content_index
from acstor_agent.engine import identity
from acstor_common.formats import chunk_map
from acstor_common.model import ids

MOST_NAMES = 64  # names of one chunk, by place, that are remembered: those that it came under last


class ByPlace(identity.Identity):
    """Chunks at the same offset of the same image are one.

    Names are kept in memory: after a restart a chunk of the cache is given as its home when it has
    come here again, or when a guest of this host's own has asked for it; and of images that this
    host has mirrored since before, to who asks only for what is here, as all do before a chunk
    counts as lost.
    """

    is_by_place = True

    def __init__(self) -> None:
        self._names: dict[ids.Cid, tuple[ids.Oid, ...]] = {}
        self._of_before: set[ids.Cid] = set()

    def oid_of(self, image_id: ids.ImageId, offset: int, cid: ids.Cid) -> ids.Oid:
        """Return the offset, mixed with keys that are made from the image's id."""
        return _mixer(image_id).oid(offset)

    def record_names(self, refs: Iterable[chunk_ref.ChunkRef]) -> None:
        """Remember the names."""
        for ref in refs:
            names = self._names.get(ref.cid, ())
            if ref.oid not in names:
                self._names[ref.cid] = (*names, ref.oid)[-MOST_NAMES:]

    def may_serve(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Return whether the chunk came under this name."""
        return oid in self.names_of(cid)

    def restore_names(self, cids: Iterable[ids.Cid]) -> None:
        """Remember them, until they are gone."""
        self._of_before = set(cids)

    def is_of_before(self, cid: ids.Cid) -> bool:
        """Return whether the chunk has been cached since the start."""
        return cid in self._of_before

    def names_of(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Return the names that it came under."""
        return self._names.get(cid, ())

    def drop_names(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Forget the names."""
        self._of_before.discard(cid)
        return self._names.pop(cid, ())

    def make_index(self, image_map: chunk_map.ChunkMap) -> content_index.Index:
        """Return what inverts the names."""
        return _PlaceIndex(image_map)


class ByOid(ByPlace):
    """Chunks are looked for by place, and found by content (Wu et al. 2017, 3.4).

    Image and offset say which host is asked; that host takes the CID from its chunk map of the
    image, and whatever of this content it has will do.  So a content that several images have is
    looked for at as many homes, and what one of them has brought is a hit for another where it is
    asked there, as after a remap.
    """

    def may_serve(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Say yes: another OID with the same CID is a hit."""
        return True

    def restore_names(self, cids: Iterable[ids.Cid]) -> None:
        """Do nothing: they may be given under any name."""


_MASK = (1 << 64) - 1
# The finalizer of MurmurHash3 (A. Appleby, fmix64), which is a bijection, and what undoes it.
_SHIFT = 33
_FACTORS = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_INVERSES = tuple(pow(factor, -1, 1 << 64) for factor in _FACTORS)
_ROUNDS = 2


class _Mixer:
    """A bijection from the offsets of one image to OIDs, which spread like random numbers.

    Tenants choose images' ids, so the keys of the rounds are the BLAKE3 of one.
    """

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
        """Return the offset that has an OID; far behind the image's end, mostly, for others."""
        value = int(oid)
        for key in reversed(self._keys):
            value ^= value >> _SHIFT
            for inverse in reversed(_INVERSES):
                value = value * inverse & _MASK
                value ^= value >> _SHIFT
            value ^= key
        return value


class _PlaceIndex(content_index.Index):
    """Chunks of one image by place: each is its own parent."""

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
