# SPDX-License-Identifier: Apache-2.0
"""Runs work once for all waiting tasks; it continues when they are cancelled."""

from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Hashable

import trio

from acstor_agent.runtime import fault_log
from acstor_common import errors


class _Work:
    __slots__ = ("ended", "failure")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.failure: errors.AcstorError | None = None


class SingleFlight:
    """Pieces of work under way, by key."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._faults = fault_log.FaultLog()
        self._in_flight: dict[Hashable, _Work] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._in_flight

    def start_work(
        self, key: Hashable, work: Callable[[], Awaitable[None]], on_end: Callable[[], None]
    ) -> None:
        """Start a piece of work that is not under way."""
        running = self._in_flight[key] = _Work()
        self._nursery.start_soon(self._run, key, running, work, on_end)

    async def wait(self, key: Hashable) -> None:
        """Wait for a piece of work, if it is under way; raise the AcstorError it failed with."""
        running = self._in_flight.get(key)
        if running is not None:
            await running.ended.wait()
            if running.failure is not None:
                raise running.failure

    async def _run(
        self,
        key: Hashable,
        running: _Work,
        work: Callable[[], Awaitable[None]],
        on_end: Callable[[], None],
    ) -> None:
        try:
            await work()
        except errors.AcstorError as e:
            running.failure = e
        except Exception as e:
            why = self._faults.record_fault("a shared request", e)
            running.failure = errors.SourceUnreachable("the result", "this host", why)
        finally:
            del self._in_flight[key]
            on_end()
            running.ended.set()
