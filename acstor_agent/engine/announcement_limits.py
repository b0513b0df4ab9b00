# SPDX-License-Identifier: Apache-2.0
"""Rate limits for announcements from peers.

An announcement costs this host time that it did not ask for.  Two quantities are limited: chunks,
up to the number that a fast link carries, and look-ups, of which a chunk needs one for each
attached image and one more, and a segment of many chunks fewer than these together.  Look-ups have
a limit for each peer and one for all peers.  Announcements beyond the limits are dropped and
counted.
"""

from acstor_common.model import ids
from acstor_common.util import token_buckets

LOOKUPS_OF_PEER = token_buckets.Rate(per_s=40_000.0, burst=20_000.0)
"""A look-up takes up to 1 us (measured): 4 % of a processor, and 20 ms at once."""
LOOKUPS_OF_ALL = token_buckets.Rate(per_s=100_000.0, burst=50_000.0)


class AnnouncementLimits:
    """What peers may tell now.

    :param chunks: how many a peer may tell
    :param peers: of how many something is remembered

    >>> listening = AnnouncementLimits(token_buckets.Rate(per_s=10.0, burst=30.0), peers=100)
    >>> listening.take(ids.HostId("h1"), 50, 0.0), listening.take(ids.HostId("h1"), 50, 1.0)
    (30, 10)
    >>> listening.take(ids.HostId("h2"), 30, 1.0, lookups=10_000)  # as many images are mirrored
    2
    """

    def __init__(self, chunks: token_buckets.Rate, peers: int) -> None:
        self._chunks: token_buckets.TokenBuckets[ids.HostId] = token_buckets.TokenBuckets(
            chunks, peers
        )
        self._lookups: token_buckets.TokenBuckets[ids.HostId] = token_buckets.TokenBuckets(
            LOOKUPS_OF_PEER, peers
        )
        self._all_lookups: token_buckets.TokenBuckets[None] = token_buckets.TokenBuckets(
            LOOKUPS_OF_ALL, 1
        )

    def __len__(self) -> int:
        return len(self._chunks)

    def admit_chunks(self, host: ids.HostId, count: int, now: float, lookups: int = 1) -> int:
        """Return how many of ``count`` chunks that ``host`` tells are to be listened to.

        :param lookups: that each of them takes
        """
        may = min(
            self._chunks.tokens_left(host, now),
            self._lookups.tokens_left(host, now) / lookups,
            self._all_lookups.tokens_left(None, now) / lookups,
        )
        heard = min(count, max(0, int(may)))
        self._chunks.charge_tokens(host, heard, now)
        self._lookups.charge_tokens(host, heard * lookups, now)
        self._all_lookups.charge_tokens(None, heard * lookups, now)
        return heard

    def penalize_peer(self, host: ids.HostId, chunks: int, now: float) -> None:
        """Let a peer that told wrong things tell so many fewer."""
        self._chunks.charge_tokens(host, chunks, now)
