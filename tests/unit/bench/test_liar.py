# SPDX-License-Identifier: Apache-2.0
import socket
import threading
from collections.abc import Iterator

import pytest

from acstor_common.model import ids
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from evaluation.bench import liar
from tests.fakes import lying_peer

CID = ids.Cid(bytes(range(32)))
IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")


@pytest.fixture
def link() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=liar.answer, args=(theirs, "h3"))
    thread.start()
    with ours:
        ours.settimeout(5)
        yield ours
    thread.join()


def ask(
    link: socket.socket, message: peer_wire.Message, receiver: peer_receiver.Receiver
) -> object:
    lying_peer.send(link, message)
    while not (messages := receiver.feed_bytes(link.recv(65536))):
        pass
    return messages[0]


def test_liar_greets_as_its_host_and_returns_wrong_bytes_of_equal_length(
    link: socket.socket,
) -> None:
    receiver = peer_receiver.Receiver("liar", peer_wire.FROM_SERVER)
    hello = peer_wire.Hello(ids.HostId("h1"), peer_wire.ConnectionClass.DEMAND, 7)
    greeting = ask(link, hello, receiver)
    assert isinstance(greeting, peer_wire.Hello) and greeting.host_id == "h3"
    mode, priority = peer_wire.Mode.HOME_ONLY, peer_wire.Priority.PEER
    proof = bytes(peer_wire.PROOF_BYTES)
    request = peer_wire.ChunkRequest(5, IMAGE_ID, 0, 4096, proof, mode, priority, 1000)
    get = peer_wire.Get((request,))
    chunks = [ask(link, get, receiver), ask(link, get, receiver)]
    assert all(isinstance(chunk, peer_wire.Chunk) for chunk in chunks)
    assert [(chunk.request_id, len(chunk.data)) for chunk in chunks] == [(5, 4096)] * 2
    assert bytes(chunks[0].data) != bytes(chunks[1].data)
    assert ask(link, peer_wire.Ping(9), receiver) == peer_wire.Pong(9)


@pytest.mark.parametrize("count", [1, liar.BATCH, liar.BATCH + 1, 3 * liar.BATCH])
def test_liar_advertises_every_chunk_once_in_legal_frames(count: int) -> None:
    prefixes = list(range(1, count + 1))
    sent = liar.advertisements(prefixes)
    receiver = peer_receiver.Receiver("liar", peer_wire.FROM_CLIENT)
    receiver.feed_bytes(
        b"".join(
            peer_wire.encode(peer_wire.Hello(ids.HostId("h3"), peer_wire.ConnectionClass.BULK, 1))
        )
    )
    received = [
        m for advertise in sent for m in receiver.feed_bytes(b"".join(peer_wire.encode(advertise)))
    ]
    assert [name for message in received for name, _ in message.chunks] == prefixes
