# SPDX-License-Identifier: Apache-2.0
"""Authorization of peer requests by chunk maps and proofs.

A request is authorized if the image has a chunk at exactly that range and the proof shows that the
sender knows its CID. All others get the same refusal, before any cache look-up, read or answer.
"""

import abc
import hmac
from collections.abc import Collection
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure
from acstor_agent.engine import identity
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.wire.peer import peer_request

Failure = failure.Failure


class Segments(NamedTuple):
    """The chunks of the segments that a request touches."""

    cids: list[ids.Cid]
    skipped: int  # chunks before the first requested one
    chunk_bytes: int
    segment_chunks: int


class ChunkMaps(abc.ABC):
    """The contents that chunk maps known to this host name."""

    @abc.abstractmethod
    def content_at(self, image_id: ids.ImageId, offset: int, length: int) -> ids.Content | None:
        """Return the content of a range, ZERO_CID if no chunk is there; None: look it up."""

    def contents_of(self, request: chunk_ref.Request) -> Sequence[ids.Content] | None:
        """Return the contents at a request, fewer where no chunks are; None: look them up."""
        found = [self.content_at(request.image_id, *place) for place in request.iter_ranges()]
        known = [content for content in found if content is not None]
        return known if len(known) == len(found) else None

    def segments_of(self, request: chunk_ref.Request) -> Segments | None:
        """Return the segments that a request touches; None: length 1, or unknown."""
        return None


class Authorization:
    """Decides which peer may have which chunk; ``attached`` is a live view."""

    def __init__(
        self,
        own_host: ids.HostId,
        maps: ChunkMaps,
        names: identity.Identity,
        attached: Collection[ids.ImageId] = (),
    ) -> None:
        self.names = names
        self.refused = 0  # chunks that were not authorized
        self._own_host, self._maps = own_host, maps
        self.attached, self._attached_first = attached, frozenset(attached)

    def authorize(
        self,
        host: ids.HostId,
        request: chunk_ref.Request,
        contents: Sequence[ids.Content] | None = None,
    ) -> list[chunk_ref.ChunkRef] | str | None:
        """Return the requested chunks, a reason for refusal, or None: look them up."""
        if contents is None and (contents := self._maps.contents_of(request)) is None:
            return None
        cids = [content.cid for content in contents]
        if len(cids) != request.chunk_count or ids.ZERO_CID in cids:
            self.refused += len(request.numbers)
            return "no chunk has exactly this range"
        proof = peer_request.proof_of(b"".join(cids), host, self._own_host)
        if not hmac.compare_digest(proof, request.proof):
            self.refused += len(request.numbers)
            return "it does not prove knowledge of the CIDs"
        image_id, places, keys = request.image_id, [*request.iter_ranges()], contents[0].keys
        oids = self.names.oids_of(image_id, [offset for offset, _ in places], cids)
        segment_of = self._segment_of(request, cids)
        return [
            chunk_ref.ChunkRef(cid, oid, image_id, offset, length, keys, *segment)
            for cid, oid, (offset, length), segment in zip(
                cids, oids, places, segment_of, strict=True
            )
        ]

    def _segment_of(
        self, request: chunk_ref.Request, asked: list[ids.Cid]
    ) -> Sequence[tuple[ids.Oid | None, int]]:
        """Return segment and bit of each chunk, None if unknown: the map may have changed."""
        found = self._maps.segments_of(request)
        if found is None:
            return [(None, 1)] * len(asked)
        cids, skipped, size, length = found
        end = skipped + len(asked)
        if cids[skipped:end] != asked:
            return [(None, 1)] * len(asked)
        begin = request.offset - skipped * size
        offsets = range(begin, begin + len(cids) * size, size)
        oids = self.names.oids_of(request.image_id, offsets, cids)
        return segments.names_and_bits(cids, oids, length)[skipped:end]

    def not_looked_up(self, failure: Failure) -> str:
        """Return the reason to log for a failed look-up; empty: do not log."""
        if failure is not Failure.WITHHELD:
            return ""
        self.refused += 1
        return "the source denies this host access"

    def may_serve(self, ref: chunk_ref.ChunkRef, mode: peer_request.Mode) -> bool:
        """Return whether a cached chunk may be given under the requested name.

        After a restart, names of cached chunks are unknown. A requester in a mode that does not
        read the source may have no other provider, so it gets such chunks under images that were
        attached at the start and still are. Other images must not reveal what was fetched for them.
        """
        if self.names.may_serve(ref.cid, ref.oid):
            return True
        if mode.reads_source or not self.names.was_cached_at_start(ref.cid):
            return False
        return ref.image_id in self._attached_first and ref.image_id in self.attached
