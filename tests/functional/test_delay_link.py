# SPDX-License-Identifier: Apache-2.0
"""Links with delay: time, order, loss and rate are as configured, and all devices are removed."""

import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from collections.abc import Sequence

import pytest

from acstor_common import errors
from tests.fakes import tcp_rate
from tests.lab import delay_link
from tests.lab import image_server
from tests.lab import network
from tests.lab import runs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")

LEAST_MBIT = 400
"""Rate of an unshaped link with a round trip of 10 ms on a busy machine; idle: over 1,000."""
ECHO = """
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
sock.bind(("0.0.0.0", 9000))
print("up", flush=True)
while True:
    data, sender = sock.recvfrom(2048)
    sock.sendto(data, sender)
"""
PING = """
import socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(2)
for number in range(int(sys.argv[2])):
    began = time.perf_counter()
    sock.sendto(b"%d" % number, (sys.argv[1], 9000))
    try:
        while int(sock.recv(2048)) != number:
            pass
    except TimeoutError:
        print("lost")
    else:
        print((time.perf_counter() - began) * 1000)
"""
BURST = """
import socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
sock.settimeout(2)
for number in range(int(sys.argv[2])):
    sock.sendto(b"%d" % number, (sys.argv[1], 9000))
    time.sleep(0.0002)
try:
    while True:
        print(sock.recv(2048).decode())
except TimeoutError:
    pass
"""
SOURCE = """
import sys, trio
from acstor_agent.sources import base, http
from acstor_agent.sources.http_client import http_pool
from acstor_common.model import ids
blob = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
async def main():
    source = http.HttpSource(sys.argv[1] + "/", http_pool.HttpLimits())
    async def read(number):
        for turn in range(4):
            await source.read(blob, ((turn * 8 + number) << 20) // 4, 1 << 18)
    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(read, number)
    print(source.rtt_s * 1000)
    await source.aclose()
trio.run(main)
"""


def talk(net: network.Network, server: str, client: str, *words: object) -> list[str]:
    """Run a server on one host and a client on the other; return the client's output lines."""
    here, there = net.hosts
    with there.popen([sys.executable, "-c", server], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
            said = here.run([sys.executable, "-c", client, there.address, *map(str, words)])
            return said.split() or process.stdout.read().split()
        finally:
            process.kill()


@contextlib.contextmanager
def awake_processors() -> Iterator[None]:
    """Keep the processors from idling: to wake one of a virtual machine takes up to 0.2 ms."""
    spin = ["chrt", "--idle", "0", "sh", "-c", "while :; do :; done"]
    with contextlib.ExitStack() as stack:
        for _ in os.sched_getaffinity(0):
            spinner = stack.enter_context(subprocess.Popen(spin))
            stack.callback(spinner.kill)
        yield


@pytest.mark.timed
def test_links_add_their_delay_to_a_round_trip() -> None:
    with network.Network(2) as net, awake_processors(), runs.prioritized():
        without_ms = early_quartile(talk(net, ECHO, PING, 100))
    link = delay_link.LinkDelay(2.5)
    with network.Network(2, delay=link) as net, awake_processors(), runs.prioritized():
        times = talk(net, ECHO, PING, 100)
    # No frame is early; a quarter is at most 5 % late, even on a busy machine.
    assert min(map(float, times)) >= 10.0
    assert early_quartile(times) - without_ms <= 10.5


def early_quartile(times: Sequence[str]) -> float:
    """Return the time that a quarter does not exceed."""
    return sorted(map(float, times))[len(times) // 4]


@pytest.mark.timed
def test_jitter_spreads_round_trips_without_reordering() -> None:
    with network.Network(2, delay=delay_link.LinkDelay(5.0, jitter_ms=4.0)) as net:
        times_ms = [float(word) for word in talk(net, ECHO, PING, 60)]
        numbers = [int(word) for word in talk(net, ECHO, BURST, 500)]
    assert statistics.stdev(times_ms) > 1.5  # of four uniform deviations: 4.6 ms
    assert min(times_ms) > 4 * (5.0 - 4.0)
    assert numbers == sorted(numbers) and len(numbers) > 450


def test_loss_drops_the_given_share_of_frames() -> None:
    with network.Network(2, delay=delay_link.LinkDelay(0.1, loss=0.05)) as net:
        came = len(talk(net, ECHO, BURST, 2000))
    assert 0.75 < came / 2000 < 0.88  # four links: 0.95 ** 4 = 0.81


def test_stream_fills_a_link_with_delay() -> None:
    with network.Network(2, delay=delay_link.LinkDelay(2.5)) as net:
        sender, receiver = net.hosts
        assert tcp_rate.measure_mbit(sender, receiver, settle_s=1.0, length_s=3.0) > LEAST_MBIT
        for host in net.hosts:
            net.shape(host, 100)
        mbit = tcp_rate.measure_mbit(sender, receiver, settle_s=1.0, length_s=3.0)
        counted = net.link_bytes()
    assert 85 < mbit < 97
    assert counted["h1"].sent > 30e6 and counted["h2"].received > 30e6


def test_source_delay_applies_only_to_the_source() -> None:
    with network.Network(2, source_delay=delay_link.LinkDelay(20.0)) as net:
        direct_ms = [float(word) for word in talk(net, ECHO, PING, 20)]
        net.hosts[1] = net.source
        far_ms = [float(word) for word in talk(net, ECHO, PING, 20)]
    assert statistics.median(direct_ms) < 20 and min(far_ms) >= 40


@pytest.mark.timed
def test_round_trip_of_a_source_equals_its_link_delay_under_load(
    tmp_path: pathlib.Path,
) -> None:
    image = tmp_path / "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11.raw"
    image.write_bytes(bytes(8 << 20))
    delay = delay_link.LinkDelay(20.0)
    with (
        network.Network(1, 20, 20, source_delay=delay) as net,
        image_server.ImageServer(net.source, tmp_path) as server,
    ):
        code = [sys.executable, "-c", SOURCE, server.url]
        [rtt_ms] = map(float, net.hosts[0].run(code).split())
    assert 40 <= rtt_ms < 50  # eight responses share the queue


def test_wan_delays_and_counts_only_traffic_that_crosses_it() -> None:
    wan = network.Wan(1, 50, delay_link.LinkDelay(10.0))
    with network.Network(3, wan=wan) as net:
        central, other, edge = net.hosts
        near_ms, far_ms = ([], [])
        for times_ms, server in ((near_ms, other), (far_ms, edge)):
            net.hosts[:] = [central, server]
            times_ms.extend(float(word) for word in talk(net, ECHO, PING, 20))
        assert statistics.median(near_ms) < 10 and min(far_ms) >= 20
        before = net.wan_bytes()
        tcp_rate.measure_mbit(central, other, settle_s=0.2, length_s=0.5)
        assert (net.wan_bytes() - before).received < 100_000
        mbit = tcp_rate.measure_mbit(central, edge, settle_s=1.0, length_s=2.0)
        crossed = net.wan_bytes() - before
        assert 0.8 * 50 < mbit < 0.97 * 50
        assert crossed.received > 10_000_000 > crossed.sent


def test_failed_device_is_named_and_no_namespace_is_left(tmp_path: pathlib.Path) -> None:
    with network.Network(1, delay=delay_link.LinkDelay(1.0)) as net:
        tag = net.run.tag
        [host] = net.hosts
        taken = ((runs.NETNS_FOLDER / host.namespace, "eth0"),) * 2
        link = delay_link.DelayLink(delay_link.build(tmp_path), taken, delay_link.LinkDelay(1.0))
        with pytest.raises(errors.Unusable, match="eth0: Device or resource busy"), link:
            pass
    assert not runs.namespaces(tag)


@pytest.mark.parametrize(("jitter_ms", "loss"), [(2.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -0.1)])
def test_impossible_delay_is_refused(jitter_ms: float, loss: float) -> None:
    with pytest.raises(ValueError, match="jitter is at most the delay"):
        delay_link.LinkDelay(1.0, jitter_ms, loss)
