# SPDX-License-Identifier: Apache-2.0
"""References to chunks: the CID verifies the bytes, image and offset locate them."""

import operator
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.engine import priority
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request

Priority = priority.Priority

Key = tuple[ids.Cid, ids.Oid, int, tuple[ids.ScopeKey, ...]]


_KEY = operator.itemgetter(0, 1, 4, 5)


class ChunkRef(NamedTuple):
    """A chunk to fetch."""

    cid: ids.Cid
    oid: ids.Oid  # its name among hosts (engine.identity)
    image_id: ids.ImageId
    offset: int
    length: int
    keys: tuple[ids.ScopeKey, ...] = ()  # scope keys of the image, to verify keyed CIDs
    segment: ids.Oid | None = None  # name of its segment; None: a segment of its own
    bit: int = 1  # in bitmaps of the segment

    @property
    def ring_position(self) -> ids.Oid:
        """Position on the ring: the segment's name, else the OID."""
        return self[1] if self[6] is None else self[6]

    @property
    def key(self) -> "Key":
        """Key of its transfer; includes the scope keys, which differ between images."""
        key: Key = _KEY(self)
        return key

    @property
    def content(self) -> ids.Content:
        """The CID and the scope keys that the bytes must match."""
        return ids.Content(self.cid, self.keys)


def keys_of(refs: Iterable[ChunkRef]) -> tuple[Key, ...]:
    """Return the key of each chunk."""
    return tuple(map(_KEY, refs))


def matching(
    refs: Sequence[ChunkRef], data: bytes | bytearray | memoryview
) -> list[memoryview | None]:
    """Verify consecutive chunks; return the bytes of each, None where the CID differs."""
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


class ChunkRun(NamedTuple):
    """Adjacent chunks of one image with consecutive numbers."""

    number: int
    refs: Sequence[ChunkRef]
    image_id: ids.ImageId
    offset: int
    length: int
    chunk_bytes: int


def runs(numbers: Sequence[int], refs: Sequence[ChunkRef]) -> Iterator[ChunkRun]:
    """Group chunks of one image into runs of MAX_DATA_BYTES at most.

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
        yield ChunkRun(
            numbers[begin], some, first.image_id, first.offset, end - first.offset, chunk_bytes
        )
        begin = at


class Request(NamedTuple):
    """A request of a peer; ``serve.authorization`` must check it before any use."""

    number: int
    image_id: ids.ImageId
    offset: int
    length: int
    proof: bytes  # that the peer knows the CIDs (peer_request.proof_of)
    mode: peer_request.Mode
    priority: Priority
    timeout_s: float  # that the peer waits
    chunk_bytes: int = 0  # of each chunk but the last; 0: a single chunk

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return peer_request.count_chunks(self.length, self.chunk_bytes)

    @property
    def numbers(self) -> range:
        """The numbers of the chunks."""
        return range(self.number, self.number + self.chunk_count)

    def iter_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield offset and length of each chunk."""
        size, end = self.chunk_bytes or self.length, self.offset + self.length
        for offset in range(self.offset, end, size):
            yield offset, min(size, end - offset)
