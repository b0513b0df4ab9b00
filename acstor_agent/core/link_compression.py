# SPDX-License-Identifier: Apache-2.0
"""Decides which chunks are compressed for a peer: those that arrive sooner so.

A chunk of *n* bytes takes *n / link* to send as it is, and *n / speed + share n / link* compressed:
*speed* is that of compressing, *share* what is left of the bytes.  Both are measured.  An
answer whose first chunk does not get shorter is sent as it is, and so are the next ones: twice as
many each time.
"""

SPEED_BYTES_S = 200e6
"""Of compressing, before it was measured: less than zstd level 1 reaches on one processor."""
SHARE = 0.5
"""Of the bytes that are left, before it was measured."""
WEIGHT = 0.1
"""Of the last chunk among those before."""
WORTH = 0.9
"""A chunk of which more than this is left counts as not compressible."""
MOST_SKIPPED = 64
"""Answers that are sent as they are before one is tried again."""


class LinkCompression:
    """The decisions for one connection.

    >>> of_link = LinkCompression()
    >>> of_link.is_worth(12.5e6), of_link.is_worth(125e6)
    (True, False)
    >>> [of_link.try_next() for _ in range(3)]
    [True, True, True]
    >>> of_link.tried(65536, 65550, took_s=0.0002)
    False
    >>> [of_link.try_next() for _ in range(3)]
    [False, True, True]
    """

    __slots__ = ("_share", "_skip", "_skipped", "_speed_bytes_s")

    def __init__(self) -> None:
        self._speed_bytes_s, self._share = SPEED_BYTES_S, SHARE
        self._skip = self._skipped = 0

    def is_worth(self, link_bytes_s: float) -> bool:
        """Say whether chunks that can be compressed arrive sooner compressed.

        :param link_bytes_s: what the link to the peer moves in a second
        """
        return link_bytes_s < self._speed_bytes_s * (1 - self._share)

    def try_next(self) -> bool:
        """Say whether to compress the next answer; if not, count it as skipped."""
        if self._skip:
            self._skip -= 1
            return False
        return True

    def record_trial(self, length: int, compressed: int, took_s: float) -> bool:
        """Note what came of a chunk; say whether it is to be sent compressed.

        :param length: of the chunk, in bytes
        :param compressed: its length when it is compressed
        :param took_s: how long that took, in seconds
        """
        speed_bytes_s = length / max(took_s, 1e-6)
        self._speed_bytes_s += WEIGHT * (speed_bytes_s - self._speed_bytes_s)
        share = compressed / length
        if share > WORTH:
            self._skipped = min(MOST_SKIPPED, max(1, 2 * self._skipped))
            self._skip = self._skipped
            return False
        self._share += WEIGHT * (share - self._share)
        self._skipped = 0
        return True
