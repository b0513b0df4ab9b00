# SPDX-License-Identifier: Apache-2.0
"""Limits for prefetches: concurrent chunks for each priority.

Prefetches queue here, image by image, and not at peers, where they would delay guests. None starts
while the cache is full or behind with its writes.
"""

from collections.abc import Iterable
from collections.abc import Iterator

from acstor_agent.engine import fair_queue
from acstor_agent.engine import priority
from acstor_agent.engine import transfer

Priority = priority.Priority
Transfer = transfer.Transfer

ADVERTISED_AT_A_TIME = 4
"""Enough to fill a link, and few enough that the load of holders is still current."""
WISHES = 1024
"""Queued speculative prefetches of an image (the oldest is dropped); others have no limit."""
GUESSES = frozenset({Priority.SOON, Priority.ADVERTISED})
LANES = (Priority.SOON, Priority.SEED, Priority.FLATTEN, Priority.ADVERTISED, Priority.WHOLE)


class PrefetchLimits:
    """Prefetch queues, each with ``limit`` chunks under way (the last may exceed it)."""

    def __init__(self, limit: int) -> None:
        self.has_room = True
        self._limits = dict.fromkeys(LANES, limit)
        self._limits[Priority.ADVERTISED] = min(limit, ADVERTISED_AT_A_TIME)
        self._left = self._limits.copy()  # chunks that may start
        self.waiting: fair_queue.FairQueue[Transfer] = fair_queue.FairQueue()
        self.under_way = 0

    def __len__(self) -> int:
        return self.waiting.length

    def put(self, transfer: Transfer, lane: Priority) -> Transfer | None:
        """Queue a transfer; return a transfer that is dropped for it, if any."""
        image_id = transfer.want.image_id
        transfer.lane, transfer.lane_of = lane, image_id
        if self.waiting.put_item(lane, image_id, transfer) <= WISHES or lane not in GUESSES:
            return None
        oldest = self.waiting.take_of(lane, image_id)
        assert oldest is not None
        oldest.lane = None
        return oldest

    def remove_transfer(self, transfer: Transfer) -> None:
        """Remove a transfer that has ended or became urgent."""
        lane = transfer.lane
        if lane is not None and not self.waiting.remove(lane, transfer.lane_of, transfer):
            self._left[lane] += transfer.count
            self.under_way -= transfer.count
        transfer.lane = None

    def divide_transfer(self, transfer: Transfer, part: Transfer) -> None:
        """Queue the split-off part of a queued transfer."""
        if transfer.lane is not None and self.is_queued(transfer):
            self.waiting.put_item(transfer.lane, transfer.lane_of, part)

    def is_queued(self, transfer: Transfer) -> bool:
        """Return whether a transfer is queued."""
        lane = transfer.lane
        return lane is not None and self.waiting.is_queued(lane, transfer.lane_of, transfer)

    def recount_running(self, transfers: Iterable[Transfer]) -> None:
        """Rebuild the counts of started chunks after a fault."""
        begun = [t for t in transfers if t.lane is not None and not self.is_queued(t)]
        for lane, limit in self._limits.items():
            self._left[lane] = limit - sum([t.count for t in begun if t.lane is lane])
        self.under_way = sum([t.count for t in begun])

    def start_queued(self) -> Iterator[Transfer]:
        """Yield the transfers that may start now, and count them as started."""
        for lane in LANES:
            while self.has_room and self._left[lane] > 0:
                transfer = self.waiting.take_of(lane)
                if transfer is None:
                    break
                self._left[lane] -= transfer.count
                self.under_way += transfer.count
                yield transfer
