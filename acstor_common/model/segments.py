# SPDX-License-Identifier: Apache-2.0
"""Segments: aligned runs of chunks of an image that have one home.

A segment is named by the smallest OID among its chunks, zeros left out (min-wise hashing, Broder
1997).  Two segments with mostly the same chunks have the same name with the probability of their
resemblance, so similar images share homes (Extreme Binning, Bhagwat et al. 2009).  With a length of
1 a segment is a chunk, and its name the chunk's OID.
"""

import itertools
import operator
from collections.abc import Iterable
from collections.abc import Sequence

from acstor_common.model import ids

MOST_CHUNKS = 16
"""Of a segment: what FUSE asks for at a time, at the default chunk size."""


Chunks = tuple[ids.Oid, int]
"""Some chunks of a segment: its name, and a bitmap, the first chunk lowest; not 0.

A plain tuple: floods of them are to cost little."""
_BITS = operator.itemgetter(1)


def check(segment_chunks: int) -> None:
    """Look whether a segment may have so many chunks.

    :raises ValueError: it may not: 1, 2, 4, 8 and 16 are allowed
    """
    if not 1 <= segment_chunks <= MOST_CHUNKS or segment_chunks & (segment_chunks - 1):
        raise ValueError(f"segments of {segment_chunks} chunks: 1, 2, 4, 8 or 16 are allowed")


def covering(first: int, stop: int, segment_chunks: int, chunk_count: int) -> tuple[int, int]:
    """Return from where to where the segments of some chunks reach.

    >>> covering(5, 9, 4, 10), covering(5, 9, 1, 10)
    ((4, 10), (5, 9))
    """
    rest = first % segment_chunks
    return first - rest, min(stop + -stop % segment_chunks, chunk_count)


def names(cids: Sequence[ids.Cid], oids: Sequence[ids.Oid], segment_chunks: int) -> list[ids.Oid]:
    """Return the name of the segment of each chunk.

    :param cids: of chunks of an image, from the first of a segment on
    :param oids: of the same chunks

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
    """Return the name of the segment of each chunk, and the chunk's bit in it; see :func:`names`.

    >>> cid = ids.cid_of(b"chunk")
    >>> names_and_bits([cid, cid, cid], [ids.Oid(7), ids.Oid(8), ids.Oid(9)], 2)
    [(7, 1), (7, 2), (9, 1)]
    """
    bits = [1 << at for at in range(segment_chunks)]
    return list(zip(names(cids, oids, segment_chunks), itertools.cycle(bits), strict=False))


def bitmaps(chunks: Iterable[Chunks]) -> tuple[Chunks, ...]:
    """Gather chunks by segment, in the order in which the segments come first.

    >>> bitmaps([(ids.Oid(7), 1), (ids.Oid(9), 1), (ids.Oid(7), 4)])
    ((7, 5), (9, 1))
    """
    found: dict[ids.Oid, int] = {}
    for segment, bits in chunks:
        found[segment] = found.get(segment, 0) | bits
    return tuple(found.items())


def count(chunks: Iterable[Chunks]) -> int:
    """Return how many chunks these are."""
    return sum(map(int.bit_count, map(_BITS, chunks)))


def first(chunks: Sequence[Chunks], limit: int) -> Sequence[Chunks]:
    """Return the first segments that have ``limit`` chunks at most.

    >>> first([(ids.Oid(7), 5), (ids.Oid(9), 1)], 2)
    [(7, 5)]
    """
    for at, (_, bits) in enumerate(chunks):
        limit -= bits.bit_count()
        if limit < 0:
            return chunks[:at]
    return chunks
