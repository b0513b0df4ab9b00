# SPDX-License-Identifier: Apache-2.0
"""Chooses the segment length: as many chunks as the median link carries in 2.5 ms.

Hosts that read an image in lockstep need one segment at a time, and its home has one uplink: short
segments use all of the slow links at once. On fast links, requests cost more than bytes.

A new length invalidates most chunks of homes. So the length stays while a third of the links
carries at least as much in that time and a third at most as much.
"""

from collections.abc import Iterable

from acstor_common.model import geometry
from acstor_common.model import segments

SEGMENT_S = 0.0025
"""Transfer time of a segment.  At 1 Gbit/s, four chunks cost hosts in lockstep 4 % more time in a
model without processors, and save a third of the agents' processor time."""


def chunks_for(links_bytes_s: Iterable[int], current: int = 1) -> int:
    """Return the segment length for hosts with such links.

    >>> [chunks_for([int(mbit * 1e6 / 8)]) for mbit in (25, 1000, 2500, 10_000, 100_000)]
    [1, 4, 8, 16, 16]
    """
    lengths = sorted(map(_carried, links_bytes_s))
    if not lengths:
        return current
    third = len(lengths) // 3
    return min(max(current, lengths[third]), lengths[-1 - third])


def _carried(link_bytes_s: int) -> int:
    """Return how many chunks a link carries in SEGMENT_S, as a valid segment length."""
    most = int(link_bytes_s * SEGMENT_S / geometry.DEFAULT_CHUNK_BYTES)
    return min(segments.MAX_CHUNKS, 1 << max(0, most.bit_length() - 1))
