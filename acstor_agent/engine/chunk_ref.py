# SPDX-License-Identifier: Apache-2.0
"""References to chunks: by content, to check the bytes, and by place, to find them."""

import operator
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.engine import priority as priority_
from acstor_common.model import ids
from acstor_common.wire import peer_request

Key = tuple[ids.Cid, ids.Oid, int, tuple[ids.ScopeKey, ...]]


_KEY = operator.itemgetter(0, 1, 4, 5)


class ChunkRef(NamedTuple):
    """A chunk that is to be had.

    :param oid: its name among hosts (``engine.identity``)
    :param keys: of the scopes of the image; without them a keyed CID cannot be checked
    :param segment: name of its segment (:mod:`acstor_common.model.segments`); None: the chunk is
        one
    :param bit: its bit in bitmaps of the segment
    """

    cid: ids.Cid
    oid: ids.Oid
    image_id: ids.ImageId
    offset: int
    length: int
    keys: tuple[ids.ScopeKey, ...] = ()
    segment: ids.Oid | None = None
    bit: int = 1

    @property
    def place(self) -> ids.Oid:
        """Where its owners follow each other on the ring."""
        return self[1] if self[6] is None else self[6]

    @property
    def key(self) -> "Key":
        """What is one and the same for all who want it: else one's keys would judge another's."""
        key: Key = _KEY(self)
        return key

    @property
    def content(self) -> ids.Content:
        """What the bytes must be."""
        return ids.Content(self.cid, self.keys)


def keys_of(refs: Iterable[ChunkRef]) -> tuple[Key, ...]:
    """Return the key of each chunk."""
    return tuple(map(_KEY, refs))


def matching(
    refs: Sequence[ChunkRef], data: bytes | bytearray | memoryview
) -> list[memoryview | None]:
    """Return the bytes of chunks that lie one behind the other; None for those that are wrong.

    :param data: as many bytes as the chunks have
    """
    view, begin, pieces = memoryview(data), 0, list[memoryview]()
    for ref in refs:
        end = begin + ref.length
        pieces.append(view[begin:end])
        begin = end
    if any([ids.is_keyed(ref.cid) for ref in refs]):
        are_right = [
            ref.content.matches_data(piece) for ref, piece in zip(refs, pieces, strict=True)
        ]
    else:
        are_right = [ref.cid == cid for ref, cid in zip(refs, ids.cids_of(pieces), strict=True)]
    return [piece if is_right else None for piece, is_right in zip(pieces, are_right, strict=True)]


class Run(NamedTuple):
    """Chunks of one image that lie side by side, with numbers that follow each other.

    :param number: of the first chunk
    :param refs: the chunks
    :param length: bytes of all chunks
    :param chunk_bytes: the length of each but the last, which may be shorter; 0: it is one chunk
    """

    number: int
    refs: Sequence[ChunkRef]
    image_id: ids.ImageId
    offset: int
    length: int
    chunk_bytes: int


def runs(numbers: Sequence[int], refs: Sequence[ChunkRef]) -> Iterator[Run]:
    """Cut chunks of one image into as few runs as may be, each of MAX_DATA_BYTES at most.

    >>> one = ChunkRef(ids.Cid(bytes(32)), ids.Oid(0), ids.ImageId("i"), 0, 8)
    >>> refs = [one._replace(offset=at, length=length) for at, length in ((0, 8), (8, 5), (24, 8))]
    >>> [(run.number, run.offset, run.length, run.chunk_bytes) for run in runs((4, 5, 6), refs)]
    [(4, 0, 13, 8), (6, 24, 8, 0)]
    """
    begin, count = 0, len(refs)
    while begin < count:
        first = refs[begin]
        at, size, end = begin + 1, first.length, first.offset + first.length
        while at < count and refs[at].offset == end and numbers[at] == numbers[at - 1] + 1:
            if refs[at - 1].length != size or refs[at].length > size:
                break
            if end + size - first.offset > peer_request.MAX_DATA_BYTES:
                break
            end += refs[at].length
            at += 1
        some = refs[begin:at] if at - begin < count else refs
        chunk_bytes = size if at > begin + 1 else 0
        yield Run(
            numbers[begin], some, first.image_id, first.offset, end - first.offset, chunk_bytes
        )
        begin = at


class Request(NamedTuple):
    """What a peer asks for: nothing of it is believed before ``authorization`` has authorized it.

    :param number: of the first chunk on the connection; the others have the numbers that follow
    :param length: bytes of all chunks
    :param proof: that the peer knows the CIDs (``peer_request.proof_of``)
    :param timeout_s: so long the peer waits
    :param chunk_bytes: of a run: the length of each chunk but the last; 0: it is one chunk
    """

    number: int
    image_id: ids.ImageId
    offset: int
    length: int
    proof: bytes
    mode: peer_request.Mode
    priority: priority_.Priority
    timeout_s: float
    chunk_bytes: int = 0

    @property
    def chunks(self) -> int:
        """How many chunks it asks for."""
        return peer_request.chunks_in(self.length, self.chunk_bytes)

    @property
    def numbers(self) -> range:
        """The numbers of the chunks."""
        return range(self.number, self.number + self.chunks)

    def iter_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield offset and length of each chunk."""
        size, end = self.chunk_bytes or self.length, self.offset + self.length
        for offset in range(self.offset, end, size):
            yield offset, min(size, end - offset)
