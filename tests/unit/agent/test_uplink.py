# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest
import trio
import trio.testing

from acstor_agent.core.exchange import gossip
from acstor_agent.core.exchange import uplink_places
from acstor_agent.peers.connection import uplink
from acstor_common import ids
from acstor_common import peer_wire

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
URGENCIES = [gossip.Urgency.DEMAND, gossip.Urgency.READ_AHEAD, gossip.Urgency.PREFETCH]


@pytest.fixture
def up():
    """An uplink that has met a queue."""
    places = uplink_places.UplinkPlaces()
    places.arrived(took_s=2 * uplink_places.LATE_S)
    return uplink.Uplink(lambda host: True, places)


@pytest.fixture
def quick_up():
    """An uplink that has met no queue."""
    return uplink.Uplink(lambda host: True)


def cid(number=1):
    return ids.cid_of(number.to_bytes(4, "big"))


GET = peer_wire.Get(1, IMAGE, 0, 4096, bytes(16), True, 1000, may_refer=True)


class Socket:
    """A connection as the uplink sees it: what was posted on it arrives when the test says so."""

    def __init__(self):
        self.is_delivered = True
        self._has_arrived = trio.Event()

    def post(self):
        self.is_delivered = False
        self._has_arrived = trio.Event()
        return True

    def arrive(self):
        self.is_delivered = True
        self._has_arrived.set()

    async def delivered(self):
        await self._has_arrived.wait()


def fill(up):
    """Take all places of a link with queues; return their sockets."""
    sockets = [Socket() for _ in range(uplink_places.FEW)]
    for taken in sockets:
        up.put(cid(99), ids.HostId("h0"), gossip.Urgency.PREFETCH, taken, taken.post)
        assert not taken.is_delivered
    return sockets


def put(up, name, urgency, went, is_wanted=True, socket=None):
    def send():
        went.append(name)
        return is_wanted and socket.post()

    socket = socket or Socket()
    up.put(cid(), ids.HostId(name), urgency, socket, send)
    return socket


async def test_nothing_is_kept_for_a_connection_that_has_ended(up, nursery):
    went, gone = [], Socket()
    sockets = fill(up)
    for _ in range(3):
        put(up, "gone", gossip.Urgency.DEMAND, went, socket=gone)
    put(up, "stays", gossip.Urgency.DEMAND, went)
    up.forget(gone)
    assert sum(map(len, up._waiting.values())) == up._queue_length == 1
    nursery.start_soon(up.run)
    sockets[0].arrive()
    await trio.testing.wait_all_tasks_blocked()
    assert went == ["stays"]


@pytest.mark.parametrize("order", list(itertools.permutations(URGENCIES)), ids=str)
async def test_most_urgent_answer_leaves_first_whoever_came_first(up, nursery, order):
    nursery.start_soon(up.run)
    first, *_ = fill(up)
    went = []
    sockets = {urgency: put(up, urgency.name, urgency, went) for urgency in order}
    await trio.testing.wait_all_tasks_blocked()
    assert went == []
    first.arrive()
    for urgency in URGENCIES:
        await trio.testing.wait_all_tasks_blocked()
        assert went[-1] == urgency.name
        sockets[urgency].arrive()
    assert went == [urgency.name for urgency in URGENCIES]


async def test_answer_leaves_at_once_when_what_left_before_has_arrived(up, nursery):
    nursery.start_soon(up.run)
    went = []
    for taken in fill(up):
        taken.arrive()
    put(up, "h1", gossip.Urgency.PREFETCH, went)
    assert went == ["h1"]


async def test_place_of_an_answer_that_nobody_wants_goes_to_the_next(up, nursery):
    nursery.start_soon(up.run)
    first, *_ = fill(up)
    went = []
    put(up, "h1", gossip.Urgency.DEMAND, went, is_wanted=False)
    put(up, "h2", gossip.Urgency.DEMAND, went)
    first.arrive()
    await trio.testing.wait_all_tasks_blocked()
    assert went == ["h1", "h2"]


async def test_receiver_that_takes_long_holds_others_up_for_a_moment_and_only_once(
    up, nursery, autojump_clock
):
    nursery.start_soon(up.run)
    slow = fill(up)
    went, urgency = [], gossip.Urgency.DEMAND
    put(up, "h1", urgency, went)
    await trio.sleep(1.01 * uplink.PATIENCE_S)
    assert went == ["h1"]
    for socket in slow:  # none of them takes a place now
        put(up, "slow", urgency, went, socket=socket)
    for name in ("h2", "h3"):
        put(up, name, urgency, went)
    await trio.testing.wait_all_tasks_blocked()
    assert went == ["h1", "slow", "slow", "slow", "h2", "h3"]
    slow[0].arrive()
    put(up, "h4", urgency, went)
    await trio.sleep(1.01 * uplink.PATIENCE_S)
    assert went[-1] == "h4"


async def test_receiver_that_has_caught_up_gets_a_place_again(up, nursery, autojump_clock):
    nursery.start_soon(up.run)
    late, *others = fill(up)
    went, urgency = [], gossip.Urgency.DEMAND
    put(up, "h1", urgency, went)
    await trio.sleep(1.01 * uplink.PATIENCE_S)
    for socket in (late, *others):
        socket.arrive()
    put(up, "late", urgency, went, socket=late)
    for name in ("h2", "h3"):  # h1 has not got its answer: there is room for one of them
        put(up, name, urgency, went)
    await trio.testing.wait_all_tasks_blocked()
    assert went == ["h1", "late", "h2"]


async def test_requesters_are_referred_only_while_an_answer_waits(up, nursery):
    nursery.start_soon(up.run)
    went, urgency = [], gossip.Urgency.READ_AHEAD
    names = [f"h{number}" for number in range(1, uplink_places.FEW + 2)]
    for name in names:
        assert up.refer(GET, cid(), ids.HostId(name), urgency) == ()
        put(up, name, urgency, went)
    assert went == names[:-1]
    assert up.refer(GET, cid(), ids.HostId("last"), urgency) == ("h1", "h2")
    assert up.refer(GET, cid(2), ids.HostId("last"), urgency) == ()


async def test_places_are_many_until_an_answer_meets_a_queue(quick_up, nursery, autojump_clock):
    nursery.start_soon(quick_up.run)
    went, urgency = [], gossip.Urgency.READ_AHEAD
    sockets = [
        put(quick_up, f"h{number}", urgency, went) for number in range(2 * uplink_places.FEW)
    ]
    assert len(went) == len(sockets)
    await trio.sleep(1.01 * uplink_places.LATE_S)
    put(quick_up, "late", urgency, went)
    assert "late" not in went
    for socket in sockets:
        socket.arrive()
    await trio.testing.wait_all_tasks_blocked()
    assert went[-1] == "late"


async def test_receiver_of_many_answers_that_does_not_read_costs_one_moment(
    quick_up, nursery, autojump_clock
):
    nursery.start_soon(quick_up.run)
    went, urgency, stuck = [], gossip.Urgency.DEMAND, Socket()
    for _ in range(uplink_places.MANY - 1):
        put(quick_up, "stuck", urgency, went, socket=stuck)
    await trio.sleep(2 * uplink_places.LATE_S)
    put(quick_up, "h1", urgency, went)
    assert went[-1] == "stuck"
    await trio.sleep(1.01 * uplink.PATIENCE_S)
    assert went[-1] == "h1"


async def test_answers_that_arrive_at_once_make_places_many_again(up, nursery, autojump_clock):
    nursery.start_soon(up.run)
    held = fill(up)
    went, urgency = [], gossip.Urgency.READ_AHEAD
    sockets = [
        put(up, f"h{number}", urgency, went) for number in range(2 * uplink_places.QUICK_ONES)
    ]
    for socket in (*held, *sockets):
        await trio.testing.wait_all_tasks_blocked()
        socket.arrive()
    await trio.testing.wait_all_tasks_blocked()
    assert len(went) == len(sockets)
    more = [put(up, f"m{number}", urgency, went) for number in range(2 * uplink_places.FEW)]
    assert len(went) == len(sockets) + len(more)
