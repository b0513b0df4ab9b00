# SPDX-License-Identifier: Apache-2.0
"""Estimates how many chunks several hosts read: only those make homes worthwhile.

Samples are: whether chunks that guests here are about to read were announced, and whether chunks
that peers request were here or under way. Homes are chosen by hash, so each host sees a fair
sample. A dishonest peer can at most send this host's prefetches to the source while that is clearly
faster, or keep them with the homes.
"""

ENOUGH = 128
"""Chunks below which hosts are assumed to read the same."""
LITTLE = 1 / 16
"""Share of common chunks below which prefetches skip the homes."""
WEIGHT = 1 / 64
"""Weight of the newest chunk, once there are that many."""


class ReadOverlap:
    """The share of chunks that several hosts read.

    >>> sharing = ReadOverlap()
    >>> for _ in range(ENOUGH):
    ...     sharing.record_overlap(False)
    >>> sharing.is_little
    True
    >>> for _ in range(8):
    ...     sharing.record_overlap(True)
    >>> sharing.is_little
    False
    """

    __slots__ = ("_seen", "share")

    def __init__(self) -> None:
        self.share = 0.0
        self._seen = 0

    def record_overlap(self, is_shared: bool, chunks: int = 1) -> None:
        """Record whether another host reads some chunks."""
        if chunks > 1 and WEIGHT * self._seen >= 1:
            self._seen += chunks
            self.share = is_shared + (self.share - is_shared) * (1 - WEIGHT) ** chunks
            return
        for _ in range(chunks):
            self._seen += 1
            self.share += max(WEIGHT, 1 / self._seen) * (is_shared - self.share)

    @property
    def is_little(self) -> bool:
        """Whether hosts are known to read hardly any common chunk."""
        return self._seen >= ENOUGH and self.share < LITTLE
