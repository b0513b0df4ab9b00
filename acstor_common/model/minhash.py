# SPDX-License-Identifier: Apache-2.0
"""MinHash sketches, which estimate the similarity of two hosts' chunks.

A bottom-k sketch (Broder 1997): the smallest values under one hash, here bits 64 to 126 of the
CIDs.  The first 64 bits, the ring position, would be biased: hosts own contiguous arcs.
"""

import heapq
from collections.abc import Iterable
from collections.abc import Sequence

from acstor_common.model import ids

SIZE = 128  # values per sketch; two standard deviations of the estimate are 0.09


def value_of(cid: ids.Cid) -> int:
    """Return the 63-bit hash value of a CID."""
    return int.from_bytes(cid[8:16], "big") >> 1


def make_sketch(cids: Iterable[ids.Cid]) -> tuple[int, ...]:
    """Return the sketch of a set of CIDs, in ascending order."""
    return tuple(heapq.nsmallest(SIZE, {value_of(cid) for cid in cids}))


def similarity(first: Sequence[int], other: Sequence[int]) -> float:
    """Estimate the Jaccard similarity of two sets from their sketches.

    >>> similarity((1, 2, 3), (1, 2, 3)), similarity((1, 2), (3, 4)), similarity((), ())
    (1.0, 0.0, 0.0)
    """
    smallest = heapq.nsmallest(SIZE, {*first, *other})
    both = {*first} & {*other}
    return sum(value in both for value in smallest) / len(smallest) if smallest else 0.0
