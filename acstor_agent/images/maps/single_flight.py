# SPDX-License-Identifier: Apache-2.0
"""Runs work once for all who wait for it; it goes on when they give up."""

from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Hashable

import trio

from acstor_agent.runtime import fault_log
from acstor_common import errors


class _Flight:
    __slots__ = ("failure", "landed")

    def __init__(self) -> None:
        self.landed = trio.Event()
        self.failure: errors.AcstorError | None = None


class SingleFlight:
    """Pieces of work under way, by key."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._faults = fault_log.FaultLog()
        self._under_way: dict[Hashable, _Flight] = {}

    def __contains__(self, what: Hashable) -> bool:
        return what in self._under_way

    def begin_flight(
        self, what: Hashable, work: Callable[[], Awaitable[None]], ended: Callable[[], None]
    ) -> None:
        """Start a piece of work that is not under way."""
        flight = self._under_way[what] = _Flight()
        self._nursery.start_soon(self._fly, what, flight, work, ended)

    async def wait(self, what: Hashable) -> None:
        """Wait for a piece of work; return at once if it is not under way.

        :raises errors.AcstorError: the work failed with it
        """
        flight = self._under_way.get(what)
        if flight is not None:
            await flight.landed.wait()
            if flight.failure is not None:
                raise flight.failure

    async def _fly(
        self,
        what: Hashable,
        flight: _Flight,
        work: Callable[[], Awaitable[None]],
        ended: Callable[[], None],
    ) -> None:
        try:
            await work()
        except errors.AcstorError as e:
            flight.failure = e
        except Exception as e:
            why = self._faults.record_fault("what was on its way", e)
            flight.failure = errors.SourceUnreachable("something", "this host", why)
        finally:
            del self._under_way[what]
            ended()
            flight.landed.set()
