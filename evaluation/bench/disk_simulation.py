# SPDX-License-Identifier: Apache-2.0
"""Guests, a scheduler and a disk in virtual time; runs are repeatable.

A guest is a group of applications behind a ring of 32 requests, like Xen's block device.  An
application is a generator: it yields the requests that it submits together, and continues when
all of them are done.  Its requests depend only on its seed, never on the policy; their times depend
on the responses.
"""

import dataclasses
import heapq
import itertools
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable

from acstor_agent.core.disk_scheduling import policy as policies
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.disk_scheduling import scheduler
from tests.fakes import rotating_disk

RING = 32


@dataclasses.dataclass(frozen=True)
class Access:
    """A request of an application."""

    offset: int
    length: int
    is_write: bool = False


@dataclasses.dataclass(frozen=True)
class Think:
    """A pause of an application."""

    seconds: float


Steps = Generator[Think | list[Access], None, None]


@dataclasses.dataclass
class Application:
    """A thread of a guest.

    :param is_background: the run ends without waiting for it
    """

    name: str
    steps: Steps
    is_background: bool = False
    ended_s: float | None = None
    bytes: int = 0


@dataclasses.dataclass
class Guest:
    """Applications that share a ring."""

    name: str
    applications: list[Application]
    klass: requests.Klass = requests.Klass.GUEST
    in_ring: int = 0
    before_ring: list[requests.DiskRequest] = dataclasses.field(default_factory=list)
    done: list[tuple[float, int, int]] = dataclasses.field(default_factory=list)
    """Completed requests: time, offset, duration."""

    @property
    def stream(self) -> requests.Stream:
        return requests.Stream(self.klass, self.name)

    @property
    def ended_s(self) -> float:
        return max(a.ended_s or 0.0 for a in self.applications if not a.is_background)


class _Batch:
    """The requests an application waits for."""

    def __init__(self, application: Application, guest: Guest, left: int) -> None:
        self.application = application
        self.guest = guest
        self.left = left


class Simulation:
    """A run.

    :param until_s: latest end of the run
    """

    def __init__(
        self,
        guests: Iterable[Guest],
        policy: policies.SchedulingPolicy,
        until_s: float = 3600.0,
    ) -> None:
        self.guests = list(guests)
        self.disk = rotating_disk.RotatingDisk()
        self.scheduler = scheduler.Scheduler(policy, self.disk.cost.size_bytes)
        self.now_s = 0.0
        self.busy_s = 0.0
        self.distances: list[int] = []
        self._until_s = until_s
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self._is_busy = False
        self._wakes_s: float | None = None
        self._head: int | None = None

    def run(self) -> "Simulation":
        """Run until all applications have ended."""
        for guest in self.guests:
            for application in guest.applications:
                self._step(guest, application)
        self._dispatch()
        while self._events and self._goes_on():
            self.now_s, _, act = heapq.heappop(self._events)
            act()
            self._dispatch()
        return self

    def _goes_on(self) -> bool:
        return self.now_s < self._until_s and any(
            a.ended_s is None and not a.is_background for g in self.guests for a in g.applications
        )

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + seconds, next(self._sequence), act))

    def _step(self, guest: Guest, application: Application) -> None:
        step = next(application.steps, None)
        if step is None:
            application.ended_s = self.now_s
        elif isinstance(step, Think):
            self._after(step.seconds, lambda: self._step(guest, application))
        else:
            batch = _Batch(application, guest, len(step))
            for access in step:
                request = requests.DiskRequest(
                    guest.stream, access.offset, access.length, access.is_write, token=batch
                )
                guest.before_ring.append(request)
            self._fill_ring(guest)
            if not step:
                self._after(0.0, lambda: self._step(guest, application))

    def _fill_ring(self, guest: Guest) -> None:
        room = RING - guest.in_ring
        for request in guest.before_ring[:room]:
            guest.in_ring += 1
            self.scheduler.submit_request(request, self.now_s)
        del guest.before_ring[:room]

    def _dispatch(self) -> None:
        if self._is_busy:
            return
        found = self.scheduler.pick_request(self.now_s)
        if found is not None:
            self._is_busy = True
            took_s = self.disk.serve_s(found.offset, found.length, self.now_s)
            self.busy_s += took_s
            if self._head is not None:
                self.distances.append(found.offset - self._head)
            self._head = found.stop
            self._after(took_s, lambda: self._complete(found))
            return
        wakes_s = self.scheduler.next_timeout()
        if wakes_s is not None and wakes_s != self._wakes_s:
            self._wakes_s = wakes_s
            self._after(max(0.0, wakes_s - self.now_s), lambda: None)

    def _complete(self, request: requests.DiskRequest) -> None:
        self._is_busy = False
        self.scheduler.request_completed(request, self.now_s)
        batch = request.token
        assert isinstance(batch, _Batch)
        batch.guest.in_ring -= 1
        batch.guest.done.append((self.now_s, request.offset, request.length))
        batch.application.bytes += request.length
        batch.left -= 1
        if not batch.left:
            self._step(batch.guest, batch.application)
        self._fill_ring(batch.guest)


def requests_per_s(guest: Guest, upto_s: float, window_s: float = 1.0) -> list[float]:
    """Return a guest's throughput in each window up to a time."""
    windows = [0] * max(1, int(upto_s / window_s))
    for when_s, _, _ in guest.done:
        if when_s < len(windows) * window_s:
            windows[int(when_s / window_s)] += 1
    return [count / window_s for count in windows]
