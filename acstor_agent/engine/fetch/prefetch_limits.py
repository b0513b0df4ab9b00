# SPDX-License-Identifier: Apache-2.0
"""Limits for prefetches, which queue here, not at peers, where they would delay guests."""

from collections.abc import Iterable
from collections.abc import Iterator

from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_agent.engine.data_structures import fair_queue

Priority = priority.Priority
Transfer = transfer.Transfer

ADVERTISED_AT_A_TIME = 4
"""Enough to fill a link, and few enough that the load of holders is still current."""
QUEUED_PREFETCHES = 1024
"""Queued speculative prefetches of an image (the oldest is dropped); others have no limit."""
SPECULATIVE = frozenset({Priority.READAHEAD, Priority.ADVERTISED})
PREFETCH_PRIORITIES = (
    Priority.READAHEAD,
    Priority.PRE_SEED,
    Priority.FLATTEN,
    Priority.ADVERTISED,
    Priority.HYDRATE,
)


class PrefetchLimits:
    """Prefetch queues, each with ``limit`` chunks under way (the last may exceed it)."""

    def __init__(self, limit: int) -> None:
        self.has_space = True  # False while the cache is full or behind with its writes
        self._limits = dict.fromkeys(PREFETCH_PRIORITIES, limit)
        self._limits[Priority.ADVERTISED] = min(limit, ADVERTISED_AT_A_TIME)
        self._left = self._limits.copy()  # chunks that may start
        self.waiting: fair_queue.FairQueue[Transfer] = fair_queue.FairQueue()
        self.in_flight = 0

    def __len__(self) -> int:
        return self.waiting.length

    def queue_transfer(self, transfer: Transfer, queue: Priority) -> Transfer | None:
        """Queue a transfer; return a transfer that is dropped for it, if any."""
        image_id = transfer.first_ref.image_id
        transfer.prefetch_queue, transfer.prefetch_flow = queue, image_id
        if (
            self.waiting.put_item(queue, image_id, transfer) <= QUEUED_PREFETCHES
            or queue not in SPECULATIVE
        ):
            return None
        oldest = self.waiting.take_by_priority(queue, image_id)
        assert oldest is not None
        oldest.prefetch_queue = None
        return oldest

    def remove_transfer(self, transfer: Transfer) -> None:
        """Remove a transfer that has ended or became urgent."""
        queue = transfer.prefetch_queue
        if queue is not None and not self.waiting.remove(queue, transfer.prefetch_flow, transfer):
            self._left[queue] += transfer.chunk_count
            self.in_flight -= transfer.chunk_count
        transfer.prefetch_queue = None

    def divide_transfer(self, transfer: Transfer, part: Transfer) -> None:
        """Queue the split-off part of a queued transfer."""
        if transfer.prefetch_queue is not None and self.is_queued(transfer):
            self.waiting.put_item(transfer.prefetch_queue, transfer.prefetch_flow, part)

    def is_queued(self, transfer: Transfer) -> bool:
        """Return whether a transfer is queued."""
        queue = transfer.prefetch_queue
        return queue is not None and self.waiting.is_queued(queue, transfer.prefetch_flow, transfer)

    def recount_running(self, transfers: Iterable[Transfer]) -> None:
        """Rebuild the counts of started chunks after a fault."""
        begun = [t for t in transfers if t.prefetch_queue is not None and not self.is_queued(t)]
        for queue, limit in self._limits.items():
            self._left[queue] = limit - sum(
                [t.chunk_count for t in begun if t.prefetch_queue is queue]
            )
        self.in_flight = sum([t.chunk_count for t in begun])

    def start_queued(self) -> Iterator[Transfer]:
        """Yield the transfers that may start now, and count them as started."""
        for queue in PREFETCH_PRIORITIES:
            while self.has_space and self._left[queue] > 0:
                transfer = self.waiting.take_by_priority(queue)
                if transfer is None:
                    break
                self._left[queue] -= transfer.chunk_count
                self.in_flight += transfer.chunk_count
                yield transfer
