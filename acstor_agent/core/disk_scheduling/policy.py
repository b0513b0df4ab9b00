# SPDX-License-Identifier: Apache-2.0
"""Interface of the disk scheduling policies, and the simplest policy."""

import abc
import enum
from collections.abc import Iterator

from acstor_agent.core.disk_scheduling import request as requests


class WaitEnd(enum.Enum):
    """Outcome of an anticipatory wait for the next request of a stream."""

    AT_ONCE = "at_once"  # a request worth serving was already pending; the disk was not idle
    MET = "met"  # the disk was idle, and the expected request came
    EXPIRED = "expired"  # the disk was idle, and no request came in time
    MET_ALONE = "met_alone"  # no other request was pending, and the request came in time
    EXPIRED_ALONE = "expired_alone"  # no other request was pending, and none came in time


class SchedulingPolicy(abc.ABC):
    """Chooses the order of service; times are of a monotonic clock."""

    def __init__(self) -> None:
        self._ended_waits: list[tuple[requests.Stream, WaitEnd]] = []

    def take_waits(self) -> list[tuple[requests.Stream, WaitEnd]]:
        """Return the waits that ended since the last call, with their streams."""
        ended, self._ended_waits = self._ended_waits, []
        return ended

    @abc.abstractmethod
    def add(self, request: requests.DiskRequest, now_s: float) -> None:
        """Queue a request."""

    @abc.abstractmethod
    def remove(self, request: requests.DiskRequest) -> None:
        """Remove a queued request."""

    @abc.abstractmethod
    def pick_request(self, now_s: float) -> requests.DiskRequest | None:
        """Remove and return the request to serve now; None: idle until :meth:`next_timeout`."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[requests.DiskRequest]:
        """Iterate over the queued requests."""

    def request_completed(self, request: requests.DiskRequest, now_s: float) -> None:  # noqa: B027 - may be left
        """Record that a picked request has been served."""

    def next_timeout(self) -> float | None:
        """Return the time to call :meth:`pick_request` again after it returned None."""
        return None

    def slice_s(self, stream: requests.Stream) -> float | None:
        """Return the length of a stream's last time slice, None if there is none."""
        return None


class Fifo(SchedulingPolicy):
    """Policy ``none``: order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: dict[requests.DiskRequest, None] = {}

    def add(self, request: requests.DiskRequest, now_s: float) -> None:
        """Append a request."""
        self._queue[request] = None

    def remove(self, request: requests.DiskRequest) -> None:
        """Remove a queued request."""
        del self._queue[request]

    def pick_request(self, now_s: float) -> requests.DiskRequest | None:
        """Remove and return the first request."""
        first = next(iter(self._queue), None)
        if first is not None:
            del self._queue[first]
        return first

    def __iter__(self) -> Iterator[requests.DiskRequest]:
        return iter(self._queue)
