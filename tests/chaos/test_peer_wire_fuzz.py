# SPDX-License-Identifier: Apache-2.0
"""Damaged streams: only RemoteProtocolError may be raised, and memory stays bounded."""

import random
import tracemalloc

import pytest

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from acstor_common.wire.peer import replica_messages
from tests.fakes import announced

HELLO = peer_wire.Hello(ids.HostId("host-1"), peer_wire.ConnectionClass.BULK, 1)
IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
STREAMS = 300


def prefixes(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(1, 2**64) for _ in range(rng.randrange(1, 512)))


def get(request_id: int, rng: random.Random) -> peer_wire.Get:
    mode, priority = rng.choice(list(peer_wire.Mode)), peer_wire.Priority.PREFETCH
    first = peer_wire.ChunkRequest(
        request_id, IMAGE, 65536, 65536, rng.randbytes(16), mode, priority, 100
    )
    others = rng.sample(range(100, 200), rng.randrange(peer_wire.MAX_BATCH))
    return peer_wire.Get((first, *(first._replace(request_id=n, offset=n) for n in others)))


def valid_stream(rng: random.Random) -> bytearray:
    messages: list[peer_wire.Message] = [HELLO]
    for request_id in range(rng.randrange(1, 12)):
        messages.append(
            rng.choice(
                [
                    get(request_id, rng),
                    peer_wire.Chunk(request_id, rng.randbytes(rng.randrange(1, 6000))),
                    peer_wire.Refuse(request_id, peer_wire.RefuseCode.MISSING),
                    peer_wire.Cancel((request_id,)),
                    peer_wire.RaisePriority((request_id,)),
                    peer_wire.Ping(request_id),
                    peer_wire.Advertise(announced.alone(*prefixes(rng))),
                    peer_wire.Gone(announced.alone(*prefixes(rng))),
                    peer_wire.EvictionHint(announced.alone(*prefixes(rng))),
                    peer_wire.ReplicaRequest(
                        (replica_messages.Lease(IMAGE, rng.randrange(86401)),)
                    ),
                    peer_wire.ReplicaReport(
                        rng.randrange(2**64),
                        (
                            replica_messages.ImageShare(
                                IMAGE, replica_messages.ShareState.KEPT, 2**40, 7
                            ),
                        ),
                    ),
                    peer_wire.Refer(request_id, (ids.HostId("h1"), ids.HostId("h2"))),
                ]
            )
        )
    return bytearray(b"".join(b"".join(peer_wire.encode(message)) for message in messages))


def mutate(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[place] ^= 1 << rng.randrange(8)
            case 1:
                del data[place : place + rng.randrange(1, 50)]
            case 2:
                data[place:place] = rng.randbytes(rng.randrange(1, 50))
            case 3:
                data[place : place + 4] = rng.choice([b"\xff\xff\xff\xff", bytes(4), b"\0\x40\0\4"])
        data += b"\0" * (not data)


def receive_in_pieces(data: bytearray, rng: random.Random) -> int:
    to = peer_receiver.Receiver("peer-1", peer_wire.FROM_CLIENT | peer_wire.FROM_SERVER)
    count, position = 0, 0
    while position < len(data):
        space = to.get_buffers()[0]
        part = data[position : position + rng.randrange(1, len(space) + 1)]
        space[: len(part)] = part
        assert to.wanted_bytes >= 1
        count += len(to.bytes_received(len(part)))
        position += len(part)
    return count


@pytest.mark.parametrize("seed", range(10))
def test_damaged_stream_gives_messages_or_a_protocol_error(seed):
    rng = random.Random(seed)
    refused = 0
    for _ in range(STREAMS):
        data = valid_stream(rng)
        mutate(data, rng)
        try:
            receive_in_pieces(data, rng)
        except errors.RemoteProtocolError:
            refused += 1
    assert STREAMS / 4 < refused < STREAMS  # the mutations reach the checks, and get past them


def test_headers_with_huge_lengths_take_no_memory():
    hello = b"".join(peer_wire.encode(HELLO))
    tracemalloc.start()
    try:
        for type_ in range(256):
            to = peer_receiver.Receiver("peer-1", peer_wire.FROM_CLIENT | peer_wire.FROM_SERVER)
            with pytest.raises(errors.RemoteProtocolError):
                to.feed_bytes(hello + b"AC\x03" + bytes([type_]) + b"\xff" * 4)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
