# SPDX-License-Identifier: Apache-2.0
"""How many chunks of an image have one home: as many as the usual link carries in a moment.

Hosts that read one image in step want one segment at one moment, and its home has one uplink.  On
slow links chunks are spread over all uplinks; on fast ones requests cost more than bytes do.

A new length moves most of what homes keep.  So a length stays while a third of the links carries
no less in that moment, and a third no more: neither a host that joins or lies nor a cloud with two
kinds of links makes it change again and again.
"""

from collections.abc import Iterable

from acstor_common.model import geometry
from acstor_common.model import segments

SEGMENT_S = 0.001
"""So long a link may take for a segment.  In the model of 16 hosts in step (25 Mbit/s to 10 Gbit/s)
two chunks for one cost up to 11 % of the time, sixteen up to 27 %, and at 10 Gbit/s at most 3 and
8 %; there a read from sixteen peers takes a third of the processor time when it asks one."""


def chunks_for(links_bytes_s: Iterable[int], current: int = 1) -> int:
    """Return the length of segments for hosts with such links.

    :param links_bytes_s: of hosts whose links are known; there may be none
    :param current: the length now

    >>> [chunks_for([int(mbit * 1e6 / 8)]) for mbit in (25, 1000, 2500, 10_000, 100_000)]
    [1, 1, 4, 16, 16]
    """
    lengths = sorted(map(_carried, links_bytes_s))
    if not lengths:
        return current
    third = len(lengths) // 3
    return min(max(current, lengths[third]), lengths[-1 - third])


def _carried(link_bytes_s: int) -> int:
    """Return how many chunks a link carries in SEGMENT_S, as a length that segments may have."""
    most = int(link_bytes_s * SEGMENT_S / geometry.DEFAULT_CHUNK_BYTES)
    return min(segments.MOST_CHUNKS, 1 << max(0, most.bit_length() - 1))
