# SPDX-License-Identifier: Apache-2.0
"""What agents say to each other: messages to bytes and back, without any I/O.

The one rule: every byte from the other side is checked before it is used, and
only :class:`errors.RemoteProtocolError` comes out of a bad one.  Nothing is
allocated before the length in a frame's header was found to be in range.

The shape is that of h11 and of asyncio's BufferedProtocol: the shell receives
into :meth:`Receiver.get_buffers` and tells how much came by
:meth:`Receiver.received`.  A chunk's bytes land in their own buffer, so they are
never joined or copied.  Where a connection is authenticated but not encrypted a
code (``peer_seal``) follows each frame, and nothing of a frame is used before its
code was found right.  The messages and their bodies are in ``peer_messages``;
every byte is described in doc/source/format/peer_wire.rst.
"""

import hmac
import struct

from acstor_common import errors
from acstor_common import peer_messages
from acstor_common import peer_seal
from acstor_common.peer_messages import Advertise as Advertise
from acstor_common.peer_messages import Cancel as Cancel
from acstor_common.peer_messages import Chunk as Chunk
from acstor_common.peer_messages import Get as Get
from acstor_common.peer_messages import Gone as Gone
from acstor_common.peer_messages import Hello as Hello
from acstor_common.peer_messages import Keep as Keep
from acstor_common.peer_messages import Kept as Kept
from acstor_common.peer_messages import LetGo as LetGo
from acstor_common.peer_messages import Ping as Ping
from acstor_common.peer_messages import Pong as Pong
from acstor_common.peer_messages import Refer as Refer
from acstor_common.peer_messages import Refuse as Refuse

MAGIC = 0x4143
"""``AC``; its high bit is 0, so a TLS server sees garbage at once, no SSLv2 hello."""
MAJOR_VERSION = 2

MAX_DATA_BYTES = peer_messages.MAX_DATA_BYTES
PROOF_BYTES = peer_messages.PROOF_BYTES
MAX_BODY_BYTES = MAX_DATA_BYTES + 4
SMALL_BYTES = 8192
"""Size of the buffer for headers and small messages; every message but Chunk fits."""

# Who speaks the protocol needs this module alone.
Buffer = peer_messages.Buffer
Message = peer_messages.Message
Klass = peer_messages.Klass
RefuseCode = peer_messages.RefuseCode
News = peer_messages.News
Type = peer_messages.Type
proof_of = peer_messages.proof_of

NEWS = frozenset({Type.ADVERTISE, Type.GONE, Type.LET_GO, Type.KEEP, Type.KEPT})
FROM_CLIENT = NEWS | {Type.HELLO, Type.GET, Type.CANCEL, Type.PING, Type.PONG}
"""What the side that opened the connection may send; news on BULK only."""
FROM_SERVER = frozenset({Type.HELLO, Type.CHUNK, Type.REFUSE, Type.PING, Type.PONG, Type.REFER})
"""What the side that accepted the connection may send."""

_HEADER = struct.Struct(">HBBI")  # magic, major version, type, bytes of the body
_CHUNK = struct.Struct(">I")  # request; then the data
_CHUNK_HEAD = struct.Struct(_HEADER.format + _CHUNK.format[1:])
_KNOWN = frozenset(Type)
_SMALL = {kind.type: kind for kind in peer_messages.KINDS.values()}

_TLS_RECORDS = (0x1503, 0x1603)  # an alert, a handshake: the first bytes that a TLS side sends

HEADER_BYTES = _HEADER.size


def encode(message: Message, seal: peer_seal.Seal | None = None) -> list[Buffer]:
    """Return the frame of ``message`` as buffers to send one after the other, data not copied.

    :param seal: of this direction, where frames carry codes; frames are to be sent in the order in
        which they were encoded
    :raises errors.LocalProtocolError: a field is out of range
    """
    try:
        buffers = _encode(message)
    except (struct.error, ValueError) as error:
        raise errors.LocalProtocolError(f"cannot send {type(message).__name__}: {error}") from error
    if seal is not None:
        buffers.append(seal.next(*buffers))
    return buffers


def _encode(message: Message) -> list[Buffer]:
    if isinstance(message, peer_messages.Chunk):
        return _encode_chunk(message)
    kind = peer_messages.KINDS[type(message)]
    body = kind.encode(message)
    return [_HEADER.pack(MAGIC, MAJOR_VERSION, kind.type, len(body)) + body]


def _encode_chunk(chunk: Chunk) -> list[Buffer]:
    length = len(chunk.data)
    if not 1 <= length <= MAX_DATA_BYTES:
        raise ValueError(f"{length} bytes in it")
    head = MAGIC, MAJOR_VERSION, Type.CHUNK, _CHUNK.size + length
    return [_CHUNK_HEAD.pack(*head, chunk.request_id), chunk.data]


class Receiver:
    """Makes messages of the bytes of one direction of one connection.

    It holds at most one chunk and ``SMALL_BYTES``, whatever is sent.

    :param peer: the other side as far as it is known, for errors
    :param accepts: the messages that the other side may send: FROM_CLIENT or FROM_SERVER
    :param seal: of the other side's direction, where frames carry codes
    """

    def __init__(
        self, peer: str, accepts: frozenset[Type], seal: peer_seal.Seal | None = None
    ) -> None:
        self.peer = peer
        self._accepts = accepts
        self._seal = seal
        self._mac_bytes = peer_seal.MAC_BYTES if seal else 0
        self._is_greeted = False
        self._klass = Klass.DEMAND  # until Hello says otherwise
        self._small = bytearray(SMALL_BYTES)
        self._small_view = memoryview(self._small)
        self._start = 0  # the bytes from _start to _end came and were not used yet
        self._end = 0
        self._data: bytearray | None = None  # of the chunk that is on its way
        self._data_view = self._small_view[:0]
        self._filled = 0
        self._chunk_head = b""  # of its frame: the header and the request

    @property
    def wanted_bytes(self) -> int:
        """Bytes missing until the frame that is on its way is whole (its header, at least)."""
        have = self._end - self._start
        if self._data is not None:
            return len(self._data) - self._filled + self._mac_bytes - have
        if have < HEADER_BYTES:
            return HEADER_BYTES - have
        body_bytes: int = _HEADER.unpack_from(self._small, self._start)[3]
        return HEADER_BYTES + body_bytes + self._mac_bytes - have

    @property
    def is_between_frames(self) -> bool:
        """Say that nothing of a frame came whose rest did not."""
        return self._data is None and self._start == self._end

    def get_buffers(self) -> list[memoryview]:
        """Return where to receive next, to be filled in this order."""
        if self._data is not None and self._filled < len(self._data):
            return [self._data_view[self._filled :], self._small_view]  # which is empty now
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
        self._end += count
        while self._step(messages):
            pass
        return messages

    def _step(self, messages: list[Message]) -> bool:
        """Use what is in the small buffer for one frame; False if more must come first."""
        if self._data is not None:
            return self._finish_chunk(self._data, messages)
        have = self._end - self._start
        if have < HEADER_BYTES:
            return False
        magic, major_version, type_, body_bytes = _HEADER.unpack_from(self._small, self._start)
        if magic != MAGIC or major_version != MAJOR_VERSION:
            raise self._error(_why_no_frame(magic, major_version))
        if type_ == Type.CHUNK:
            return self._begin_chunk(have, body_bytes)
        if type_ not in _KNOWN:
            raise self._error(f"message type {type_} is unknown")
        return self._take_small(Type(type_), have, body_bytes, messages)

    def _begin_chunk(self, have: int, body_bytes: int) -> bool:
        self._check_turn(Type.CHUNK)
        if not _CHUNK.size < body_bytes <= MAX_BODY_BYTES:
            raise self._error(f"a Chunk with a body of {body_bytes} bytes")
        if have < _CHUNK_HEAD.size:
            return False
        begin = self._start + _CHUNK_HEAD.size
        self._chunk_head = bytes(self._small_view[self._start : begin])
        self._data = bytearray(body_bytes - _CHUNK.size)
        self._data_view = memoryview(self._data)
        self._filled = min(len(self._data), self._end - begin)
        self._start = begin + self._filled
        self._data_view[: self._filled] = self._small_view[begin : self._start]
        if self._start == self._end:
            self._start = self._end = 0  # the chunk took all there was
        return True

    def _finish_chunk(self, data: bytearray, messages: list[Message]) -> bool:
        """Give out a chunk that is whole, with its code; False if more must come first."""
        if self._filled < len(data) or self._end - self._start < self._mac_bytes:
            return False
        self._check_mac(self._chunk_head, data)
        (request_id,) = _CHUNK.unpack_from(self._chunk_head, HEADER_BYTES)
        messages.append(Chunk(request_id, data))
        self._data, self._data_view = None, self._small_view[:0]
        return True

    def _check_mac(self, *frame: Buffer) -> None:
        """Take the code that follows a frame, and compare it."""
        if self._seal is None:
            return
        begin, self._start = self._start, self._start + self._mac_bytes
        mac = self._small_view[begin : self._start]
        if not hmac.compare_digest(mac, self._seal.next(*frame)):
            raise self._error("a frame was changed on its way: its MAC is wrong")

    def _take_small(self, type_: Type, have: int, body_bytes: int, messages: list[Message]) -> bool:
        self._check_turn(type_)
        kind = _SMALL[type_]
        if not kind.min_bytes <= body_bytes <= kind.max_bytes:
            raise self._error(f"a {type_.name} with a body of {body_bytes} bytes")
        if have < HEADER_BYTES + body_bytes + self._mac_bytes:
            return False
        begin, self._start = self._start, self._start + HEADER_BYTES + body_bytes
        frame = bytes(self._small_view[begin : self._start])
        self._check_mac(frame)
        try:
            message = kind.decode(frame[HEADER_BYTES:])
        except ValueError as error:
            raise self._error(f"{type_.name}: {error}") from error
        if isinstance(message, peer_messages.Hello):
            self._is_greeted, self._klass = True, message.klass
        messages.append(message)
        return True

    def _check_turn(self, type_: Type) -> None:
        """Refuse a message that this side may not send, or not now."""
        if type_ not in self._accepts:
            raise self._error(f"{type_.name} comes from the wrong side")
        if (type_ == Type.HELLO) == self._is_greeted:
            raise self._error("Hello twice" if self._is_greeted else f"{type_.name} before Hello")
        if type_ in NEWS and self._klass is not Klass.BULK:
            raise self._error(f"{type_.name} on a connection where guests wait")

    def _error(self, why: str) -> errors.RemoteProtocolError:
        return errors.RemoteProtocolError(self.peer, why)


def _why_no_frame(magic: int, major_version: int) -> str:
    if magic in _TLS_RECORDS:
        return "it speaks TLS, and this host clear text: peer_security differs"
    if magic != MAGIC:
        return f"no frame begins with {magic:#06x}"
    return f"it speaks version {major_version} of the peer protocol, this host {MAJOR_VERSION}"
