# SPDX-License-Identifier: Apache-2.0
"""Segments: aligned runs of chunks of an image that have one home.

A segment is named by the smallest OID among its chunks, zeros left out (min-wise hashing, Broder
1997).  Two segments with mostly the same chunks have the same name with the probability of their
resemblance, so similar images share homes (Extreme Binning, Bhagwat et al. 2009).  With a length of
1 a segment is a chunk, and its name the chunk's OID.
"""

from collections.abc import Sequence

from acstor_common import ids

MOST_CHUNKS = 16
"""Of a segment: what FUSE asks for at a time, at the default chunk size."""


def check(segment_chunks: int) -> None:
    """Look whether a segment may have so many chunks.

    :raises ValueError: it may not: 1, 2, 4, 8 and 16 are allowed
    """
    if not 1 <= segment_chunks <= MOST_CHUNKS or segment_chunks & (segment_chunks - 1):
        raise ValueError(f"segments of {segment_chunks} chunks: 1, 2, 4, 8 or 16 are allowed")


def around(first: int, stop: int, segment_chunks: int, chunk_count: int) -> tuple[int, int]:
    """Return from where to where the segments of some chunks reach.

    >>> around(5, 9, 4, 10), around(5, 9, 1, 10)
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
