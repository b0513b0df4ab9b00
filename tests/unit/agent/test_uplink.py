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


@pytest.mark.parametrize("order", list(itertools.permutations(URGENCIES)), ids=str)
async def test_most_urgent_answer_leaves_first_whoever_came_first(up, order):
    went = []

    async def answer(urgency):
        async with up.turn(urgency):
            went.append(urgency)

    async with trio.open_nursery() as nursery, up.turn(gossip.Urgency.PREFETCH):
        async with up.turn(gossip.Urgency.PREFETCH):  # both places are taken
            for urgency in order:
                nursery.start_soon(answer, urgency)
                await trio.testing.wait_all_tasks_blocked()
            assert went == []
        await trio.testing.wait_all_tasks_blocked()  # they leave one after the other
    assert went == URGENCIES


async def test_place_of_an_answer_that_is_given_up_goes_to_the_next(up):
    went = []

    async def answer(name, scope):
        with scope:
            async with up.turn(gossip.Urgency.DEMAND):
                went.append(name)

    given_up = trio.CancelScope()
    async with trio.open_nursery() as nursery, up.turn(gossip.Urgency.DEMAND):
        async with up.turn(gossip.Urgency.DEMAND):
            for name, scope in (("first", given_up), ("second", trio.CancelScope())):
                nursery.start_soon(answer, name, scope)
                await trio.testing.wait_all_tasks_blocked()
            given_up.cancel()
    assert went == ["second"]


async def test_requesters_are_referred_only_while_an_answer_waits(up):
    urgency = gossip.Urgency.READ_AHEAD
    assert up.refer(get(), ids.HostId("h1"), urgency) == ()

    async def answer():
        async with up.turn(urgency):
            pass

    async with trio.open_nursery() as nursery, up.turn(urgency), up.turn(urgency):
        assert up.refer(get(), ids.HostId("h2"), urgency) == ()
        nursery.start_soon(answer)
        await trio.testing.wait_all_tasks_blocked()
        assert up.refer(get(), ids.HostId("h3"), urgency) == ("h1", "h2")
        assert up.refer(get(number=2), ids.HostId("h3"), urgency) == ()
