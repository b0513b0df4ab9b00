# SPDX-License-Identifier: Apache-2.0
"""Where guests wait for what is not here, so that no guest takes room or turns from another.

A few requests of each guest are worked on at a time, the others stand in the guest's own line,
where one costs a task and nothing else.  When all lines together are too long, the newest
request of the guest that has most fails.  The rule: what is in memory is answered without coming
here, and what is on this host's disk has a line of its own.
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

LOG = logging.getLogger(__name__)

T = TypeVar("T")

AT_ONCE = 32
"""Requests of one guest that are worked on: at 1 MiB each these are 512 chunks on their way."""
REQUEST_BYTES = 16 * geometry.KIB
"""What a request that waits costs, as measured: its task, and the pages that libfuse has touched
for it."""
READS_LIMIT_BYTES = 12_288 * REQUEST_BYTES
WRITES_LIMIT_BYTES = 128 * geometry.MIB
"""Of what guests have sent; libfuse has each piece a second time."""
TELLS_EVERY_S = 60.0


_wait: contextvars.ContextVar[blocked_requests.Wait | None] = contextvars.ContextVar(
    "wait", default=None
)


def note_wait(why: str) -> None:
    """Note what the request that is worked on here waits for."""
    wait_noter()(why)


def wait_noter() -> Callable[[str], None]:
    """Return what notes it for the request that is worked on here, from whatever task."""
    wait = _wait.get()

    def note_it(why: str) -> None:
        if wait is not None:
            wait.why = why

    return note_it


def wait_reason() -> str:
    """Return what the request that is worked on here has waited for, if anything failed."""
    wait = _wait.get()
    return "" if wait is None else wait.why


class ReadAdmission:
    """Requests of guests that wait.

    :param limit_bytes: what all of them may cost
    :param deadline_s: how long one may stand in its guest's line
    :param table: where they are known while they wait
    """

    def __init__(
        self,
        limit_bytes: int = READS_LIMIT_BYTES,
        deadline_s: float = math.inf,
        at_once: int = AT_ONCE,
        table: blocked_requests.BlockedRequests | None = None,
    ) -> None:
        self.refused = 0
        self.table = blocked_requests.BlockedRequests() if table is None else table
        self._deadline_s, self._at_once = deadline_s, at_once
        self._queue: longest_queue_drop.LongestQueueDrop[requests.Stream, _Known] = (
            longest_queue_drop.LongestQueueDrop(limit_bytes)
        )
        self._lines: dict[tuple[requests.Stream, bool], _Line] = {}
        self._told_s = -TELLS_EVERY_S
        self._elsewhere, self._elsewhere_s = 0, -math.inf

    def __len__(self) -> int:
        return len(self._queue)

    def quiet_s(self) -> float:
        """Return for how long no guest has waited for what is elsewhere; 0 while one does."""
        return 0.0 if self._elsewhere else trio.current_time() - self._elsewhere_s

    def has_room(self, more_bytes: int) -> bool:
        """Say whether one more may wait without anybody being refused."""
        return self._queue.total + REQUEST_BYTES + more_bytes <= self._queue.limit

    async def run_admitted(
        self,
        guest: requests.Stream,
        work: Callable[..., Awaitable[T]],
        *args: object,
        more_bytes: int = 0,
        is_here: bool = False,
    ) -> T:
        """Wait for the guest's turn and return what ``work(*args)`` does, which is the guest's.

        :param more_bytes: what the request holds while it waits
        :param is_here: it waits for this host's disk only, so not behind those that do not
        :raises errors.QueueFull: the guest has most of what waits, and it is too much
        :raises errors.ReaderKilled: the guest is being killed
        :raises errors.DeadlineExceeded: its turn did not come in time
        """
        self._elsewhere += not is_here
        try:
            with self.track_request(guest, more_bytes), disk_io.use_stream(guest):
                line = self._lines.get((guest, is_here))
                if line is None:
                    line = self._lines[guest, is_here] = _Line(self._at_once)
                if line.places:
                    line.places -= 1
                else:
                    await self._stand_in(line, guest)
                try:
                    await trio.lowlevel.checkpoint_if_cancelled()
                    return await work(*args)
                finally:
                    if line.leave() == self._at_once:
                        del self._lines[guest, is_here]
        finally:
            if not is_here:
                self._elsewhere -= 1
                self._elsewhere_s = trio.current_time()

    async def _stand_in(self, line: "_Line", guest: requests.Stream) -> None:
        with trio.move_on_after(self._deadline_s):
            await line.others.park()
            return
        raise errors.DeadlineExceeded(f"the turn of {guest}", self._deadline_s)

    def track_request(self, guest: requests.Stream, more_bytes: int = 0) -> "_Known":
        """Have a request known within a block as one that waits, and so ended when it must.

        One that is known already is not known twice.

        :raises errors.QueueFull: see :meth:`run_admitted`
        :raises errors.ReaderKilled: see :meth:`run_admitted`
        """
        return _Known(self, guest, REQUEST_BYTES + more_bytes)

    def begin_request(
        self, known: "_Known", guest: requests.Stream, count_bytes: int
    ) -> blocked_requests.Wait:
        """Let a request be known; of too many those that must go are told."""
        for loser in self._queue.add_waiter(guest, known, count_bytes):
            loser.end(errors.QueueFull(str(guest)))
        return self.table.begin_request(guest, time.monotonic(), known)

    def end_request(self, known: "_Known", wait: blocked_requests.Wait) -> None:
        """Forget a request."""
        self.table.end_request(wait)
        self._queue.remove_waiter(wait.guest, known)
        if isinstance(known.why, errors.QueueFull):
            self._tell(wait.guest)

    def _tell(self, guest: requests.Stream) -> None:
        self.refused += 1
        if trio.current_time() - self._told_s >= TELLS_EVERY_S:
            self._told_s = trio.current_time()
            LOG.warning(
                "%s has the most waiting requests, above the limit: its newest ones fail "
                "(%d were refused since the start)",
                guest,
                self.refused,
            )


class _Line:
    """Requests of one guest: those that are worked on, and the others, which wait their turn."""

    __slots__ = ("others", "places")

    def __init__(self, places: int) -> None:
        self.places, self.others = places, trio.lowlevel.ParkingLot()

    def leave(self) -> int:
        """Give a place to who waits longest; return how many are free."""
        if not self.others.unpark():
            self.places += 1
        return self.places


class _Known:
    """One request that waits, and what ends it."""

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
        """Let the request fail."""
        assert self._scope is not None
        self.why = why
        self._scope.cancel()


def fail_requests(
    table: blocked_requests.BlockedRequests, guest: requests.Stream, until_s: float
) -> int:
    """Let the requests of a guest fail that wait, since it is being killed; return how many.

    :param until_s: when it was looked at: of requests that are newer nobody knows whose they are
    """
    ended = [wait for wait in table.requests_of_guest(guest) if wait.since_s <= until_s]
    for wait in ended:
        assert isinstance(wait.token, _Known)
        wait.token.end(errors.ReaderKilled(str(guest)))
    return len(ended)
