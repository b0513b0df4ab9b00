# SPDX-License-Identifier: Apache-2.0
"""The disk scheduler: serves or gives up each request once, in the order of its policy."""

import collections
import dataclasses
from collections.abc import Mapping

from acstor_agent.core import counters
from acstor_agent.core.disk_scheduling import policy as policies
from acstor_agent.core.disk_scheduling import pregather
from acstor_agent.core.disk_scheduling import request as requests

POLICIES: Mapping[str, type[policies.SchedulingPolicy]] = {
    "none": policies.Fifo,
    "pregather": pregather.Pregather,
}
NEAR_BYTES = 24_000_000 * 512
"""Seeks within the size of a guest's disk: the classes of Ling 2015, table 4."""
STREAM_LIMIT = 256  # streams with counters of their own: those that used the disk last
OTHERS = requests.Stream(requests.Klass.BACKGROUND, "others")
"""Counts for all streams beyond STREAM_LIMIT."""


class BadRequest(ValueError):
    """The request is empty or outside of the disk."""


@dataclasses.dataclass(slots=True)
class StreamCount:
    """Counters of one stream."""

    requests: int = 0
    bytes: int = 0
    slices: int = 0
    latency: counters.Latency = dataclasses.field(default_factory=counters.Latency)
    waits: dict[str, int] = dataclasses.field(
        default_factory=lambda: {end.value: 0 for end in policies.WaitEnd}
    )

    def add(self, other: "StreamCount") -> None:
        """Add the counters of another stream."""
        self.requests += other.requests
        self.bytes += other.bytes
        self.slices += other.slices
        self.latency.merge(other.latency)
        for end, times in other.waits.items():
            self.waits[end] += times


class Account:
    """Counters of all streams, whichever policy served them."""

    def __init__(self) -> None:
        self.seeks = {"zero": 0, "near": 0, "far": 0}
        self.streams: collections.OrderedDict[requests.Stream, StreamCount] = (
            collections.OrderedDict()
        )
        self._head: int | None = None
        self._last: requests.Stream | None = None

    def stream_account(self, stream: requests.Stream) -> StreamCount:
        """Return a stream's counters; beyond STREAM_LIMIT, add those of the idlest to OTHERS."""
        found = self.streams.get(stream)
        if found is None:
            found = self.streams[stream] = StreamCount()
            if len(self.streams) > STREAM_LIMIT:
                self._add_idlest_to_others()
        self.streams.move_to_end(stream)
        return found

    def _add_idlest_to_others(self) -> None:
        others = self.streams.pop(OTHERS, None) or StreamCount()
        _, idlest = self.streams.popitem(last=False)
        others.add(idlest)
        self.streams[OTHERS] = others

    def count_dispatch(self, request: requests.DiskRequest) -> None:
        """Count a seek, and a slice where the stream changes."""
        if self._head is not None:
            distance = abs(request.offset - self._head)
            name = "far" if distance > NEAR_BYTES else "near" if distance else "zero"
            self.seeks[name] += 1
        self._head = request.stop
        if request.stream != self._last:
            self.stream_account(request.stream).slices += 1
            self._last = request.stream

    def count_completion(self, request: requests.DiskRequest, now_s: float) -> None:
        """Count a request that was served."""
        count = self.stream_account(request.stream)
        count.requests += 1
        count.bytes += request.length
        count.latency.add(now_s - request.arrived_s)

    def count_waits(self, policy: policies.SchedulingPolicy) -> None:
        """Count ended waits by outcome."""
        for stream, end in policy.take_waits():
            self.stream_account(stream).waits[end.value] += 1

    @property
    def waits(self) -> dict[str, int]:
        """Number of waits by outcome, over all streams."""
        counts = self.streams.copy().values()  # another thread may ask
        return {
            end.value: sum(count.waits[end.value] for count in counts) for end in policies.WaitEnd
        }


class Scheduler:
    """Requests in, requests out, one at a time, in an address space of ``size_bytes``.

    >>> scheduler = Scheduler(policies.Fifo(), size_bytes=100)
    >>> stream = requests.Stream(requests.Klass.GUEST, "a")
    >>> scheduler.submit_request(requests.DiskRequest(stream, 0, 10), now_s=1.0)
    >>> scheduler.pick_request(now_s=1.0).length
    10
    """

    def __init__(self, policy: policies.SchedulingPolicy, size_bytes: int) -> None:
        self.account = Account()
        self._policy = policy
        self._size_bytes = size_bytes
        self._now_s = 0.0
        self._waiting: dict[requests.Stream, dict[requests.DiskRequest, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def _at(self, now_s: float) -> float:
        """Return the time, which never goes backwards."""
        self._now_s = max(self._now_s, now_s)
        return self._now_s

    def submit_request(self, request: requests.DiskRequest, now_s: float) -> None:
        """Queue a request, or raise BadRequest if the request is empty or outside of the disk."""
        if request.length <= 0 or request.offset < 0 or request.stop > self._size_bytes:
            raise BadRequest(
                f"bytes {request.offset} to {request.stop} are not within {self._size_bytes} bytes"
            )
        request.arrived_s = self._at(now_s)
        self._waiting.setdefault(request.stream, {})[request] = None
        self._count += 1
        self._policy.add(request, request.arrived_s)

    def _forget(self, request: requests.DiskRequest) -> None:
        mine = self._waiting[request.stream]
        del mine[request]
        if not mine:
            del self._waiting[request.stream]
        self._count -= 1

    def cancel_request(self, request: requests.DiskRequest) -> bool:
        """Cancel a request; return False if it is in service or served."""
        if request not in self._waiting.get(request.stream, ()):
            return False
        self._policy.remove(request)
        self._forget(request)
        return True

    def pick_request(self, now_s: float) -> requests.DiskRequest | None:
        """Take the request to serve now; None: idle until :meth:`next_timeout` or another call."""
        found = self._policy.pick_request(self._at(now_s))
        self.account.count_waits(self._policy)
        if found is not None:
            self._forget(found)
            self.account.count_dispatch(found)
        return found

    def next_timeout(self) -> float | None:
        """Return when to pick again without another event, or None."""
        return self._policy.next_timeout() if self._count else None

    def request_completed(self, request: requests.DiskRequest, now_s: float) -> None:
        """Record that a request was served or failed."""
        self.account.count_completion(request, self._at(now_s))
        self._policy.request_completed(request, self._now_s)

    def change_policy(self, policy: policies.SchedulingPolicy) -> None:
        """Switch to another policy, also for queued requests."""
        waiting = list(self._policy)
        self._policy = policy
        for request in waiting:
            policy.add(request, self._now_s)

    def slice_s(self, stream: requests.Stream) -> float | None:
        """Return the length of a stream's last time slice, None if the policy has none."""
        return self._policy.slice_s(stream)
