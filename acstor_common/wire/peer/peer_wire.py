# SPDX-License-Identifier: Apache-2.0
"""Framing of messages between agents, without I/O (``doc/source/format/peer_wire.rst``)."""

import struct
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_common import errors
from acstor_common.wire.peer import peer_encryption
from acstor_common.wire.peer import peer_messages
from acstor_common.wire.peer import peer_request
from acstor_common.wire.peer.peer_messages import Advertise as Advertise
from acstor_common.wire.peer.peer_messages import Cancel as Cancel
from acstor_common.wire.peer.peer_messages import Chunk as Chunk
from acstor_common.wire.peer.peer_messages import EvictionHint as EvictionHint
from acstor_common.wire.peer.peer_messages import Get as Get
from acstor_common.wire.peer.peer_messages import Gone as Gone
from acstor_common.wire.peer.peer_messages import Hello as Hello
from acstor_common.wire.peer.peer_messages import Ping as Ping
from acstor_common.wire.peer.peer_messages import Pong as Pong
from acstor_common.wire.peer.peer_messages import RaisePriority as RaisePriority
from acstor_common.wire.peer.peer_messages import Refer as Refer
from acstor_common.wire.peer.peer_messages import Refuse as Refuse
from acstor_common.wire.peer.peer_messages import ReplicaReport as ReplicaReport
from acstor_common.wire.peer.peer_messages import ReplicaRequest as ReplicaRequest
from acstor_common.wire.peer.peer_request import ChunkRequest as ChunkRequest
from acstor_common.wire.peer.peer_request import ConnectionClass as ConnectionClass
from acstor_common.wire.peer.peer_request import Mode as Mode
from acstor_common.wire.peer.peer_request import Priority as Priority

MAGIC = 0x4143  # ``AC``; the high bit 0 makes a TLS server fail at once (no SSLv2 hello)
MAJOR_VERSION = 3

MAX_BATCH = peer_request.MAX_BATCH
MAX_DATA_BYTES = peer_request.MAX_DATA_BYTES
PROOF_BYTES = peer_request.PROOF_BYTES
RUN_BYTES = 1024 * 1024  # bytes of chunks in a frame with several: one FUSE read
ENCRYPTED_RUN_BYTES = 256 * 1024
"""The same for encrypted frames on slow links, as data waits for the tag."""

# Re-exported: users of the protocol import this module alone.
Buffer = peer_messages.Buffer
Message = peer_messages.Message
RefuseCode = peer_messages.RefuseCode
Notification = peer_messages.Notification
Announcement = peer_messages.Announcement
Type = peer_messages.Type
batches = peer_request.batches
proof_of = peer_request.proof_of

BULK_ONLY = frozenset(
    {Type.ADVERTISE, Type.GONE, Type.EVICTION_HINT, Type.KEEP, Type.KEPT, Type.RAISE_PRIORITY}
)
FROM_CLIENT = BULK_ONLY | {Type.HELLO, Type.GET, Type.CANCEL, Type.PING, Type.PONG}
"""Types that the side that opened the connection may send."""
FROM_SERVER = frozenset({Type.HELLO, Type.CHUNK, Type.REFUSE, Type.PING, Type.PONG, Type.REFER})
"""Types that the side that accepted the connection may send."""

HEADER = struct.Struct(">HBBI")  # magic, major version, type, body length
HEADER_BYTES = HEADER.size
COUNT_BYTES = 1
RUN = struct.Struct(">IIII")  # request, length, chunk length, uncompressed length


def encode(message: Message, encryption: peer_encryption.Encryption | None = None) -> list[Buffer]:
    """Return the frame of ``message`` as buffers, uncopied; LocalProtocolError: bad field.

    :param encryption: of this direction; frames must be sent in the order of encoding
    """
    try:
        buffers = _encode(message)
    except (struct.error, ValueError) as error:
        raise errors.LocalProtocolError(f"cannot send {type(message).__name__}: {error}") from error
    return buffers if encryption is None else [encryption.encrypt(buffers)]


def _encode(message: Message) -> list[Buffer]:
    if isinstance(message, peer_messages.Chunk):
        return _encode_chunks([message])
    kind = peer_messages.KINDS[type(message)]
    body = kind.encode(message)
    return [HEADER.pack(MAGIC, MAJOR_VERSION, kind.type, len(body)) + body]


def encode_chunks(
    chunks: Sequence[Chunk],
    encryption: peer_encryption.Encryption | None = None,
    run_bytes: int = RUN_BYTES,
) -> list[Buffer]:
    """Return as few frames as possible; one of several chunks has up to ``run_bytes`` of them."""
    buffers: list[Buffer] = []
    for run in _frames(chunks, run_bytes):
        try:
            frame = _encode_chunks(run)
        except (struct.error, ValueError) as error:
            raise errors.LocalProtocolError(f"cannot send Chunk: {error}") from error
        buffers += frame if encryption is None else [encryption.encrypt(frame)]
    return buffers


def _frames(answers: Sequence[Chunk], run_bytes: int) -> Iterator[Sequence[Chunk]]:
    frame: list[Chunk] = []
    total = 0
    numbers: set[int] = set()  # unique in a frame, even if a client reuses one too early
    for part in _parts(answers, run_bytes):
        its = part.numbers
        raw_bytes = part.raw_bytes or len(part.data)
        is_full = total + raw_bytes > run_bytes or len(numbers) + len(its) > MAX_BATCH
        if frame and (is_full or not numbers.isdisjoint(its)):
            yield frame
            frame, total = [], 0
            numbers.clear()
        frame.append(part)
        numbers.update(its)
        total += raw_bytes
    if frame:
        yield frame


def _parts(answers: Iterable[Chunk], run_bytes: int) -> Iterator[Chunk]:
    for answer in answers:
        number, data, size, _ = answer
        if not size or len(data) <= run_bytes:
            yield answer
            continue
        view, count = memoryview(data), max(1, run_bytes // size)
        for begin in range(0, len(data), count * size):
            part = view[begin : begin + count * size]
            yield Chunk(number, part, size if len(part) > size else 0)
            number += count


def _encode_chunks(chunks: Sequence[Chunk]) -> list[Buffer]:
    heads = [(number, len(data), size, raw_bytes) for number, data, size, raw_bytes in chunks]
    sizes = [length for _, length, _, _ in heads]
    total = sum(sizes)
    if not min(sizes) or total > MAX_DATA_BYTES:
        raise ValueError(f"chunks of {sizes} bytes in it")
    body_bytes = COUNT_BYTES + len(chunks) * RUN.size + total
    head = [HEADER.pack(MAGIC, MAJOR_VERSION, Type.CHUNK, body_bytes), bytes([len(chunks)])]
    head += [RUN.pack(*fields) for fields in heads]
    return [b"".join(head), *[data for _, data, _, _ in chunks]]
