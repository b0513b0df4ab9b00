# SPDX-License-Identifier: Apache-2.0
"""How many chunks of an image have one home: as many as the usual link carries in a moment.

Hosts that read one image in step want one segment at one moment, and its home has one uplink.  On
slow links chunks are spread over all uplinks; on fast ones requests cost more than bytes do.
"""

import statistics
from collections.abc import Collection

from acstor_common import geometry
from acstor_common import segments

SEGMENT_S = 0.001
"""So long a link may take for a segment.  In the model of 16 hosts in step (25 Mbit/s to 10 Gbit/s)
two chunks for one cost up to 11 % of the time, sixteen up to 27 %, and at 10 Gbit/s at most 3 and
8 %; there a read from sixteen peers takes a third of the processor time when it asks one."""


def chunks_for(links_bytes_s: Collection[int]) -> int:
    """Return the length of segments for hosts with such links, which may be none.

    The median counts: a host that is slower than others, or lies, changes nothing for them.

    >>> [chunks_for([int(mbit * 1e6 / 8)]) for mbit in (25, 1000, 2500, 10_000, 100_000)]
    [1, 1, 4, 16, 16]
    """
    if not links_bytes_s:
        return 1
    most = statistics.median_low(links_bytes_s) * SEGMENT_S / geometry.DEFAULT_CHUNK_BYTES
    return min(segments.MOST_CHUNKS, 1 << max(0, int(most).bit_length() - 1))
