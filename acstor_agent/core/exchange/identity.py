# SPDX-License-Identifier: Apache-2.0
"""What hosts mean by "the same chunk" when they speak to each other: its OID.

By content, the default, a chunk is what it holds: the same bytes in any image, at
any offset, have one OID, one home, and one advertisement (Nicolae 2015).  By place
a chunk is an offset of an image, as in the systems before: hosts exchange inside
one image only.  That is for comparison, and for clouds whose images must not help
each other.  By OID is the two-level addressing of Wu et al. 2017, 3.4: the place says
who is asked, and whoever is asked looks up in the image's chunk map what lies there.

Whatever an OID is, it locates and never identifies: bytes are checked against the
CID, and this host's cache holds each content once.
"""

import abc
from collections.abc import Iterable
from collections.abc import Iterator

import blake3

from acstor_common import chunk_map
from acstor_common import ids

MOST_NAMES = 64
"""Names of one chunk, by place, that are remembered: those that it came under last."""


class Identity(abc.ABC):
    """How chunks are named among hosts."""

    @abc.abstractmethod
    def oid(self, image_id: ids.ImageId, offset: int, cid: ids.Cid) -> ids.Oid:
        """Return the name of a chunk."""

    @abc.abstractmethod
    def note(self, cid: ids.Cid, oid: ids.Oid) -> None:
        """Note that a chunk has come here under a name."""

    @abc.abstractmethod
    def may_give(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Say whether a chunk of the cache may be given to a peer who asks for it by a name."""

    @abc.abstractmethod
    def found(self, cids: Iterable[ids.Cid]) -> None:
        """Note what was in the cache at the start: nobody knows by which names it had come."""

    @abc.abstractmethod
    def is_of_before(self, cid: ids.Cid) -> bool:
        """Say whether a chunk of the cache may have come under any name, before the start."""

    @abc.abstractmethod
    def names(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Return the names of a chunk of the cache."""

    @abc.abstractmethod
    def gone(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Note that a chunk has left the cache; return the names that it had."""

    @abc.abstractmethod
    def keys(self, image_map: chunk_map.ChunkMap) -> Iterator[ids.Cid]:
        """Yield for each chunk of an image what its parent is found by; its OID comes first."""


class ByContent(Identity):
    """Chunks with the same bytes are one."""

    def oid(self, image_id: ids.ImageId, offset: int, cid: ids.Cid) -> ids.Oid:
        """Return the first 8 bytes of the CID."""
        return ids.oid_of(cid)

    def note(self, cid: ids.Cid, oid: ids.Oid) -> None:
        """Do nothing: the name follows from the CID."""

    def may_give(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Say yes: another OID with the same CID is a hit."""
        return True

    def found(self, cids: Iterable[ids.Cid]) -> None:
        """Do nothing: the name follows from the CID."""

    def is_of_before(self, cid: ids.Cid) -> bool:
        """Say no: all names are known."""
        return False

    def names(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Return the one name."""
        return (ids.oid_of(cid),)

    def gone(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Return the one name."""
        return self.names(cid)

    def keys(self, image_map: chunk_map.ChunkMap) -> Iterator[ids.Cid]:
        """Yield the CIDs."""
        return map(image_map.cid, range(len(image_map)))


class ByPlace(Identity):
    """Chunks at the same offset of the same image are one.

    Names are kept in memory: after a restart a chunk of the cache is given as its home when it has
    come here again, or when a guest of this host's own has asked for it; and of images that this
    host has mirrored since before, to who asks only for what is here, as all do before a chunk
    counts as lost.
    """

    def __init__(self) -> None:
        self._names: dict[ids.Cid, tuple[ids.Oid, ...]] = {}
        self._of_before: set[ids.Cid] = set()

    def oid(self, image_id: ids.ImageId, offset: int, cid: ids.Cid) -> ids.Oid:
        """Return 64 bits of the BLAKE3 of the image's id, which tenants choose, and the offset."""
        place = ids.image_id_bytes(image_id) + offset.to_bytes(8, "big")
        return ids.Oid(int.from_bytes(blake3.blake3(place).digest(length=8), "big") or 1)

    def note(self, cid: ids.Cid, oid: ids.Oid) -> None:
        """Remember the name."""
        names = self._names.get(cid, ())
        if oid not in names:
            self._names[cid] = (*names, oid)[-MOST_NAMES:]

    def may_give(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Say whether it came under this name."""
        return oid in self.names(cid)

    def found(self, cids: Iterable[ids.Cid]) -> None:
        """Remember them, until they are gone."""
        self._of_before = set(cids)

    def is_of_before(self, cid: ids.Cid) -> bool:
        """Say whether it was there at the start, and is since."""
        return cid in self._of_before

    def names(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Return the names that it came under."""
        return self._names.get(cid, ())

    def gone(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Forget the names."""
        self._of_before.discard(cid)
        return self._names.pop(cid, ())

    def keys(self, image_map: chunk_map.ChunkMap) -> Iterator[ids.Cid]:
        """Yield what no two chunks of an image share, but those of zeros."""
        cut = image_map.geometry
        for chunk_no in range(len(image_map)):
            cid = image_map.cid(chunk_no)
            if cid == ids.ZERO_CID:
                yield cid
                continue
            oid = self.oid(image_map.image_id, cut.chunk_offset(chunk_no), cid)
            yield ids.Cid(oid.to_bytes(8, "big") + chunk_no.to_bytes(24, "big"))


class ByOid(ByPlace):
    """Chunks are looked for by place, and found by content (Wu et al. 2017, 3.4).

    Image and offset say which host is asked; that host takes the CID from its chunk map of the
    image, and whatever of this content it has will do.  So a content that several images have is
    looked for at as many homes, and what one of them has brought is a hit for another where it is
    asked there, as after a remap.
    """

    def may_give(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Say yes: another OID with the same CID is a hit."""
        return True

    def found(self, cids: Iterable[ids.Cid]) -> None:
        """Do nothing: they may be given under any name."""
