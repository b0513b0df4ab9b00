# SPDX-License-Identifier: Apache-2.0
"""Identity schemes: how hosts name chunks, as OIDs; an OID locates a chunk, the CID verifies it."""

import abc
from collections.abc import Iterable
from typing import ClassVar

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import content_index
from acstor_common.formats import chunk_map
from acstor_common.model import ids


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
    def may_serve(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Return whether a cached chunk may be given to a peer that requests it by a name."""

    def may_serve_all(self, refs: Iterable[chunk_ref.ChunkRef]) -> bool:
        """Return whether :meth:`may_serve` allows each chunk."""
        return all([self.may_serve(ref.cid, ref.oid) for ref in refs])

    @abc.abstractmethod
    def record_cached_at_start(self, cids: Iterable[ids.Cid]) -> None:
        """Record the chunks that were cached at the start; their names are unknown."""

    @abc.abstractmethod
    def was_cached_at_start(self, cid: ids.Cid) -> bool:
        """Return whether a chunk was cached at the start and still is; its names are unknown."""

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
    """Names chunks by their bytes: equal ones in any image share OID and home (Nicolae 2015)."""

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

    def may_serve(self, cid: ids.Cid, oid: ids.Oid) -> bool:
        """Return True: equal CIDs are equal bytes."""
        return True

    def may_serve_all(self, refs: Iterable[chunk_ref.ChunkRef]) -> bool:
        """Return True."""
        return True

    def record_cached_at_start(self, cids: Iterable[ids.Cid]) -> None:
        """Do nothing: the name is derived from the CID."""

    def was_cached_at_start(self, cid: ids.Cid) -> bool:
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
