# SPDX-License-Identifier: Apache-2.0
"""A lying lab host: it advertises every chunk, and sends wrong bytes.

``python -m evaluation.bench.liar NAME LISTEN MAP PEER...``: NAME is its name on the ring, LISTEN
and PEER are ``address:port``, MAP is the chunk map of the advertised image.  It advertises again
every second, since agents ignore advertisements of images that they do not know yet.
"""

import contextlib
import pathlib
import random
import socket
import sys
import threading
import time

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from tests.fakes import announced
from tests.fakes import lying_peer

PREFIX_BYTES = 8
BATCH = 512
PERIOD_S = 1.0
LINK_TIMEOUT_S = 30.0


def answer(link: socket.socket, name: str) -> None:
    """Answer requests on a connection until it ends."""
    receiver = peer_receiver.Receiver("agent", peer_wire.FROM_CLIENT)
    rng = random.Random(0)
    with link, contextlib.suppress(OSError, errors.RemoteProtocolError):
        while data := link.recv(65536):
            for message in receiver.feed_bytes(data):
                match message:
                    case peer_wire.Hello(_, klass, _):
                        lying_peer.send(link, peer_wire.Hello(ids.HostId(name), klass, 1))
                    case peer_wire.Get(requests):
                        for request in requests:
                            lying_peer.other_bytes(link, request, rng)
                    case peer_wire.Ping(token):
                        lying_peer.send(link, peer_wire.Pong(token))


def advertise(name: str, peer: str, prefixes: list[int]) -> None:
    """Advertise the whole image to a host repeatedly; return when it disconnects."""
    address, _, port = peer.rpartition(":")
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((address, int(port)), LINK_TIMEOUT_S) as link,
        ):
            threading.Thread(target=swallow, args=(link,), daemon=True).start()
            lying_peer.send(
                link, peer_wire.Hello(ids.HostId(name), peer_wire.ConnectionClass.BULK, 1)
            )
            while True:
                lying_peer.send(link, *advertisements(prefixes))
                time.sleep(PERIOD_S)
        time.sleep(PERIOD_S)


def advertisements(prefixes: list[int]) -> list[peer_wire.Advertise]:
    """Return the messages that advertise all of these."""
    starts = range(0, len(prefixes), BATCH)
    return [peer_wire.Advertise(announced.alone(*prefixes[at : at + BATCH])) for at in starts]


def swallow(link: socket.socket) -> None:
    """Answer pings, ignore anything else."""
    receiver = peer_receiver.Receiver("agent", peer_wire.FROM_SERVER)
    with contextlib.suppress(OSError, errors.RemoteProtocolError):
        while data := link.recv(65536):
            for message in receiver.feed_bytes(data):
                if isinstance(message, peer_wire.Ping):
                    lying_peer.send(link, peer_wire.Pong(message.token))


def main() -> None:
    """Run until killed."""
    name, listen, map_path, *peers = sys.argv[1:]
    image_map = chunk_map.ChunkMap.parse(pathlib.Path(map_path).read_bytes(), map_path)
    prefixes = [
        int.from_bytes(image_map.cid_of(number)[:PREFIX_BYTES], "big")
        for number in range(len(image_map))
    ]
    for peer in peers:
        threading.Thread(target=advertise, args=(name, peer, prefixes), daemon=True).start()
    address, _, port = listen.rpartition(":")
    with socket.create_server((address, int(port))) as listener:
        while True:
            link, _ = listener.accept()
            threading.Thread(target=answer, args=(link, name), daemon=True).start()


if __name__ == "__main__":
    main()
