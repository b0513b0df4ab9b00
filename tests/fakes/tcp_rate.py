# SPDX-License-Identifier: Apache-2.0
"""The rate of one TCP stream between two hosts of the lab."""

import subprocess
import sys

from tests.lab import network

_RECEIVE = """
import socket, sys, time
settle_s = float(sys.argv[2])
with socket.create_server((sys.argv[1], 9000)) as server:
    print("up", flush=True)
    link, _ = server.accept()
    data, got, begin = bytearray(1 << 20), 0, None
    while count := link.recv_into(data):
        now = time.monotonic()
        begin = begin or now
        got += count if now > begin + settle_s else 0
    print(got * 8e-6 / (time.monotonic() - begin - settle_s))
"""
_SEND = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 9000)) as link:
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        link.sendall(bytes(65536))
"""


def measure_mbit(
    sender: network.Host, receiver: network.Host, *, settle_s: float = 0.3, length_s: float = 1.3
) -> float:
    """Return the payload rate in Mbit/s, after the first ``settle_s`` of ``length_s``."""
    with receiver.popen(
        [sys.executable, "-c", _RECEIVE, receiver.address, str(settle_s)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        sender.run([sys.executable, "-c", _SEND, receiver.address, str(length_s)])
        return float(process.stdout.readline())
