# SPDX-License-Identifier: Apache-2.0
"""State that Pregather keeps of a stream: prediction, locality, slice (Ling 2015, 4.2).

Regional locality is the mean distance of the requests over the size of the region; sub-regional
locality is the share of requests that begin where the last one ended. The mean interval (AvgT of
the paper) counts from an answer to the next request, with nothing pending in between: with the time
of other streams, a sequential guest would look too slow.
"""

from acstor_agent.core.disk_scheduling import navigator
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.disk_scheduling import request_queue
from acstor_common.util import ewma

AVERAGED_REQUESTS = 512  # of intervals, distances and the indicators
CLEAR_LOCALITY = 0.55  # least share of seeks at zero of clear sub-regional locality
SLICE_GAIN = 10  # growth of a slice for each 100 % above CLEAR_LOCALITY (equation 8)


class StreamProfile:
    """One stream; ``predictor``: its vNavigator, whose clock runs while the stream is served."""

    def __init__(self, stream: requests.Stream, predictor: navigator.Navigator) -> None:
        self.stream = stream
        self.queue = request_queue.RequestQueue()
        self.navigator = predictor
        self.interval_s = ewma.Ewma(AVERAGED_REQUESTS)
        self.distance = ewma.Ewma(AVERAGED_REQUESTS)
        self.at_zero = ewma.Ewma(AVERAGED_REQUESTS)
        self.slice_s: float | None = None
        self.served_s = 0.0  # before the present slice
        self.in_service: requests.DiskRequest | None = None
        self._answered_s: float | None = None
        self._arrived_stop: int | None = None
        self._dispatched_stop: int | None = None
        self._was_idle = False
        self._next_overdue_s = 0.0

    def request_arrived(self, request: requests.DiskRequest, now_s: float, served_s: float) -> None:
        """Update the profile with a request; the stream has had the disk for ``served_s``."""
        if self._answered_s is not None and not self.queue and self.in_service is None:
            self.interval_s.add(now_s - self._answered_s)
        if self._arrived_stop is not None:
            self.distance.add(abs(request.offset - self._arrived_stop))
        self._arrived_stop = request.stop
        self.navigator.request_arrived(request.offset, served_s, self._awaits(request.offset))

    def _awaits(self, offset: int) -> bool:
        zone = offset // self.navigator.zone_bytes
        waiting = self.queue.at_or_after(zone * self.navigator.zone_bytes)
        return not any(
            other is not None and other.offset // self.navigator.zone_bytes == zone
            for other in (waiting, self.in_service)
        )

    def request_completed(
        self, request: requests.DiskRequest, now_s: float, served_s: float
    ) -> None:
        """Update the profile with a served request."""
        self._answered_s = now_s
        self.in_service = None
        self.navigator.request_answered(request.offset, served_s)

    def overdue_request(self, served_s: float) -> requests.DiskRequest | None:
        """Return an overdue request, at most one in READ_EXPIRE_S."""
        return self.queue.first_overdue(served_s) if served_s >= self._next_overdue_s else None

    def dispatched(self, request: requests.DiskRequest, served_s: float) -> None:
        """Remove a request, and record the head position of the stream."""
        if request is self.overdue_request(served_s):
            self._next_overdue_s = served_s + requests.READ_EXPIRE_S
        self.queue.remove(request)
        if self._dispatched_stop is not None:
            self.at_zero.add(request.offset == self._dispatched_stop)
        self._dispatched_stop = request.stop
        self.in_service = request

    def begin_slice(self, base_s: float, region_bytes: int) -> float:
        """Return the length of the slice that begins (equation 8), halved after an idle one."""
        if self.distance.value > region_bytes:
            length_s = base_s / 2
        else:
            length_s = base_s * max(1.0, (self.at_zero.value - CLEAR_LOCALITY) * SLICE_GAIN)
        self.slice_s = length_s / 2 if self._was_idle else length_s
        return self.slice_s

    def end_slice(self, served_s: float, is_idle: bool) -> None:
        """Record the end of the slice; ``is_idle``: the stream had no pending request before it."""
        self.served_s += served_s
        self._was_idle = is_idle
