# SPDX-License-Identifier: Apache-2.0
"""Calls that may hang in the kernel, in threads that a fence keeps from becoming many.

A thread in a system call cannot be cancelled, only left behind; it goes on until the kernel lets go
of it.  The worker waits for none of them, and so many at most are left behind
(``core/sources/hung_calls.py``).  Then a call fails at once, with how many hang since when, and the
next source is asked; as soon as one comes back calls are made again, without anybody's help.
"""

import logging
import time
from collections.abc import Callable
from collections.abc import Hashable
from typing import TypeVar
from typing import cast

import trio

from acstor_agent.core.sources import hung_calls
from acstor_common import errors

LOG = logging.getLogger(__name__)

T = TypeVar("T")


class Threads:
    """The threads of one place.

    :param place: says what the place is, for errors and the log
    :param at_a_time: calls that run at a time; twice as many may hang beside them at the very most
    :param most_of_one: calls about one thing that may hang; as many as about all things if None
    :param clock: never goes back
    """

    def __init__(
        self,
        place: Callable[[], str],
        at_a_time: int,
        most_of_one: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place, self._clock = place, clock
        self._limiter = trio.CapacityLimiter(3 * at_a_time)
        self._fence = hung_calls.Fence(at_a_time, most_of_one or at_a_time)
        self._is_told = False

    @property
    def hanging(self) -> hung_calls.Hanging:
        """The calls that hang now; may be looked at from any thread."""
        return self._fence.count_hung(self._clock())

    async def run(self, what: str, of: Hashable, function: Callable[[], T]) -> T:
        """Return what ``function`` returns, called in a thread; who is cancelled leaves it behind.

        :param what: what is wanted of the place, in words
        :param of: the thing that it is about
        :raises errors.SourceUnreachable: too many calls hang
        """
        self._tell()
        if self._fence.is_refused(of, self._clock()):
            raise errors.SourceUnreachable(what, self._place(), str(self.hanging))
        ticket = _Ticket(self, of)
        limiter = cast(trio.CapacityLimiter, ticket)  # any object with its methods will do
        try:
            return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=limiter)
        except trio.Cancelled:
            if ticket.call is not None:
                self._fence.abandon_call(ticket.call)
                # Not here, where the log would name the cancellation as a fault.
                trio.lowlevel.current_trio_token().run_sync_soon(self._tell)
            raise

    async def begin_call(self, owner: object, of: Hashable) -> hung_calls.Call:
        """Wait for a free thread, if none is, and note that a call begins."""
        try:
            self._limiter.acquire_on_behalf_of_nowait(owner)
        except trio.WouldBlock:
            await self._limiter.acquire_on_behalf_of(owner)
        return self._fence.begin_call(of, self._clock())

    def end_call(self, owner: object, call: hung_calls.Call) -> None:
        """Note that a call has come back, whether somebody waits for it still or not."""
        self._fence.end_call(call)
        self._limiter.release_on_behalf_of(owner)
        self._tell()

    def _tell(self) -> None:
        """Say in the log once that calls hang, and once that none does any more."""
        hanging = self.hanging
        if bool(hanging.calls) is self._is_told:
            return
        self._is_told = not self._is_told
        if self._is_told:
            LOG.warning("%s: %s", self._place(), hanging)
        else:
            LOG.info("%s: no call hangs any more", self._place())


class _Ticket:
    """What trio takes for a limiter: it says when a thread really begins, and when it has ended."""

    def __init__(self, threads: Threads, of: Hashable) -> None:
        self.call: hung_calls.Call | None = None
        self._threads, self._of = threads, of

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        """Begin."""
        self.call = await self._threads.begin_call(borrower, self._of)

    def release_on_behalf_of(self, borrower: object) -> None:
        """End, in the event loop's thread; also when nobody waits any more."""
        assert self.call is not None
        self._threads.end_call(borrower, self.call)
