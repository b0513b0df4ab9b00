# SPDX-License-Identifier: Apache-2.0
"""Chunks under way: who wants one that is under way waits for it.

The one rule: for one CID (or whatever else a thing under way is known by) one piece
of work runs, whoever asks; it goes on when those who wait give up, since what it
brings is stored.
"""

import collections
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterable
from typing import Generic
from typing import TypeVar

import trio

from acstor_agent import disk_io
from acstor_agent import faults
from acstor_agent.core import turns
from acstor_common import errors

T = TypeVar("T")
W = TypeVar("W")

WISHES = 1024
"""Wishes that wait in a Queue; the oldest is forgotten first."""


class Flight(Generic[T]):
    """One chunk under way, from the first wish for it until it lands.

    ``scope`` is for work that is to end when something else has brought it, ``asker`` whom it is
    for: the most urgent of all who have joined it, ``of`` where the work looks for it.
    """

    __slots__ = ("_is_landed", "_result", "asker", "landed", "of", "scope")

    def __init__(self, asker: turns.Asker, of: Hashable = None) -> None:
        self.asker = asker
        self.of = of
        self.scope = trio.CancelScope()
        self._is_landed = trio.Event()
        self._result: T | errors.AcstorError | None = None
        self.landed: list[Callable[[], None]] = []
        """Is called when it lands; none of it may wait."""

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
            for call in self.landed:
                call()

    async def wait(self) -> T:
        """Return the result, or raise the error that it is."""
        await self._is_landed.wait()
        if isinstance(self._result, errors.AcstorError):
            raise self._result
        if self._result is None:
            await trio.sleep_forever()
        return self._result


class Flights(Generic[T]):
    """All flights of one kind, the oldest first."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._faults = faults.Faults()
        self._under_way: dict[Hashable, Flight[T]] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def get(self, cid: Hashable) -> Flight[T] | None:
        """Return the flight of a chunk, if it is under way."""
        return self._under_way.get(cid)

    def join(
        self, cid: Hashable, work: Callable[[Flight[T]], Awaitable[T]], of: Hashable = None
    ) -> Flight[T]:
        """Return the flight of a chunk; where there is none it starts now.

        Nothing is awaited here: what the caller has looked at before still holds.

        :param of: where ``work`` looks: who joins a flight that looks elsewhere may have to look
            himself
        """
        asker = disk_io.asker()
        flight = self._under_way.get(cid)
        if flight is None:
            flight = self._under_way[cid] = Flight(turns.Asker(asker.stream), of)
            with disk_io.as_work(flight.asker):
                self._nursery.start_soon(self._fly, cid, flight, work)
        asker.waits_for(flight.asker)
        return flight

    async def _fly(
        self, cid: Hashable, flight: Flight[T], work: Callable[[Flight[T]], Awaitable[T]]
    ) -> None:
        result: T | errors.AcstorError | None = None
        try:
            result = await work(flight)
        except errors.AcstorError as e:
            result = e
        except Exception as e:  # whatever it is, it belongs to those who wait, not to the worker
            why = self._faults.note("what was on its way", e)
            result = errors.SourceUnreachable("a chunk", "this host", why)
        finally:
            del self._under_way[cid]
            flight.land(result)


class Queue(Generic[W, T]):
    """Wishes that nobody waits for: so many are under way at a time, without a task for each.

    :param begin: begins to fulfil a wish; None if there is nothing to do
    :param limit: flights under way at a time
    :param has_room: whether more may begin now; asked again when a flight lands or a wish comes
    """

    def __init__(
        self, begin: Callable[[W], Flight[T] | None], limit: int, has_room: Callable[[], bool]
    ) -> None:
        self._begin = begin
        self._limit = limit
        self._has_room = has_room
        self._wishes: collections.deque[W] = collections.deque(maxlen=WISHES)
        self._under_way = 0

    def put(self, wishes: Iterable[W]) -> None:
        """Begin these as soon as it may be, in their order."""
        self._wishes.extend(wishes)
        self._begin_some()

    def _begin_some(self) -> None:
        while self._wishes and self._under_way < self._limit and self._has_room():
            flight = self._begin(self._wishes.popleft())
            if flight is not None:
                self._under_way += 1
                flight.landed.append(self._landed)

    def _landed(self) -> None:
        self._under_way -= 1
        self._begin_some()
