# SPDX-License-Identifier: Apache-2.0
"""Authorization of peer requests: whole chunks that this host's chunk map of the image names.

A request is authorized if the image names a chunk exactly there and the request proves that its
sender knows the CID of that chunk.  All other requests get the same refusal, which reveals nothing.
No cache look-up, read or answer happens before authorization.
"""

import abc
import hmac
from collections.abc import Collection
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure as failure_
from acstor_agent.engine import identity
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.wire import peer_request


class Segments(NamedTuple):
    """The chunks of the segments that a request touches.

    :param cids: of these chunks, in their order
    :param skipped: how many of them come before what is asked for
    :param chunk_bytes: the length of a chunk of the image
    :param segment_chunks: chunks of a segment
    """

    cids: list[ids.Cid]
    skipped: int
    chunk_bytes: int
    segment_chunks: int


class ChunkMaps(abc.ABC):
    """What the chunk maps of images say, as far as they are known here."""

    @abc.abstractmethod
    def content_at(self, image_id: ids.ImageId, offset: int, length: int) -> ids.Content | None:
        """Return what lies there, ZERO_CID if nothing does; None if it must be looked up."""

    def contents_of(self, request: chunk_ref.Request) -> Sequence[ids.Content] | None:
        """Return the contents of the chunks of a request; None if they must be looked up.

        Fewer than it has: the image has no such chunks.
        """
        found = [self.content_at(request.image_id, *place) for place in request.iter_ranges()]
        known = [content for content in found if content is not None]
        return known if len(known) == len(found) else None

    def segments_of(self, request: chunk_ref.Request) -> Segments | None:
        """Return the segments that a request touches, of whose chunks the contents are known.

        None: each chunk is one, or the map is not known any more.
        """
        return None


class Authorization:
    """Who may have what.

    :param maps: of images that are attached here or known from the source
    :param names: what hosts mean by the same chunk
    :param attached: the images that are attached here, at any moment: it is looked at again
    :ivar refused: requests that were not authorized
    """

    def __init__(
        self,
        here: ids.HostId,
        maps: ChunkMaps,
        names: identity.Identity,
        attached: Collection[ids.ImageId] = (),
    ) -> None:
        self.names = names
        self.refused = 0
        self._here, self._maps = here, maps
        self._attached, self._attached_first = attached, frozenset(attached)

    @property
    def images(self) -> int:
        """Return how many images are attached."""
        return len(self._attached)

    def authorize(
        self,
        host: ids.HostId,
        request: chunk_ref.Request,
        contents: Sequence[ids.Content] | None = None,
    ) -> list[chunk_ref.ChunkRef] | str | None:
        """Return what a request asks for; None if that must be looked up; else why it may not.

        :param contents: what was found to lie there; None: nobody looked
        """
        if contents is None and (contents := self._maps.contents_of(request)) is None:
            return None
        cids = [content.cid for content in contents]
        if len(cids) != request.chunks or ids.ZERO_CID in cids:
            self.refused += len(request.numbers)
            return "there is no chunk exactly there"
        proof = peer_request.proof_of(b"".join(cids), host, self._here)
        if not hmac.compare_digest(proof, request.proof):
            self.refused += len(request.numbers)
            return "it does not prove that it knows the CIDs"
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
        """Return the segment of each chunk and its bit in it; None: it is one, or nobody knows.

        After a look-up the map may be another one than that which named what is asked for.
        """
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

    def not_looked_up(self, failure: failure_.Failure) -> str:
        """Return why a request is refused of which it could not be looked up what it is for.

        Nothing, where that says nothing of the request.
        """
        if failure is not failure_.Failure.WITHHELD:
            return ""
        self.refused += 1
        return "the source does not let this host read that"

    def may_give(self, want: chunk_ref.ChunkRef, mode: peer_request.Mode) -> bool:
        """Say whether a chunk that is here may be given under the name by which it is asked for.

        Who asks only for what is here may have nobody else to ask, and after a restart nobody
        knows by which names chunks had come: what was here then is of any image that was attached
        here then, and is still.  What came later, and images that were attached later or are not
        any more, as anybody's can be, show nothing of what other images brought here.
        """
        if self.names.may_give(want.cid, want.oid):
            return True
        if mode.reads_source or not self.names.is_of_before(want.cid):
            return False
        return want.image_id in self._attached_first and want.image_id in self._attached
