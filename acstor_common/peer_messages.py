# SPDX-License-Identifier: Apache-2.0
"""What agents can say to each other, and how each message's body is written in bytes.

The one rule: nobody gets a message out of range.  What is sent is checked as
strictly as what was received, by the same functions; a fault is a ValueError
(or struct.error) here, and ``peer_wire``, which frames the bodies and cuts the
stream, says whose fault it is.  Every byte is described in
doc/source/format/peer_wire.rst.
"""

import enum
import struct
from collections.abc import Callable
from typing import NamedTuple

from acstor_common import geometry
from acstor_common import ids

MINOR_VERSION = 4
"""1 added Advertise, Refer and the flag ``may_refer`` of Get; 2 its flag ``is_soon``; 3 Gone, LetGo
and its flag ``is_relayed``; 4 its flag ``is_moved``.  A peer gets nothing that its minor version
does not have."""

MAX_DATA_BYTES = geometry.MAX_CHUNK_BYTES
MAX_TEXT_BYTES = 200
MAX_OFFSET = (1 << 63) - 1
MAX_PREFIXES = 512
MAX_REFERRALS = 4
MAX_CIDS = 128

Buffer = bytes | bytearray | memoryview


class Klass(enum.IntEnum):
    """What a connection is for: a guest waits for DEMAND, nobody waits for BULK yet."""

    DEMAND = 1
    BULK = 2


class RefuseCode(enum.IntEnum):
    """Why a Get is not answered with the bytes."""

    MISSING = 1  # it is not here and does not exist where this host could read it
    INVALID = 2  # what is here does not hash to the CID
    UNREACHABLE = 3  # a passing fault on the way to the source, or no time left
    BUSY = 4  # too much to do: ask somebody else
    BAD_REQUEST = 5  # no such image, range or chunk can be asked for


class Hello(NamedTuple):
    """First message on a connection, once from each side."""

    host_id: ids.HostId
    klass: Klass
    ring_epoch: int
    minor_version: int = MINOR_VERSION


class Get(NamedTuple):
    """Asks for ``length`` bytes of an image from ``offset`` on, which hash to ``cid``.

    :param may_read_source: the receiver may read through, from its source, what it has not got
    :param timeout_ms: how long the sender waits for the answer
    :param may_refer: the receiver may answer with a Refer instead
    :param is_soon: a guest of the sender is about to want it; only where none waits yet
    :param is_relayed: a home asks for others: the receiver asks nobody but the source for it, and
        waits for nothing that it asks others for itself
    :param is_moved: the receiver is the chunk's home by the sender's table, and another host was by
        the table before it
    """

    request_id: int
    image_id: ids.ImageId
    offset: int
    length: int
    cid: ids.Cid
    may_read_source: bool
    timeout_ms: int
    may_refer: bool = False
    is_soon: bool = False
    is_relayed: bool = False
    is_moved: bool = False


class Chunk(NamedTuple):
    """Answers a Get with its bytes."""

    request_id: int
    data: Buffer


class Refuse(NamedTuple):
    """Answers a Get with a reason why not; ``text`` is for people."""

    request_id: int
    code: RefuseCode
    text: str


class Cancel(NamedTuple):
    """Nobody waits for the answer of this Get any more; it may come all the same."""

    request_id: int


class Ping(NamedTuple):
    """Asks for a Pong with the same token."""

    token: int


class Pong(NamedTuple):
    """Answers a Ping."""

    token: int


class Advertise(NamedTuple):
    """Tells a neighbour of chunks that the sender has.

    :param prefixes: the first 8 bytes of each CID as a big-endian integer, 1 to 512 of them
    """

    prefixes: tuple[int, ...]


class Refer(NamedTuple):
    """Answers a Get: ask one of these hosts, they have the chunk or will have it before you.

    :param hosts: 1 to 4 of them, the best first
    """

    request_id: int
    hosts: tuple[ids.HostId, ...]


class Gone(NamedTuple):
    """Tells a neighbour of chunks that the sender has not got any more.

    :param prefixes: as in Advertise
    """

    prefixes: tuple[int, ...]


class LetGo(NamedTuple):
    """A home tells a holder of chunks that many others hold: let these make room first.

    :param cids: 1 to 128 of them
    """

    cids: tuple[ids.Cid, ...]


Message = Hello | Get | Chunk | Refuse | Cancel | Ping | Pong | Advertise | Refer | Gone | LetGo
News = Advertise | Gone | LetGo
"""What is told to a peer without being asked for, on BULK connections only; it has no answer."""
NEWS_SINCE: dict[type[News], int] = {Advertise: 1, Gone: 3, LetGo: 3}
"""The minor version that a peer must have to be told."""


class Type(enum.IntEnum):
    """Type number of each message in a frame's header; never changed, never used again."""

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
    LET_GO = 11


_HELLO = struct.Struct(">HBQ")  # minor version, klass, ring epoch; then the host id
_GET = struct.Struct(">I16sQIIB32s")  # request, image, offset, length, timeout, flags, CID
_REFUSE = struct.Struct(">IB")  # request, code; then the text
_REFER = struct.Struct(">IB")  # request, number of hosts; then of each the length and the id
_REQUEST = struct.Struct(">I")
_TOKEN = struct.Struct(">Q")
_MAX_HOST_BYTES = 255
_MAY_READ_SOURCE = 1
_MAY_REFER = 2
_IS_SOON = 4
_IS_RELAYED = 8
_IS_MOVED = 16
_KNOWN_FLAGS = _MAY_READ_SOURCE | _MAY_REFER | _IS_SOON | _IS_RELAYED | _IS_MOVED


def _require(is_right: bool, why: str) -> None:
    if not is_right:
        raise ValueError(why)


def _encode_hello(hello: Hello) -> bytes:
    host_id = ids.parse_host_id(hello.host_id).encode("ascii")
    return _HELLO.pack(hello.minor_version, hello.klass, hello.ring_epoch) + host_id


def _encode_get(get: Get) -> bytes:
    _check_get(get)
    flags = _MAY_READ_SOURCE * get.may_read_source | _MAY_REFER * get.may_refer
    flags |= _IS_SOON * get.is_soon | _IS_RELAYED * get.is_relayed | _IS_MOVED * get.is_moved
    image = ids.image_id_bytes(get.image_id)
    return _GET.pack(get.request_id, image, get.offset, get.length, get.timeout_ms, flags, get.cid)


def _encode_refuse(refuse: Refuse) -> bytes:
    return _REFUSE.pack(refuse.request_id, refuse.code) + _encode_text(refuse.text)


def _encode_prefixes(news: Advertise | Gone) -> bytes:
    _check_prefixes(news.prefixes)
    return struct.pack(f">{len(news.prefixes)}Q", *news.prefixes)


def _encode_let_go(let_go: LetGo) -> bytes:
    _check_cids(let_go.cids)
    return b"".join(let_go.cids)


def _encode_refer(refer: Refer) -> bytes:
    _check_hosts(refer.hosts)
    hosts = [ids.parse_host_id(host).encode("ascii") for host in refer.hosts]
    head = _REFER.pack(refer.request_id, len(hosts))
    return head + b"".join(bytes([len(host)]) + host for host in hosts)


def _encode_text(text: str) -> bytes:
    printable = "".join(c if c.isprintable() else "?" for c in text[:MAX_TEXT_BYTES])
    return printable.encode()[:MAX_TEXT_BYTES].decode(errors="ignore").encode()


def _check_get(get: Get) -> None:
    _require(1 <= get.length <= MAX_DATA_BYTES, f"a Get of {get.length} bytes")
    _require(0 <= get.offset <= MAX_OFFSET - get.length, f"a Get at offset {get.offset}")
    _require(get.timeout_ms >= 1, "a Get without time")
    _require(len(get.cid) == ids.CID_BYTES, f"a CID of {len(get.cid)} bytes")
    _require(get.cid != ids.ZERO_CID, "a Get of the zero chunk")


def _check_prefixes(prefixes: tuple[int, ...]) -> None:
    _require(1 <= len(prefixes) <= MAX_PREFIXES, f"{len(prefixes)} prefixes")
    _require(0 not in prefixes, "the zero chunk among prefixes")


def _check_cids(cids: tuple[ids.Cid, ...]) -> None:
    _require(1 <= len(cids) <= MAX_CIDS, f"{len(cids)} CIDs in a LetGo")
    _require(all(len(cid) == ids.CID_BYTES for cid in cids), "a CID of another length in a LetGo")
    _require(ids.ZERO_CID not in cids, "the zero chunk in a LetGo")


def _check_hosts(hosts: tuple[ids.HostId, ...]) -> None:
    _require(1 <= len(hosts) <= MAX_REFERRALS, f"{len(hosts)} hosts in a Refer")
    _require(len(set(hosts)) == len(hosts), "a host twice in a Refer")


def _decode_hello(body: bytes) -> Hello:
    minor_version, klass, ring_epoch = _HELLO.unpack_from(body)
    host_id = ids.parse_host_id(body[_HELLO.size :].decode("ascii"))
    return Hello(host_id, Klass(klass), ring_epoch, minor_version)


def _decode_get(body: bytes) -> Get:
    request_id, image, offset, length, timeout_ms, flags, cid = _GET.unpack(body)
    _require(flags <= _KNOWN_FLAGS, f"unknown flags {flags:#04x} in a Get")
    get = Get(
        request_id,
        ids.image_id_from_bytes(image),
        offset,
        length,
        ids.Cid(cid),
        may_read_source=bool(flags & _MAY_READ_SOURCE),
        timeout_ms=timeout_ms,
        may_refer=bool(flags & _MAY_REFER),
        is_soon=bool(flags & _IS_SOON),
        is_relayed=bool(flags & _IS_RELAYED),
        is_moved=bool(flags & _IS_MOVED),
    )
    _check_get(get)
    return get


def _decode_refuse(body: bytes) -> Refuse:
    request_id, code = _REFUSE.unpack_from(body)
    text = body[_REFUSE.size :].decode()
    _require(text.isprintable(), "a text that cannot be printed in a Refuse")
    return Refuse(request_id, RefuseCode(code), text)


def _decode_prefixes(body: bytes) -> tuple[int, ...]:
    _require(len(body) % 8 == 0, f"{len(body)} bytes of prefixes")
    prefixes = struct.unpack(f">{len(body) // 8}Q", body)
    _check_prefixes(prefixes)
    return prefixes


def _decode_let_go(body: bytes) -> LetGo:
    _require(len(body) % ids.CID_BYTES == 0, f"{len(body)} bytes of CIDs in a LetGo")
    starts = range(0, len(body), ids.CID_BYTES)
    cids = tuple(ids.Cid(body[start : start + ids.CID_BYTES]) for start in starts)
    _check_cids(cids)
    return LetGo(cids)


def _decode_refer(body: bytes) -> Refer:
    request_id, count = _REFER.unpack_from(body)
    hosts: list[ids.HostId] = []
    at = _REFER.size
    while at < len(body) and len(hosts) <= MAX_REFERRALS:
        stop = at + 1 + body[at]
        _require(stop <= len(body), "a host id that is cut off in a Refer")
        hosts.append(ids.parse_host_id(body[at + 1 : stop].decode("ascii")))
        at = stop
    _require(len(hosts) == count, f"{len(hosts)} hosts where {count} were promised in a Refer")
    _check_hosts(tuple(hosts))
    return Refer(request_id, tuple(hosts))


class Kind(NamedTuple):
    """How one small message (every one but Chunk) is told, and the bounds on its body."""

    type: Type
    min_bytes: int
    max_bytes: int
    encode: Callable[..., bytes]
    decode: Callable[[bytes], Message]


_MAX_REFER_BYTES = _REFER.size + MAX_REFERRALS * (1 + _MAX_HOST_BYTES)

KINDS: dict[type[Message], Kind] = {
    Hello: Kind(
        Type.HELLO, _HELLO.size + 1, _HELLO.size + _MAX_HOST_BYTES, _encode_hello, _decode_hello
    ),
    Get: Kind(Type.GET, _GET.size, _GET.size, _encode_get, _decode_get),
    Refuse: Kind(
        Type.REFUSE, _REFUSE.size, _REFUSE.size + MAX_TEXT_BYTES, _encode_refuse, _decode_refuse
    ),
    Cancel: Kind(
        Type.CANCEL,
        _REQUEST.size,
        _REQUEST.size,
        lambda cancel: _REQUEST.pack(cancel.request_id),
        lambda body: Cancel(*_REQUEST.unpack(body)),
    ),
    Ping: Kind(
        Type.PING,
        _TOKEN.size,
        _TOKEN.size,
        lambda ping: _TOKEN.pack(ping.token),
        lambda body: Ping(*_TOKEN.unpack(body)),
    ),
    Pong: Kind(
        Type.PONG,
        _TOKEN.size,
        _TOKEN.size,
        lambda pong: _TOKEN.pack(pong.token),
        lambda body: Pong(*_TOKEN.unpack(body)),
    ),
    Advertise: Kind(
        Type.ADVERTISE,
        8,
        8 * MAX_PREFIXES,
        _encode_prefixes,
        lambda body: Advertise(_decode_prefixes(body)),
    ),
    Refer: Kind(Type.REFER, _REFER.size + 2, _MAX_REFER_BYTES, _encode_refer, _decode_refer),
    Gone: Kind(
        Type.GONE,
        8,
        8 * MAX_PREFIXES,
        _encode_prefixes,
        lambda body: Gone(_decode_prefixes(body)),
    ),
    LetGo: Kind(
        Type.LET_GO, ids.CID_BYTES, ids.CID_BYTES * MAX_CIDS, _encode_let_go, _decode_let_go
    ),
}
