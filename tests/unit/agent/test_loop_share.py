# SPDX-License-Identifier: Apache-2.0
"""When work for a peer starts: in a short turn of the event loop, or in a later one."""

import socket

import trio
import trio.testing

from acstor_agent.peers import peer_network
from acstor_agent.peers.connection import base_connection
from acstor_agent.peers.connection import loop_share
from acstor_common.wire.peer import peer_wire
from tests.fakes import announced
from tests.fakes import request_server
from tests.unit.agent import test_peer_budgets as budgets
from tests.unit.agent import test_peer_network as nets

YOUNG, OLD = loop_share.TURN_S / 2, loop_share.TURN_S * 2
HOSTS = 8


class FixedLoop:
    """An event loop whose turns all have one length."""

    def __init__(self, lasts_s: float) -> None:
        self.lasts_s = lasts_s


class Steps(trio.abc.Instrument):
    """Counts the steps in each turn of the event loop."""

    def __init__(self) -> None:
        self.in_turns = [0]
        trio.lowlevel.add_instrument(self)

    def note(self, count: int = 1) -> None:
        self.in_turns[-1] += count

    def before_io_wait(self, timeout: float) -> None:
        """Note that a turn is over."""
        self.in_turns.append(0)


def flooding(share: loop_share.LoopShare, sharer: object) -> None:
    """Charge a host and class for more small messages than the free ones."""
    share.charge_tokens(sharer, loop_share.FEW + 1)


async def steps_of(share: loop_share.LoopShare, sharers: list[str]) -> Steps:
    """Return the steps of hosts that all ask for a turn at once."""
    steps = Steps()

    async def step(sharer: str) -> None:
        await share.reserve_turn(sharer)
        steps.note()

    async with trio.open_nursery() as nursery:
        for sharer in sharers:
            nursery.start_soon(step, sharer)
    assert sum(steps.in_turns) == len(sharers)
    return steps


async def test_all_hosts_start_in_a_short_loop_turn():
    share = loop_share.LoopShare(100, FixedLoop(YOUNG))
    steps = await steps_of(share, [f"h{number}" for number in range(HOSTS)])
    assert max(steps.in_turns) == HOSTS


async def test_one_host_starts_in_each_long_loop_turn():
    share = loop_share.LoopShare(100, FixedLoop(OLD))
    steps = await steps_of(share, [f"h{number}" for number in range(HOSTS)])
    assert max(steps.in_turns) == 1


async def test_host_flooding_small_messages_waits_and_delays_no_other_host(autojump_clock):
    share = loop_share.LoopShare(100, FixedLoop(YOUNG))
    began_s, ended = trio.current_time(), []

    async def step(sharer):
        await share.reserve_turn(sharer)
        ended.append((sharer, trio.current_time() - began_s))

    for number in range(HOSTS):
        flooding(share, f"bad{number}")
    async with trio.open_nursery() as nursery:
        for number in range(HOSTS):
            nursery.start_soon(step, f"bad{number}")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(step, "h1")
    assert ("h1", 0.0) in ended
    bad = [at_s for sharer, at_s in ended if sharer != "h1"]
    assert len(bad) == HOSTS
    assert max(bad) >= (HOSTS - 1) * loop_share.MANY_EVERY_S - 1e-9


async def test_connection_is_read_in_small_steps_until_a_useful_message():
    async with nets.serving() as (net, address):
        said = {
            "pings": peer_wire.Ping(1),
            "news": peer_wire.Advertise(announced.alone(7)),
            "chunk": peer_wire.Get((nets.REQUEST,)),
        }
        streams = [await nets.dial(address) for _ in said]
        for (name, message), stream in zip(said.items(), streams, strict=True):
            klass = budgets.BULK if name == "news" else budgets.DEMAND
            frame = b"".join(peer_wire.encode(message))
            await stream.send_all(budgets.hello(name, klass) + frame)
            assert await stream.receive_some()
        await nets.wait_until(
            lambda: sum(not one.link.reads_small_steps for one in net._incoming) == 2
        )
        brief = {one.host for one in net._incoming if one.link.reads_small_steps}
        for stream in streams:
            await trio.aclose_forcefully(stream)
    assert brief == {"pings"}


async def test_requests_of_many_hosts_are_spread_over_loop_turns():
    steps = Steps()

    class Refusing(request_server.TaskServer):
        def requests_received(self, connection, requests, arrived_s):
            steps.note(len(requests))
            code = peer_wire.RefuseCode.UNREACHABLE  # not a fault of the peer, and free
            connection.send_answers([peer_wire.Refuse(one.request_id, code) for one in requests])

    numbers = range(peer_wire.MAX_BATCH)
    requests = tuple(nets.REQUEST._replace(request_id=n, offset=n << 16) for n in numbers)
    net = peer_network.PeerNetwork(nets.SERVER, admission=nets.EVERYBODY, turns=FixedLoop(OLD))
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(net.serve_forever, Refusing(nets.serve_data, nursery), listeners)
        address = listeners[0].socket.getsockname()
        links = [socket.create_connection(address) for _ in range(HOSTS)]
        for number, link in enumerate(links):
            link.sendall(budgets.hello(f"h{number}"))
        await nets.wait_until(lambda: len(net._incoming) == HOSTS)
        for link in links:  # all of them come in one turn
            link.sendall(b"".join(peer_wire.encode(peer_wire.Get(requests))))
        await nets.wait_until(lambda: sum(steps.in_turns) == HOSTS * peer_wire.MAX_BATCH, 30.0)
        for link in links:
            link.close()
        await net.aclose()
    assert max(steps.in_turns) < 2 * base_connection.PARTS_PER_TURN
