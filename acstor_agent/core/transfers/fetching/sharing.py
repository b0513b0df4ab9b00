# SPDX-License-Identifier: Apache-2.0
"""Whether hosts read the same: only then do homes spare the source anything.

A home that brings a chunk for one reader alone has moved it once more than the source would have
had to, over links that others need.  Two things tell how often that is: what guests here are about
to read, and whether somebody has advertised it; and what peers ask of this host for guests of
theirs, and whether it was here, or on its way, already.  Homes are drawn by lot, so each host sees
a fair sample of what all of them read.

Until enough is known hosts are taken to read the same.  A peer that asks for what nobody reads can
turn this host's read-ahead to the source at most, and only while that is clearly quicker; one that
asks twice keeps it with the homes.
"""

ENOUGH = 128
"""Chunks without which nothing is said: who begins seconds before others reads as many alone."""
LITTLE = 1 / 16
"""So small a share of chunks that others read too is not worth a way more for all of them."""
WEIGHT = 1 / 64
"""What the newest chunk counts, once there are that many."""


class Sharing:
    """The share of chunks that others read too.

    >>> sharing = Sharing()
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

    def note(self, is_shared: bool) -> None:
        """Note of one chunk whether anybody else reads it."""
        self._seen += 1
        self.share += max(WEIGHT, 1 / self._seen) * (is_shared - self.share)

    @property
    def is_little(self) -> bool:
        """Say whether hardly any chunk is read by two hosts, as far as is known."""
        return self._seen >= ENOUGH and self.share < LITTLE
