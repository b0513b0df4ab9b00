# SPDX-License-Identifier: Apache-2.0
"""Chunks under way: who wants one that is under way waits for it.

The one rule: for one CID one piece of work runs, whoever asks; it goes on when
those who wait give up, since what it brings is stored.
"""

from collections.abc import Awaitable
from collections.abc import Callable
from typing import Generic
from typing import TypeVar

import trio

from acstor_common import errors
from acstor_common import ids

T = TypeVar("T")


class Flight(Generic[T]):
    """One chunk under way, from the first wish for it until it lands.

    ``scope`` is for work that is to end when something else has brought it.
    """

    __slots__ = ("_is_landed", "_result", "scope")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self._is_landed = trio.Event()
        self._result: T | errors.AcstorError | None = None

    @property
    def has_landed(self) -> bool:
        """Say whether there is a result."""
        return self._is_landed.is_set()

    def land(self, result: T | errors.AcstorError | None) -> None:
        """Give the result to all who wait; the first one counts.

        :param result: None when the process is ending: an answer is the next one's business
        """
        if not self.has_landed:
            self._result = result
            self._is_landed.set()

    async def wait(self) -> T:
        """Return the result, or raise the error that it is."""
        await self._is_landed.wait()
        if isinstance(self._result, errors.AcstorError):
            raise self._result
        if self._result is None:
            await trio.sleep_forever()
        return self._result  # type: ignore[return-value]


class Flights(Generic[T]):
    """All flights of one kind, the oldest first."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._under_way: dict[ids.Cid, Flight[T]] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def get(self, cid: ids.Cid) -> Flight[T] | None:
        """Return the flight of a chunk, if it is under way."""
        return self._under_way.get(cid)

    def join(self, cid: ids.Cid, work: Callable[[Flight[T]], Awaitable[T]]) -> Flight[T]:
        """Return the flight of a chunk; where there is none it starts now.

        Nothing is awaited here: what the caller has looked at before still holds.
        """
        flight = self._under_way.get(cid)
        if flight is None:
            flight = self._under_way[cid] = Flight()
            self._nursery.start_soon(self._fly, cid, flight, work)
        return flight

    async def _fly(
        self, cid: ids.Cid, flight: Flight[T], work: Callable[[Flight[T]], Awaitable[T]]
    ) -> None:
        result: T | errors.AcstorError | None = None
        try:
            result = await work(flight)
        except errors.AcstorError as e:
            result = e
        finally:
            del self._under_way[cid]
            flight.land(result)
