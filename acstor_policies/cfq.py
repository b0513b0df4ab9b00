# SPDX-License-Identifier: Apache-2.0
"""``cfq``: Linux 2.6's completely fair queuing (cfq-iosched), from which Ling 2015 starts.

Streams take turns; each has the disk for a slice of time, its requests in ascending order.  If a
stream has nothing pending, the disk waits up to IDLE_S for it, IDLE_SEEKY_S if its requests lie far
apart, and not at all if it usually thinks for longer.  Simplified: all requests are synchronous and
of one priority, no merging, no cooperating queues, one check of deadlines a slice.
"""

import collections
import itertools
from collections.abc import Iterator

from acstor_agent.core.disk_scheduling import policy
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.disk_scheduling import request_queue
from acstor_common.util import ewma
from acstor_policies import anticipatory

SLICE_S = 0.1
IDLE_S = 0.008
IDLE_SEEKY_S = 0.002
SEEKY_BYTES = 8192 * 512
BACK_LIMIT_BYTES = 16 << 20
AVERAGED_REQUESTS = 8
MAX_IDLE_STREAMS = 256  # streams whose habits are known although they have nothing pending


class _Stream:
    def __init__(self) -> None:
        self.queue = request_queue.RequestQueue()
        self.think_s = ewma.Ewma(AVERAGED_REQUESTS)
        self.distance = ewma.Ewma(AVERAGED_REQUESTS)
        self.last_stop: int | None = None
        self.done_s: float | None = None

    def arrived(self, request: requests.DiskRequest, now_s: float) -> None:
        if self.done_s is not None and not self.queue:
            self.think_s.add(now_s - self.done_s)
        if self.last_stop is not None:
            self.distance.add(abs(request.offset - self.last_stop))
        self.last_stop = request.stop
        self.queue.add(request, now_s + request.expire_s)

    @property
    def idle_s(self) -> float:
        if self.think_s.value > IDLE_S:
            return 0.0
        return IDLE_SEEKY_S if self.distance.value > SEEKY_BYTES else IDLE_S


class Cfq(policy.SchedulingPolicy):
    """Round robin over streams."""

    def __init__(self) -> None:
        super().__init__()
        self._streams: dict[requests.Stream, _Stream] = {}
        self._round: collections.OrderedDict[requests.Stream, None] = collections.OrderedDict()
        self._current: requests.Stream | None = None
        self._slice_ends_s = 0.0
        self._idle_until_s: float | None = None
        self._has_idled = False
        self._checks_deadline = False
        self._head = 0

    def add(self, request: requests.DiskRequest, now_s: float) -> None:
        """Add a request; a stream that had none goes to the end of the round."""
        stream = request.stream
        self._streams.setdefault(stream, _Stream()).arrived(request, now_s)
        if stream != self._current:
            self._round.setdefault(stream)

    def remove(self, request: requests.DiskRequest) -> None:
        """Withdraw a pending request."""
        queue = self._streams[request.stream].queue
        queue.remove(request)
        if not queue:
            self._round.pop(request.stream, None)

    def __iter__(self) -> Iterator[requests.DiskRequest]:
        return itertools.chain.from_iterable(
            stream_state.queue for stream_state in self._streams.values()
        )

    def request_completed(self, request: requests.DiskRequest, now_s: float) -> None:
        """Begin to wait if the stream has nothing more."""
        stream_state = self._streams.get(request.stream)
        if stream_state is None:
            return
        stream_state.done_s = now_s
        if request.stream == self._current and not stream_state.queue and stream_state.idle_s:
            self._idle_until_s = min(now_s + stream_state.idle_s, self._slice_ends_s)

    def next_timeout(self) -> float | None:
        """Return the end of the wait for the current stream."""
        return self._idle_until_s

    def pick_request(self, now_s: float) -> requests.DiskRequest | None:
        """Continue the slice, wait, or begin another slice."""
        if self._current is not None and now_s < self._slice_ends_s:
            queue = self._streams[self._current].queue
            if queue:
                return self._serve(queue, now_s)
            if self._idle_until_s is not None and now_s < self._idle_until_s:
                self._has_idled |= bool(self._round)
                return None
        return self._next_stream(now_s)

    def _serve(
        self, queue: request_queue.RequestQueue, now_s: float
    ) -> requests.DiskRequest | None:
        self._end_wait(policy.WaitEnd.MET)
        overdue = queue.first_overdue(now_s) if self._checks_deadline else None
        self._checks_deadline = False
        way = anticipatory.next_elevator_request(queue, self._head, BACK_LIMIT_BYTES)
        found = overdue or way
        if found is not None:
            queue.remove(found)
            self._head = found.stop
        return found

    def _end_wait(self, end: policy.WaitEnd) -> None:
        if self._has_idled and self._current is not None:
            self._ended_waits.append((self._current, end))
        self._has_idled = False
        self._idle_until_s = None

    def _next_stream(self, now_s: float) -> requests.DiskRequest | None:
        self._end_wait(policy.WaitEnd.EXPIRED)
        last = self._current
        if last is not None and self._streams[last].queue:
            self._round[last] = None
        self._current = self._round.popitem(last=False)[0] if self._round else None
        if len(self._streams) > 2 * len(self._round) + MAX_IDLE_STREAMS:
            self._forget_silent()
        if self._current is None:
            return None
        self._slice_ends_s = now_s + SLICE_S
        self._checks_deadline = True
        return self._serve(self._streams[self._current].queue, now_s)

    def _forget_silent(self) -> None:
        self._streams = {
            stream: stream_state
            for stream, stream_state in self._streams.items()
            if stream_state.queue or stream == self._current
        }
