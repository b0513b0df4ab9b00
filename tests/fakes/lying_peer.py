# SPDX-License-Identifier: Apache-2.0
"""A malicious peer on the ring: it sends wrong answers after the handshake.

It speaks the real protocol over a real socket.  A seeded generator chooses the fault of each
response.
"""

import contextlib
import functools
import random
import socket
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from tests.fakes import server_threads

Lie = Callable[[socket.socket, peer_wire.ChunkRequest, random.Random], None]


def send(link: socket.socket, *messages: peer_wire.Message) -> None:
    for message in messages:
        link.sendall(b"".join(peer_wire.encode(message)))


def other_bytes(link: socket.socket, get: peer_wire.ChunkRequest, rng: random.Random) -> None:
    """Answer with other bytes of the same length."""
    send(link, peer_wire.Chunk(get.request_id, rng.randbytes(get.length), get.chunk_bytes))


def too_few_bytes(link: socket.socket, get: peer_wire.ChunkRequest, rng: random.Random) -> None:
    """Answer with fewer bytes than requested."""
    send(link, peer_wire.Chunk(get.request_id, rng.randbytes(max(1, get.length // 2))))


def garbage(link: socket.socket, get: peer_wire.ChunkRequest, rng: random.Random) -> None:
    """Answer with bytes that are no frame."""
    link.sendall(rng.randbytes(200))


def half_a_chunk(link: socket.socket, get: peer_wire.ChunkRequest, rng: random.Random) -> None:
    """Disconnect in the middle of the answer."""
    frame = b"".join(peer_wire.encode(peer_wire.Chunk(get.request_id, bytes(get.length))))
    link.sendall(frame[: rng.randrange(len(frame))])
    raise ConnectionError


def hang_up(link: socket.socket, get: peer_wire.ChunkRequest, rng: random.Random) -> None:
    """Close the connection without an answer."""
    raise ConnectionError


def silence(link: socket.socket, get: peer_wire.ChunkRequest, rng: random.Random) -> None:
    """Never answer."""


def late(link: socket.socket, get: peer_wire.ChunkRequest, rng: random.Random) -> None:
    """Answer with other bytes after the requester's timeout."""
    time.sleep(1.0)
    other_bytes(link, get, rng)


def answer_of_another(link: socket.socket, get: peer_wire.ChunkRequest, rng: random.Random) -> None:
    """Answer a request that does not exist."""
    send(link, peer_wire.Chunk(get.request_id ^ 0x5555, rng.randbytes(get.length)))


def refuse(link: socket.socket, get: peer_wire.ChunkRequest, rng: random.Random) -> None:
    """Refuse, for a random reason."""
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


Answer = Callable[[socket.socket, Sequence[peer_wire.ChunkRequest]], None]
"""Answers the requests of one message."""


class LyingPeer:
    """A running malicious peer."""

    def __init__(self, name: str, port: int, version: int = peer_wire.MAJOR_VERSION) -> None:
        self.name = name
        self.port = port
        self.version = version
        self.gets = 0
        self.links: list[socket.socket] = []


@contextlib.contextmanager
def hostile_peer(name: str, seed: int, lies: Sequence[Lie] = LIES) -> Iterator[LyingPeer]:
    """Run a peer called ``name`` on a free loopback port for the block."""

    def begin(number: int) -> Answer:
        rng = random.Random(f"{seed}/{number}")

        def answer(link: socket.socket, requests: Sequence[peer_wire.ChunkRequest]) -> None:
            for request in requests:
                rng.choice(lies)(link, request, rng)

        return answer

    with _running(name, begin) as peer:
        yield peer


@contextlib.contextmanager
def answering(
    name: str, answer: Answer, version: int = peer_wire.MAJOR_VERSION
) -> Iterator[LyingPeer]:
    """Run a peer that answers by a function; see :func:`lying`.

    :param version: protocol version of its frames
    """
    with _running(name, lambda number: answer, version) as peer:
        yield peer


@contextlib.contextmanager
def _running(
    name: str, begin: Callable[[int], Answer], version: int = peer_wire.MAJOR_VERSION
) -> Iterator[LyingPeer]:
    """Run a peer.

    :param begin: returns the answering function of a connection, by its number from 1
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = LyingPeer(name, listener.getsockname()[1], version)
        accept_all = functools.partial(_accept, listener, peer, begin)
        with server_threads.accepting(listener, accept_all, peer.links):
            yield peer


def _accept(listener: socket.socket, peer: LyingPeer, begin: Callable[[int], Answer]) -> None:
    with contextlib.suppress(OSError):
        while True:
            link, _ = listener.accept()
            peer.links.append(link)
            arguments = (link, peer, begin(len(peer.links)))
            threading.Thread(target=_converse, args=arguments, daemon=True).start()


def _converse(link: socket.socket, peer: LyingPeer, answer: Answer) -> None:
    receiver = peer_receiver.Receiver("agent", peer_wire.FROM_CLIENT)
    with link, contextlib.suppress(OSError, errors.RemoteProtocolError):
        while data := link.recv(65536):
            for message in receiver.feed_bytes(data):
                match message:
                    case peer_wire.Hello(_, klass, _):
                        hello = peer_wire.Hello(ids.HostId(peer.name), klass, 1)
                        frame = bytearray(b"".join(peer_wire.encode(hello)))
                        frame[2] = peer.version
                        link.sendall(frame)
                    case peer_wire.Get(requests):
                        peer.gets += len(requests)
                        answer(link, requests)
