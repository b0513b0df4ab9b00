# SPDX-License-Identifier: Apache-2.0
"""Limits on what peers and unauthenticated connections cost a host, over TCP on the loopback."""

import contextlib
import dataclasses
import math
import socket
import uuid

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core import budget
from acstor_agent.peers import peer_network
from acstor_agent.peers import unauthenticated_connections
from acstor_agent.peers.connection import base_connection
from acstor_agent.peers.connection import loop_share
from acstor_agent.peers.connection import server_connection
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import log_limit
from acstor_common.util import token_buckets
from acstor_common.wire.peer import peer_wire
from acstor_common.wire.peer import replica_messages
from tests.fakes import admission
from tests.fakes import announced
from tests.fakes import request_server
from tests.fakes import task_switches
from tests.unit.agent import test_peer_network as nets

DATA, DEMAND, BULK = nets.DATA, nets.DEMAND, nets.BULK


def hello(name, klass=DEMAND):
    return b"".join(peer_wire.encode(peer_wire.Hello(ids.HostId(name), klass, 1)))


@contextlib.asynccontextmanager
async def deaf(address, name, requests, length=65536):
    """Be a host that sends requests and does not read."""
    stream = await nets.dial(address)
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    gets = [nets.get_of(request_id=number, length=length) for number in range(requests)]
    with trio.move_on_after(0.3):  # the rest waits in the sockets
        await stream.send_all(hello(name) + b"".join(gets))
    yield stream
    await trio.aclose_forcefully(stream)


async def test_non_reading_hosts_stay_within_the_total_of_answer_bytes():
    limits = peer_network.PeerLimits(answer_bytes=4 << 20, host_answer_bytes=2 << 20)
    async with nets.serving(limits=limits) as (server, address), contextlib.AsyncExitStack() as st_:
        async with trio.open_nursery() as nursery:

            async def one(number):
                await st_.enter_async_context(deaf(address, f"h{number}", 200))

            for number in range(8):
                nursery.start_soon(one, number)
        held = server._budgets.bytes
        await nets.wait_until(lambda: held.used > 1 << 20)
        assert held.used <= 4 << 20
        assert sum(c.outbox_bytes for c in server._incoming) <= 4 << 20
        async with nets.asking(address) as client:
            assert len(await client.fetch(0, 65536)) == 65536
        assert held.used <= 4 << 20
    assert held.used == server._budgets.requests.used == 0  # all connections have ended


@pytest.mark.expect_log("broke the protocol: GET")
async def test_run_of_one_host_stays_within_the_host_limit_of_answer_bytes():
    """The server reserves the bytes of an answer before it knows whether the host may have it."""
    limits, most = peer_network.PeerLimits(), peer_wire.MAX_DATA_BYTES
    head = nets.get_of()[: -peer_wire.PROOF_BYTES - 8]
    frame = head + (31 * most).to_bytes(4, "big") + most.to_bytes(4, "big") + nets.PROOF

    async def never(host, get):
        await trio.sleep_forever()

    async with nets.serving(never, limits=limits) as (server, address):
        stream = await nets.dial(address)
        await stream.send_all(hello("h1") + frame)
        with trio.move_on_after(0.2), contextlib.suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass
        assert server._budgets.bytes.used <= limits.host_answer_bytes
        await trio.aclose_forcefully(stream)


async def test_urgent_request_is_served_beside_blocked_bulk_requests():
    limits = peer_network.PeerLimits(host_requests=2)

    async def serve(host, get):
        if get.offset:
            await trio.sleep_forever()
        return bytes(get.length)

    async with nets.serving(serve, limits=limits) as (_server, address):
        async with nets.asking(address) as client, trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(
                    lambda: client.fetch(1, 10, priority=nets.PREFETCH, timeout_s=60)
                )
            await trio.sleep(0.05)
            assert await client.fetch(0, 10, priority=nets.PEER) == bytes(10)
            nursery.cancel_scope.cancel()


async def test_total_of_open_requests_is_limited():
    active, most = 0, 0

    async def serve(host, get):
        nonlocal active, most
        active += 1
        most = max(most, active)
        try:
            await trio.sleep_forever()
        finally:
            active -= 1

    limits = peer_network.PeerLimits(requests=20, host_requests=15, silence_s=0.4)
    async with nets.serving(serve, limits=limits) as (server, address):
        async with contextlib.AsyncExitStack() as stack:
            for number in range(8):
                await stack.enter_async_context(deaf(address, f"h{number}", 15))
            await nets.wait_until(lambda: most > 10)
            await trio.sleep(0.1)
            assert most <= 20
            assert server._budgets.requests.used == active
        await nets.wait_until(lambda: not active)
        await nets.wait_until(lambda: not server._budgets.requests.used)


async def test_client_that_reads_an_answer_too_slowly_is_dropped():
    limits = peer_network.PeerLimits(silence_s=5.0, idle_s=0.4, serve_s=0.5)
    async with nets.serving(limits=limits) as (server, address):
        async with deaf(address, "h1", 20, len(DATA)) as stream:
            await nets.wait_until(lambda: server.connection_counts[0] == 1)
            with trio.fail_after(5):
                while server.connection_counts[0]:
                    with contextlib.suppress(trio.BrokenResourceError):
                        await stream.receive_some(100)
                    await trio.sleep(0.01)


async def test_refusals_queued_for_a_non_reading_client_are_bounded():

    class Refusing(request_server.TaskServer):
        def requests_received(self, connection, requests, arrived_s):
            missing = peer_wire.RefuseCode.MISSING
            connection.send_answers([peer_wire.Refuse(one.request_id, missing) for one in requests])

    limits = dataclasses.replace(nets.TALKATIVE, answer_bytes=1 << 20, host_answer_bytes=1 << 18)
    net = peer_network.PeerNetwork(nets.SERVER, limits=limits, admission=nets.EVERYBODY)
    # Requests for one byte each, more than the sockets and the other side have room for.
    sent = hello("h1") + b"".join(nets.get_of(request_id=n, length=1) for n in range(50_000))
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        listeners[0].socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await nursery.start(net.serve_forever, Refusing(nets.serve_data, nursery), listeners)
        stream = await nets.dial(nets.address_of(listeners[0]))
        nursery.start_soon(send_until_closed, stream, sent)
        await nets.wait_until(lambda: any(c._is_full for c in net._incoming), 60.0)
        [connection] = net._incoming
        held = len(connection._outbox) * server_connection.MESSAGE_BYTES + connection.outbox_bytes
        assert 1 << 17 < held <= 1 << 18
        await trio.aclose_forcefully(stream)
        await net.aclose()


async def send_until_closed(stream, sent):
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.send_all(sent)


# Connections


@pytest.mark.expect_log("no Hello in time")
@pytest.mark.allow_log("closed before Hello")
@pytest.mark.allow_log("has been closed")
@pytest.mark.allow_log("EOF occurred in violation of protocol")  # the words of OpenSSL 3.5
@pytest.mark.parametrize("secure", [False, True], ids=["clear text", "silent before TLS"])
async def test_unauthenticated_connections_do_not_keep_out_a_host(secure, tmp_path):
    tls = {nets.SERVER: None, nets.CLIENT: None}
    if secure:
        from tests.unit.agent import test_peer_security as security

        tls = {host: security.Identity(tmp_path, host).read() for host in tls}
    async with nets.serving(tls=tls[nets.SERVER]) as (server, address):
        unauthenticated = [await nets.dial(address) for _ in range(300)]
        await nets.wait_until(
            lambda: server.connection_counts[0] == peer_network.PeerLimits().unauthenticated
        )
        async with nets.asking(address, tls=tls[nets.CLIENT]) as client:
            began = trio.current_time()
            assert len(await client.fetch()) == 65536
            assert trio.current_time() - began < 1.0
            assert server.connection_counts[0] <= peer_network.PeerLimits().unauthenticated + 1
        for stranger in unauthenticated:
            await trio.aclose_forcefully(stranger)


@pytest.mark.expect_log("dropped")
async def test_log_lines_about_dropped_connections_are_rate_limited(caplog, autojump_clock):
    said = unauthenticated_connections.UnauthenticatedConnections(4, 1.0, admission.Admission())
    for number in range(1000):
        said.log_drops(f"fd00::{number:x}", "somebody", "it is of no use")
        said.log_drops("fd00::1", "somebody", f"no frame begins with {number}")
    assert (
        len(caplog.records) == unauthenticated_connections.LOG_LINES
        and len(said._drop_log) <= log_limit.MAX_KEYS
    )
    await trio.sleep(unauthenticated_connections.LOG_INTERVAL_S)
    said.log_drops("fd00::1", "somebody", "it is of no use")
    assert "1968 more connections" in caplog.records[-2].getMessage()


@pytest.mark.expect_log("broke the protocol")
async def test_repeated_protocol_violations_of_a_host_are_logged_once(caplog):
    async with nets.serving() as (server, address):
        for _ in range(5):
            stream = await nets.dial(address)
            await stream.send_all(hello("h1") + b"garbage garbage")
            with trio.fail_after(2), contextlib.suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass
            await stream.aclose()
        await nets.wait_until(lambda: server.connection_counts[0] == 0)
    assert len([r for r in caplog.records if "broke the protocol" in r.getMessage()]) == 1


async def test_flood_of_small_messages_leaves_loop_turns_to_other_tasks():
    async with nets.serving(limits=nets.TALKATIVE) as (_server, address):
        stream = await nets.dial(address)
        pings = b"".join(peer_wire.encode(peer_wire.Ping(n))[0] for n in range(20_000))
        await stream.send_all(hello("h1"))
        await stream.receive_some()

        async def read():
            got = 0
            while got < len(pings):
                got += len(await stream.receive_some())

        async with task_switches.taken_beside() as others, trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await stream.send_all(pings)
        assert others.turns > 20_000 / base_connection.PARTS_PER_TURN / 2
        await stream.aclose()


@pytest.mark.parametrize(
    "message",
    [peer_wire.Ping(1), peer_wire.Pong(1), peer_wire.Cancel((1, 2))],
    ids=["Ping", "Pong", "Cancel of nothing"],
)
async def test_small_messages_are_read_at_the_rate_limit_of_their_host(message):
    """The burst is 1,000 of 20,000 messages."""
    rate = token_buckets.Rate(per_s=1e-3, burst=1000.0)
    async with nets.serving(limits=peer_network.PeerLimits(small_messages=rate)) as (
        server,
        address,
    ):
        flooding = await nets.dial(address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flooding.send_all, hello("h1") + frame(message) * 20_000)
            await nets.wait_until(lambda: any(c._is_full for c in server._incoming), 30.0)
            level = server._share._small.tokens_left(
                (ids.HostId("h1"), DEMAND), trio.current_time()
            )
            assert -1000.0 <= level < 1.0
            async with nets.asking(address) as client:
                assert await client.fetch(0, 10) == DATA[:10]
            nursery.cancel_scope.cancel()
        await trio.aclose_forcefully(flooding)


def frame(message):
    return b"".join(peer_wire.encode(message))


def test_one_cancel_or_priority_raise_per_open_request_is_free():
    get = peer_wire.Get((nets.REQUEST._replace(request_id=7),))
    cancels = [peer_wire.Cancel((number,)) for number in (1, 2, 7, 8)]
    assert loop_share.small_messages([get]) == 0
    assert loop_share.small_messages([get, *cancels], {1, 2}) == 1
    assert loop_share.small_messages([get, *cancels, *cancels], {1, 2}) == 5
    assert loop_share.small_messages([peer_wire.RaisePriority((1, 9)), peer_wire.Ping(1)], {1}) == 1


async def test_host_is_charged_for_missing_refusals_but_not_for_busy_ones():
    # The refill is slow, so that charges stay visible.
    rate = token_buckets.Rate(per_s=0.01, burst=100.0)
    limits = peer_network.PeerLimits(small_messages=rate)

    class Refusing(request_server.TaskServer):
        def requests_received(self, connection, requests, arrived_s):
            connection.send_answers(
                [peer_wire.Refuse(one.request_id, self.code) for one in requests]
            )

    async with trio.open_nursery() as nursery:
        giver = Refusing(nets.serve_data, nursery)
        async with nets.serving(handler=giver, limits=limits) as (server, address):
            async with nets.asking(address) as client:
                levels = []
                for giver.code in (peer_wire.RefuseCode.BUSY, peer_wire.RefuseCode.MISSING):
                    for _ in range(20):
                        with pytest.raises(errors.ChunkUnavailable):
                            await client.fetch(0, 10)
                    sharer = nets.CLIENT, DEMAND
                    levels.append(server._share._small.tokens_left(sharer, trio.current_time()))
        paid = 20 * loop_share.REFUSAL_PRICE
        assert levels == [rate.burst, pytest.approx(rate.burst - paid, abs=1.0)]


async def test_host_is_charged_for_refusals_that_exceed_its_own_limits():
    class Refusing(request_server.TaskServer):
        def requests_received(self, connection, requests, arrived_s):
            busy = peer_wire.RefuseCode.BUSY
            connection.charge_refusal()
            connection.send_answers([peer_wire.Refuse(one.request_id, busy) for one in requests])

    rate = token_buckets.Rate(per_s=0.01, burst=100.0)
    limits = peer_network.PeerLimits(small_messages=rate)
    async with trio.open_nursery() as nursery:
        giver = Refusing(nets.serve_data, nursery)
        async with nets.serving(handler=giver, limits=limits) as (server, address):
            async with nets.asking(address) as client:
                with pytest.raises(errors.ChunkUnavailable):
                    await client.fetch(0, 10)
                left = server._share._small.tokens_left((nets.CLIENT, DEMAND), trio.current_time())
    assert left == pytest.approx(rate.burst - loop_share.REFUSAL_PRICE, abs=0.1)


LEASES = peer_wire.ReplicaRequest(
    tuple([replica_messages.Lease(ids.ImageId(str(uuid.UUID(int=n))), 60) for n in range(256)])
)
SHARES = peer_wire.ReplicaReport(
    1,
    tuple(
        [
            replica_messages.ImageShare(lease.image_id, replica_messages.ShareState.KEPT, 1, 1)
            for lease in LEASES.leases[:128]
        ]
    ),
)
SEGMENTS = peer_wire.Advertise(announced.alone(*range(1, 513)))


@pytest.mark.parametrize(
    ("message", "tokens"),
    [(LEASES, 17), (SHARES, 9), (SEGMENTS, 1)],
    ids=["leases", "shares", "segments"],
)
async def test_message_of_many_leases_or_shares_costs_as_much_as_several(
    message, tokens, monkeypatch
):
    monkeypatch.setattr(server_connection, "NOTIFICATIONS", token_buckets.Rate(1e-3, 2 * 17))
    heard = []
    async with nets.serving() as (server, address):
        server.set_callbacks(on_announcement=lambda host, message: heard.append(message))
        async with nets.asking(address) as client:
            for _ in range(6):
                client.net.send_announcement(nets.SERVER, address, message)
            expected = min(6, math.ceil(2 * 17 / tokens))
            await nets.wait_until(lambda: len(heard) >= expected)
            await trio.sleep(0.1)
    assert heard == expected * [message]


@pytest.mark.parametrize(
    "message", [LEASES, SHARES, SEGMENTS], ids=["leases", "shares", "segments"]
)
async def test_messages_with_many_entries_are_handled_in_separate_loop_turns(message):
    class Turns(trio.abc.Instrument):
        count = 0

        def before_io_wait(self, timeout):
            self.count += 1

    turns, at = Turns(), []
    async with nets.serving() as (server, address):
        server.set_callbacks(on_announcement=lambda host, message: at.append(turns.count))
        stream = await nets.dial(address)
        await stream.send_all(hello("h1", BULK))
        await stream.receive_some()
        trio.lowlevel.add_instrument(turns)
        await stream.send_all(frame(message) * 4)
        await nets.wait_until(lambda: len(at) == 4)
        trio.lowlevel.remove_instrument(turns)
        await trio.aclose_forcefully(stream)
    assert len(set(at)) == 4


@pytest.mark.expect_log("no Hello in time")
@pytest.mark.allow_log("closed before Hello")
@pytest.mark.allow_log("has been closed")
async def test_unauthenticated_connections_of_the_busiest_address_are_dropped():
    async with nets.serving(limits=peer_network.PeerLimits(unauthenticated=4)) as (server, address):
        ip, port = address.split(":")
        lone = await trio.open_tcp_stream(ip, int(port), local_address="127.0.0.2")
        crowd = [await nets.dial(address) for _ in range(20)]
        await trio.sleep(0.1)
        await lone.send_all(hello("h1"))
        assert await lone.receive_some() == nets.SERVER_HELLO
        assert server.unauthenticated.dropped == 17  # one by one, of 21; four stayed
        for stream in (*crowd, lone):
            await trio.aclose_forcefully(stream)


async def test_newer_connections_of_a_host_replace_older_ones():
    async with nets.serving() as (server, address):
        streams = []
        for _ in range(6):
            streams.append(await nets.dial(address))
            await streams[-1].send_all(hello("h1"))
            assert await streams[-1].receive_some() == nets.SERVER_HELLO
        await nets.wait_until(lambda: server.connection_counts[0] == 2)
        bulk = await nets.dial(address)
        await bulk.send_all(hello("h1", BULK))
        await bulk.receive_some()
        assert server.connection_counts[0] == 3
        ended = []
        for stream in streams[:4]:
            with trio.fail_after(2):
                ended.append(await stream.receive_some())
        assert ended == [b""] * 4
        for stream in [*streams, bulk]:
            await trio.aclose_forcefully(stream)


# The budget


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40)), max_size=80))
def test_budget_never_exceeds_its_total_and_admits_a_newcomer(wishes):
    shared = budget.Budget(total=100, user_limit=70)
    for sharer, amount in wishes:
        if shared.may_take(sharer, amount):
            shared.charge(sharer, amount)
        assert shared.used <= 100
    if shared.used <= 99:
        assert shared.may_take("newcomer", 100 - shared.used)
    for sharer, amount in list(shared._taken.items()):
        shared.charge(sharer, -amount)
    assert shared.used == 0 and not shared._taken


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40)), max_size=20),
    st.lists(st.integers(1, 20), min_size=1, max_size=8),
)
def test_budget_that_admits_parts_together_admits_each_in_turn(wishes, parts):
    shared = budget.Budget(total=100, user_limit=70)
    for sharer, amount in wishes:
        if shared.may_take(sharer, amount):
            shared.charge(sharer, amount)
    may_take = shared.may_take_in_parts(0, sum(parts))
    for amount in parts:
        if not shared.may_take(0, amount):
            assert not may_take
            break
        shared.charge(0, amount)


def test_greedy_users_get_shrinking_shares_of_the_budget():
    shared = budget.Budget(total=128, user_limit=128)
    for sharer in ("greedy", "second", "third"):
        while shared.may_take(sharer, 1):
            shared.charge(sharer, 1)
    assert [shared._taken[name] for name in ("greedy", "second", "third")] == [48, 24, 12]
