# SPDX-License-Identifier: Apache-2.0
"""Identity schemes: what hosts mean by "the same chunk", as an OID.

An OID is derived from the bytes: equal bytes in any image, at any offset, have one OID, one home
and one announcement (Nicolae 2015).  Other schemes are policies (``acstor_agent.policies``).

An OID locates and never identifies: bytes are checked against the CID, and the cache stores each
content once.
"""

import abc
from collections.abc import Iterable
from typing import ClassVar

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import content_index
from acstor_common.formats import chunk_map
from acstor_common.model import ids


class Identity(abc.ABC):
    """How chunks are named among hosts.

    :cvar is_by_place: the name follows from the offset
    """

    is_by_place: ClassVar[bool] = False

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
        """Note that chunks have come here under their names."""

    @abc.abstractmethod
    def may_give(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Say whether a chunk of the cache may be given to a peer who asks for it by a name."""

    def may_give_all(self, refs: Iterable[chunk_ref.ChunkRef]) -> bool:
        """Say whether :meth:`may_give` says yes of each chunk."""
        return all([self.may_give(ref.cid, ref.oid) for ref in refs])

    @abc.abstractmethod
    def restore_names(self, cids: Iterable[ids.Cid]) -> None:
        """Note what was in the cache at the start: nobody knows by which names it had come."""

    @abc.abstractmethod
    def is_of_before(self, cid: ids.Cid) -> bool:
        """Say whether a chunk of the cache may have come under any name, before the start."""

    @abc.abstractmethod
    def names_of(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Return the names of a chunk of the cache."""

    @abc.abstractmethod
    def drop_names(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Note that a chunk has left the cache; return the names that it had."""

    @abc.abstractmethod
    def make_index(self, image_map: chunk_map.ChunkMap) -> content_index.Index:
        """Return what finds the chunks of an image by their names."""


class ByContent(Identity):
    """Chunks with the same bytes are one."""

    def oid_of(self, image_id: ids.ImageId, offset: int, cid: ids.Cid) -> ids.Oid:
        """Return the first 8 bytes of the CID."""
        return ids.oid_of(cid)

    def oids_of(
        self, image_id: ids.ImageId, offsets: Iterable[int], cids: Iterable[ids.Cid]
    ) -> list[ids.Oid]:
        """Return the first 8 bytes of each CID."""
        return ids.oids_of(cids)

    def record_names(self, refs: Iterable[chunk_ref.ChunkRef]) -> None:
        """Do nothing: the name follows from the CID."""

    def may_give(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Say yes: another OID with the same CID is a hit."""
        return True

    def may_give_all(self, refs: Iterable[chunk_ref.ChunkRef]) -> bool:
        """Say yes, as of each."""
        return True

    def restore_names(self, cids: Iterable[ids.Cid]) -> None:
        """Do nothing: the name follows from the CID."""

    def is_of_before(self, cid: ids.Cid) -> bool:
        """Say no: all names are known."""
        return False

    def names_of(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Return the one name."""
        return (ids.oid_of(cid),)

    def drop_names(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Return the one name."""
        return self.names_of(cid)

    def make_index(self, image_map: chunk_map.ChunkMap) -> content_index.Index:
        """Return the index of its contents."""
        return content_index.ContentIndex(image_map)
