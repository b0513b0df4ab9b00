# SPDX-License-Identifier: Apache-2.0
"""Estimates how much hosts read the same chunks: only then does a home spare the source reads.

A home that fetches a chunk for a single reader moves it once more than the source would have.  Two
observations estimate the overlap: whether the chunks that guests here are about to read have been
announced, and whether chunks that peers request were here or on their way.  Homes are chosen by
hash, so each host sees a fair sample.

Until ENOUGH chunks are known, hosts are assumed to read the same.  A peer that requests unique
chunks can at most send this host's read-ahead to the source, and only while that is clearly faster;
a peer that requests chunks twice keeps it with the homes.
"""

ENOUGH = 128
"""Chunks without which nothing is said: who begins seconds before others reads as many alone."""
LITTLE = 1 / 16
"""So small a share of chunks that others read too is not worth a way more for all of them."""
WEIGHT = 1 / 64
"""What the newest chunk counts, once there are that many."""


class ReadOverlap:
    """The share of chunks that others read too.

    >>> sharing = ReadOverlap()
    >>> for _ in range(ENOUGH):
    ...     sharing.note(False)
    >>> sharing.is_little
    True
    >>> for _ in range(8):
    ...     sharing.note(True)
    >>> sharing.is_little
    False
    """

    __slots__ = ("_seen", "share")

    def __init__(self) -> None:
        self.share = 0.0
        self._seen = 0

    def record_overlap(self, is_shared: bool, chunks: int = 1) -> None:
        """Note of chunks whether anybody else reads them."""
        if chunks > 1 and WEIGHT * self._seen >= 1:
            self._seen += chunks
            self.share = is_shared + (self.share - is_shared) * (1 - WEIGHT) ** chunks
            return
        for _ in range(chunks):
            self._seen += 1
            self.share += max(WEIGHT, 1 / self._seen) * (is_shared - self.share)

    @property
    def is_little(self) -> bool:
        """Say whether hardly any chunk is read by two hosts, as far as is known."""
        return self._seen >= ENOUGH and self.share < LITTLE
