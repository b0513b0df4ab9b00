# SPDX-License-Identifier: Apache-2.0
"""``anticipatory``: Iyer and Druschel 2001, in the shape that Linux 2.6 gave it (as-iosched).

Like ``deadline`` with batches of time, but after a read the disk may wait up to WAIT_S for the same
stream's next one, if that stream usually thinks for less and stays nearer than the pending request.
It never waits for a stream with a pending request: for a guest with several readers, hardly ever.
Simplified: no exit probability, no merging, no cooperating processes.
"""

import collections
import itertools
from collections.abc import Iterator

from acstor_agent.core.disk_scheduling import policy
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.disk_scheduling import request_queue
from acstor_common.util import ewma

READ_EXPIRE_S = 0.125
WRITE_EXPIRE_S = 0.25
READ_BATCH_S = 0.5
WRITE_BATCH_S = 0.125
WAIT_S = 0.0067
AVERAGED_REQUESTS = 8  # requests over which thinking and distance are averaged
BACK_SEEK_PENALTY = 2  # to go back costs as much as to go this many times as far ahead
BACK_LIMIT_BYTES = 1 << 29


class _Habit:
    def __init__(self) -> None:
        self.think_s = ewma.Ewma(AVERAGED_REQUESTS)
        self.distance = ewma.Ewma(AVERAGED_REQUESTS)
        self.last_stop: int | None = None
        self.done_s: float | None = None
        self.pending = 0  # reads that wait or are being served


class Anticipatory(policy.SchedulingPolicy):
    """One queue for reads and one for writes, and the habits of streams."""

    def __init__(self) -> None:
        super().__init__()
        self._queues = {False: request_queue.RequestQueue(), True: request_queue.RequestQueue()}
        self._habits: collections.defaultdict[requests.Stream, _Habit] = collections.defaultdict(
            _Habit
        )
        self._is_write = False
        self._batch_ends_s = 0.0
        self._head = 0
        self._awaited: requests.Stream | None = None
        self._awaited_until_s = 0.0
        self._has_idled = False

    def add(self, request: requests.DiskRequest, now_s: float) -> None:
        """Add a request, and learn from it."""
        expire_s = WRITE_EXPIRE_S if request.is_write else READ_EXPIRE_S
        self._queues[request.is_write].add(request, now_s + expire_s)
        if request.is_write:
            return
        habit = self._habits[request.stream]
        if habit.done_s is not None and not habit.pending:
            habit.think_s.add(now_s - habit.done_s)
        if habit.last_stop is not None:
            habit.distance.add(abs(request.offset - habit.last_stop))
        habit.last_stop = request.stop
        habit.pending += 1

    def remove(self, request: requests.DiskRequest) -> None:
        """Withdraw a pending request."""
        self._queues[request.is_write].remove(request)
        if not request.is_write:
            self._ended(request)

    def __iter__(self) -> Iterator[requests.DiskRequest]:
        return itertools.chain(*self._queues.values())

    def request_completed(self, request: requests.DiskRequest, now_s: float) -> None:
        """Begin to await the stream of a read."""
        if request.is_write:
            return
        habit = self._habits[request.stream]
        habit.done_s = now_s
        self._awaited, self._awaited_until_s = request.stream, now_s + WAIT_S
        self._has_idled = False
        self._ended(request)

    def _ended(self, request: requests.DiskRequest) -> None:
        """Forget streams that are silent and not awaited when there are many."""
        self._habits[request.stream].pending -= 1
        if len(self._habits) > 2 * len(self._queues[False]) + 256:
            self._habits = collections.defaultdict(
                _Habit,
                {s: h for s, h in self._habits.items() if h.pending or s == self._awaited},
            )

    def next_timeout(self) -> float | None:
        """Return the end of the wait for a stream."""
        return self._awaited_until_s if self._has_idled else None

    def pick_request(self, now_s: float) -> requests.DiskRequest | None:
        """Continue the batch, wait, or begin another batch."""
        if not self._queues[False] and not self._queues[True]:
            return None
        if now_s >= self._batch_ends_s and self._queues[not self._is_write]:
            self._begin_batch(now_s)
        queue = self._queues[self._is_write]
        found = queue.first_overdue(now_s)
        if found is None:
            found = self._next_in(queue)
            if self._waits(found, now_s):
                return None
        if found is None:  # nothing in this direction, and nothing to wait for
            self._begin_batch(now_s)
            found = self._next_in(self._queues[self._is_write])
        assert found is not None
        self._queues[found.is_write].remove(found)
        self._head = found.stop
        self._awaited = None
        return found

    def _begin_batch(self, now_s: float) -> None:
        self._is_write = not self._is_write
        self._batch_ends_s = now_s + (WRITE_BATCH_S if self._is_write else READ_BATCH_S)

    def _next_in(self, queue: request_queue.RequestQueue) -> requests.DiskRequest | None:
        return next_elevator_request(queue, self._head, BACK_LIMIT_BYTES)

    def _waits(self, found: requests.DiskRequest | None, now_s: float) -> bool:
        """Return whether to keep the disk idle instead of serving ``found`` or a write."""
        stream = self._awaited
        if stream is None or self._is_write:
            return False
        if found is not None and found.stream == stream:
            self._end_wait(stream, policy.WaitEnd.MET)
            return False
        habit = self._habits[stream]
        if habit.pending or habit.think_s.value > WAIT_S:
            return False
        if found is not None and habit.distance.value > abs(found.offset - self._head):
            return False
        if now_s >= self._awaited_until_s:
            self._end_wait(stream, policy.WaitEnd.EXPIRED)
            return False
        self._has_idled = True
        return True

    def _end_wait(self, stream: requests.Stream, end: policy.WaitEnd) -> None:
        if self._has_idled:
            self._ended_waits.append((stream, end))
        self._has_idled = False


def next_elevator_request(
    queue: request_queue.RequestQueue, head: int, back_limit_bytes: int
) -> requests.DiskRequest | None:
    """Return the next request of an elevator that goes up, back only over short ways, and round."""
    ahead, behind = queue.at_or_after(head), queue.last_before(head)
    if behind is not None and head - behind.offset <= back_limit_bytes:
        back = (head - behind.offset) * BACK_SEEK_PENALTY
        if ahead is None or back < ahead.offset - head:
            return behind
    return ahead or queue.at_or_after(0)
