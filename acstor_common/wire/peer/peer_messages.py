# SPDX-License-Identifier: Apache-2.0
"""Messages between agents and their encoding (``doc/source/format/peer_wire.rst``).

The same functions validate sent and received messages.  A fault is a ValueError or struct.error.
"""

import enum
import itertools
import struct
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.wire.peer import peer_request
from acstor_common.wire.peer import replica_messages
from acstor_common.wire.peer.peer_request import Cancel as Cancel
from acstor_common.wire.peer.peer_request import ConnectionClass as ConnectionClass
from acstor_common.wire.peer.peer_request import Get as Get
from acstor_common.wire.peer.peer_request import RaisePriority as RaisePriority
from acstor_common.wire.peer.replica_messages import ReplicaReport as ReplicaReport
from acstor_common.wire.peer.replica_messages import ReplicaRequest as ReplicaRequest

MAX_SEGMENTS = 512
MAX_REFERRALS = 4

Buffer = bytes | bytearray | memoryview


class RefuseCode(enum.IntEnum):
    """Why a request is refused."""

    MISSING = 1  # not here, or not readable
    UNREACHABLE = 2  # transient fault of the source, or timeout
    BUSY = 3  # overloaded: ask another host
    WITHHELD = 4  # the source denies this host; other hosts may get it


class Hello(NamedTuple):
    """First message on a connection, once from each side."""

    host_id: ids.HostId
    klass: ConnectionClass
    ring_epoch: int


class Chunk(NamedTuple):
    """Answers a request, or a part of its run, with data."""

    request_id: int  # number of the first chunk; the others have consecutive numbers
    data: Buffer  # of all chunks, concatenated
    chunk_bytes: int = 0  # of a run: the length of each chunk but the last; 0: one chunk
    raw_bytes: int = 0  # uncompressed length of one chunk; receivers get it decompressed

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return peer_request.count_chunks(len(self[1]), self[2])

    @property
    def numbers(self) -> range:
        """Numbers of the chunks."""
        return range(self[0], self[0] + self.chunk_count)

    def iter_chunks(self) -> Iterator["Chunk"]:
        """Yield one message per chunk."""
        number, data, size, _ = self
        if not size:
            yield self
            return
        view = memoryview(data)
        for begin in range(0, len(view), size):
            yield Chunk(number, view[begin : begin + size])
            number += 1


class Refuse(NamedTuple):
    """Refuses a request; details are in the sender's log."""

    request_id: int
    code: RefuseCode


class Ping(NamedTuple):
    """Asks for a Pong with the same token."""

    token: int


class Pong(NamedTuple):
    """Answers a Ping."""

    token: int


class Advertise(NamedTuple):
    """Announces chunks of 1 to 512 segments to a neighbour."""

    chunks: tuple[segments.Chunks, ...]
    segment_chunks: int = 1


class Refer(NamedTuple):
    """A referral: 1 to 4 hosts that have the chunk, or get it first, the best first.

    With the variant ``ring`` a single host is the next in lockstep; a sender that knows only one
    host adds itself as the last.
    """

    request_id: int
    hosts: tuple[ids.HostId, ...]


class Gone(NamedTuple):
    """Announces that the sender no longer has chunks; fields as of Advertise."""

    chunks: tuple[segments.Chunks, ...]
    segment_chunks: int = 1


class EvictionHint(NamedTuple):
    """A home's hint to evict widely replicated chunks first; as Advertise."""

    chunks: tuple[segments.Chunks, ...]
    segment_chunks: int = 1


Announcement = Advertise | Gone | EvictionHint
Notification = Announcement | ReplicaRequest | ReplicaReport
"""Unsolicited messages without an answer, on BULK connections only."""
Message = Hello | Get | Chunk | Refuse | Cancel | RaisePriority | Ping | Pong | Refer | Notification


class Type(enum.IntEnum):
    """Type number in a frame's header; never changed or reused."""

    HELLO = 1
    GET = 2
    CHUNK = 3
    REFUSE = 4
    CANCEL = 5
    PING = 6
    PONG = 7
    ADVERTISE = 8
    REFER = 9
    GONE = 10
    EVICTION_HINT = 11
    KEEP = 12
    KEPT = 13
    RAISE_PRIORITY = 14


_HELLO = struct.Struct(">BQ")  # class, ring epoch; then the host ID
_REFUSE = struct.Struct(">IB")  # request, code
_REFER = struct.Struct(">IB")  # request, number of hosts; then length and ID of each
_TOKEN = struct.Struct(">Q")
_SEGMENT_BYTES = 10  # name, bitmap; the segment length precedes the first
_CHUNK_BYTES = 8  # name alone, for segments of one chunk
_MAX_HOST_BYTES = 255


def _require(is_right: bool, why: str) -> None:
    if not is_right:
        raise ValueError(why)


def _encode_hello(hello: Hello) -> bytes:
    host_id = ids.parse_host_id(hello.host_id).encode("ascii")
    return _HELLO.pack(hello.klass, hello.ring_epoch) + host_id


def _encode_refuse(refuse: Refuse) -> bytes:
    return _REFUSE.pack(refuse.request_id, refuse.code)


def _encode_segments(announcement: Announcement) -> bytes:
    chunks, length = announcement
    names, bitmaps = [name for name, _ in chunks], [bits for _, bits in chunks]
    _check_segments(names, bitmaps, length)
    if length == 1:
        return bytes([length]) + struct.pack(f">{len(names)}Q", *names)
    flat = itertools.chain.from_iterable(chunks)
    return bytes([length]) + struct.pack(">" + len(names) * "QH", *flat)


def _encode_refer(refer: Refer) -> bytes:
    _check_hosts(refer.hosts)
    hosts = [ids.parse_host_id(host).encode("ascii") for host in refer.hosts]
    head = _REFER.pack(refer.request_id, len(hosts))
    return head + b"".join(bytes([len(host)]) + host for host in hosts)


def _check_segments(names: Sequence[int], bitmaps: Sequence[int], segment_chunks: int) -> None:
    segments.check(segment_chunks)
    _require(1 <= len(names) <= MAX_SEGMENTS, f"{len(names)} segments")
    _require(0 not in names, "a segment of zeros")
    _require(min(bitmaps) > 0, "a segment without chunks")
    _require(max(bitmaps) < 1 << segment_chunks, f"chunks beyond a segment of {segment_chunks}")


def _check_hosts(hosts: tuple[ids.HostId, ...]) -> None:
    _require(1 <= len(hosts) <= MAX_REFERRALS, f"{len(hosts)} hosts in a Refer")
    _require(len(set(hosts)) == len(hosts), "a host twice in a Refer")


def _decode_hello(body: bytes) -> Hello:
    klass, ring_epoch = _HELLO.unpack_from(body)
    host_id = ids.parse_host_id(body[_HELLO.size :].decode("ascii"))
    return Hello(host_id, ConnectionClass(klass), ring_epoch)


def _decode_refuse(body: bytes) -> Refuse:
    request_id, code = _REFUSE.unpack(body)
    return Refuse(request_id, RefuseCode(code))


def _decode_segments(body: bytes) -> tuple[tuple[segments.Chunks, ...], int]:
    length = body[0]
    entry_bytes = _CHUNK_BYTES if length == 1 else _SEGMENT_BYTES
    count, rest = divmod(len(body) - 1, entry_bytes)
    _require(rest == 0, f"{len(body)} bytes of segments")
    flat = struct.unpack_from(">" + count * ("Q" if length == 1 else "QH"), body, 1)
    names, bitmaps = (flat, count * (1,)) if length == 1 else (flat[::2], flat[1::2])
    _check_segments(names, bitmaps, length)
    return tuple(zip(names, bitmaps, strict=True)), length


def _decode_refer(body: bytes) -> Refer:
    request_id, count = _REFER.unpack_from(body)
    hosts: list[ids.HostId] = []
    at = _REFER.size
    while at < len(body) and len(hosts) <= MAX_REFERRALS:
        stop = at + 1 + body[at]
        _require(stop <= len(body), "a host id that is cut off in a Refer")
        hosts.append(ids.parse_host_id(body[at + 1 : stop].decode("ascii")))
        at = stop
    _require(len(hosts) == count, f"{len(hosts)} hosts instead of {count} in a Refer")
    _check_hosts(tuple(hosts))
    return Refer(request_id, tuple(hosts))


class MessageKind(NamedTuple):
    """Type, size limits and codec of one message other than Chunk."""

    type: Type
    min_bytes: int
    max_bytes: int
    encode: Callable[..., bytes]
    decode: Callable[[bytes], Message]


def _announcement_kind(
    type_: Type, made: Callable[[tuple[segments.Chunks, ...], int], Announcement]
) -> MessageKind:
    return MessageKind(
        type_,
        1 + _CHUNK_BYTES,
        1 + _SEGMENT_BYTES * MAX_SEGMENTS,
        _encode_segments,
        lambda body: made(*_decode_segments(body)),
    )


def _of_requests(
    type_: Type, made: Callable[[tuple[int, ...]], Cancel | RaisePriority]
) -> MessageKind:
    return MessageKind(
        type_,
        peer_request.MIN_NUMBERS_BYTES,
        peer_request.MAX_NUMBERS_BYTES,
        peer_request.encode_numbers,
        lambda body: made(peer_request.decode_numbers(body)),
    )


_MAX_REFER_BYTES = _REFER.size + MAX_REFERRALS * (1 + _MAX_HOST_BYTES)

KINDS: dict[type[Message], MessageKind] = {
    Hello: MessageKind(
        Type.HELLO, _HELLO.size + 1, _HELLO.size + _MAX_HOST_BYTES, _encode_hello, _decode_hello
    ),
    Get: MessageKind(
        Type.GET,
        peer_request.MIN_GET_BYTES,
        peer_request.MAX_GET_BYTES,
        peer_request.encode_get,
        peer_request.decode_get,
    ),
    Refuse: MessageKind(Type.REFUSE, _REFUSE.size, _REFUSE.size, _encode_refuse, _decode_refuse),
    Cancel: _of_requests(Type.CANCEL, Cancel),
    RaisePriority: _of_requests(Type.RAISE_PRIORITY, RaisePriority),
    Ping: MessageKind(
        Type.PING,
        _TOKEN.size,
        _TOKEN.size,
        lambda ping: _TOKEN.pack(ping.token),
        lambda body: Ping(*_TOKEN.unpack(body)),
    ),
    Pong: MessageKind(
        Type.PONG,
        _TOKEN.size,
        _TOKEN.size,
        lambda pong: _TOKEN.pack(pong.token),
        lambda body: Pong(*_TOKEN.unpack(body)),
    ),
    Advertise: _announcement_kind(Type.ADVERTISE, Advertise),
    Refer: MessageKind(Type.REFER, _REFER.size + 2, _MAX_REFER_BYTES, _encode_refer, _decode_refer),
    Gone: _announcement_kind(Type.GONE, Gone),
    EvictionHint: _announcement_kind(Type.EVICTION_HINT, EvictionHint),
    ReplicaRequest: MessageKind(
        Type.KEEP,
        replica_messages.MIN_REQUEST_BYTES,
        replica_messages.MAX_REQUEST_BYTES,
        replica_messages.encode_request,
        replica_messages.decode_request,
    ),
    ReplicaReport: MessageKind(
        Type.KEPT,
        replica_messages.MIN_REPORT_BYTES,
        replica_messages.MAX_REPORT_BYTES,
        replica_messages.encode_report,
        replica_messages.decode_report,
    ),
}
