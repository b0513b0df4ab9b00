# SPDX-License-Identifier: Apache-2.0
"""``pregather``: to wait for the request that is about to come (Ling 2015, section 4).

Streams take turns; the one that has the disk keeps it for a slice.
When a request is done a timer may be set (algorithm 1): a *coarse* one if the
stream has nothing pending but stays nearer than the next stream's request, a
*fine* one if it has but the head stands in a sub-region unit whose next request
is due.  Until the timer runs out only a request that is worth it is served
(algorithm 2).

Where the paper is silent or cannot be meant, this was chosen:

* Algorithm 2 dispatches PR when a new request meets the fine timer: the new
  request is meant.
* A pending request "is worth it" if to go there costs no more than the expected
  wait; to go there is the seek *and* half a turn, since both pass without data.
* The nearest stream that was not served in this round is looked for ahead of the
  head, and round: to and fro, those at the edges are served twice in a row and then
  not for almost two rounds.
* Equation 8 would give a stream with 56 % of its seeks at zero a tenth of the
  slice of one with 55 %; the text says longer, so it never gets less.
* A wait is as long as the timer, which is never set for more than the way to the
  pending request and a tick.  In the paper a pending request whose deadline has
  passed ends it; with four busy guests all of them have, always.
* So what deadlines do is this.  Among a stream's own requests the clock is the time
  for which it had the disk, and once in READ_EXPIRE_S one that is overdue goes
  first.  An overdue request of another stream ends a slice that is longer than the
  first one, which is lent: as printed, three guests that read in order leave the
  fourth a thirtieth of the time.
* A timer expires at the first tick of a clock: a mean interval is exceeded half
  of the time, and only the kernel's coarse clock can have made nine waits of ten
  succeed.  4 ms is that clock of the paper's kernel.
* Prediction windows count the time for which the stream had the disk (section 3).
* A fine timer needs a unit whose interval is known (navigator.INTERVALS_KNOWN).
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
class Limits:
    """What the rules are measured with: the paper's values, which experiments may change.

    :param zone_bytes: predictions are made for zones of this length
    :param decay: what was read weighs less by this factor in each prediction window
    :param window_s: length of a prediction window, counted while the stream has the disk
    :param region_bytes: a stream whose requests are on average farther apart than this has no
        regional locality (the paper takes the size of the guest's disk, 12 GB)
    :param slice_s: the first time slice of a stream, which adapts from there
    :param tick_s: timers expire at multiples of this, as in the paper's kernel; without a tick
        half of the waits are in vain, and four guests get 19.8 MB/s instead of 33.0
    :param stream_limit: streams that are remembered while they have nothing pending
    :param lends_slices: end a lengthened slice when another stream is overdue
    """

    zone_bytes: int = navigator.ZONE_BYTES
    decay: float = navigator.DECAY
    window_s: float = navigator.WINDOW_S
    region_bytes: int = 24_000_000 * navigator.SECTOR_BYTES
    slice_s: float = 0.2
    tick_s: float = 0.004
    stream_limit: int = 256
    lends_slices: bool = True


class _TimerKind(enum.Enum):
    COARSE = enum.auto()
    FINE = enum.auto()


@dataclasses.dataclass(slots=True)
class _Timer:
    kind: _TimerKind
    expires_s: float
    interval_s: float
    unit: navigator.Unit | None
    has_idled: bool = False  # while somebody else's request was pending
    was_alone: bool = False  # while nothing was

    def end(self, now_s: float, has_met: bool) -> policy.WaitEnd | None:
        """Return what the wait came to; None if there was none."""
        if self.has_idled:
            return policy.WaitEnd.MET if has_met else policy.WaitEnd.EXPIRED
        if self.was_alone and now_s > self.expires_s:
            return policy.WaitEnd.EXPIRED_ALONE
        if not has_met:
            return None
        return policy.WaitEnd.MET_ALONE if self.was_alone else policy.WaitEnd.AT_ONCE


class Pregather(policy.Policy):
    """Streams, the one that has the disk, and the timer."""

    def __init__(
        self,
        limits: Limits | None = None,
        cost: seek_cost.SeekCost | None = None,
    ) -> None:
        super().__init__()
        self._limits = limits or Limits()
        self._cost = cost or seek_cost.SeekCost()
        self._streams: dict[requests.Stream, stream_profile.StreamHabit] = {}
        self._all = {klass: request_queue.RequestQueue() for klass in requests.Klass}
        self._served: set[requests.Stream] = set()  # in this round
        self._current: stream_profile.StreamHabit | None = None
        self._slice_began_s = 0.0
        self._slice_s = 0.0
        self._timer: _Timer | None = None
        self._asks_again_s: float | None = None
        self._head = 0

    # Requests that come and go

    def add(self, request: requests.Request, now_s: float) -> None:
        """Take in a request, and learn from it."""
        habit = self._streams.get(request.stream)
        if habit is None:
            habit = self._new_stream(request.stream)
        served_s = self._served_s(habit, now_s)
        habit.request_arrived(request, now_s, served_s)
        expire_s = request.expire_s
        habit.queue.add(request, served_s + expire_s)
        self._all[request.stream.klass].add(request, now_s + expire_s)

    def _served_s(self, habit: stream_profile.StreamHabit, now_s: float) -> float:
        """Return for how long a stream has had the disk: its own clock."""
        return habit.served_s + (now_s - self._slice_began_s if habit is self._current else 0.0)

    def _new_stream(self, stream: requests.Stream) -> stream_profile.StreamHabit:
        if len(self._streams) >= self._limits.stream_limit:
            self._forget_silent()
        limits = self._limits
        predicts = navigator.Navigator(limits.zone_bytes, limits.decay, limits.window_s)
        habit = self._streams[stream] = stream_profile.StreamHabit(stream, predicts)
        return habit

    def _forget_silent(self) -> None:
        """Forget the streams that have nothing pending, but the one that has the disk."""
        self._streams = {
            s: habit for s, habit in self._streams.items() if habit.queue or habit is self._current
        }

    def remove(self, request: requests.Request) -> None:
        """Give up a request that waits."""
        self._streams[request.stream].queue.remove(request)
        self._all[request.stream.klass].remove(request)

    def __iter__(self) -> Iterator[requests.Request]:
        """Iterate over the requests that wait, class by class."""
        for queue in self._all.values():
            yield from queue

    # After a request: algorithm 1

    def request_completed(self, request: requests.Request, now_s: float) -> None:
        """Set a timer if the next request of the stream is worth waiting for."""
        habit = self._streams.get(request.stream)
        if habit is None:
            return
        habit.request_completed(request, now_s, self._served_s(habit, now_s))
        if habit is not self._current:
            return
        if not habit.queue:
            self._set_coarse(habit, request, now_s)
        elif (unit := habit.navigator.regular_unit_at(request.stop - 1)) is not None:
            self._set_timer(_TimerKind.FINE, now_s, unit.interval_s, unit)

    def _set_coarse(
        self, habit: stream_profile.StreamHabit, request: requests.Request, now_s: float
    ) -> None:
        neighbour = self._neighbour(now_s)
        far = abs(neighbour.offset - request.stop) if neighbour else math.inf
        if habit.distance.value < min(self._limits.region_bytes, far):
            self._set_timer(_TimerKind.COARSE, now_s, habit.interval_s.value, None)

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
        """Return when the wait, the slice or the patience of a request ends."""
        return self._asks_again_s

    def pick_request(self, now_s: float) -> requests.Request | None:
        """Take out the request to serve now; None to wait for a better one."""
        self._asks_again_s = None
        if self._current is None or self._is_slice_over(now_s):
            self._end_timer(now_s)
            self._begin_slice(now_s)
        habit = self._current
        if habit is None:
            return None
        overdue = habit.overdue(self._served_s(habit, now_s))
        found = overdue or self._next_of(habit) or self._next_of_neighbour(now_s)
        if found is None:
            if self._timer is not None:
                self._timer.was_alone = True
            return None
        if overdue is None and self._waits(habit, found, now_s):
            return None
        return self._take(found, now_s)

    def _next_of(self, habit: stream_profile.StreamHabit) -> requests.Request | None:
        """Return the next one in the sorted queue.

        The nearest one would be the last one of a run that lies behind the head, and the run would
        be served backwards, each request a turn of the platters after the one before.
        """
        return habit.queue.at_or_after(self._head) or habit.queue.at_or_after(0)

    def _next_of_neighbour(self, now_s: float) -> requests.Request | None:
        nearest = self._neighbour(now_s)
        return self._next_of(self._streams[nearest.stream]) if nearest else None

    def _waits(
        self, habit: stream_profile.StreamHabit, found: requests.Request, now_s: float
    ) -> bool:
        """Return whether to keep the disk idle instead of serving ``found``."""
        timer = self._timer
        if timer is None:
            return False
        until_s = min(timer.expires_s, self._slice_began_s + self._slice_s)
        if self._is_worth_it(timer, habit, found):
            self._end_timer(now_s, has_met=True)
        elif now_s >= until_s:
            self._end_timer(now_s)
        else:
            timer.has_idled = True
            self._asks_again_s = until_s
            return True
        return False

    def _is_worth_it(
        self, timer: _Timer, habit: stream_profile.StreamHabit, found: requests.Request
    ) -> bool:
        if timer.unit is None:
            is_hoped_for = found.stream == habit.stream
        else:
            is_hoped_for = timer.unit.holds(found.offset)
        cost_s = self._cost.positioning_s(found.offset - self._head)
        return is_hoped_for or timer.interval_s >= cost_s

    def _end_timer(self, now_s: float, has_met: bool = False) -> None:
        timer, self._timer = self._timer, None
        if timer is None or self._current is None:
            return
        end = timer.end(now_s, has_met)
        if end is not None:
            self._ended_waits.append((self._current.stream, end))

    def _take(self, found: requests.Request, now_s: float) -> requests.Request:
        habit = self._streams[found.stream]
        if habit is not self._current:
            if habit.stream in self._served:  # all were: a new round
                self._served.clear()
            if self._current is not None:
                self._served.add(self._current.stream)
            self._switch(habit, now_s)
        self._end_timer(now_s)
        habit.dispatched(found, self._served_s(habit, now_s))
        self._all[found.stream.klass].remove(found)
        self._head = found.stop
        return found

    # Slices

    def slice_s(self, stream: requests.Stream) -> float | None:
        """Return the length of a stream's last time slice, None if there was none."""
        habit = self._streams.get(stream)
        return habit.slice_s if habit else None

    def _is_slice_over(self, now_s: float) -> bool:
        since_s = now_s - self._slice_began_s
        if since_s >= self._slice_s:
            return True
        is_lent = since_s >= self._limits.slice_s and self._limits.lends_slices
        return is_lent and any(self._has_overdue(queue, now_s) for queue in self._all.values())

    def _has_overdue(self, queue: request_queue.RequestQueue, now_s: float) -> bool:
        """Return whether the first request of another stream is overdue."""
        mine = self._current.stream if self._current else None
        first = next((request for request in queue if request.stream != mine), None)
        return first is not None and queue.deadline_of(first) <= now_s

    def _begin_slice(self, now_s: float) -> None:
        """Give the disk to the next stream that has not had it in this round."""
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

    def _switch(self, habit: stream_profile.StreamHabit, now_s: float) -> None:
        self._leave(now_s)
        self._current = habit
        self._slice_began_s = now_s
        self._slice_s = habit.begin_slice(self._limits.slice_s, self._limits.region_bytes)

    def _leave(self, now_s: float) -> None:
        habit, self._current = self._current, None
        if habit is not None:
            served_s = now_s - self._slice_began_s
            habit.end_slice(served_s, is_idle=not habit.queue and served_s < self._slice_s)

    def _neighbour(self, now_s: float) -> requests.Request | None:
        """Return the nearest request of another stream, if possible of one not yet served."""
        mine = {self._current.stream} if self._current else set()
        for avoided in (mine | self._served, mine):
            found = (
                next((r for r in queue.outward(self._head) if r.stream not in avoided), None)
                for queue in self._eligible(now_s)
            )
            nearest = min(filter(None, found), key=self._distance, default=None)
            if nearest is not None:
                return nearest
        return None

    def _distance(self, request: requests.Request) -> int:
        return abs(request.offset - self._head)

    def _following(self, now_s: float) -> requests.Request | None:
        """Return the next request, going up and round, of streams not served in this round."""
        found = (
            next((r for r in queue.upward(self._head) if r.stream not in self._served), None)
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
