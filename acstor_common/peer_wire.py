# SPDX-License-Identifier: Apache-2.0
"""What agents say to each other: messages to bytes and back, without any I/O.

The one rule: every byte from the other side is checked before it is used, and
only :class:`errors.RemoteProtocolError` comes out of a bad one.  Nothing is
allocated before the length in a frame's header was found to be in range.

The shape is that of h11 and of asyncio's BufferedProtocol: the shell receives
into :meth:`Receiver.get_buffers` and tells how much came by
:meth:`Receiver.received`.  A frame may carry many chunks; their bytes land in one
buffer, one behind the other, so they are never joined or copied: what a reader asked
for in one piece lies there in one piece, if it was answered in its order.  Each chunk
is given out as soon as it is whole.  Where frames are encrypted (``peer_encryption``)
nothing of one is used before its tag was found right.  The messages and their bodies are in
``peer_messages``; every byte is described in doc/source/format/peer_wire.rst.
"""

import struct
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_common import errors
from acstor_common import peer_encryption
from acstor_common import peer_messages
from acstor_common import peer_request
from acstor_common.peer_messages import Advertise as Advertise
from acstor_common.peer_messages import Cancel as Cancel
from acstor_common.peer_messages import Chunk as Chunk
from acstor_common.peer_messages import EvictionHint as EvictionHint
from acstor_common.peer_messages import Get as Get
from acstor_common.peer_messages import Gone as Gone
from acstor_common.peer_messages import Hello as Hello
from acstor_common.peer_messages import Hurry as Hurry
from acstor_common.peer_messages import Keep as Keep
from acstor_common.peer_messages import Kept as Kept
from acstor_common.peer_messages import Ping as Ping
from acstor_common.peer_messages import Pong as Pong
from acstor_common.peer_messages import Refer as Refer
from acstor_common.peer_messages import Refuse as Refuse
from acstor_common.peer_request import Klass as Klass
from acstor_common.peer_request import Mode as Mode
from acstor_common.peer_request import Priority as Priority
from acstor_common.peer_request import Request as Request

MAGIC = 0x4143
"""``AC``; its high bit is 0, so a TLS server sees garbage at once, no SSLv2 hello."""
MAJOR_VERSION = 3

MAX_BATCH = peer_request.MAX_BATCH
MAX_DATA_BYTES = peer_request.MAX_DATA_BYTES
PROOF_BYTES = peer_request.PROOF_BYTES
RUN_BYTES = 1024 * 1024
"""Of chunks in one frame, unless it is one alone: what FUSE asks for at a time."""
ENCRYPTED_RUN_BYTES = 256 * 1024
"""The same on slow links where frames are encrypted: no chunk is of use before the last byte."""
SMALL_BYTES = 8192
"""Size of the buffer for headers and small messages; all but the chunks' bytes fit."""

# Who speaks the protocol needs this module alone.
Buffer = peer_messages.Buffer
Message = peer_messages.Message
RefuseCode = peer_messages.RefuseCode
News = peer_messages.News
SegmentNews = peer_messages.SegmentNews
Type = peer_messages.Type
batches = peer_request.batches
proof_of = peer_request.proof_of

BULK_ONLY = frozenset(
    {Type.ADVERTISE, Type.GONE, Type.EVICTION_HINT, Type.KEEP, Type.KEPT, Type.HURRY}
)
FROM_CLIENT = BULK_ONLY | {Type.HELLO, Type.GET, Type.CANCEL, Type.PING, Type.PONG}
"""What the side that opened the connection may send."""
FROM_SERVER = frozenset({Type.HELLO, Type.CHUNK, Type.REFUSE, Type.PING, Type.PONG, Type.REFER})
"""What the side that accepted the connection may send."""

_HEADER = struct.Struct(">HBBI")  # magic, major version, type, bytes of the body
_COUNT_BYTES = 1
_CHUNK = struct.Struct(">II")  # request, bytes; after those of all chunks come the bytes
_MIN_CHUNKS_BYTES = _COUNT_BYTES + _CHUNK.size + 1
_MAX_CHUNKS_BYTES = _COUNT_BYTES + _CHUNK.size + MAX_DATA_BYTES
_KNOWN = frozenset(Type)
_SMALL = {kind.type: kind for kind in peer_messages.KINDS.values()}
_MAX_SMALL_BYTES = max(kind.max_bytes for kind in _SMALL.values())

_TLS_RECORDS = (0x1503, 0x1603)  # an alert, a handshake: the first bytes that a TLS side sends

HEADER_BYTES = _HEADER.size

Expects = Callable[[Sequence[tuple[int, int]]], bool]
"""Says whether somebody waits for every one of these chunks, of a number and a length each.

:raises errors.RemoteProtocolError: one of them was never asked for
"""


def encode(message: Message, encryption: peer_encryption.Encryption | None = None) -> list[Buffer]:
    """Return the frame of ``message`` as buffers to send one after the other.

    Data is not copied, unless it is encrypted.

    :param encryption: of this direction, where frames are encrypted; they are to be sent in the
        order in which they were encoded
    :raises errors.LocalProtocolError: a field is out of range
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
    return [_HEADER.pack(MAGIC, MAJOR_VERSION, kind.type, len(body)) + body]


def encode_chunks(
    chunks: Sequence[Chunk],
    encryption: peer_encryption.Encryption | None = None,
    run_bytes: int = RUN_BYTES,
) -> list[Buffer]:
    """Return frames with ``chunks``, as few as may be; see :func:`encode`.

    :param run_bytes: of chunks in one frame, unless it is one alone; RUN_BYTES at most
    :raises errors.LocalProtocolError: one is out of range
    """
    buffers: list[Buffer] = []
    for run in _runs(chunks, run_bytes):
        try:
            frame = _encode_chunks(run)
        except (struct.error, ValueError) as error:
            raise errors.LocalProtocolError(f"cannot send Chunk: {error}") from error
        buffers += frame if encryption is None else [encryption.encrypt(frame)]
    return buffers


def _runs(chunks: Sequence[Chunk], run_bytes: int) -> Iterator[Sequence[Chunk]]:
    begin = total = 0
    numbers: set[int] = set()  # none is twice in a frame, if a client uses one again too early
    for index, (request_id, data) in enumerate(chunks):
        is_full = total + len(data) > run_bytes or len(numbers) == MAX_BATCH
        if index > begin and (is_full or request_id in numbers):
            yield chunks[begin:index]
            begin, total = index, 0
            numbers.clear()
        numbers.add(request_id)
        total += len(data)
    if chunks:
        yield chunks[begin:]


def _encode_chunks(chunks: Sequence[Chunk]) -> list[Buffer]:
    sizes = [len(data) for _, data in chunks]
    total = sum(sizes)
    if not min(sizes) or total > MAX_DATA_BYTES:
        raise ValueError(f"chunks of {sizes} bytes in it")
    body_bytes = _COUNT_BYTES + len(chunks) * _CHUNK.size + total
    head = [_HEADER.pack(MAGIC, MAJOR_VERSION, Type.CHUNK, body_bytes), bytes([len(chunks)])]
    head += [_CHUNK.pack(chunk[0], size) for chunk, size in zip(chunks, sizes, strict=True)]
    return [b"".join(head), *[data for _, data in chunks]]


class Receiver:
    """Makes messages of the bytes of one direction of one connection.

    It holds at most MAX_DATA_BYTES and ``SMALL_BYTES``, whatever is sent.

    :param peer: the other side as far as it is known, for errors
    :param accepts: the messages that the other side may send: FROM_CLIENT or FROM_SERVER
    :ivar expects: is asked of a frame's chunks before there is memory for them; where some are
        not wanted each lies for itself, else one would hold the memory of all
    """

    def __init__(self, peer: str, accepts: frozenset[Type]) -> None:
        self.peer = peer
        self.expects: Expects = lambda chunks: True
        self._accepts = accepts
        self._is_greeted = False
        self._klass = Klass.DEMAND  # until Hello says otherwise
        self._small = bytearray(SMALL_BYTES)
        self._small_view = memoryview(self._small)
        self._start = 0  # the bytes from _start to _end came and were not used yet
        self._end = 0
        self._data: bytearray | None = None  # of the chunks in the frame that is on its way
        self._data_view = self._small_view[:0]
        self._filled = 0
        self._chunks: list[tuple[int, int]] = []  # of them: the request, where its bytes end
        self._given = 0  # of them
        self._is_shared = True  # they are given out where they lie, as neighbours

    least_bytes = HEADER_BYTES
    """How many bytes tell how long the next frame is."""

    @property
    def wanted_bytes(self) -> int:
        """Bytes missing until something that is on its way is whole: a message, a header."""
        have = self._end - self._start
        if self._data is not None:
            return self._chunks[self._given][1] - self._filled
        if have < HEADER_BYTES:
            return HEADER_BYTES - have
        _, _, type_, body_bytes = _HEADER.unpack_from(self._small, self._start)
        if type_ == Type.CHUNK:
            return self._chunk_head_bytes(have) - have
        return HEADER_BYTES + int(body_bytes) - have

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
        """Take bytes that were received elsewhere (with the handshake): copies them."""
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
        least = self.least_bytes
        while (self._data or self._end - self._start >= least) and self._step(messages):
            pass
        return messages

    def _step(self, messages: list[Message]) -> bool:
        """Use what is in the small buffer for one frame; False if more must come first.

        There is a header in it, or the data of a frame is on its way.
        """
        if self._data is not None:
            return self._give_chunks(self._data, messages)
        have = self._end - self._start
        type_, body_bytes = self._check_header(self._small, self._start)
        if type_ == Type.CHUNK:
            return self._begin_chunks(have, body_bytes)
        return self._take_small(type_, have, body_bytes, messages)

    def _check_header(self, buffer: Buffer, start: int) -> tuple[Type, int]:
        """Return which message a frame begins, and the length of its body."""
        magic, major_version, type_, body_bytes = _HEADER.unpack_from(buffer, start)
        if magic != MAGIC:
            raise self._error(_why_no_frame(magic))
        if major_version != MAJOR_VERSION:
            why = f"it speaks version {major_version} of the peer protocol, this host"
            raise errors.OtherVersion(self.peer, f"{why} {MAJOR_VERSION}")
        if type_ not in _KNOWN:
            raise self._error(f"message type {type_} is unknown")
        self._check_turn(Type(type_))
        return Type(type_), body_bytes

    def _chunk_head_bytes(self, have: int) -> int:
        """Return how many bytes of a frame with chunks come before theirs, or its count."""
        counted = HEADER_BYTES + _COUNT_BYTES
        if have < counted:
            return counted
        return counted + self._check_count(self._small[self._start + HEADER_BYTES]) * _CHUNK.size

    def _check_count(self, count: int) -> int:
        if not 1 <= count <= MAX_BATCH:
            raise self._error(f"a Chunk frame with {count} chunks")
        return count

    def _begin_chunks(self, have: int, body_bytes: int) -> bool:
        if not _MIN_CHUNKS_BYTES <= body_bytes <= _MAX_CHUNKS_BYTES:
            raise self._error(f"a Chunk with a body of {body_bytes} bytes")
        if have < HEADER_BYTES + _COUNT_BYTES:
            return False
        head_bytes = self._chunk_head_bytes(have)
        total_bytes = HEADER_BYTES + body_bytes - head_bytes
        self._check_total(head_bytes, total_bytes)
        if have < head_bytes:
            return False
        begin = self._start + head_bytes
        head = bytes(self._small_view[self._start : begin])
        self._chunks = self._chunks_in(head, total_bytes)
        self._data, self._given = bytearray(total_bytes), 0
        self._data_view = memoryview(self._data)
        self._filled = min(total_bytes, self._end - begin)
        self._start = begin + self._filled
        self._data_view[: self._filled] = self._small_view[begin : self._start]
        if self._start == self._end:
            self._start = self._end = 0  # the chunks took all there was
        return True

    def _check_total(self, head_bytes: int, total_bytes: int) -> None:
        """Look whether chunks that are called in so many bytes may have so many."""
        is_one = head_bytes == HEADER_BYTES + _COUNT_BYTES + _CHUNK.size
        if not 0 < total_bytes <= (MAX_DATA_BYTES if is_one else RUN_BYTES):
            raise self._error(f"a Chunk with {total_bytes} bytes of data")

    def _chunks_in(self, head: bytes, total_bytes: int) -> list[tuple[int, int]]:
        """Return which chunks a frame carries, and where in its data each ends."""
        found, end, chunks = [], 0, list(_CHUNK.iter_unpack(head[HEADER_BYTES + _COUNT_BYTES :]))
        for request_id, length in chunks:
            if not length:
                raise self._error("an empty Chunk")
            end += length
            found.append((request_id, end))
        if end != total_bytes:
            raise self._error(f"{len(found)} chunks of {end} bytes in {total_bytes}")
        if len({request_id for request_id, _ in found}) < len(found):
            raise self._error("a number twice in a Chunk")
        self._is_shared = self.expects(chunks)
        return found

    def _give_chunks(self, data: bytearray, messages: list[Message]) -> bool:
        """Give out what is whole of a frame with chunks; False if more must come first."""
        is_whole = self._filled == len(data)
        chunks = self._chunks
        if len(chunks) == 1 and is_whole:
            messages.append(Chunk(chunks[0][0], data))
        else:
            begin = chunks[self._given - 1][1] if self._given else 0
            for request_id, end in chunks[self._given :]:
                if end > self._filled:
                    break
                part = self._data_view[begin:end]
                messages.append(Chunk(request_id, part if self._is_shared else bytes(part)))
                begin = end
                self._given += 1
        if is_whole:
            self._data, self._data_view, self._chunks = None, self._small_view[:0], []
        return is_whole

    def _take_small(self, type_: Type, have: int, body_bytes: int, messages: list[Message]) -> bool:
        self._check_small(type_, body_bytes)
        if have < HEADER_BYTES + body_bytes:
            return False
        begin, self._start = self._start, self._start + HEADER_BYTES + body_bytes
        frame = bytes(self._small_view[begin : self._start])
        self._decode(type_, frame, messages)
        return True

    def _check_small(self, type_: Type, body_bytes: int) -> None:
        kind = _SMALL[type_]
        if not kind.min_bytes <= body_bytes <= kind.max_bytes:
            raise self._error(f"a {type_.name} with a body of {body_bytes} bytes")

    def _decode(self, type_: Type, frame: bytes, messages: list[Message]) -> None:
        """Take a whole frame of a small message."""
        try:
            message = _SMALL[type_].decode(frame[HEADER_BYTES:])
        except ValueError as error:
            raise self._error(f"{type_.name}: {error}") from error
        if isinstance(message, peer_messages.Hello):
            self._is_greeted, self._klass = True, message.klass
        elif isinstance(message, peer_messages.Get):
            self._check_klass(message)
        messages.append(message)

    def _check_turn(self, type_: Type) -> None:
        """Refuse a message that this side may not send, or not now."""
        if type_ not in self._accepts:
            raise self._error(f"{type_.name} comes from the wrong side")
        if (type_ == Type.HELLO) == self._is_greeted:
            raise self._error("Hello twice" if self._is_greeted else f"{type_.name} before Hello")
        if type_ in BULK_ONLY and self._klass is not Klass.BULK:
            raise self._error(f"{type_.name} on a connection where guests wait")

    def _check_klass(self, get: Get) -> None:
        wanted, here = get.requests[0].priority, self._klass
        if wanted.klass is not here:
            raise self._error(f"a Get of priority {wanted.name} on a {here.name} connection")

    def _error(self, why: str) -> errors.RemoteProtocolError:
        return errors.RemoteProtocolError(self.peer, why)


class EncryptedReceiver(Receiver):
    """Makes messages of encrypted frames, each of which is a record (``peer_encryption``).

    Nothing but the length of a record is used before its tag was checked.  The bytes of chunks stay
    where they were decrypted.
    """

    least_bytes = peer_encryption.LENGTH_BYTES

    def __init__(
        self, peer: str, accepts: frozenset[Type], encryption: peer_encryption.Encryption
    ) -> None:
        super().__init__(peer, accepts)
        self._encryption = encryption
        self._most_bytes = HEADER_BYTES + _MAX_SMALL_BYTES
        if Type.CHUNK in accepts:
            self._most_bytes = HEADER_BYTES + _MAX_CHUNKS_BYTES

    @property
    def wanted_bytes(self) -> int:
        """See :attr:`Receiver.wanted_bytes`."""
        have = self._end - self._start
        if self._data is not None:
            return len(self._data) - self._filled
        return (self._record_bytes() if have >= self.least_bytes else self.least_bytes) - have

    def _record_bytes(self) -> int:
        """Return the length of the record that begins in the small buffer."""
        begin = self._start
        length = int.from_bytes(self._small_view[begin : begin + self.least_bytes], "big")
        if not HEADER_BYTES <= length <= self._most_bytes:
            raise self._error(f"an encrypted frame of {length} bytes")
        return self.least_bytes + length + peer_encryption.MAC_BYTES

    def _step(self, messages: list[Message]) -> bool:
        """Take a record that is whole; False if more of it must come first."""
        if self._data is None:
            record_bytes, have = self._record_bytes(), self._end - self._start
            if have < record_bytes <= SMALL_BYTES:
                return False
            self._data = bytearray(record_bytes)
            self._data_view = memoryview(self._data)
            self._filled = min(record_bytes, have)
            begin, self._start = self._start, self._start + self._filled
            self._data_view[: self._filled] = self._small_view[begin : self._start]
            if self._start == self._end:
                self._start = self._end = 0
        if self._filled < len(self._data):
            return False
        record, self._data, self._data_view = self._data_view, None, self._small_view[:0]
        try:
            frame = self._encryption.decrypt(record)
        except ValueError as error:
            raise self._error(str(error)) from None
        self._take_frame(frame, messages)
        return True

    def _take_frame(self, frame: memoryview, messages: list[Message]) -> None:
        type_, body_bytes = self._check_header(frame, 0)
        if body_bytes != len(frame) - HEADER_BYTES:
            raise self._error(f"a frame of {len(frame)} bytes with a body of {body_bytes}")
        if type_ != Type.CHUNK:
            self._check_small(type_, body_bytes)
            self._decode(type_, bytes(frame), messages)
            return
        if not _MIN_CHUNKS_BYTES <= body_bytes <= _MAX_CHUNKS_BYTES:
            raise self._error(f"a Chunk with a body of {body_bytes} bytes")
        count = self._check_count(frame[HEADER_BYTES])
        begin = HEADER_BYTES + _COUNT_BYTES + count * _CHUNK.size
        self._check_total(begin, len(frame) - begin)
        data = frame[begin:]
        start = 0
        for request_id, end in self._chunks_in(bytes(frame[:begin]), len(data)):
            part = data[start:end]
            messages.append(Chunk(request_id, part if self._is_shared else bytes(part)))
            start = end


def receiver(
    peer: str, accepts: frozenset[Type], encryption: peer_encryption.Encryption | None
) -> Receiver:
    """Return what receives frames, which are encrypted or in clear text."""
    if encryption is None:
        return Receiver(peer, accepts)
    return EncryptedReceiver(peer, accepts, encryption)


def _why_no_frame(magic: int) -> str:
    if magic in _TLS_RECORDS:
        return "it speaks TLS, and this host clear text: peer_security differs"
    return f"no frame begins with {magic:#06x}"
