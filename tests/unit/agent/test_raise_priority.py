# SPDX-License-Identifier: Apache-2.0
"""Priority raises of background requests that guests now wait for, over TCP on the loopback."""

import contextlib

import pytest
import trio

from acstor_agent.engine import priority
from acstor_agent.peers import peer_network
from acstor_agent.peers.connection import base_connection
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_wire
from tests.fakes import announced
from tests.fakes import exchange_cloud
from tests.fakes import task_switches
from tests.unit.agent import test_peer_batches as batches
from tests.unit.agent import test_peer_network as nets
from tests.unit.agent.test_peer_batches import frames

Priority = priority.Priority
PREFETCH = peer_wire.Priority.PREFETCH
BULK_HELLO = frames(peer_wire.Hello(nets.CLIENT, peer_wire.ConnectionClass.BULK, 1))


def later(number):
    return batches.request(number, priority=PREFETCH)


# Two agents


class Joined(exchange_cloud.Cloud):
    """Hosts that are joined by real connections."""

    def _net(self, here):
        self.nets = {**getattr(self, "nets", {}), here: peer_network.PeerNetwork(here, **ANYBODY)}
        return self.nets[here]

    async def join(self):
        """Let each host serve, and know the addresses of the others."""
        table = []
        for name, net in self.nets.items():
            await self.nursery.start(net.run)
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            await self.nursery.start(net.serve_forever, self.hosts[name].peer_server, listeners)
            table.append(hash_ring.RingHost(name, nets.address_of(listeners[0]), 100))
        self.ring = hash_ring.Ring(2, tuple(table))


ANYBODY = {"admission": nets.EVERYBODY}


@pytest.fixture
async def cloud(tmp_path):
    chosen = {"kind": Joined, "background_limit": 64, "may_hedge": False}
    async with exchange_cloud.running(tmp_path, ("h1", "h2"), **chosen) as made:
        await made.join()
        yield made


async def test_guest_read_is_served_before_queued_background_requests(cloud):
    """The uplink of the server is blocked, and the guest reads the last chunk in its queue."""
    giver, reader = cloud.hosts["h1"], cloud.hosts["h2"]
    refs = [ref for n in range(40) if cloud.home(ref := cloud.ref_of(n)) == "h1"]
    for ref in refs:
        with giver.submit_read((ref,)) as wish:
            await wish.wait()
    uplink = giver.core.context.uploads
    uplink.slots.count = 0
    with reader.submit_read(refs, Priority.HYDRATE):
        await nets.wait_until(lambda: len(uplink) == len(refs))
        with reader.submit_read(refs[-1:]) as wish:
            await nets.wait_until(lambda: Priority.PEER in priorities(giver))
            uplink.slots.count = 1
            [connection] = cloud.nets["h1"]._incoming
            giver.handle_event(giver.core.answers_delivered, [connection])
            with trio.fail_after(3):
                await wish.wait()
            came = [ref for ref in refs if reader.has_chunk(ref.cid)]
    assert connection.klass is peer_wire.ConnectionClass.BULK  # it was requested once
    assert refs[-1] in came and len(came) < len(refs) / 2


async def test_home_that_reads_a_slow_source_sends_keepalives(tmp_path):
    chosen = {"kind": Joined, "may_hedge": False, "timeout_s": 3.0}
    async with exchange_cloud.running(tmp_path, ("h1", "h2"), **chosen) as cloud:
        await cloud.join()
        cloud.source.delay_s = 2.0
        ref = next(ref for n in range(40) if cloud.home(ref := cloud.ref_of(n)) == "h1")
        with trio.fail_after(10), cloud.hosts["h2"].submit_read((ref,)) as wish:
            home = cloud.hosts["h2"].core.context.peers.get(ids.HostId("h1"))
            await nets.wait_until(lambda: home.last_heard_s)
            assert not cloud.hosts["h2"].has_chunk(ref.cid)
            await wish.wait()
        assert cloud.source.reads == [ref.offset]


def priorities(giver):
    """Return the priorities of the peers' requests."""
    links = giver.core.requests.links
    return {pending.priority for link in links for pending in link.peer_requests.values()}


# Client side


async def hear_priority_raise(host):
    while not any(isinstance(message, peer_wire.RaisePriority) for message in host.messages):
        await host.receive_more()
    return [m for m in host.messages if not isinstance(m, peer_wire.Hello | peer_wire.Ping)]


@pytest.mark.parametrize("is_connected", [False, True])
async def test_priority_raise_of_an_unsent_request_is_sent_after_it(is_connected):
    """There is no connection yet, or its socket is full."""
    reads, said, received = trio.Event(), [], []

    async def converse(host):
        await reads.wait()
        said.extend(await hear_priority_raise(host))

    async with talking(converse) as client:
        if is_connected:
            line = client.net._channel_to(nets.SERVER, client.address, nets.BULK)
            await line.is_decided.wait()
            batches.fill(line.connection)
        asked = [later(n) for n in (1, 2, 3, 4)]
        client.net.send_requests(nets.SERVER, client.address, asked, received.extend)
        client.net.raise_priorities(nets.SERVER, [2, 3, 4, 99])
        client.net.cancel_requests(nets.SERVER, [3])
        reads.set()
        await nets.wait_until(lambda: said)
        line = client.net._channels[nets.SERVER, nets.BULK]
        assert not line._raised and not line.connection._raised
    asked_first = [2, 4, 1] if is_connected else [1, 2, 4]  # queued requests are sorted
    assert [one.request_id for one in nets.requests_in(said)] == asked_first
    assert said[-1] == peer_wire.RaisePriority((2, 4))


async def test_queued_messages_are_sent_in_order_of_priority():
    reads, said = trio.Event(), []

    async def converse(host):
        await reads.wait()
        while len(nets.requests_in(host.messages)) < 3:
            await host.receive_more()
        said.extend(m for m in host.messages if not isinstance(m, peer_wire.Hello | peer_wire.Ping))

    async with talking(converse) as client:
        line = client.net._channel_to(nets.SERVER, client.address, nets.BULK)
        await line.is_decided.wait()
        batches.fill(line.connection)
        announcement = peer_wire.Advertise(announced.alone(7, 8))
        client.net.send_requests(
            nets.SERVER, client.address, [later(1), later(2)], lambda answers: None
        )
        client.net.send_announcement(nets.SERVER, client.address, announcement)
        soon = batches.request(3, priority=peer_wire.Priority.READAHEAD)
        client.net.send_requests(nets.SERVER, client.address, [soon], lambda answers: None)
        reads.set()
        await nets.wait_until(lambda: said)
    numbers = [m if m == announcement else [one.request_id for one in m.requests] for m in said]
    assert numbers == [[3], announcement, [1, 2]]


async def test_queued_announcements_are_limited():
    limits = peer_network.PeerLimits(queued_announcements=2)
    reads, received = trio.Event(), []

    async def converse(host):
        await reads.wait()
        while not nets.requests_in(host.messages):
            await host.receive_more()
        received.extend(m for m in host.messages if isinstance(m, peer_wire.Advertise))

    async with talking(converse, limits=limits) as client:
        line = client.net._channel_to(nets.SERVER, client.address, nets.BULK)
        await line.is_decided.wait()
        batches.fill(line.connection)
        for number in range(1, 6):
            line.send_announcement(peer_wire.Advertise(announced.alone(number)))
        client.net.send_requests(nets.SERVER, client.address, [later(1)], lambda answers: None)
        reads.set()
        await nets.wait_until(lambda: received)
    assert received == [
        peer_wire.Advertise(announced.alone(1)),
        peer_wire.Advertise(announced.alone(2)),
    ]


@contextlib.asynccontextmanager
async def talking(converse, **options):
    """Let ``converse`` answer a client on a bulk connection; yields the client."""

    async def handler(stream):
        await stream.send_all(frames(peer_wire.Hello(nets.SERVER, nets.BULK, 0)))
        with contextlib.suppress(trio.BrokenResourceError):
            await converse(batches.Host(stream))
            await trio.sleep_forever()

    async with nets.faking(handler) as address, nets.asking(address, **options) as client:
        yield client


async def test_priority_raises_are_batched_and_skip_answered_requests():
    said = []

    async def converse(host):
        asked = await host.receive_requests(130)
        await host.send(frames(batches.chunk(asked[0])))
        while sum(len(m.request_ids) for m in said) < 129:
            await host.receive_more()
            said[:] = [m for m in host.messages if isinstance(m, peer_wire.RaisePriority)]

    async with talking(converse) as client:
        received = []
        asked = [later(n) for n in range(130)]
        client.net.send_requests(nets.SERVER, client.address, asked, received.extend)
        await nets.wait_until(lambda: received)
        client.net.raise_priorities(nets.SERVER, range(130))
        client.net.raise_priorities(ids.HostId("h9"), [5])  # a host without requests
        await nets.wait_until(lambda: sum(len(m.request_ids) for m in said) == 129)
    assert [len(m.request_ids) for m in said] == [64, 64, 1]
    assert {n for m in said for n in m.request_ids} == set(range(1, 130))


async def test_no_priority_raise_is_sent_for_an_urgent_request():
    received = []

    async def converse(host):
        await host.receive_requests(2)
        received.extend(host.messages)

    async with batches.client_of_peer(converse) as client:
        for number in (1, 2):
            asked = [batches.request(number)]
            client.net.send_requests(nets.SERVER, client.address, asked, lambda answers: None)
            client.net.raise_priorities(nets.SERVER, [number])
        await nets.wait_until(lambda: received)
    assert not any(isinstance(message, peer_wire.RaisePriority) for message in received)


# Server side


class Waiting(batches.Here):
    """Answers nothing."""

    def answer(self, one):
        return None


async def test_priority_raise_is_passed_on_only_for_open_requests():
    giver = Waiting()
    async with nets.serving(handler=giver) as (_net, address):
        stream = await nets.dial(address)
        asked = frames(peer_wire.Get((later(1), later(2), later(3))))
        raised = frames(
            peer_wire.RaisePriority((3, 77, 1)), peer_wire.RaisePriority((78, 2**32 - 1))
        )
        await stream.send_all(BULK_HELLO + asked + raised)
        await nets.wait_until(lambda: giver.raises)
        await stream.send_all(frames(peer_wire.Cancel((3,)), peer_wire.RaisePriority((3, 2))))
        await nets.wait_until(lambda: len(giver.raises) == 2)
        await stream.aclose()
    assert giver.groups == [[1, 2, 3]]
    assert giver.raises == [[3, 1], [2]]


async def test_priority_raise_sent_with_its_request_is_passed_on_after_it():
    known, giver = [], Waiting()
    giver.priorities_raised = lambda connection, numbers: known.append(
        (list(numbers), list(giver.groups))
    )
    async with nets.serving(handler=giver) as (_net, address):
        stream = await nets.dial(address)
        await stream.send_all(
            BULK_HELLO + frames(peer_wire.Get((later(1),)), peer_wire.RaisePriority((1,)))
        )
        await nets.wait_until(lambda: known)
        await stream.aclose()
    assert known == [([1], [[1]])]


async def test_flood_of_priority_raises_leaves_loop_turns_to_other_tasks():
    count, giver = 20_000, Waiting()
    async with nets.serving(handler=giver, limits=nets.TALKATIVE) as (net, address):
        stream = await nets.dial(address)
        await stream.send_all(BULK_HELLO)
        await stream.receive_some()
        async with task_switches.taken_beside() as others:
            await stream.send_all(
                frames(*(peer_wire.RaisePriority((n, n + 1)) for n in range(count)))
            )
            await stream.send_all(frames(peer_wire.Ping(7)))
            assert await stream.receive_some() == frames(peer_wire.Pong(7))
        assert others.turns > count / base_connection.PARTS_PER_TURN / 2
        assert not giver.raises and not net._budgets.requests.used
        await nets.wait_until(lambda: not net._budgets.bytes.used)
        await stream.aclose()


async def test_priority_raise_waits_behind_a_request_without_capacity():
    giver = Waiting()
    limits = peer_network.PeerLimits(
        host_answer_bytes=batches.CHUNK + 3 * 128, answer_bytes=1 << 20
    )
    async with nets.serving(handler=giver, limits=limits) as (net, address):
        stream = await nets.dial(address)
        asked = peer_wire.Get((later(1), later(2)))
        raised = peer_wire.RaisePriority((1,))
        await stream.send_all(BULK_HELLO + frames(asked, raised))
        await nets.wait_until(lambda: giver.groups)
        await trio.sleep(0.05)
        assert giver.groups == [[1]] and not giver.raises  # it is behind the waiting request
        [connection] = net._incoming
        connection.send_answers([batches.chunk(later(1))])
        await nets.wait_until(lambda: giver.groups == [[1], [2]])
        await stream.aclose()
    assert not giver.raises  # it is answered
