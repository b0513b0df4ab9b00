# SPDX-License-Identifier: Apache-2.0
"""Runs calls that may hang in the kernel, in threads; fails at once while too many hang."""

import logging
import time
from collections.abc import Callable
from collections.abc import Hashable
from typing import TypeVar
from typing import cast

import trio

from acstor_agent.core.sources import hung_calls
from acstor_common import errors
from acstor_common.model import clocks

LOG = logging.getLogger(__name__)

T = TypeVar("T")


class BlockingThreads:
    """The threads for calls to one server or folder, three times ``max_calls`` at most.

    :param location: the server or folder, for operators; may be replaced
    :param max_calls: so many hung calls close it to new ones; the caller bounds the others
    :param max_hung_per_key: so many hung calls close a key; None: ``max_calls``
    """

    def __init__(
        self,
        location: str,
        max_calls: int,
        max_hung_per_key: int | None = None,
        clock: clocks.Clock = time,
    ) -> None:
        self.location, self._clock = location, clock
        self._limiter = trio.CapacityLimiter(3 * max_calls)
        self._fence = hung_calls.Fence(max_calls, max_hung_per_key or max_calls)
        self._is_logged = False

    @property
    def hanging(self) -> hung_calls.Hanging:
        """The calls that hang now; may be read from any thread."""
        return self._fence.count_hung(self._clock.monotonic())

    async def run(self, what: str, key: Hashable, function: Callable[[], T]) -> T:
        """Return the result of ``function``, run in a thread that a cancellation abandons.

        :param key: the file, or other part of the place, that the call reads
        :raises errors.SourceUnreachable: too many calls hang
        """
        self._log_changes()
        if self._fence.is_refused(key, self._clock.monotonic()):
            raise errors.SourceUnreachable(what, self.location, str(self.hanging))
        ticket = _Ticket(self, key)
        limiter = cast(trio.CapacityLimiter, ticket)  # any object with its methods
        try:
            return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=limiter)
        except trio.Cancelled:
            if ticket.call is not None:
                self._fence.abandon_call(ticket.call)
                # Later: in this block the log would take the cancellation for an error.
                trio.lowlevel.current_trio_token().run_sync_soon(self._log_changes)
            raise

    async def begin_call(self, owner: object, key: Hashable) -> hung_calls.Call:
        """Wait for a free thread, and record the start of a call."""
        try:
            self._limiter.acquire_on_behalf_of_nowait(owner)
        except trio.WouldBlock:
            await self._limiter.acquire_on_behalf_of(owner)
        return self._fence.begin_call(key, self._clock.monotonic())

    def end_call(self, owner: object, call: hung_calls.Call) -> None:
        """Record that a call returned, even if it was abandoned."""
        self._fence.end_call(call)
        self._limiter.release_on_behalf_of(owner)
        self._log_changes()

    def _log_changes(self) -> None:
        hanging = self.hanging
        if bool(hanging.calls) is self._is_logged:
            return
        self._is_logged = not self._is_logged
        if self._is_logged:
            LOG.warning("%s: %s", self.location, hanging)
        else:
            LOG.info("%s: no call hangs any more", self.location)


class _Ticket:
    """A limiter for trio that records when the thread really starts and ends."""

    def __init__(self, threads: BlockingThreads, key: Hashable) -> None:
        self.call: hung_calls.Call | None = None
        self._threads, self._key = threads, key

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        self.call = await self._threads.begin_call(borrower, self._key)

    def release_on_behalf_of(self, borrower: object) -> None:
        """Record the end, in the event loop's thread, also after cancellation."""
        assert self.call is not None
        self._threads.end_call(borrower, self.call)
