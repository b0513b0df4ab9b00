# SPDX-License-Identifier: Apache-2.0
"""The kernel's estimate of a link's rate, which decides on compression of chunks."""

import sys

import pytest

from acstor_agent.core import link_compression
from tests.lab import network

RECEIVE = """
import socket
connection, _ = socket.create_server(("0.0.0.0", 9000)).accept()
while connection.recv(1 << 20):
    pass
"""
SEND = """
import socket, sys, time
from acstor_agent.peers import peer_link
for _ in range(100):
    try:
        sock = socket.create_connection((sys.argv[1], 9000))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
link = peer_link.PeerLink(sock)
print(link.bytes_s)
for _ in range(40):
    sock.sendall(bytes(1 << 16))
print(link.bytes_s)
"""


@pytest.mark.parametrize("mbit", [25, 100])
def test_rate_of_a_slow_link_is_measured_after_enough_traffic(mbit):
    with network.Network(2, mbit) as net:
        here, there = net.hosts
        receiver = there.popen([sys.executable, "-c", RECEIVE])
        try:
            first, last = map(float, here.run([sys.executable, "-c", SEND, there.address]).split())
        finally:
            receiver.kill()
            receiver.wait()
    assert first > 100e6  # no traffic yet: no compression
    assert 0.5 * mbit / 8 < last / 1e6 < 1.5 * mbit / 8
    assert link_compression.LinkCompression().is_worthwhile(last)
