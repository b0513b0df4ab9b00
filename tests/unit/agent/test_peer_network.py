# SPDX-License-Identifier: Apache-2.0
"""Agents over real TCP on the loopback interface, in clear text and by TLS."""

import contextlib
import contextvars
import dataclasses
import os
import socket
import struct

import pytest
import trio
import trio.testing

from acstor_agent.peers import peer_network
from acstor_agent.peers.connection import base_connection
from acstor_agent.peers.connection import demand_gate
from acstor_agent.peers.connection import failed_dials
from acstor_agent.peers.connection import periodic_checks
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import token_buckets
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from tests.fakes import admission
from tests.fakes import announced
from tests.fakes import request_server

CLIENT, SERVER = ids.HostId("client.example"), ids.HostId("server.example")
IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
CID = ids.Cid(bytes(range(32)))
PROOF = peer_wire.proof_of(CID, CLIENT, SERVER)
DEMAND, BULK = peer_wire.ConnectionClass
PEER, READAHEAD, PREFETCH = peer_wire.Priority
QUICK = peer_network.PeerLimits(hello_s=0.2, idle_s=0.2, silence_s=0.2)
PATIENT = peer_network.PeerLimits()
TALKATIVE = peer_network.PeerLimits(small_messages=token_buckets.Rate(per_s=1e9, burst=1e9))
DATA = os.urandom(1 << 20)
HELLO = b"".join(peer_wire.encode(peer_wire.Hello(CLIENT, DEMAND, 1)))
REQUEST = peer_wire.ChunkRequest(
    0, IMAGE, 0, 1, PROOF, peer_wire.Mode.HOME_ONLY, peer_wire.Priority.PEER, 60_000
)
SERVER_HELLO = b"".join(peer_wire.encode(peer_wire.Hello(SERVER, DEMAND, 0)))


def get_of(**changes) -> bytes:
    """Return a message that requests one chunk."""
    return peer_wire.encode(peer_wire.Get((REQUEST._replace(**changes),)))[0]


def requests_in(messages) -> list[peer_wire.ChunkRequest]:
    return [r for m in messages if isinstance(m, peer_wire.Get) for r in m.requests]


EVERYBODY = admission.Admission()


async def serve_data(host: ids.HostId, get: peer_wire.ChunkRequest) -> bytes:
    await trio.lowlevel.checkpoint()
    return DATA[get.offset : get.offset + get.length]


def address_of(listener: trio.SocketListener) -> str:
    ip, port = listener.socket.getsockname()[:2]
    return f"{ip}:{port}"


@contextlib.asynccontextmanager
async def serving(
    serve=serve_data,
    host=SERVER,
    tls=None,
    limits=PATIENT,
    admission=EVERYBODY,
    handler=None,
    **options,
):
    """Run a server; yields it and its address."""
    net = peer_network.PeerNetwork(
        host, credentials=tls, limits=limits, admission=admission, **options
    )
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        handler = handler or request_server.TaskServer(serve, nursery)
        await nursery.start(net.serve_forever, handler, listeners)
        yield net, address_of(listeners[0])
        await net.aclose()


class Client:
    """A PeerNetwork that sends requests to one host."""

    def __init__(self, net: peer_network.PeerNetwork, address: str) -> None:
        self.net, self.address, self.asked = net, address, 0

    async def fetch(
        self,
        offset=0,
        length=65536,
        *,
        priority=peer_wire.Priority.PEER,
        host=SERVER,
        timeout_s=30.0,
        mode=peer_wire.Mode.HOME_ONLY,
    ):
        self.asked += 1
        request = peer_wire.ChunkRequest(
            self.asked, IMAGE, offset, length, PROOF, mode, priority, 1
        )
        return await request_server.fetch(self.net, host, self.address, request, timeout_s)


@contextlib.asynccontextmanager
async def asking(
    address: str,
    host=CLIENT,
    tls=None,
    limits=PATIENT,
    admission=EVERYBODY,
    reported=None,
    **options,
):
    """Run a client.

    :param reported: callbacks for events of peers
    """
    net = peer_network.PeerNetwork(
        host, credentials=tls, limits=limits, admission=admission, **options
    )
    net.set_callbacks(**(reported or {}))
    async with trio.open_nursery() as nursery:
        await nursery.start(net.run)
        yield Client(net, address)
        await net.aclose()


@contextlib.asynccontextmanager
async def both(serve=serve_data, limits=PATIENT, server_limits=PATIENT):
    async with serving(serve, limits=server_limits) as (server, address):
        async with asking(address, limits=limits) as client:
            yield client, server


@contextlib.asynccontextmanager
async def faking(handler):
    """Run ``handler`` in place of a server; yields its address."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(trio.serve_listeners, handler, listeners)
        yield address_of(listeners[0])
        nursery.cancel_scope.cancel()


def answering(data: bytes):
    """Return a handler that sends only ``data``, after the first request."""

    async def handler(stream):
        await stream.send_all(SERVER_HELLO)
        await stream.receive_some()
        await stream.send_all(data)
        await trio.sleep_forever()

    return handler


async def dial(address: str) -> trio.SocketStream:
    ip, port = address.split(":")
    return await trio.open_tcp_stream(ip, int(port))


async def wait_until(is_true, patience_s=30.0) -> None:
    with trio.fail_after(patience_s):
        while not is_true():  # noqa: ASYNC110  the thing under test has no event to wait for
            await trio.sleep(0.005)


# What works


async def test_chunk_is_fetched_from_a_peer():
    async with both() as (client, _server):
        assert await client.fetch(100, 5000) == DATA[100:5100]


async def test_round_trip_time_is_reported_before_the_first_answer():
    events = []

    async def serve(host, get):
        events.append("request")
        return await serve_data(host, get)

    report = {"on_dialled": lambda *what: events.append(what)}
    async with serving(serve) as (_, address), asking(address, reported=report) as client:
        for _ in range(2):
            await client.fetch()
    (host, round_trip_s), *later = events
    assert (host, later) == (SERVER, ["request"] * 2)
    assert 0 < round_trip_s < 1


async def test_requests_during_shutdown_fail():
    net, reported = peer_network.PeerNetwork(CLIENT, limits=PATIENT, admission=EVERYBODY), 0
    async with serving() as (_server, address), trio.open_nursery() as nursery:
        await nursery.start(net.run)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            for number in range(20):
                with pytest.raises(errors.SourceUnreachable):
                    await Client(net, address).fetch(host=ids.HostId(f"h{number}"), timeout_s=0.05)
                reported += 1
    assert reported == 20


async def test_loss_callback_runs_in_the_context_of_the_requester():
    """Work that the callback starts belongs to the requester."""
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who")
    net, received = peer_network.PeerNetwork(CLIENT, limits=PATIENT, admission=EVERYBODY), []
    who.set("me")
    net.send_requests(
        SERVER, "127.0.0.1:1", [REQUEST], lambda answers: received.append(who.get("nobody"))
    )
    await wait_until(lambda: received)
    assert received == ["me"]


async def test_chunk_of_the_largest_size_is_fetched():
    big = os.urandom(peer_wire.MAX_DATA_BYTES)

    async def serve(host, get):
        return memoryview(big)

    async with both(serve) as (client, _server):
        assert await client.fetch(0, len(big)) == big


async def test_server_sees_the_client_and_its_request():
    seen = []

    async def serve(host, get):
        seen.append((host, get._replace(request_id=0)))
        return bytes(get.length)

    async with both(serve) as (client, _server):
        await client.fetch(1 << 40, 17, timeout_s=2.5)
    assert seen == [(CLIENT, REQUEST._replace(offset=1 << 40, length=17, timeout_ms=2500))]


async def test_many_fetches_share_one_connection_and_finish_in_any_order():
    release = trio.Event()

    async def serve(host, get):
        if get.offset == 0:
            await release.wait()
        return DATA[get.offset : get.offset + get.length]

    order = []
    async with both(serve) as (client, server):

        async def ask(number):
            assert await client.fetch(number * 1000, 1000) == DATA[number * 1000 :][:1000]
            order.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, number)
            await wait_until(lambda: len(order) == 49)
            assert server.connection_counts[0] == 1
            release.set()
    assert order[-1] == 0


async def test_demand_and_bulk_have_a_connection_each():
    async with both() as (client, server):
        for priority in (PEER, PREFETCH, PEER, PREFETCH):
            await client.fetch(priority=priority)
        assert client.net.connection_counts == (0, 2) and server.connection_counts == (2, 0)


async def test_bulk_answers_flow_while_a_demand_connection_is_stuck():
    async with serving() as (_server, address):
        stuck = await dial(address)
        await stuck.send_all(HELLO)
        for request_id in range(40):  # the answers are not read
            await stuck.send_all(get_of(request_id=request_id, length=len(DATA)))
        async with asking(address) as client:
            await trio.sleep(0.05)
            assert len(await client.fetch(0, len(DATA), priority=PREFETCH)) == len(DATA)
        await stuck.aclose()


@pytest.mark.parametrize(
    ("raised", "expected", "text"),
    [
        (errors.ChunkMissing("x", "y"), errors.ChunkMissing, "MISSING"),
        (errors.ChunkRefused("x", "y"), errors.ChunkRefused, "WITHHELD"),
        (errors.ChunkInvalid("x", "y"), errors.ChunkMissing, "MISSING"),
        (errors.SourceUnreachable("x", "y", "503"), errors.SourceUnreachable, "UNREACHABLE"),
        (errors.DeadlineExceeded("x", 3.0), errors.SourceUnreachable, "UNREACHABLE"),
    ],
)
async def test_refusal_is_raised_as_the_matching_error(raised, expected, text):
    async def serve(host, get):
        raise raised

    async with both(serve) as (client, _server):
        for _ in range(2):  # the connection lives on
            with pytest.raises(expected, match=text) as caught:
                await client.fetch()
            assert caught.type is expected and SERVER in str(caught.value)


async def test_bulk_data_waits_while_demand_data_moves(autojump_clock):
    gate, waited = demand_gate.DemandGate(), []

    async def bulk():
        await gate.wait()
        waited.append(trio.current_time() - began)

    began = trio.current_time()
    gate.outbox_filled()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bulk)
        await trio.sleep(demand_gate.BULK_YIELDS_S / 2)
        assert not waited and not gate.is_open
        gate.outbox_emptied()
    assert waited == [pytest.approx(demand_gate.BULK_YIELDS_S / 2)] and gate.is_open


async def test_bulk_data_does_not_wait_for_stalled_demand_data(autojump_clock):
    gate = demand_gate.DemandGate()
    gate.outbox_filled()
    await gate.wait()
    assert trio.current_time() == pytest.approx(demand_gate.BULK_YIELDS_S, abs=0.01)
    began = trio.current_time()
    await gate.wait()
    assert gate.is_open and trio.current_time() == began
    gate.outbox_sent()
    assert not gate.is_open


async def test_ping_is_answered_by_either_side():
    async def handler(stream):
        to = peer_receiver.Receiver("client", peer_wire.FROM_CLIENT)
        await stream.send_all(SERVER_HELLO + peer_wire.encode(peer_wire.Ping(77))[0])
        messages = []
        while len(messages) < 3:
            messages += to.feed_bytes(await stream.receive_some())
        [get] = requests_in(messages)
        assert peer_wire.Pong(77) in messages
        await stream.send_all(b"".join(peer_wire.encode(peer_wire.Chunk(get.request_id, b"x"))))

    async with faking(handler) as address, asking(address) as client:
        assert await client.fetch(0, 1) == b"x"
    async with serving() as (_server, address):
        stream = await dial(address)
        await stream.send_all(HELLO + peer_wire.encode(peer_wire.Ping(78))[0])
        to = peer_receiver.Receiver("server", peer_wire.FROM_SERVER)
        messages = []
        while len(messages) < 2:
            messages += to.feed_bytes(await stream.receive_some())
        assert messages[1] == peer_wire.Pong(78)
        await stream.aclose()


async def test_pongs_queued_for_a_non_reading_peer_are_bounded():
    """The peer gets the pongs that fit, and the open request continues."""
    limit_bytes, pings, received = 16 * 1024, 20_000, []
    [pong] = peer_wire.encode(peer_wire.Pong(1))
    may_read = trio.Event()

    async def handler(stream):
        to = peer_receiver.Receiver("client", peer_wire.FROM_CLIENT)
        await stream.send_all(SERVER_HELLO + peer_wire.encode(peer_wire.Ping(1))[0] * pings)
        await may_read.wait()
        while not requests_in(received):
            received.extend(to.feed_bytes(await stream.receive_some()))
        [get] = requests_in(received)
        await stream.send_all(b"".join(peer_wire.encode(peer_wire.Chunk(get.request_id, b"x"))))
        async for _ in stream:
            pass  # closed with pongs unread, the connection would be reset under the chunk

    async def fetch(client):
        assert await client.fetch(0, 1, timeout_s=60.0) == b"x"

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        listener.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # small buffers
        await nursery.start(trio.serve_listeners, handler, [listener])
        limits = dataclasses.replace(TALKATIVE, silence_s=120.0, queued_bytes=limit_bytes)
        async with (
            asking(address_of(listener), limits=limits) as client,
            trio.open_nursery() as fetching,
        ):
            fetching.start_soon(fetch, client)
            await wait_until(
                lambda: any(c.outbox_bytes >= limit_bytes for c in client.net._outgoing()), 60.0
            )
            for _ in range(20):
                await trio.sleep(0.01)
                most_bytes = max(c.outbox_bytes for c in client.net._outgoing())
                assert most_bytes < limit_bytes + len(get_of()) + len(pong)  # and what came before
            may_read.set()
        nursery.cancel_scope.cancel()
    assert sum(isinstance(m, peer_wire.Pong) for m in received) < pings


# Cancelling and waiting


async def test_cancelled_fetch_ends_work_at_the_peer_and_keeps_the_connection():
    cancelled = trio.Event()
    entered = trio.Event()

    async def serve(host, get):
        if get.offset:
            return bytes(get.length)
        entered.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with both(serve) as (client, server):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.fetch)
            await entered.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(2):
            await cancelled.wait()
        assert await client.fetch(1, 10) == bytes(10)
        assert server.connection_counts[0] == 1


async def test_late_answer_is_dropped():
    async def handler(stream):
        await stream.send_all(SERVER_HELLO)
        to = peer_receiver.Receiver("client", peer_wire.FROM_CLIENT)
        gets = []
        async for data in stream:
            gets += requests_in(to.feed_bytes(data))
            if len(gets) == 2:  # answer the first, which has timed out, then the second
                for get in gets:
                    head, body = peer_wire.encode(
                        peer_wire.Chunk(get.request_id, bytes([get.offset]) * get.length)
                    )
                    await stream.send_all(head + body)

    async with faking(handler) as address, asking(address) as client:
        with pytest.raises(errors.SourceUnreachable, match=r"no answer within 0.1 s"):
            await client.fetch(1, 10, timeout_s=0.1)
        assert await client.fetch(2, 10) == b"\x02" * 10


async def test_work_for_a_request_ends_at_its_timeout():
    ended = trio.Event()

    async def serve(host, get):
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with serving(serve) as (_server, address):
        stream = await dial(address)
        await stream.send_all(HELLO)
        await stream.send_all(get_of(request_id=7, timeout_ms=50))
        to = peer_receiver.Receiver("server", peer_wire.FROM_SERVER)
        messages = []
        with trio.fail_after(2):
            while len(messages) < 2:
                messages += to.feed_bytes(await stream.receive_some())
        assert ended.is_set()
        assert messages[1].request_id == 7 and messages[1].code == peer_wire.RefuseCode.UNREACHABLE
        await stream.aclose()


async def test_requests_over_the_limit_wait_in_the_socket():
    limits = peer_network.PeerLimits(host_requests=4)
    active, most, release = 0, 0, trio.Event()

    async def serve(host, get):
        nonlocal active, most
        active += 1
        most = max(most, active)
        await release.wait()
        active -= 1
        return bytes(get.length)

    async with serving(serve, limits=limits) as (_server, address):
        stream = await dial(address)
        await stream.send_all(HELLO)
        for request_id in range(40):
            await stream.send_all(get_of(request_id=request_id, length=len(DATA)))
            await trio.sleep(0.001)
        assert active == 4
        release.set()
        await wait_until(lambda: active == 0)
        await stream.aclose()
    assert most == 4


# Connections


async def test_idle_connection_is_closed_and_reopened():
    async with both(limits=QUICK) as (client, server):
        await client.fetch()
        await wait_until(
            lambda: client.net.connection_counts[1] == 0 and server.connection_counts[0] == 0
        )
        await client.fetch()


async def test_server_closes_idle_connections_too():
    async with serving(limits=QUICK) as (server, address):
        stream = await dial(address)
        await stream.send_all(HELLO)
        with trio.fail_after(2):
            while await stream.receive_some():
                pass
        assert server.connection_counts[0] == 0
        await stream.aclose()


async def test_idle_connection_is_closed_for_a_new_one():
    limits = peer_network.PeerLimits(outgoing=1)
    async with both(limits=limits) as (client, _server):
        await client.fetch(priority=PEER)
        await client.fetch(priority=PREFETCH)
        await wait_until(lambda: client.net.connection_counts[1] == 1)


async def test_outgoing_connections_are_limited():
    async def serve(host, get):
        await trio.sleep_forever()

    async with both(serve, limits=peer_network.PeerLimits(outgoing=1)) as (client, server):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.fetch)
            await wait_until(lambda: server._budgets.requests.used == 1)
            with pytest.raises(errors.SourceUnreachable, match="in use"):
                await client.fetch(priority=PREFETCH)
            nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def one_idle_connection():
    """Yield a client with the one connection that it may have, its server's address, and it."""

    async def handler(stream):
        await stream.send_all(SERVER_HELLO)
        await trio.sleep_forever()

    limits = peer_network.PeerLimits(outgoing=1)
    async with faking(handler) as address, asking(address, limits=limits) as client:
        idle = client.net._channel_to(SERVER, address, DEMAND)
        await wait_until(lambda: idle.connection)
        yield client, address, idle


async def test_outgoing_connections_are_limited_within_one_loop_turn():
    async with one_idle_connection() as (client, address, idle):
        for number in range(6):
            client.net.send_announcement(
                f"h{number}.example", address, peer_wire.Gone(announced.alone(1))
            )
        left = [line.host for line in client.net._channels.values() if line.is_open]
        assert left == ["h0.example"] and idle.connection.is_closed


async def test_replacement_of_a_closed_connection_counts_against_the_limit():
    async with one_idle_connection() as (client, address, idle):
        dialled = client.net._channel_to(CLIENT, address, DEMAND)
        assert idle.connection.is_closed
        with pytest.raises(errors.SourceUnreachable, match="in use"):
            client.net._channel_to(SERVER, address, DEMAND)
        assert [line for line in client.net._channels.values() if line.is_open] == [dialled]


@pytest.mark.parametrize("limits", [{"of_host": 2}, {"of_host": 9, "incoming": 2}])
async def test_incoming_connections_are_limited_within_one_loop_turn(limits):
    async with (
        serving(limits=peer_network.PeerLimits(**limits)) as (server, address),
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(3):
            streams = [await dial(address) for _ in range(8)]
            await trio.testing.wait_all_tasks_blocked(0.05)
            for stream in streams:  # without a turn between them
                stack.push_async_callback(stream.aclose)
                os.write(stream.socket.fileno(), HELLO)
            for stream in streams:
                assert await stream.receive_some() == SERVER_HELLO
            await wait_until(lambda: not any(line.is_closed for line in server._incoming))
            assert server.connection_counts[0] == 2


async def test_incoming_connections_are_limited():
    async with both(server_limits=peer_network.PeerLimits(incoming=1)) as (client, server):
        await client.fetch(priority=PEER)
        await client.fetch(priority=PREFETCH)  # the other one was idle
        assert server.connection_counts[0] == 1


async def test_moved_host_is_contacted_at_its_new_address():
    async with serving() as (old, old_address), serving() as (new, new_address):
        async with asking(old_address) as client:
            await client.fetch()
            client.address = new_address
            await client.fetch()
            await wait_until(lambda: (old.connection_counts[0], new.connection_counts[0]) == (0, 1))


async def test_peer_that_does_not_listen_is_unreachable():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        async with asking(f"127.0.0.1:{bound.getsockname()[1]}") as client:
            with pytest.raises(errors.SourceUnreachable, match="refused"):
                await client.fetch()


async def test_lost_connection_fails_all_fetches_in_flight():
    async def handler(stream):
        await stream.send_all(SERVER_HELLO)
        await trio.sleep(0.1)
        linger = struct.pack("ii", 1, 0)  # close() sends a reset
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    failed = []
    async with faking(handler) as address, asking(address) as client:

        async def ask():
            with pytest.raises(errors.SourceUnreachable):
                await client.fetch()
            failed.append(1)

        with trio.fail_after(1):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(ask)
    assert len(failed) == 10


async def test_half_close_in_the_middle_of_a_chunk_fails_the_fetch():
    async def handler(stream):
        await stream.send_all(SERVER_HELLO)
        await stream.receive_some()
        await stream.send_all(peer_wire.encode(peer_wire.Chunk(1, bytes(65536)))[0] + bytes(1000))
        await stream.send_eof()
        await trio.sleep_forever()

    async with faking(handler) as address, asking(address) as client:
        with pytest.raises(errors.SourceUnreachable, match="closed"), trio.fail_after(1):
            await client.fetch()


async def test_peer_that_stops_in_the_middle_of_a_chunk_is_dropped():
    begun = peer_wire.encode(peer_wire.Chunk(1, bytes(65536)))[0] + bytes(1000)
    async with faking(answering(begun)) as address, asking(address, limits=QUICK) as client:
        with pytest.raises(errors.SourceUnreachable, match="no data was transferred"):
            await client.fetch()


async def test_peer_that_sends_a_chunk_slowly_but_steadily_is_not_dropped():
    async def handler(stream):
        await stream.send_all(SERVER_HELLO)
        await stream.receive_some()
        head, body = peer_wire.encode(peer_wire.Chunk(1, bytes(2 << 20)))
        await stream.send_all(head)
        for start in range(0, len(body), 1 << 18):
            await stream.send_all(body[start : start + (1 << 18)])
            await trio.sleep(0.06)
        await trio.sleep_forever()

    async with faking(handler) as address, asking(address, limits=QUICK) as client:
        assert await client.fetch(0, 2 << 20) == bytes(2 << 20)


async def test_client_with_requests_queued_at_the_server_is_not_dropped():
    async def serve(host, get):
        await trio.sleep(0.5)
        return bytes(get.length)

    limits = dataclasses.replace(QUICK, host_requests=1, idle_s=5.0)
    async with serving(serve, limits=limits) as (_server, address):
        stream = await dial(address)
        await stream.send_all(HELLO + get_of())
        await stream.send_all(get_of(request_id=1)[:50])
        to = peer_receiver.Receiver("server", peer_wire.FROM_SERVER)
        messages = []
        with trio.fail_after(2):
            while len(messages) < 2:
                messages += to.feed_bytes(await stream.receive_some())
        await stream.aclose()


@pytest.mark.expect_log("Refer where none was allowed")
async def test_unallowed_referral_is_a_protocol_error():
    referral = b"".join(peer_wire.encode(peer_wire.Refer(1, ("h9",))))
    async with faking(answering(referral)) as address, asking(address) as client:
        with pytest.raises(errors.RemoteProtocolError, match="Refer"):
            await client.fetch()


async def test_frozen_peer_times_out_after_silence():
    async def handler(stream):
        await stream.send_all(SERVER_HELLO)
        await trio.sleep_forever()

    async with faking(handler) as address, asking(address, limits=QUICK) as client:
        began = trio.current_time()
        with pytest.raises(errors.SourceUnreachable, match="no data was transferred"):
            await client.fetch(timeout_s=10)
        assert trio.current_time() - began < 5 * QUICK.silence_s


async def test_peer_that_works_long_on_an_answer_does_not_time_out():
    async def serve(host, get):
        await trio.sleep(5 * QUICK.silence_s)
        return bytes(get.length)

    limits = dataclasses.replace(QUICK, idle_s=10.0)
    async with both(serve, limits=limits, server_limits=limits) as (client, _server):
        assert await client.fetch(timeout_s=10) == bytes(65536)


async def test_client_that_does_not_read_its_answers_is_dropped():
    async with serving(limits=QUICK) as (server, address):
        stream = await dial(address)
        await stream.send_all(HELLO)
        for request_id in range(40):
            await stream.send_all(get_of(request_id=request_id, length=len(DATA)))
        await wait_until(lambda: server.connection_counts[0] == 1)
        await wait_until(lambda: server.connection_counts[0] == 0)
        await stream.aclose()


async def test_close_fails_requests_in_flight():
    async def serve(host, get):
        await trio.sleep_forever()

    async with both(serve) as (client, server):
        async with trio.open_nursery() as nursery:

            async def ask():
                with pytest.raises(errors.SourceUnreachable):
                    await client.fetch()

            nursery.start_soon(ask)
            await wait_until(lambda: server.connection_counts[0] == 1)
            await client.net.aclose()


# Peers that break the protocol


@pytest.mark.expect_log(r"127.0.0.1:\d+ dropped: .*broke the protocol")
@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + os.urandom(512),
        b"AC\x03\x03\xff\xff\xff\xff",
        b"AC\x01" + HELLO[3:],
    ],
    ids=["http", "tls", "oversized", "version"],
)
async def test_garbage_closes_only_the_connection_of_its_sender(garbage):
    async with both() as (client, server):
        await client.fetch()
        stream = await dial(client.address)
        await stream.send_all(garbage)
        with trio.fail_after(2), contextlib.suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass
        await stream.aclose()
        assert len(await client.fetch()) == 65536
        assert server.connection_counts[0] == 1


@pytest.mark.expect_log("client.example .* broke the protocol")
@pytest.mark.parametrize(
    "frames",
    [
        HELLO,
        b"AC\x03\x02\x00\x00\x00\x01x",
        b"AC\x03\x63\xff\xff\xff\xff",
        2 * get_of(request_id=7, timeout_ms=50),
    ],
    ids=["hello twice", "short get", "oversized", "same id twice"],
)
async def test_client_that_breaks_the_protocol_after_hello_is_dropped(frames):
    async with serving() as (server, address):
        stream = await dial(address)
        await stream.send_all(HELLO)
        assert await stream.receive_some() == SERVER_HELLO
        await stream.send_all(frames)
        with trio.fail_after(2), contextlib.suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass
        await stream.aclose()
        await wait_until(lambda: server.connection_counts[0] == 0)


@pytest.mark.expect_log("server.example .* broke the protocol")
async def test_sweep_continues_after_a_connection_that_was_just_dropped(monkeypatch):
    """A peer could cause this; an exception in the sweep would end the agent."""
    often = peer_network.PeerLimits(silence_s=0.0)  # in each turn of the loop
    is_stuck = base_connection.PeerConnection.is_stuck
    monkeypatch.setattr(
        base_connection.PeerConnection, "is_stuck", lambda *args: is_stuck(*args) and False
    )
    no_chunks = b"AC\x03\x03\x00\x00\x00\x10\x00"

    async def handler(stream):
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(SERVER_HELLO)
            await stream.receive_some()
            await stream.send_all(no_chunks)
            await trio.sleep_forever()

    async with faking(handler) as address, asking(address, limits=often) as client:
        for _ in range(20):
            with pytest.raises(errors.RemoteProtocolError):
                await client.fetch()


@pytest.mark.expect_log("a check of connections (to|from) peers has failed")
@pytest.mark.expect_log("a check of peers' certificates has failed")
async def test_exceptions_in_periodic_checks_do_not_fail_fetches(monkeypatch):
    """The exception is unexpected, in loops that check all connections."""

    def fail(*args):
        raise ValueError("unforeseen")

    monkeypatch.setattr(base_connection.PeerConnection, "is_stuck", fail)
    monkeypatch.setattr(periodic_checks.Reauthorization, "_check", fail)
    often = peer_network.PeerLimits(silence_s=0.04, check_interval_s=0.01)
    async with both(limits=often, server_limits=often) as (client, server):
        for _ in range(5):
            assert len(await client.fetch()) == 65536
            await trio.sleep(0.05)
        assert client.net.faults.count and server.faults.count


@pytest.mark.expect_log("no Hello in time")
async def test_slow_loris_is_dropped():
    async with serving(limits=QUICK) as (server, address):
        stream = await dial(address)
        with trio.fail_after(2), contextlib.suppress(trio.BrokenResourceError):
            for byte in HELLO[:20]:
                await stream.send_all(bytes([byte]))
                await trio.sleep(0.03)
        assert server.connection_counts[0] == 0
        await stream.aclose()


async def test_server_that_never_says_hello_is_unreachable():
    async def handler(stream):
        await trio.sleep_forever()

    async with faking(handler) as address, asking(address, limits=QUICK) as client:
        with pytest.raises(errors.SourceUnreachable, match="cannot connect"):
            await client.fetch()


LYING_ANSWERS = {
    "garbage": (b"garbage garbage", "no frame begins"),
    "wrong length": (b"".join(peer_wire.encode(peer_wire.Chunk(1, b"short"))), "5 bytes where"),
    "wrong side": (peer_wire.encode(peer_wire.Cancel((1,)))[0], "wrong direction"),
    "oversized": (b"AC\x03\x03\xff\xff\xff\xff", "Chunk with a body"),
}


@pytest.mark.expect_log("server.example .* broke the protocol")
@pytest.mark.parametrize("name", LYING_ANSWERS)
async def test_server_that_breaks_the_protocol_is_named_and_dropped(name):
    data, why = LYING_ANSWERS[name]

    async def handler(stream):
        await stream.send_all(SERVER_HELLO)
        await stream.receive_some()
        await trio.sleep(0.05)
        await stream.send_all(data)
        await trio.sleep_forever()

    async with faking(handler) as address, asking(address) as client:
        with pytest.raises(errors.RemoteProtocolError, match=why) as caught:
            await client.fetch()
        assert SERVER in caught.value.what
        await wait_until(lambda: client.net.connection_counts[1] == 0)


@pytest.mark.expect_log("this is server.example")
async def test_another_host_at_the_address_is_a_protocol_error():
    async with both() as (client, _server):
        with pytest.raises(errors.RemoteProtocolError, match=r"this is server\.example, not"):
            await client.fetch(host=ids.HostId("other.example"))


# Lost announcements


async def test_announcement_to_an_unreachable_host_is_reported_lost():
    unheard = []
    async with serving() as (_server, address):
        pass
    async with asking(address, reported={"on_announcement_lost": unheard.append}) as client:
        client.net.send_announcement(SERVER, address, peer_wire.Gone(announced.alone(1)))
        await wait_until(lambda: unheard)
        with pytest.raises(errors.SourceUnreachable):
            await client.fetch(priority=PREFETCH)
    assert unheard == [SERVER]  # a failed request is no lost announcement


async def test_announcements_pause_after_a_failed_dial_but_requests_dial_at_once():
    dials, unheard = [], []

    async def handler(stream):
        dials.append(stream)  # and it closes

    async with (
        faking(handler) as address,
        asking(address, reported={"on_announcement_lost": unheard.append}) as client,
    ):
        for number in range(1, 31):
            client.net.send_announcement(SERVER, address, peer_wire.Gone(announced.alone(number)))
            await trio.sleep(0.005)
        assert len(dials) == 1 and set(unheard) == {SERVER}
        with pytest.raises(errors.SourceUnreachable):
            await client.fetch(priority=PREFETCH)
        assert len(dials) == 2


async def test_announcements_dial_again_after_the_pause(monkeypatch):
    monkeypatch.setattr(failed_dials, "REDIAL_S", 0.2)
    heard, unheard = [], []
    async with serving() as (server, address):
        server.set_callbacks(on_announcement=lambda host, message: heard.append(message))
        async with asking(address, reported={"on_announcement_lost": unheard.append}) as client:
            client.net._failed_dials.dial_failed(SERVER, address)
            one, two = (peer_wire.Gone(announced.alone(number)) for number in (1, 2))
            client.net.send_announcement(SERVER, address, one)
            assert unheard == [SERVER] and client.net.connection_counts == (0, 0)
            await trio.sleep(0.3)
            client.net.send_announcement(SERVER, address, two)
            await wait_until(lambda: heard)
    assert heard == [two] and unheard == [SERVER]


async def test_announcements_use_a_connection_that_requests_opened_despite_the_pause():
    heard = []
    async with serving() as (server, address), asking(address) as client:
        server.set_callbacks(on_announcement=lambda host, message: heard.append(message))
        client.net._failed_dials.dial_failed(SERVER, address)
        await client.fetch(priority=PREFETCH)
        client.net.send_announcement(SERVER, address, peer_wire.Gone(announced.alone(1)))
        await wait_until(lambda: heard)


@pytest.mark.expect_log("Connection to server.example .* dropped: Hello .* not on the table")
async def test_warnings_of_rejected_servers_are_rate_limited_by_host(caplog):
    nobody = admission.Admission(lambda host, not_before_s: "it is not on the table")
    async with serving() as (_server, address), asking(address, admission=nobody) as client:
        for _ in range(5):
            with pytest.raises(errors.SourceUnreachable, match="not on the table"):
                await client.fetch()
    assert len([one for one in caplog.records if "Connection to" in one.getMessage()]) == 1


async def test_announcement_is_reported_lost_when_its_host_disconnects():
    unheard = []
    async with (
        serving() as (server, address),
        asking(address, reported={"on_announcement_lost": unheard.append}) as client,
    ):
        client.net.send_announcement(SERVER, address, peer_wire.Gone(announced.alone(1)))
        await client.fetch(priority=PREFETCH)
        assert not unheard
        await server.aclose()
        await wait_until(lambda: unheard)
    assert unheard == [SERVER]


async def test_announcement_is_not_lost_when_an_idle_connection_closes():
    unheard = []
    async with serving() as (_server, address):
        async with asking(
            address, limits=QUICK, reported={"on_announcement_lost": unheard.append}
        ) as client:
            client.net.send_announcement(SERVER, address, peer_wire.Gone(announced.alone(1)))
            await client.fetch(priority=PREFETCH)
            await wait_until(lambda: client.net.connection_counts == (0, 0))
    assert not unheard
