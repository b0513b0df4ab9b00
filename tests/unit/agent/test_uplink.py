# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest
import trio
import trio.testing

from acstor_agent.core import gossip
from acstor_agent.peer_connection import uplink
from acstor_common import ids
from acstor_common import peer_wire

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
URGENCIES = [gossip.Urgency.DEMAND, gossip.Urgency.READ_AHEAD, gossip.Urgency.PREFETCH]


@pytest.fixture
def up():
    return uplink.Uplink(is_reachable=lambda host: True)


def get(number=1):
    cid = ids.cid_of(number.to_bytes(4, "big"))
    return peer_wire.Get(1, IMAGE, 0, 4096, cid, True, 1000, may_refer=True)


class Socket:
    """A connection as the uplink sees it: what was posted on it is sent when the test says so."""

    def __init__(self):
        self.is_sent = True
        self._has_sent = trio.Event()

    def post(self):
        self.is_sent = False
        return True

    def send(self):
        self.is_sent = True
        self._has_sent.set()

    async def sent(self):
        await self._has_sent.wait()


def fill(up):
    """Take both places; return their sockets."""
    sockets = Socket(), Socket()
    for taken in sockets:
        up.put(get(99), ids.HostId("h0"), gossip.Urgency.PREFETCH, taken, taken.post)
        assert not taken.is_sent
    return sockets


def put(up, name, urgency, went, is_wanted=True):
    def send():
        went.append(name)
        return is_wanted and socket.post()

    socket = Socket()
    up.put(get(), ids.HostId(name), urgency, socket, send)
    return socket


@pytest.mark.parametrize("order", list(itertools.permutations(URGENCIES)), ids=str)
async def test_most_urgent_answer_leaves_first_whoever_came_first(up, nursery, order):
    nursery.start_soon(up.run)
    first, _ = fill(up)
    went = []
    sockets = {urgency: put(up, urgency.name, urgency, went) for urgency in order}
    await trio.testing.wait_all_tasks_blocked()
    assert went == []
    first.send()
    for urgency in URGENCIES:
        await trio.testing.wait_all_tasks_blocked()
        assert went[-1] == urgency.name
        sockets[urgency].send()
    assert went == [urgency.name for urgency in URGENCIES]


async def test_answer_leaves_at_once_when_what_left_before_was_sent(up, nursery):
    nursery.start_soon(up.run)
    went = []
    for taken in fill(up):
        taken.send()
    put(up, "h1", gossip.Urgency.PREFETCH, went)
    assert went == ["h1"]


async def test_place_of_an_answer_that_nobody_wants_goes_to_the_next(up, nursery):
    nursery.start_soon(up.run)
    first, _ = fill(up)
    went = []
    put(up, "h1", gossip.Urgency.DEMAND, went, is_wanted=False)
    put(up, "h2", gossip.Urgency.DEMAND, went)
    first.send()
    await trio.testing.wait_all_tasks_blocked()
    assert went == ["h1", "h2"]


async def test_receiver_that_does_not_read_holds_others_up_for_a_moment_only(
    up, nursery, autojump_clock
):
    nursery.start_soon(up.run)
    fill(up)
    went = []
    put(up, "h1", gossip.Urgency.DEMAND, went)
    await trio.sleep(1.01 * uplink.PATIENCE_S)
    assert went == ["h1"]


async def test_requesters_are_referred_only_while_an_answer_waits(up, nursery):
    nursery.start_soon(up.run)
    went, urgency = [], gossip.Urgency.READ_AHEAD
    for name in ("h1", "h2"):
        assert up.refer(get(), ids.HostId(name), urgency) == ()
        put(up, name, urgency, went)
    assert up.refer(get(), ids.HostId("h3"), urgency) == ()
    put(up, "h3", urgency, went)
    assert went == ["h1", "h2"]
    assert up.refer(get(), ids.HostId("h4"), urgency) == ("h1", "h2")
    assert up.refer(get(number=2), ids.HostId("h4"), urgency) == ()
