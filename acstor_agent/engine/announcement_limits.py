# SPDX-License-Identifier: Apache-2.0
"""Rate limits for announcements from peers.

Limited are chunks, by the number that a fast link carries, and look-ups: a chunk needs one for each
attached image and one more. Look-ups have a limit for each peer and one for all. Announcements
beyond the limits are dropped and counted.
"""

from acstor_common.model import ids
from acstor_common.util import token_buckets

LOOKUPS_OF_PEER = token_buckets.Rate(per_s=40_000.0, burst=20_000.0)
"""A look-up takes up to 1 us (measured): 4 % of a processor, and 20 ms at once."""
LOOKUPS_OF_ALL = token_buckets.Rate(per_s=100_000.0, burst=50_000.0)


class AnnouncementLimits:
    """Limits for all peers.

    >>> h1, h2 = ids.HostId("h1"), ids.HostId("h2")
    >>> limits = AnnouncementLimits(token_buckets.Rate(per_s=10.0, burst=30.0), peers=100)
    >>> limits.admit_chunks(h1, 50, 0.0), limits.admit_chunks(h1, 50, 1.0)
    (30, 10)
    >>> limits.admit_chunks(h2, 30, 1.0, lookups=10_000)  # with as many images attached
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
        """Return how many of ``count`` announced chunks to accept, at ``lookups`` each."""
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
        """Reduce the allowance of a peer that announced wrong chunks."""
        self._chunks.charge_tokens(host, chunks, now)
