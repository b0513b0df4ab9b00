# SPDX-License-Identifier: Apache-2.0
"""What every policy of the disk scheduler can be asked, and the simplest one.

The disk serves one request at a time: a policy is asked for the next one when
the disk is free, and may answer None to keep it free although requests wait.
Then it must name a time at which it is to be asked again.
"""

import abc
import enum
from collections.abc import Iterator

from acstor_agent.core.disk_scheduling import request as requests


class WaitEnd(enum.Enum):
    """How a wait for a stream's next request came to its end."""

    AT_ONCE = "at_once"  # a request that is worth it was pending already: the disk was not idle
    MET = "met"  # the disk was kept idle, and the request that was hoped for came
    EXPIRED = "expired"  # the disk was kept idle in vain
    MET_ALONE = "met_alone"  # nobody else wanted the disk, and the request came in time
    EXPIRED_ALONE = "expired_alone"  # nobody else wanted the disk, and it did not come in time


class Policy(abc.ABC):
    """An order of service.  Times are given and never go backwards."""

    def __init__(self) -> None:
        self._ended_waits: list[tuple[requests.Stream, WaitEnd]] = []

    def take_waits(self) -> list[tuple[requests.Stream, WaitEnd]]:
        """Return the waits that have ended since the last time, with who was waited for."""
        ended, self._ended_waits = self._ended_waits, []
        return ended

    @abc.abstractmethod
    def add(self, request: requests.Request, now_s: float) -> None:
        """Take in a request."""

    @abc.abstractmethod
    def remove(self, request: requests.Request) -> None:
        """Give up a request that waits."""

    @abc.abstractmethod
    def pick_request(self, now_s: float) -> requests.Request | None:
        """Take out the request to serve now; None to keep the disk idle."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[requests.Request]:
        """Iterate over the requests that wait."""

    def request_completed(self, request: requests.Request, now_s: float) -> None:  # noqa: B027 - may be left
        """Take note that a request which was picked has been served."""

    def next_timeout(self) -> float | None:
        """Return when to ask again if :meth:`pick_request` said None and nothing else happens."""
        return None

    def slice_s(self, stream: requests.Stream) -> float | None:
        """Return the length of a stream's last time slice, None if there is none."""
        return None


class Fifo(Policy):
    """``none``: in the order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[requests.Request, None] = {}

    def add(self, request: requests.Request, now_s: float) -> None:
        """Append it."""
        self._waiting[request] = None

    def remove(self, request: requests.Request) -> None:
        """Give up a request that waits."""
        del self._waiting[request]

    def pick_request(self, now_s: float) -> requests.Request | None:
        """Take out the first one."""
        first = next(iter(self._waiting), None)
        if first is not None:
            del self._waiting[first]
        return first

    def __iter__(self) -> Iterator[requests.Request]:
        """Iterate in the order of arrival."""
        return iter(self._waiting)
