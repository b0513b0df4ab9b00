# SPDX-License-Identifier: Apache-2.0
"""A relay between real agents that drops and delays messages of the peer protocol.

Peers connect to the relay, and the relay connects to the agent's port.  It splits each
direction into frames and drops whole messages, so the stream stays well-formed.  It never
drops Hello.  A seeded generator decides for each direction of each connection.
"""

import contextlib
import functools
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

from tests.fakes import server_threads

HEADER = struct.Struct(">HBBI")
HELLO = 1
LONGEST_DELAY_S = 0.3


class Relay:
    """A running relay; counts the passed, lost and late messages."""

    def __init__(self, port: int, to_port: int, seed: int, lost: float, late: float) -> None:
        self.port, self.to_port, self.seed = port, to_port, seed
        self.lost_share, self.late_share = lost, late
        self.passed = self.lost = self.late = 0
        self.is_cut = False
        self.links: list[socket.socket] = []

    def cut(self) -> None:
        """Close all connections, and refuse new ones while ``is_cut`` is set."""
        self.is_cut = True
        server_threads.shut_down(list(self.links))

    def tidy(self) -> None:
        """Forget closed connections."""
        self.links[:] = [link for link in self.links if link.fileno() >= 0]

    def relay_both(self, incoming: socket.socket, outgoing: socket.socket, number: int) -> None:
        """Relay both directions until they end."""
        ways = ((incoming, outgoing), (outgoing, incoming))
        threads = [
            threading.Thread(
                target=self.relay,
                args=(*way, random.Random(f"{self.seed}/{number}/{nth}")),
                daemon=True,
            )
            for nth, way in enumerate(ways)
        ]
        with incoming, outgoing:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def relay(self, source: socket.socket, to: socket.socket, rng: random.Random) -> None:
        """Relay one direction until it ends, then close the connection."""
        with contextlib.suppress(OSError):
            while (head := read_exactly(source, HEADER.size)) is not None:
                _, _, kind, length = HEADER.unpack(head)
                body = read_exactly(source, length)
                if body is None:
                    break
                if kind == HELLO or self._gets_through(rng):
                    to.sendall(head + body)
        for link in (source, to):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _gets_through(self, rng: random.Random) -> bool:
        fate = rng.random()
        if fate < self.lost_share:
            self.lost += 1
            return False
        if fate < self.lost_share + self.late_share:
            self.late += 1
            time.sleep(rng.random() * LONGEST_DELAY_S)
        self.passed += 1
        return True


def read_exactly(link: socket.socket, count: int) -> bytes | None:
    """Return exactly ``count`` bytes, None if the stream ends before."""
    parts = []
    while count:
        part = link.recv(min(count, 1 << 16))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


@contextlib.contextmanager
def relaying(to_port: int, seed: int, lost: float, late: float) -> Iterator[Relay]:
    """Run a relay in front of a loopback port for the block.

    :param lost: share of messages to drop
    :param late: share of messages to delay, with all that follow on their connection
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Relay(listener.getsockname()[1], to_port, seed, lost, late)
        accept_all = functools.partial(_accept, listener, made)
        with server_threads.accepting(listener, accept_all, made.links):
            yield made


def _accept(listener: socket.socket, made: Relay) -> None:
    number = 0
    with contextlib.suppress(OSError):
        while True:
            incoming, _ = listener.accept()
            if made.is_cut:
                incoming.close()
                continue
            try:
                outgoing = socket.create_connection(("127.0.0.1", made.to_port), timeout=5)
            except OSError:
                incoming.close()  # the agent sees a closed port
                continue
            outgoing.settimeout(None)
            made.links += [incoming, outgoing]
            number += 1
            args = (incoming, outgoing, number)
            threading.Thread(target=made.relay_both, args=args, daemon=True).start()
