# SPDX-License-Identifier: Apache-2.0
"""Admission of guest requests that wait, with fair limits for each guest.

Each guest has AT_ONCE requests in progress; the others queue. When all queues together exceed the
limit, the newest request of the guest with most fails. Answers from memory need no admission;
requests that wait only for the local disk have a queue of their own.
"""

import contextvars
import logging
import math
import time
import types
from collections.abc import Awaitable
from collections.abc import Callable
from typing import TypeVar

import trio

from acstor_agent.core import longest_queue_drop
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.mount import blocked_requests
from acstor_agent.runtime import disk_io
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.util import log_limit

LOG = logging.getLogger(__name__)

T = TypeVar("T")

AT_ONCE = 32  # concurrent requests of one guest: at 1 MiB each, 512 chunks in flight
REQUEST_BYTES = 16 * geometry.KIB
"""Measured memory of a waiting request: its task, and libfuse's touched pages."""
READS_LIMIT_BYTES = 12_288 * REQUEST_BYTES
WRITES_LIMIT_BYTES = 128 * geometry.MIB
"""Limit of pending data of writes; libfuse has each piece a second time."""
LOG_INTERVAL_S = 60.0


_wait: contextvars.ContextVar[blocked_requests.Wait | None] = contextvars.ContextVar(
    "wait", default=None
)


def note_wait(why: str) -> None:
    """Record why the current request waits: the last failure that it met."""
    if (wait := _wait.get()) is not None:
        wait.why = why


def current_wait() -> blocked_requests.Wait | None:
    """Return the entry of the current request in the table; None if it is no guest's."""
    return _wait.get()


def wait_reason() -> str:
    """Return why the current request waits; "" without a failure."""
    wait = _wait.get()
    return "" if wait is None else wait.why


class ReadAdmission:
    """Waiting requests of guests."""

    def __init__(
        self,
        limit_bytes: int = READS_LIMIT_BYTES,
        deadline_s: float = math.inf,
        at_once: int = AT_ONCE,
        table: blocked_requests.BlockedRequests | None = None,
    ) -> None:
        self.refused = 0
        self.table = blocked_requests.BlockedRequests() if table is None else table
        self.deadline_s, self._at_once = deadline_s, at_once
        self._queue: longest_queue_drop.LongestQueueDrop[requests.Stream, _TrackedRequest] = (
            longest_queue_drop.LongestQueueDrop(limit_bytes)
        )
        self._lines: dict[tuple[requests.Stream, bool], _Line] = {}
        self._log_limit = log_limit.LogLimit(LOG_INTERVAL_S)
        self._elsewhere, self._elsewhere_s = 0, -math.inf

    def __len__(self) -> int:
        return len(self._queue)

    def remote_idle_s(self) -> float:
        """Return the seconds since a guest last waited for remote data; 0 while one does."""
        return 0.0 if self._elsewhere else trio.current_time() - self._elsewhere_s

    def has_room(self, more_bytes: int) -> bool:
        """Return whether one more request fits in the limit."""
        return self._queue.total + REQUEST_BYTES + more_bytes <= self._queue.limit

    async def run_admitted(
        self,
        guest: requests.Stream,
        work: Callable[..., Awaitable[T]],
        *args: object,
        more_bytes: int = 0,
        is_local: bool = False,
    ) -> T:
        """Run ``work(*args)`` for a guest when it is the guest's turn.

        :param more_bytes: additional memory that the request holds while it waits
        :param is_local: it waits for this host's disk only, so it uses the local queue
        :raises errors.QueueFull: the limit is exceeded, and the guest has most
        :raises errors.ReaderKilled: the guest is being killed
        :raises errors.DeadlineExceeded: its turn did not come in time
        """
        self._elsewhere += not is_local
        try:
            with self.track_request(guest, more_bytes), disk_io.use_stream(guest):
                line = self._lines.get((guest, is_local))
                if line is None:
                    line = self._lines[guest, is_local] = _Line(self._at_once)
                if line.places:
                    line.places -= 1
                else:
                    await self._wait_for_turn(line, guest)
                try:
                    await trio.lowlevel.checkpoint_if_cancelled()
                    return await work(*args)
                finally:
                    if line.leave() == self._at_once:
                        del self._lines[guest, is_local]
        finally:
            if not is_local:
                self._elsewhere -= 1
                self._elsewhere_s = trio.current_time()

    async def _wait_for_turn(self, line: "_Line", guest: requests.Stream) -> None:
        with trio.move_on_after(self.deadline_s):
            await line.others.park()
            return
        raise errors.DeadlineExceeded(f"the turn of {guest}", self.deadline_s)

    def track_request(self, guest: requests.Stream, more_bytes: int = 0) -> "_TrackedRequest":
        """Return a context that lists a request as waiting; nested ones have no effect.

        It raises QueueFull and ReaderKilled as :meth:`run_admitted`.
        """
        return _TrackedRequest(self, guest, REQUEST_BYTES + more_bytes)

    def begin_request(
        self, request: "_TrackedRequest", guest: requests.Stream, count_bytes: int
    ) -> blocked_requests.Wait:
        """List a request; fail those that exceed the limit."""
        for loser in self._queue.add_waiter(guest, request, count_bytes):
            loser.end(errors.QueueFull(str(guest)))
        return self.table.begin_request(guest, time.monotonic(), request)

    def end_request(self, request: "_TrackedRequest", wait: blocked_requests.Wait) -> None:
        """Remove a request."""
        self.table.end_request(wait)
        self._queue.remove_waiter(wait.guest, request)
        if isinstance(request.why, errors.QueueFull):
            self._log_refusal(wait.guest)

    def _log_refusal(self, guest: requests.Stream) -> None:
        self.refused += 1
        if self._log_limit.take_line(None, trio.current_time()) is not None:
            LOG.warning(
                "%s has the most waiting requests, above the limit: its newest ones fail "
                "(%d were refused since the start)",
                guest,
                self.refused,
            )


class _Line:
    __slots__ = ("others", "places")

    def __init__(self, places: int) -> None:
        self.places, self.others = places, trio.lowlevel.ParkingLot()

    def leave(self) -> int:
        if not self.others.unpark():
            self.places += 1
        return self.places


class _TrackedRequest:
    __slots__ = ("_bytes", "_former", "_guest", "_scope", "_wait", "_waiting", "why")

    def __init__(self, waiting: ReadAdmission, guest: requests.Stream, count_bytes: int) -> None:
        self._waiting, self._guest, self._bytes = waiting, guest, count_bytes
        self._scope: trio.CancelScope | None = None
        self.why: errors.AcstorError | None = None

    def __enter__(self) -> None:
        if _wait.get() is None:
            self._scope = trio.CancelScope()
            self._scope.__enter__()
            self._wait = self._waiting.begin_request(self, self._guest, self._bytes)
            self._former = _wait.set(self._wait)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        if self._scope is None:
            return
        _wait.reset(self._former)
        self._waiting.end_request(self, self._wait)
        if self._scope.__exit__(kind, error, traceback) and self.why is not None:
            raise self.why from None

    def end(self, why: errors.AcstorError) -> None:
        assert self._scope is not None
        self.why = why
        self._scope.cancel()


def fail_requests(
    table: blocked_requests.BlockedRequests, guest: requests.Stream, until_s: float
) -> int:
    """Fail the waiting requests of a killed guest; return their number.

    :param until_s: time of the check; newer requests may be of another process
    """
    ended = [wait for wait in table.requests_of_guest(guest) if wait.since_s <= until_s]
    for wait in ended:
        assert isinstance(wait.token, _TrackedRequest)
        wait.token.end(errors.ReaderKilled(str(guest)))
    return len(ended)
