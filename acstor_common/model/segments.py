# SPDX-License-Identifier: Apache-2.0
"""Segments: aligned runs of chunks of an image that have one home.

A segment's name is the smallest OID of its chunks that are not zeros (min-wise hashing, Broder
1997).  Two segments have equal names with the probability of their resemblance, so similar images
share homes (Extreme Binning, Bhagwat et al. 2009).
"""

import itertools
import operator
from collections.abc import Iterable
from collections.abc import Sequence

from acstor_common.model import ids

MAX_CHUNKS = 16  # per segment: one FUSE read at the default chunk size


Chunks = tuple[ids.Oid, int]
"""Chunks of one segment: its name, and a bitmap.

The first chunk is the lowest bit; the bitmap is not 0.  A tuple, because messages carry many."""
_BITS = operator.itemgetter(1)


def check(segment_chunks: int) -> None:
    """Raise ValueError unless segments may have this many chunks: 1, 2, 4, 8 or 16."""
    if not 1 <= segment_chunks <= MAX_CHUNKS or segment_chunks & (segment_chunks - 1):
        raise ValueError(f"segments of {segment_chunks} chunks: 1, 2, 4, 8 or 16 are allowed")


def covering(first: int, stop: int, segment_chunks: int, chunk_count: int) -> tuple[int, int]:
    """Return the range of the segments that contain a range of chunks.

    >>> covering(5, 9, 4, 10), covering(5, 9, 1, 10)
    ((4, 10), (5, 9))
    """
    rest = first % segment_chunks
    return first - rest, min(stop + -stop % segment_chunks, chunk_count)


def names(cids: Sequence[ids.Cid], oids: Sequence[ids.Oid], segment_chunks: int) -> list[ids.Oid]:
    """Return the segment name of each chunk; the first chunk begins a segment.

    >>> cid = ids.cid_of(b"chunk")
    >>> names([cid, ids.ZERO_CID, cid], [ids.Oid(7), ids.Oid(0), ids.Oid(9)], 2)
    [7, 7, 9]
    """
    if segment_chunks == 1:
        return [*oids]
    found: list[ids.Oid] = []
    for start in range(0, len(cids), segment_chunks):
        its = oids[start : start + segment_chunks]
        some = its
        if ids.ZERO_CID in (zeros := cids[start : start + segment_chunks]):
            pairs = zip(its, zeros, strict=True)
            some = [oid for oid, cid in pairs if cid != ids.ZERO_CID] or its
        found += [min(some)] * len(its)
    return found


def names_and_bits(
    cids: Sequence[ids.Cid], oids: Sequence[ids.Oid], segment_chunks: int
) -> list[tuple[ids.Oid, int]]:
    """Return each chunk's segment name and bit in the segment's bitmap.

    >>> cid = ids.cid_of(b"chunk")
    >>> names_and_bits([cid, cid, cid], [ids.Oid(7), ids.Oid(8), ids.Oid(9)], 2)
    [(7, 1), (7, 2), (9, 1)]
    """
    bits = [1 << at for at in range(segment_chunks)]
    return list(zip(names(cids, oids, segment_chunks), itertools.cycle(bits), strict=False))


def bitmaps(chunks: Iterable[Chunks]) -> tuple[Chunks, ...]:
    """Merge chunks by segment, in order of first occurrence.

    >>> bitmaps([(ids.Oid(7), 1), (ids.Oid(9), 1), (ids.Oid(7), 4)])
    ((7, 5), (9, 1))
    """
    found: dict[ids.Oid, int] = {}
    for segment, bits in chunks:
        found[segment] = found.get(segment, 0) | bits
    return tuple(found.items())


def count(chunks: Iterable[Chunks]) -> int:
    """Return the number of chunks."""
    return sum(map(int.bit_count, map(_BITS, chunks)))


def first(chunks: Sequence[Chunks], limit: int) -> Sequence[Chunks]:
    """Return the leading segments with at most ``limit`` chunks together.

    >>> first([(ids.Oid(7), 5), (ids.Oid(9), 1)], 2)
    [(7, 5)]
    """
    for at, (_, bits) in enumerate(chunks):
        limit -= bits.bit_count()
        if limit < 0:
            return chunks[:at]
    return chunks
