# SPDX-License-Identifier: Apache-2.0
"""``deadline``: Linux' deadline elevator (block/deadline-iosched).

Reads and writes are served in batches, each in ascending order; a batch begins with the oldest
request if its deadline has passed.  Reads precede writes, WRITES_STARVED times at most.
Simplified: no merging, one request at a time.  Linux 2.6.18, which Ling 2015 used, also ends a
batch at a gap; later versions, as here, do not.
"""

import itertools
from collections.abc import Iterator

from acstor_agent.core.disk_scheduling import policy
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.disk_scheduling import request_queue

READ_EXPIRE_S = 0.5
WRITE_EXPIRE_S = 5.0
BATCH = 16
WRITES_STARVED = 2


class Deadline(policy.SchedulingPolicy):
    """One queue for reads and one for writes."""

    def __init__(self) -> None:
        super().__init__()
        self._queues = {False: request_queue.RequestQueue(), True: request_queue.RequestQueue()}
        self._is_write = False
        self._head = 0
        self._left = 0
        self._starved = 0

    def add(self, request: requests.DiskRequest, now_s: float) -> None:
        """Add a request."""
        expire_s = WRITE_EXPIRE_S if request.is_write else READ_EXPIRE_S
        self._queues[request.is_write].add(request, now_s + expire_s)

    def remove(self, request: requests.DiskRequest) -> None:
        """Withdraw a pending request."""
        self._queues[request.is_write].remove(request)

    def __iter__(self) -> Iterator[requests.DiskRequest]:
        return itertools.chain(*self._queues.values())

    def pick_request(self, now_s: float) -> requests.DiskRequest | None:
        """Continue the batch, or begin another."""
        found = self._queues[self._is_write].at_or_after(self._head) if self._left else None
        if found is None:
            found = self._begin_batch(now_s)
        if found is not None:
            self._left -= 1
            self._head = found.stop
            self._queues[found.is_write].remove(found)
        return found

    def _begin_batch(self, now_s: float) -> requests.DiskRequest | None:
        reads, writes = self._queues[False], self._queues[True]
        if not reads and not writes:
            return None
        is_write = not reads or (bool(writes) and self._starved >= WRITES_STARVED)
        self._starved = 0 if is_write else self._starved + bool(writes)
        has_turned = is_write != self._is_write
        self._is_write, self._left = is_write, BATCH
        queue = self._queues[is_write]
        ahead = None if has_turned else queue.at_or_after(self._head)
        return queue.first_overdue(now_s) or ahead or queue.earliest_deadline()
