# SPDX-License-Identifier: Apache-2.0
import pytest
import trio
import trio.testing

from acstor_agent.chunks import flights
from acstor_common import errors
from acstor_common import ids


class Airport:
    """Flights that land when the test says so; counts those under way."""

    def __init__(self, nursery):
        self.flights = flights.Flights(nursery)
        self.may_land = trio.Event()
        self.is_here, self.has_room = set(), True
        self.begun = []

    def begin(self, number):
        if number in self.is_here:
            return None
        self.begun.append(number)
        return self.flights.join(ids.cid_of(bytes([number])), self._fly)

    async def _fly(self, flight):
        await self.may_land.wait()
        raise errors.ChunkMissing("a chunk", "here")


@pytest.fixture
def airport(nursery):
    return Airport(nursery)


def queue(airport, limit=3):
    return flights.Queue(airport.begin, limit, lambda: airport.has_room)


@pytest.mark.expect_log("what was on its way has failed")
async def test_fault_that_nobody_thought_of_ends_the_flight_and_not_the_worker(nursery):
    async def fly(flight):
        raise KeyError("thought")

    with pytest.raises(errors.SourceUnreachable, match="KeyError: 'thought'"):
        await flights.Flights(nursery).join(1, fly).wait()


async def test_no_more_than_the_limit_are_under_way_and_the_next_begin_when_those_land(airport):
    wishes = queue(airport)
    wishes.put(range(8))
    await trio.testing.wait_all_tasks_blocked()
    assert airport.begun == [0, 1, 2] and len(airport.flights) == 3
    airport.may_land.set()
    await trio.testing.wait_all_tasks_blocked()
    assert airport.begun == list(range(8)) and not len(airport.flights)


async def test_what_is_here_takes_no_place(airport):
    airport.is_here = {0, 1, 2}
    queue(airport).put(range(5))
    assert airport.begun == [3, 4]


async def test_nothing_begins_while_there_is_no_room(airport):
    wishes = queue(airport)
    airport.has_room = False
    wishes.put([1, 2])
    assert airport.begun == []
    airport.has_room = True
    wishes.put([3])
    assert airport.begun == [1, 2, 3]


async def test_oldest_wishes_are_forgotten_when_there_are_too_many(airport):
    wishes = queue(airport, limit=1)
    wishes.put([0])
    wishes.put([1, *([200] * flights.WISHES)])
    airport.is_here = {200}
    airport.may_land.set()
    await trio.testing.wait_all_tasks_blocked()
    assert airport.begun == [0]
