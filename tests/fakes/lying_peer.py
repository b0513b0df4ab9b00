# SPDX-License-Identifier: Apache-2.0
"""A peer that is on the ring and means no good: it greets, and answers as it likes.

It speaks the real protocol over a real socket; each Get is answered by the next
of its lies, chosen by a seeded generator.
"""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_common import errors
from acstor_common import ids
from acstor_common import peer_wire

Lie = Callable[[socket.socket, peer_wire.Request, random.Random], None]


def send(link: socket.socket, *messages: peer_wire.Message) -> None:
    for message in messages:
        link.sendall(b"".join(peer_wire.encode(message)))


def other_bytes(link: socket.socket, get: peer_wire.Request, rng: random.Random) -> None:
    """Answer with as many bytes, but others."""
    send(link, peer_wire.Chunk(get.request_id, rng.randbytes(get.length)))


def too_few_bytes(link: socket.socket, get: peer_wire.Request, rng: random.Random) -> None:
    """Answer with fewer bytes than were asked for."""
    send(link, peer_wire.Chunk(get.request_id, rng.randbytes(max(1, get.length // 2))))


def garbage(link: socket.socket, get: peer_wire.Request, rng: random.Random) -> None:
    """Answer with what is no frame."""
    link.sendall(rng.randbytes(200))


def half_a_chunk(link: socket.socket, get: peer_wire.Request, rng: random.Random) -> None:
    """Hang up in the middle of the answer."""
    frame = b"".join(peer_wire.encode(peer_wire.Chunk(get.request_id, bytes(get.length))))
    link.sendall(frame[: rng.randrange(len(frame))])
    raise ConnectionError


def hang_up(link: socket.socket, get: peer_wire.Request, rng: random.Random) -> None:
    """Close the connection without an answer."""
    raise ConnectionError


def silence(link: socket.socket, get: peer_wire.Request, rng: random.Random) -> None:
    """Never answer."""


def late(link: socket.socket, get: peer_wire.Request, rng: random.Random) -> None:
    """Answer other bytes when nobody waits any more."""
    time.sleep(1.0)
    other_bytes(link, get, rng)


def answer_of_another(link: socket.socket, get: peer_wire.Request, rng: random.Random) -> None:
    """Answer a request that nobody made."""
    send(link, peer_wire.Chunk(get.request_id ^ 0x5555, rng.randbytes(get.length)))


def refuse(link: socket.socket, get: peer_wire.Request, rng: random.Random) -> None:
    """Refuse, for any of the reasons there are."""
    code = rng.choice(list(peer_wire.RefuseCode))
    send(link, peer_wire.Refuse(get.request_id, code))


LIES: Sequence[Lie] = (
    other_bytes,
    too_few_bytes,
    garbage,
    half_a_chunk,
    hang_up,
    silence,
    late,
    answer_of_another,
    refuse,
)


class LyingPeer:
    """What a test holds of the peer."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.gets = 0


@contextlib.contextmanager
def lying(name: str, seed: int, lies: Sequence[Lie] = LIES) -> Iterator[LyingPeer]:
    """Run a peer called ``name`` on a free port of the loopback until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = LyingPeer(name, listener.getsockname()[1])
        links: list[socket.socket] = []
        accepting = threading.Thread(target=_accept, args=(listener, peer, seed, lies, links))
        accepting.start()
        try:
            yield peer
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for link in links:
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)


def _accept(
    listener: socket.socket,
    peer: LyingPeer,
    seed: int,
    lies: Sequence[Lie],
    links: list[socket.socket],
) -> None:
    with contextlib.suppress(OSError):
        while True:
            link, _ = listener.accept()
            links.append(link)
            rng = random.Random(f"{seed}/{len(links)}")
            arguments = (link, peer, rng, lies)
            threading.Thread(target=_converse, args=arguments, daemon=True).start()


def _converse(
    link: socket.socket, peer: LyingPeer, rng: random.Random, lies: Sequence[Lie]
) -> None:
    receiver = peer_wire.Receiver("agent", peer_wire.FROM_CLIENT)
    with link, contextlib.suppress(OSError, errors.RemoteProtocolError):
        while data := link.recv(65536):
            for message in receiver.feed(data):
                match message:
                    case peer_wire.Hello(_, klass, _):
                        send(link, peer_wire.Hello(ids.HostId(peer.name), klass, 1))
                    case peer_wire.Get(requests):
                        for request in requests:
                            peer.gets += 1
                            rng.choice(lies)(link, request, rng)
