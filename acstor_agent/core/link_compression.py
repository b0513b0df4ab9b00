# SPDX-License-Identifier: Apache-2.0
"""Decides which chunks to compress for a peer.

A chunk of *n* bytes takes *n / link* to send plain, and *n / speed + share n / link* compressed:
*speed* and *share* (left by compression) are measured. After a response whose first chunk does not
shrink, twice as many as before are sent plain.
"""

SPEED_BYTES_S = 200e6
"""Compression speed before the first measurement; zstd level 1 on one processor is faster."""
SHARE = 0.5
WEIGHT = 0.1
MAX_SHARE = 0.9  # a chunk with a greater share counts as incompressible
MAX_SKIPPED = 64  # most responses sent plain before the next trial


class LinkCompression:
    """Compression decisions of one connection.

    >>> of_link = LinkCompression()
    >>> of_link.is_worthwhile(12.5e6), of_link.is_worthwhile(125e6)
    (True, False)
    >>> [of_link.begin_response() for _ in range(3)]
    [True, True, True]
    >>> of_link.record_trial(65536, 65550, took_s=0.0002)
    False
    >>> [of_link.begin_response() for _ in range(3)]
    [False, True, True]
    """

    __slots__ = ("_share", "_skip", "_skipped", "_speed_bytes_s")

    def __init__(self) -> None:
        self._speed_bytes_s, self._share = SPEED_BYTES_S, SHARE
        self._skip = self._skipped = 0

    def is_worthwhile(self, link_bytes_s: float) -> bool:
        """Return whether compressible chunks arrive sooner when compressed."""
        return link_bytes_s < self._speed_bytes_s * (1 - self._share)

    def begin_response(self) -> bool:
        """Return whether to compress the next response; if not, count it as skipped."""
        if self._skip:
            self._skip -= 1
            return False
        return True

    def record_trial(self, length: int, compressed: int, took_s: float) -> bool:
        """Record a compressed chunk; return whether to send it compressed."""
        speed_bytes_s = length / max(took_s, 1e-6)
        self._speed_bytes_s += WEIGHT * (speed_bytes_s - self._speed_bytes_s)
        share = compressed / length
        if share > MAX_SHARE:
            self._skipped = min(MAX_SKIPPED, max(1, 2 * self._skipped))
            self._skip = self._skipped
            return False
        self._share += WEIGHT * (share - self._share)
        self._skipped = 0
        return True
