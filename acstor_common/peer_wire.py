# SPDX-License-Identifier: Apache-2.0
"""What agents say to each other: messages to bytes and back, without any I/O.

The one rule: every byte from the other side is checked before it is used, and
only :class:`errors.RemoteProtocolError` comes out of a bad one.  Nothing is
allocated before the length in a frame's header was found to be in range.

The shape is that of h11 and of asyncio's BufferedProtocol: the shell receives
into :meth:`Receiver.get_buffers` and tells how much came by
:meth:`Receiver.received`.  A chunk's bytes land in their own buffer, so they are
never joined or copied.  Every byte is described in
doc/source/format/peer_wire.rst.
"""

import enum
import struct
from collections.abc import Callable
from typing import NamedTuple

from acstor_common import errors
from acstor_common import geometry
from acstor_common import ids

MAGIC = 0x4143
"""``AC``; its high bit is 0, so a TLS server sees garbage at once, no SSLv2 hello."""
MAJOR_VERSION = 1
MINOR_VERSION = 0

MAX_DATA_BYTES = geometry.MAX_CHUNK_BYTES
MAX_BODY_BYTES = MAX_DATA_BYTES + 4
MAX_TEXT_BYTES = 200
MAX_OFFSET = (1 << 63) - 1
SMALL_BYTES = 4096
"""Size of the buffer for headers and small messages; every message but Chunk fits."""

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
    """

    request_id: int
    image_id: ids.ImageId
    offset: int
    length: int
    cid: ids.Cid
    may_read_source: bool
    timeout_ms: int


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


Message = Hello | Get | Chunk | Refuse | Cancel | Ping | Pong


class Type(enum.IntEnum):
    """Type number of each message in a frame's header; never changed, never used again."""

    HELLO = 1
    GET = 2
    CHUNK = 3
    REFUSE = 4
    CANCEL = 5
    PING = 6
    PONG = 7


FROM_CLIENT = frozenset({Type.HELLO, Type.GET, Type.CANCEL, Type.PING, Type.PONG})
"""What the side that opened the connection may send."""
FROM_SERVER = frozenset({Type.HELLO, Type.CHUNK, Type.REFUSE, Type.PING, Type.PONG})
"""What the side that accepted the connection may send."""

_HEADER = struct.Struct(">HBBI")  # magic, major version, type, bytes of the body
_HELLO = struct.Struct(">HBQ")  # minor version, klass, ring epoch; then the host id
_GET = struct.Struct(">I16sQIIB32s")  # request, image, offset, length, timeout, flags, CID
_CHUNK = struct.Struct(">I")  # request; then the data
_REFUSE = struct.Struct(">IB")  # request, code; then the text
_CANCEL = struct.Struct(">I")
_TOKEN = struct.Struct(">Q")
_CHUNK_HEAD = struct.Struct(_HEADER.format + _CHUNK.format[1:])
_GET_FRAME = struct.Struct(_HEADER.format + _GET.format[1:])
_MAY_READ_SOURCE = 1

HEADER_BYTES = _HEADER.size


def encode(message: Message) -> list[Buffer]:
    """Return the frame of ``message`` as buffers to send one after the other, data not copied.

    The text of a Refuse is cut to 200 bytes, and what cannot be printed is replaced.

    :raises errors.LocalProtocolError: a field is out of range
    """
    try:
        match message:
            case Get():
                return [_encode_get(message)]
            case Chunk(request_id, data):
                length = len(data)
                _require(1 <= length <= MAX_DATA_BYTES, f"{length} bytes in a Chunk")
                head = MAGIC, MAJOR_VERSION, Type.CHUNK, _CHUNK.size + length
                return [_CHUNK_HEAD.pack(*head, request_id), data]
            case Refuse(request_id, code, text):
                return [_frame(Type.REFUSE, _REFUSE.pack(request_id, code) + _encode_text(text))]
            case Hello():
                return [_frame(Type.HELLO, _encode_hello(message))]
            case Cancel(request_id):
                return [_frame(Type.CANCEL, _CANCEL.pack(request_id))]
            case Ping(token):
                return [_frame(Type.PING, _TOKEN.pack(token))]
            case Pong(token):
                return [_frame(Type.PONG, _TOKEN.pack(token))]
    except (struct.error, ValueError) as error:
        raise errors.LocalProtocolError(f"cannot send {type(message).__name__}: {error}") from error


def _require(is_right: bool, why: str) -> None:
    if not is_right:
        raise ValueError(why)


def _frame(type_: Type, body: bytes) -> bytes:
    return _HEADER.pack(MAGIC, MAJOR_VERSION, type_, len(body)) + body


def _encode_hello(hello: Hello) -> bytes:
    host_id = ids.parse_host_id(hello.host_id).encode("ascii")
    return _HELLO.pack(hello.minor_version, hello.klass, hello.ring_epoch) + host_id


def _encode_get(get: Get) -> bytes:
    _check_get(get)
    return _GET_FRAME.pack(
        MAGIC,
        MAJOR_VERSION,
        Type.GET,
        _GET.size,
        get.request_id,
        ids.image_id_bytes(get.image_id),
        get.offset,
        get.length,
        get.timeout_ms,
        _MAY_READ_SOURCE if get.may_read_source else 0,
        get.cid,
    )


def _encode_text(text: str) -> bytes:
    printable = "".join(c if c.isprintable() else "?" for c in text[:MAX_TEXT_BYTES])
    return printable.encode()[:MAX_TEXT_BYTES].decode(errors="ignore").encode()


def _check_get(get: Get) -> None:
    _require(1 <= get.length <= MAX_DATA_BYTES, f"a Get of {get.length} bytes")
    _require(0 <= get.offset <= MAX_OFFSET - get.length, f"a Get at offset {get.offset}")
    _require(get.timeout_ms >= 1, "a Get without time")
    _require(len(get.cid) == ids.CID_BYTES, f"a CID of {len(get.cid)} bytes")
    _require(get.cid != ids.ZERO_CID, "a Get of the zero chunk")


def _decode_hello(body: bytes) -> Hello:
    minor_version, klass, ring_epoch = _HELLO.unpack_from(body)
    host_id = ids.parse_host_id(body[_HELLO.size :].decode("ascii"))
    return Hello(host_id, Klass(klass), ring_epoch, minor_version)


def _decode_get(body: bytes) -> Get:
    request_id, image, offset, length, timeout_ms, flags, cid = _GET.unpack(body)
    _require(flags <= _MAY_READ_SOURCE, f"unknown flags {flags:#04x} in a Get")
    image_id = ids.image_id_from_bytes(image)
    get = Get(request_id, image_id, offset, length, ids.Cid(cid), bool(flags), timeout_ms)
    _check_get(get)
    return get


def _decode_refuse(body: bytes) -> Refuse:
    request_id, code = _REFUSE.unpack_from(body)
    text = body[_REFUSE.size :].decode()
    _require(text.isprintable(), "a text that cannot be printed in a Refuse")
    return Refuse(request_id, RefuseCode(code), text)


class _Kind(NamedTuple):
    """Bounds on the body of one small message, and how to read it."""

    min_bytes: int
    max_bytes: int
    decode: Callable[[bytes], Message]


_SMALL = {
    Type.HELLO: _Kind(_HELLO.size + 1, _HELLO.size + 255, _decode_hello),
    Type.GET: _Kind(_GET.size, _GET.size, _decode_get),
    Type.REFUSE: _Kind(_REFUSE.size, _REFUSE.size + MAX_TEXT_BYTES, _decode_refuse),
    Type.CANCEL: _Kind(_CANCEL.size, _CANCEL.size, lambda body: Cancel(*_CANCEL.unpack(body))),
    Type.PING: _Kind(_TOKEN.size, _TOKEN.size, lambda body: Ping(*_TOKEN.unpack(body))),
    Type.PONG: _Kind(_TOKEN.size, _TOKEN.size, lambda body: Pong(*_TOKEN.unpack(body))),
}
_KNOWN = frozenset(Type)


class Receiver:
    """Makes messages of the bytes of one direction of one connection.

    It holds at most one chunk and ``SMALL_BYTES``, whatever is sent.

    :param peer: the other side as far as it is known, for errors
    :param accepts: the messages that the other side may send: FROM_CLIENT or FROM_SERVER
    """

    def __init__(self, peer: str, accepts: frozenset[Type]) -> None:
        self.peer = peer
        self._accepts = accepts
        self._is_greeted = False
        self._small = bytearray(SMALL_BYTES)
        self._small_view = memoryview(self._small)
        self._start = 0  # the bytes from _start to _end came and were not used yet
        self._end = 0
        self._data: bytearray | None = None  # of the chunk that is on its way
        self._data_view = self._small_view[:0]
        self._filled = 0
        self._request_id = 0
        self._skipping = 0  # bytes to come of a frame that nobody here knows

    @property
    def wanted_bytes(self) -> int:
        """Bytes missing until the frame that is on its way is whole (its header, at least)."""
        if self._data is not None:
            return len(self._data) - self._filled
        have = self._end - self._start
        if self._skipping:
            return self._skipping
        if have < HEADER_BYTES:
            return HEADER_BYTES - have
        body_bytes: int = _HEADER.unpack_from(self._small, self._start)[3]
        return HEADER_BYTES + body_bytes - have

    @property
    def is_between_frames(self) -> bool:
        """Say that nothing of a frame came whose rest did not."""
        return self._data is None and not self._skipping and self._start == self._end

    def get_buffers(self) -> list[memoryview]:
        """Return where to receive next, to be filled in this order."""
        if self._data is not None:
            return [self._data_view[self._filled :], self._small_view]
        if self._start:
            rest = self._end - self._start
            self._small[:rest] = self._small[self._start : self._end]
            self._start, self._end = 0, rest
        return [self._small_view[self._end :]]

    def feed(self, data: bytes | bytearray) -> list[Message]:
        """Take bytes that were received elsewhere (by TLS): copies them."""
        messages: list[Message] = []
        view = memoryview(data)
        while view:
            space = self.get_buffers()[0]
            taken = min(len(view), len(space))
            space[:taken] = view[:taken]
            messages += self.received(taken)
            view = view[taken:]
        return messages

    def received(self, count: int) -> list[Message]:
        """Return the messages that ``count`` more bytes in the buffers completed.

        :raises errors.RemoteProtocolError: the other side broke the rules; the receiver must not
            be used any more
        """
        messages: list[Message] = []
        if self._data is not None:
            taken = min(count, len(self._data) - self._filled)
            self._filled += taken
            count -= taken
            self._finish_chunk(messages)
        self._end += count
        while self._step(messages):
            pass
        return messages

    def _step(self, messages: list[Message]) -> bool:
        """Use what is in the small buffer for one frame; False if more must come first."""
        have = self._end - self._start
        if self._skipping:
            taken = min(self._skipping, have)
            self._skipping -= taken
            self._start += taken
            return taken < have
        if have < HEADER_BYTES:
            return False
        magic, major_version, type_, body_bytes = _HEADER.unpack_from(self._small, self._start)
        if magic != MAGIC:
            raise self._error(f"no frame begins with {magic:#06x}")
        if major_version != MAJOR_VERSION:
            raise self._error(f"version {major_version} is unknown, {MAJOR_VERSION} is expected")
        if type_ == Type.CHUNK:
            return self._begin_chunk(have, body_bytes, messages)
        if type_ not in _KNOWN:
            return self._begin_skip(type_, body_bytes)
        return self._take_small(Type(type_), have, body_bytes, messages)

    def _begin_chunk(self, have: int, body_bytes: int, messages: list[Message]) -> bool:
        self._check_turn(Type.CHUNK)
        if not _CHUNK.size < body_bytes <= MAX_BODY_BYTES:
            raise self._error(f"a Chunk with a body of {body_bytes} bytes")
        if have < _CHUNK_HEAD.size:
            return False
        (self._request_id,) = _CHUNK.unpack_from(self._small, self._start + HEADER_BYTES)
        self._start += _CHUNK_HEAD.size
        self._data = bytearray(body_bytes - _CHUNK.size)
        self._data_view = memoryview(self._data)
        self._filled = min(len(self._data), self._end - self._start)
        self._data_view[: self._filled] = self._small_view[self._start : self._start + self._filled]
        self._start += self._filled
        return self._finish_chunk(messages)

    def _finish_chunk(self, messages: list[Message]) -> bool:
        if self._data is None or self._filled < len(self._data):
            self._start = self._end = 0  # the chunk took all there was
            return False
        messages.append(Chunk(self._request_id, self._data))
        self._data, self._data_view = None, self._small_view[:0]
        return True

    def _begin_skip(self, type_: int, body_bytes: int) -> bool:
        if not self._is_greeted:
            raise self._error(f"message type {type_} before Hello")
        if body_bytes > MAX_BODY_BYTES:
            raise self._error(f"a frame of {body_bytes} bytes")
        self._start += HEADER_BYTES
        self._skipping = body_bytes
        return True

    def _take_small(self, type_: Type, have: int, body_bytes: int, messages: list[Message]) -> bool:
        self._check_turn(type_)
        kind = _SMALL[type_]
        if not kind.min_bytes <= body_bytes <= kind.max_bytes:
            raise self._error(f"a {type_.name} with a body of {body_bytes} bytes")
        if have < HEADER_BYTES + body_bytes:
            return False
        begin = self._start + HEADER_BYTES
        self._start = begin + body_bytes
        try:
            messages.append(kind.decode(bytes(self._small_view[begin : self._start])))
        except ValueError as error:
            raise self._error(f"{type_.name}: {error}") from error
        self._is_greeted = True
        return True

    def _check_turn(self, type_: Type) -> None:
        """Refuse a message that this side may not send, or not now."""
        if type_ not in self._accepts:
            raise self._error(f"{type_.name} comes from the wrong side")
        if (type_ == Type.HELLO) == self._is_greeted:
            raise self._error("Hello twice" if self._is_greeted else f"{type_.name} before Hello")

    def _error(self, why: str) -> errors.RemoteProtocolError:
        return errors.RemoteProtocolError(self.peer, why)
