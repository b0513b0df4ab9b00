# SPDX-License-Identifier: Apache-2.0
"""Work that is done once for all who want it while it is under way.

It goes on when those who wait give up, and whatever it ends with belongs to them and
not to the worker.
"""

from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Hashable

import trio

from acstor_agent.runtime import fault_log
from acstor_common import errors


class _Flight:
    """One piece of work under way, and what came of it."""

    __slots__ = ("failure", "landed")

    def __init__(self) -> None:
        self.landed = trio.Event()
        self.failure: errors.AcstorError | None = None


class SingleFlight:
    """Work of one kind, by what it is about.

    :param nursery: where it runs
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._faults = fault_log.FaultLog()
        self._under_way: dict[Hashable, _Flight] = {}

    def __contains__(self, what: Hashable) -> bool:
        return what in self._under_way

    def begin_flight(
        self, what: Hashable, work: Callable[[], Awaitable[None]], ended: Callable[[], None]
    ) -> None:
        """Begin a piece of work that is not under way.

        :param ended: is called when it is over, whatever came of it
        """
        flight = self._under_way[what] = _Flight()
        self._nursery.start_soon(self._fly, what, flight, work, ended)

    async def wait(self, what: Hashable) -> None:
        """Return when a piece of work is done; at once if it is not under way.

        :raises errors.AcstorError: that is what it ended with
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
