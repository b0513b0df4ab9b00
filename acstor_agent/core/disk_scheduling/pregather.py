# SPDX-License-Identifier: Apache-2.0
"""``pregather``: anticipatory scheduling of streams with time slices (Ling 2015, section 4).

After a request a timer may be set (algorithm 1): a *coarse* one if the stream has nothing pending
but stays nearer than the next stream's request, a *fine* one if it has, and the head is in a unit
whose next request is due. Until the timer expires only a worthwhile request is served (algorithm
2). Where the paper is silent or ambiguous:

* the fine timer is met by the new request, not by PR;
* a pending request is worthwhile if seek and half a turn cost no more than the expected wait;
* the next stream is searched ahead of the head and around, so none is served twice in a row;
* a slice never gets shorter by more locality, as equation 8 would have it for 55 to 56 %;
* an overdue request of the stream itself goes first, once in READ_EXPIRE_S of its time on the disk.
  One of another stream ends a slice that is longer than the first one. As printed, any overdue
  request ends a wait, and with four busy guests there always is one.
"""

import dataclasses
import enum
import math
from collections.abc import Iterator

from acstor_agent.core.disk_scheduling import navigator
from acstor_agent.core.disk_scheduling import policy
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.disk_scheduling import request_queue
from acstor_agent.core.disk_scheduling import seek_cost
from acstor_agent.core.disk_scheduling import stream_profile


@dataclasses.dataclass(frozen=True)
class PregatherParameters:
    """Parameters of the rules: the paper's values, which experiments may change.

    A stream whose requests are on average farther apart than ``region_bytes`` has no regional
    locality. Timers expire at multiples of ``tick_s``, as in the paper's kernel: without a tick
    half of the waits fail.
    """

    zone_bytes: int = navigator.ZONE_BYTES  # predictions are made for zones of this length
    decay: float = navigator.DECAY  # by which each prediction window divides densities
    window_s: float = navigator.WINDOW_S  # counted while the stream has the disk
    region_bytes: int = 24_000_000 * navigator.SECTOR_BYTES
    slice_s: float = 0.2  # the first time slice of a stream, which adapts from there
    tick_s: float = 0.004
    stream_limit: int = 256  # streams that are remembered while they have nothing pending
    lends_slices: bool = True  # end a lengthened slice when another stream is overdue


class _TimerKind(enum.Enum):
    COARSE = enum.auto()
    FINE = enum.auto()


@dataclasses.dataclass(slots=True)
class _Timer:
    kind: _TimerKind
    expires_s: float
    interval_s: float
    unit: navigator.Unit | None
    has_idled: bool = False  # while a request of another stream was pending
    was_alone: bool = False  # while no request was pending

    def end(self, now_s: float, has_met: bool) -> policy.WaitEnd | None:
        """Return the outcome of the wait; None if there was none."""
        if self.has_idled:
            return policy.WaitEnd.MET if has_met else policy.WaitEnd.EXPIRED
        if self.was_alone and now_s > self.expires_s:
            return policy.WaitEnd.EXPIRED_ALONE
        if not has_met:
            return None
        return policy.WaitEnd.MET_ALONE if self.was_alone else policy.WaitEnd.AT_ONCE


class Pregather(policy.SchedulingPolicy):
    """The policy ``pregather``: its streams, the one that has the disk, and the timer."""

    def __init__(
        self, limits: PregatherParameters | None = None, cost: seek_cost.SeekCost | None = None
    ) -> None:
        super().__init__()
        self._limits = limits or PregatherParameters()
        self._cost = cost or seek_cost.SeekCost()
        self._streams: dict[requests.Stream, stream_profile.StreamProfile] = {}
        self._all = {klass: request_queue.RequestQueue() for klass in requests.Klass}
        self._served: set[requests.Stream] = set()  # in this round
        self._current: stream_profile.StreamProfile | None = None
        self._slice_began_s = 0.0
        self._slice_s = 0.0
        self._timer: _Timer | None = None
        self._next_pick_s: float | None = None
        self._head = 0

    def add(self, request: requests.DiskRequest, now_s: float) -> None:
        """Queue a request, and update the profile of its stream."""
        profile = self._streams.get(request.stream)
        if profile is None:
            profile = self._new_stream(request.stream)
        served_s = self._served_s(profile, now_s)
        profile.request_arrived(request, now_s, served_s)
        expire_s = request.expire_s
        profile.queue.add(request, served_s + expire_s)
        self._all[request.stream.klass].add(request, now_s + expire_s)

    def _served_s(self, profile: stream_profile.StreamProfile, now_s: float) -> float:
        return profile.served_s + (now_s - self._slice_began_s if profile is self._current else 0.0)

    def _new_stream(self, stream: requests.Stream) -> stream_profile.StreamProfile:
        if len(self._streams) >= self._limits.stream_limit:
            self._forget_silent()
        limits = self._limits
        predictor = navigator.Navigator(limits.zone_bytes, limits.decay, limits.window_s)
        profile = self._streams[stream] = stream_profile.StreamProfile(stream, predictor)
        return profile

    def _forget_silent(self) -> None:
        self._streams = {
            s: profile
            for s, profile in self._streams.items()
            if profile.queue or profile is self._current
        }

    def remove(self, request: requests.DiskRequest) -> None:
        """Remove a queued request."""
        self._streams[request.stream].queue.remove(request)
        self._all[request.stream.klass].remove(request)

    def __iter__(self) -> Iterator[requests.DiskRequest]:
        for queue in self._all.values():
            yield from queue

    # After a request: algorithm 1

    def request_completed(self, request: requests.DiskRequest, now_s: float) -> None:
        """Set a timer if the next request of the stream is worth waiting for."""
        profile = self._streams.get(request.stream)
        if profile is None:
            return
        profile.request_completed(request, now_s, self._served_s(profile, now_s))
        if profile is not self._current:
            return
        if not profile.queue:
            self._set_coarse(profile, request, now_s)
        elif (unit := profile.navigator.regular_unit_at(request.stop - 1)) is not None:
            self._set_timer(_TimerKind.FINE, now_s, unit.interval_s, unit)

    def _set_coarse(
        self, profile: stream_profile.StreamProfile, request: requests.DiskRequest, now_s: float
    ) -> None:
        neighbour = self._neighbour(now_s)
        far = abs(neighbour.offset - request.stop) if neighbour else math.inf
        if profile.distance.value < min(self._limits.region_bytes, far):
            self._set_timer(_TimerKind.COARSE, now_s, profile.interval_s.value, None)

    def _set_timer(
        self, kind: _TimerKind, now_s: float, interval_s: float, unit: navigator.Unit | None
    ) -> None:
        tick_s = self._limits.tick_s
        expires_s = now_s + interval_s
        if tick_s:
            expires_s = math.ceil(expires_s / tick_s) * tick_s
        self._timer = _Timer(kind, expires_s, interval_s, unit)

    # The next request: algorithm 2

    def next_timeout(self) -> float | None:
        """Return when the wait or the slice ends, or a request is overdue."""
        return self._next_pick_s

    def pick_request(self, now_s: float) -> requests.DiskRequest | None:
        """Remove and return the request to serve now; None: wait for a better one."""
        self._next_pick_s = None
        if self._current is None or self._is_slice_over(now_s):
            self._end_timer(now_s)
            self._begin_slice(now_s)
        profile = self._current
        if profile is None:
            return None
        overdue = profile.overdue_request(self._served_s(profile, now_s))
        found = overdue or self._next_of(profile) or self._next_of_neighbour(now_s)
        if found is None:
            if self._timer is not None:
                self._timer.was_alone = True
            return None
        if overdue is None and self._keeps_idle(profile, found, now_s):
            return None
        return self._take(found, now_s)

    def _next_of(self, profile: stream_profile.StreamProfile) -> requests.DiskRequest | None:
        """Return the first request at or after the head, else the lowest: no run goes backwards."""
        return profile.queue.at_or_after(self._head) or profile.queue.at_or_after(0)

    def _next_of_neighbour(self, now_s: float) -> requests.DiskRequest | None:
        nearest = self._neighbour(now_s)
        return self._next_of(self._streams[nearest.stream]) if nearest else None

    def _keeps_idle(
        self, profile: stream_profile.StreamProfile, found: requests.DiskRequest, now_s: float
    ) -> bool:
        timer = self._timer
        if timer is None:
            return False
        until_s = min(timer.expires_s, self._slice_began_s + self._slice_s)
        if self._is_worthwhile(timer, profile, found):
            self._end_timer(now_s, has_met=True)
        elif now_s >= until_s:
            self._end_timer(now_s)
        else:
            timer.has_idled = True
            self._next_pick_s = until_s
            return True
        return False

    def _is_worthwhile(
        self, timer: _Timer, profile: stream_profile.StreamProfile, found: requests.DiskRequest
    ) -> bool:
        if timer.unit is None:
            is_expected = found.stream == profile.stream
        else:
            is_expected = timer.unit.contains(found.offset)
        cost_s = self._cost.positioning_s(found.offset - self._head)
        return is_expected or timer.interval_s >= cost_s

    def _end_timer(self, now_s: float, has_met: bool = False) -> None:
        timer, self._timer = self._timer, None
        if timer is None or self._current is None:
            return
        end = timer.end(now_s, has_met)
        if end is not None:
            self._ended_waits.append((self._current.stream, end))

    def _take(self, found: requests.DiskRequest, now_s: float) -> requests.DiskRequest:
        profile = self._streams[found.stream]
        if profile is not self._current:
            if profile.stream in self._served:  # all were: a new round
                self._served.clear()
            if self._current is not None:
                self._served.add(self._current.stream)
            self._switch(profile, now_s)
        self._end_timer(now_s)
        profile.dispatched(found, self._served_s(profile, now_s))
        self._all[found.stream.klass].remove(found)
        self._head = found.stop
        return found

    def slice_s(self, stream: requests.Stream) -> float | None:
        """Return the length of a stream's last time slice, None if there was none."""
        profile = self._streams.get(stream)
        return profile.slice_s if profile else None

    def _is_slice_over(self, now_s: float) -> bool:
        since_s = now_s - self._slice_began_s
        if since_s >= self._slice_s:
            return True
        is_extended = since_s >= self._limits.slice_s and self._limits.lends_slices
        return is_extended and any(self._has_overdue(queue, now_s) for queue in self._all.values())

    def _has_overdue(self, queue: request_queue.RequestQueue, now_s: float) -> bool:
        mine = self._current.stream if self._current else None
        first = next((request for request in queue if request.stream != mine), None)
        return first is not None and queue.deadline_of(first) <= now_s

    def _begin_slice(self, now_s: float) -> None:
        if self._current is not None:
            self._served.add(self._current.stream)
        following = self._following(now_s)
        if following is None:
            self._served.clear()
            following = self._following(now_s)
        if following is not None:
            self._switch(self._streams[following.stream], now_s)
        else:
            self._leave(now_s)

    def _switch(self, profile: stream_profile.StreamProfile, now_s: float) -> None:
        self._leave(now_s)
        self._current = profile
        self._slice_began_s = now_s
        self._slice_s = profile.begin_slice(self._limits.slice_s, self._limits.region_bytes)

    def _leave(self, now_s: float) -> None:
        profile, self._current = self._current, None
        if profile is not None:
            served_s = now_s - self._slice_began_s
            profile.end_slice(served_s, is_idle=not profile.queue and served_s < self._slice_s)

    def _neighbour(self, now_s: float) -> requests.DiskRequest | None:
        """Return the nearest request of another stream, if possible of one not yet served."""
        mine = {self._current.stream} if self._current else set()
        for avoided in (mine | self._served, mine):
            found = (
                next((r for r in queue.iter_nearest(self._head) if r.stream not in avoided), None)
                for queue in self._eligible(now_s)
            )
            nearest = min(filter(None, found), key=self._distance, default=None)
            if nearest is not None:
                return nearest
        return None

    def _distance(self, request: requests.DiskRequest) -> int:
        return abs(request.offset - self._head)

    def _following(self, now_s: float) -> requests.DiskRequest | None:
        """Return the next request, going up and round, of streams not served in this round."""
        found = (
            next(
                (r for r in queue.iter_ascending(self._head) if r.stream not in self._served), None
            )
            for queue in self._eligible(now_s)
        )
        return min(
            filter(None, found), key=lambda r: (r.offset < self._head, r.offset), default=None
        )

    def _eligible(self, now_s: float) -> Iterator[request_queue.RequestQueue]:
        """Yield the queue of the best class that has requests, and those with overdue ones."""
        is_first = True
        for queue in self._all.values():
            if queue and (is_first or queue.first_overdue(now_s)):
                yield queue
                is_first = False
