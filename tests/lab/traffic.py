# SPDX-License-Identifier: Apache-2.0
"""Background traffic: flows of a rate, and traffic matrices of a mean and spread.

A flow is UDP, so it keeps its rate whatever else is on the link.
"""

import contextlib
import math
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence

from tests.lab import network

PACKET_BYTES = 1400
FRAME_BYTES = PACKET_BYTES + 42
"""On the wire: with UDP, IP and Ethernet headers."""
PORT = 9  # discard
TICK_S = 0.005


@contextlib.contextmanager
def flow(
    source: network.Host, target: network.Host, mbit: float, seconds: float = 3600.0
) -> Iterator[None]:
    """Send at a rate (frames counted, Mbit/s) from one host to another for the block."""
    command = [sys.executable, "-m", "tests.lab.traffic", target.address, str(mbit), str(seconds)]
    process = source.popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def loads(hosts: int, mean: float, cv: float, most: float = 1.9) -> list[float]:
    """Return hosts' loads, in plus out, as shares of a link, of this mean and spread.

    Some hosts have the maximum load, the others the remaining rest.

    :param cv: standard deviation / mean; at most sqrt(most / mean - 1)
    :raises ValueError: there is no such set of loads
    """
    busy = next(
        (n for n in range(1, hosts) if mean * (1 + cv * math.sqrt((hosts - n) / n)) <= most), None
    )
    if busy is None:
        raise ValueError(f"{hosts} hosts cannot have mean {mean}, CV {cv} and none above {most}")
    high = mean * (1 + cv * math.sqrt((hosts - busy) / busy))
    low = mean * (1 - cv * math.sqrt(busy / (hosts - busy)))
    if low < 0:
        raise ValueError(f"{hosts} hosts cannot have mean {mean}, CV {cv} and none above {most}")
    return [high] * busy + [low] * (hosts - busy)


def send(address: str, mbit: float, seconds: float) -> None:
    """Send to ``address`` at a rate; catch up at most one tick."""
    packet = random.randbytes(PACKET_BYTES)
    rate = mbit * 1e6 / 8 / FRAME_BYTES
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        began_s = due_s = time.monotonic()
        sent = 0.0
        while (now_s := time.monotonic()) < began_s + seconds:
            sent = max(sent, (now_s - began_s - 4 * TICK_S) * rate)
            while sent < (now_s - began_s) * rate:
                with contextlib.suppress(OSError):
                    link.sendto(packet, (address, PORT))
                sent += 1
            due_s = max(due_s + TICK_S, now_s)
            time.sleep(max(0.0, due_s - time.monotonic()))


def main(arguments: Sequence[str]) -> None:
    """Send by the command line's arguments."""
    address, mbit, seconds = arguments
    send(address, float(mbit), float(seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
