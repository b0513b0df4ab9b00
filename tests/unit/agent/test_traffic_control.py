# SPDX-License-Identifier: Apache-2.0
"""Rate limits and DSCP marks of traffic between agents, in virtual time and over TCP."""

import dataclasses
import math
import socket

import pytest
import trio

from acstor_agent.peers import peer_network
from acstor_agent.peers import traffic_control
from acstor_common.model import geometry
from acstor_common.wire.peer import peer_wire
from tests.unit.agent import test_peer_network as nets
from tests.unit.agent import test_peer_security as security

CHUNK = 64 * geometry.KIB
RATE = 2e6
WAYS = ("upload", "download")
BOTH_CLASSES = (peer_wire.Priority.PEER, peer_wire.Priority.PREFETCH)


def capped(way, bytes_s=RATE):
    """Return a rate limit for one direction."""
    up, down = (traffic_control.TrafficLimiter(bytes_s if way == one else math.inf) for one in WAYS)
    return traffic_control.TrafficControl(up, down)


async def test_total_traffic_stays_within_the_rate(autojump_clock):
    pace, moved = traffic_control.TrafficLimiter(RATE), []

    async def move(size):
        while True:
            await pace.wait()
            pace.charge_bytes(size)
            moved.append(size)

    with trio.move_on_after(10.0):
        async with trio.open_nursery() as nursery:
            for size in (100, 5_000, 400_000):
                nursery.start_soon(move, size)
    assert 10 * RATE <= sum(moved) <= (10 + traffic_control.BURST_S) * RATE + 400_000
    counts = [moved.count(size) for size in (100, 5_000, 400_000)]
    assert (
        max(counts) - min(counts) <= 2 * traffic_control.BURST_S * RATE / 100
    )  # each has its turn


async def test_idle_time_accumulates_at_most_one_burst(autojump_clock):
    pace = traffic_control.TrafficLimiter(RATE)
    pace.charge_bytes(1)
    await trio.sleep(100.0)
    pace.charge_bytes(int(RATE))
    began_s = trio.current_time()
    await pace.wait()
    assert trio.current_time() - began_s == pytest.approx(1.0 - traffic_control.BURST_S)


async def test_unlimited_traffic_never_waits():
    pace = traffic_control.TrafficLimiter()
    pace.charge_bytes(1 << 60)
    assert pace.is_open
    with trio.CancelScope() as scope:
        scope.cancel()
        await pace.wait()  # not even for a checkpoint
    assert not scope.cancelled_caught


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", [None, security.SECURE])
async def test_connections_of_all_classes_share_one_cap(tmp_path, way, mode):
    tls = {
        host: security.Identity(tmp_path, host).read(mode) if mode else None
        for host in (nets.CLIENT, nets.SERVER)
    }
    more = {nets.CLIENT: {}, nets.SERVER: {}}
    more[nets.CLIENT if way == "download" else nets.SERVER]["traffic"] = capped(way)
    got = []

    async with (
        nets.serving(tls=tls[nets.SERVER], **more[nets.SERVER]) as (_, address),
        nets.asking(address, tls=tls[nets.CLIENT], **more[nets.CLIENT]) as client,
    ):
        began_s = trio.current_time()

        async def fetch(number, priority):
            data = await client.fetch(number * CHUNK, CHUNK, priority=priority)
            got.append(len(data))
            assert data == nets.DATA[number * CHUNK : (number + 1) * CHUNK]

        async with trio.open_nursery() as nursery:
            for number in range(16):
                for priority in BOTH_CLASSES:
                    nursery.start_soon(fetch, number, priority)
        took_s = trio.current_time() - began_s
    assert sum(got) == 2 * len(nets.DATA)
    last = 2 * traffic_control.BURST_S * RATE  # the last bytes of both connections cause no wait
    assert took_s >= (sum(got) - last) / RATE - traffic_control.BURST_S > 0.8


async def test_long_wait_for_the_download_limit_does_not_end_the_connection():
    """One step of the download takes more than twice the allowed silence of a host."""
    quick = dataclasses.replace(nets.QUICK, hello_s=5.0)
    slow = capped("download", CHUNK / 2)
    assert slow.download.step_bytes / (CHUNK / 2) > 2 * quick.silence_s
    async with (
        nets.serving(limits=dataclasses.replace(nets.PATIENT, silence_s=5.0)) as (_, address),
        nets.asking(address, limits=quick, traffic=slow) as client,
    ):
        data = await client.fetch(0, CHUNK)
        assert data == nets.DATA[:CHUNK]


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1"])
async def test_both_ends_mark_bulk_connections_with_the_background_dscp(ip):
    marks = traffic_control.unbounded()._replace(background_dscp=8)
    server = peer_network.PeerNetwork(nets.SERVER, admission=nets.EVERYBODY, traffic=marks)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host=ip)
        handler = nets.request_server.TaskServer(nets.serve_data, nursery)
        await nursery.start(server.serve_forever, handler, listeners)
        port = listeners[0].socket.getsockname()[1]
        address = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        async with nets.asking(address, traffic=marks) as client:
            for priority in BOTH_CLASSES:
                await client.fetch(priority=priority)
            found = {
                (connection.klass, mark_of(connection.link))
                for net in (client.net, server)
                for connection in net._all()
            }
            assert len(client.net._all()) == len(server._all()) == 2
        await server.aclose()
    assert found == {(nets.DEMAND, 0), (nets.BULK, 8)}


def mark_of(link):
    if link._sock.family == socket.AF_INET6:
        return link._sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS) >> 2
    return link._sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2
