# SPDX-License-Identifier: Apache-2.0
"""One end of an advertisement path: a process, so that its CPU time is separate.

    python -m evaluation.papers.s0_news_end ROLE WAY ADDRESS COUNT RATE BATCH

ROLE is ``send`` or ``receive``; WAY is ``udp``, a datagram for each chunk, or ``tcp``, frames of
acstor with BATCH chunks in each (RATE chunks a second; 0: at full speed).  A prefix is the time of
its creation, in us, so the receiver knows its delay.  ``fill`` sends bytes by TCP for COUNT
seconds, ``sink`` receives those of COUNT connections.  Prints JSON: chunks, and the process's CPU
time.
"""

import concurrent.futures
import json
import socket
import struct
import sys
import time
from collections.abc import Iterator

from acstor_common.model import ids
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from tests.fakes import announced

PORT = 7300
DATAGRAM = struct.Struct(">BQ")
"""A type, and the first 8 bytes of a CID."""
QUIET_S = 1.5
"""Receivers of datagrams end after so long without one."""
BUFFER_BYTES = 1 << 18


def send(way: str, address: str, count: int, rate: float, batch: int) -> dict[str, float]:
    """Send advertisements; return their number, and the processor time."""
    kind = socket.SOCK_DGRAM if way == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.connect((address, PORT))
        if way == "tcp":
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = peer_wire.Hello(ids.HostId("h1"), peer_wire.ConnectionClass.BULK, 1)
            sock.sendall(b"".join(peer_wire.encode(hello)))
        began = time.process_time()
        for prefixes in _gathered(count, rate, batch):
            if way == "udp":
                for prefix in prefixes:
                    sock.send(DATAGRAM.pack(1, prefix))
            else:
                sock.sendall(
                    b"".join(peer_wire.encode(peer_wire.Advertise(announced.alone(*prefixes))))
                )
        return {"chunks": count, "cpu_s": time.process_time() - began}


def _gathered(count: int, rate: float, batch: int) -> Iterator[tuple[int, ...]]:
    """Yield batches of chunks at the rate of their creation."""
    began = time.monotonic()
    for first in range(0, count, batch):
        numbers = range(first, min(count, first + batch))
        if rate:
            due_s = began + numbers[-1] / rate
            time.sleep(max(0.0, due_s - time.monotonic()))
            yield tuple(int(1e6 * (began + number / rate)) for number in numbers)
        else:
            yield tuple(1 + number for number in numbers)


def receive(way: str, address: str) -> dict[str, float]:
    """Receive advertisements until the end."""
    if way == "udp":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            sock.bind((address, PORT))
            return _taken(_datagrams(sock))
    with socket.create_server((address, PORT)) as server:
        connection, _ = server.accept()
        with connection:
            return _taken(_frames(connection))


def _taken(batches: Iterator[tuple[int, ...]]) -> dict[str, float]:
    """Count advertisements, and their delays after creation."""
    began, chunks, waited_s = time.process_time(), 0, 0.0
    for prefixes in batches:
        now_us = 1e6 * time.monotonic()
        chunks += len(prefixes)
        waited_s += sum(now_us - prefix for prefix in prefixes) / 1e6
    return {
        "chunks": chunks,
        "cpu_s": time.process_time() - began,
        "mean_wait_s": waited_s / max(1, chunks),
    }


def _datagrams(sock: socket.socket) -> Iterator[tuple[int, ...]]:
    sock.settimeout(None)
    while True:
        try:
            data = sock.recv(2048)
        except TimeoutError:
            return
        sock.settimeout(QUIET_S)
        yield (DATAGRAM.unpack(data)[1],)


def _frames(sock: socket.socket) -> Iterator[tuple[int, ...]]:
    receiver = peer_receiver.Receiver("a host", peer_wire.FROM_CLIENT)
    while data := sock.recv(BUFFER_BYTES):
        for message in receiver.feed_bytes(data):
            if isinstance(message, peer_wire.Advertise):
                yield [name for name, _ in message.chunks]


def fill(address: str, seconds: float) -> dict[str, float]:
    """Send bytes for ``seconds``."""
    end, data, sent = time.monotonic() + seconds, bytes(BUFFER_BYTES), 0
    with socket.create_connection((address, PORT + 1)) as sock:
        while time.monotonic() < end:
            sent += sock.send(data)
    return {"bytes": sent}


def sink(address: str, count: int) -> dict[str, float]:
    """Receive the bytes of ``count`` connections."""
    with socket.create_server((address, PORT + 1)) as server:
        connections = [server.accept()[0] for _ in range(count)]
    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        return {"bytes": sum(threads.map(_drained, connections))}


def _drained(connection: socket.socket) -> int:
    taken, buffer = 0, bytearray(BUFFER_BYTES)
    with connection:
        while count := connection.recv_into(buffer):
            taken += count
    return taken


def main() -> None:
    """Run the end in the arguments."""
    role, way, address, count, rate, batch = sys.argv[1:]
    if role == "send":
        found = send(way, address, int(count), float(rate), int(batch))
    elif role == "receive":
        found = receive(way, address)
    else:
        found = fill(address, float(count)) if role == "fill" else sink(address, int(count))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
