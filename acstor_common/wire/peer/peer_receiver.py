# SPDX-License-Identifier: Apache-2.0
"""Parses the frames of a connection between agents, without I/O.

Every received byte is validated before use, and a length before memory is allocated; a fault is a
:class:`errors.RemoteProtocolError`.  As with asyncio's BufferedProtocol, the caller receives into
:meth:`Receiver.get_buffers` and calls :meth:`Receiver.bytes_received`.  The chunks of a frame are
contiguous in one buffer without copies; each is returned when complete (encrypted: verified).
"""

from collections.abc import Callable
from collections.abc import Sequence

from acstor_common import errors
from acstor_common.wire.peer import peer_compression
from acstor_common.wire.peer import peer_encryption
from acstor_common.wire.peer import peer_messages
from acstor_common.wire.peer import peer_request
from acstor_common.wire.peer import peer_wire
from acstor_common.wire.peer import received_run

SMALL_BYTES = 8192  # size of the buffer for headers and small messages

Buffer = peer_messages.Buffer
Chunk = peer_messages.Chunk
Message = peer_messages.Message
Type = peer_messages.Type
ConnectionClass = peer_request.ConnectionClass
MAX_BATCH = peer_request.MAX_BATCH
MAX_DATA_BYTES = peer_request.MAX_DATA_BYTES
HEADER_BYTES = peer_wire.HEADER_BYTES
RUN_BYTES = peer_wire.RUN_BYTES
ReceivedRun = received_run.ReceivedRun

_HEADER, _RUN, _COUNT_BYTES = peer_wire.HEADER, peer_wire.RUN, peer_wire.COUNT_BYTES
_MIN_CHUNKS_BYTES = _COUNT_BYTES + _RUN.size + 1
_MAX_CHUNKS_BYTES = _COUNT_BYTES + _RUN.size + MAX_DATA_BYTES
_KNOWN = frozenset(Type)
_SMALL = {kind.type: kind for kind in peer_messages.KINDS.values()}
_MAX_SMALL_BYTES = max(kind.max_bytes for kind in _SMALL.values())
_MAX_CHUNK_HEAD_BYTES = HEADER_BYTES + max(_MAX_SMALL_BYTES, _COUNT_BYTES + MAX_BATCH * _RUN.size)
"""Of a small frame, and of a frame with chunks without their data."""

_MAX_HELLO_BYTES = _HEADER.size + _SMALL[Type.HELLO].max_bytes

_TLS_RECORDS = (0x1503, 0x1603)  # first bytes of TLS: alert, handshake

Expects = Callable[[Sequence[tuple[int, int, int]]], bool]
"""Returns whether all these chunks are awaited.

Arguments: first number, length and ``chunk_bytes`` of each chunk or run.

:raises errors.RemoteProtocolError: one was never requested"""


class Receiver:
    """Parses one direction of a connection, with MAX_DATA_BYTES and SMALL_BYTES of memory.

    :ivar expects: called before memory for a frame's chunks is allocated; if it returns False, each
        chunk is copied, so that a needed one does not keep all in memory
    :ivar awaited_bytes: returns a limit of chunk bytes for encrypted frames, which show chunks late
    """

    def __init__(self, peer: str, accepts: frozenset[Type]) -> None:
        self.peer = peer
        self.expects: Expects = lambda chunks: True
        self.awaited_bytes: Callable[[], int] = lambda: MAX_DATA_BYTES
        self._accepts = accepts  # FROM_CLIENT or FROM_SERVER
        self._is_greeted = False
        self._klass = ConnectionClass.DEMAND  # until Hello
        self._small = bytearray(SMALL_BYTES)
        self._small_view = memoryview(self._small)
        self._start = 0  # unparsed bytes: from _start to _end
        self._end = 0
        self._data: bytearray | None = None  # of the chunks of the incomplete frame
        self._data_view = self._small_view[:0]
        self._filled = 0
        self._runs: list[ReceivedRun] = []  # incomplete ones, in order
        self._is_shared = True  # chunks are returned as views of _data

    least_bytes = HEADER_BYTES  # bytes that determine the length of the next frame

    @property
    def wanted_bytes(self) -> int:
        """Bytes missing to complete the pending message or header."""
        have = self._end - self._start
        if self._data is not None:
            return self._runs[0].whole_at(self._filled) - self._filled
        if have < HEADER_BYTES:
            return HEADER_BYTES - have
        _, _, type_, body_bytes = _HEADER.unpack_from(self._small, self._start)
        if type_ == Type.CHUNK:
            return self._chunk_head_bytes(have) - have
        return HEADER_BYTES + int(body_bytes) - have

    @property
    def is_between_frames(self) -> bool:
        """Whether no frame is incomplete."""
        return self._data is None and self._start == self._end

    def get_buffers(self) -> list[memoryview]:
        """Return the buffers for the next bytes, in order."""
        if self._data is not None and self._filled < len(self._data):
            return [self._data_view[self._filled :], self._small_view]  # empty now
        if self._start:
            rest = self._end - self._start
            self._small[:rest] = self._small[self._start : self._end]
            self._start, self._end = 0, rest
        return [self._small_view[self._end :]]

    def feed_bytes(self, data: bytes | bytearray) -> list[Message]:
        """Parse bytes received elsewhere (with the handshake), copying them."""
        messages: list[Message] = []
        view = memoryview(data)
        while view:
            space = self.get_buffers()[0]
            taken = min(len(view), len(space))
            space[:taken] = view[:taken]
            messages += self.bytes_received(taken)
            view = view[taken:]
        return messages

    def bytes_received(self, count: int) -> list[Message]:
        """Return the messages that ``count`` bytes complete; RemoteProtocolError ends its use."""
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
        """Process one frame; return False if more bytes are needed."""
        if self._data is not None:
            return self._give_chunks(self._data, messages)
        have = self._end - self._start
        type_, body_bytes = self._check_header(self._small, self._start)
        if type_ == Type.CHUNK:
            return self._begin_chunks(have, body_bytes)
        return self._take_small(type_, have, body_bytes, messages)

    def _check_header(self, buffer: Buffer, start: int) -> tuple[Type, int]:
        magic, major_version, type_, body_bytes = _HEADER.unpack_from(buffer, start)
        if magic != peer_wire.MAGIC:
            raise self._error(_why_no_frame(magic))
        if major_version != peer_wire.MAJOR_VERSION:
            why = f"it speaks version {major_version} of the peer protocol, this host"
            raise errors.OtherVersion(self.peer, f"{why} {peer_wire.MAJOR_VERSION}")
        if type_ not in _KNOWN:
            raise self._error(f"message type {type_} is unknown")
        self._check_turn(Type(type_))
        return Type(type_), body_bytes

    def _chunk_head_bytes(self, have: int) -> int:
        counted = HEADER_BYTES + _COUNT_BYTES
        if have < counted:
            return counted
        return counted + self._check_count(self._small[self._start + HEADER_BYTES]) * _RUN.size

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
        self._runs = self._runs_in(head, total_bytes)
        self._data = bytearray(total_bytes)
        self._data_view = memoryview(self._data)
        self._filled = min(total_bytes, self._end - begin)
        self._start = begin + self._filled
        self._data_view[: self._filled] = self._small_view[begin : self._start]
        if self._start == self._end:
            self._start = self._end = 0  # all bytes were chunk data
        return True

    def _check_total(self, head_bytes: int, total_bytes: int) -> None:
        is_one = head_bytes == HEADER_BYTES + _COUNT_BYTES + _RUN.size
        if not 0 < total_bytes <= (MAX_DATA_BYTES if is_one else RUN_BYTES):
            raise self._error(f"a Chunk with {total_bytes} bytes of data")

    def _runs_in(self, head: bytes, total_bytes: int) -> list[ReceivedRun]:
        found: list[ReceivedRun] = []
        end = chunks = 0
        heads = list(_RUN.iter_unpack(head[HEADER_BYTES + _COUNT_BYTES :]))
        raw_total = 0
        for number, length, chunk_bytes, raw_bytes in heads:
            if not length:
                raise self._error("an empty Chunk")
            if chunk_bytes and not chunk_bytes < length <= RUN_BYTES:
                raise self._error(f"a run of {length} bytes with chunks of {chunk_bytes}")
            if raw_bytes and (chunk_bytes or not length < raw_bytes <= MAX_DATA_BYTES):
                raise self._error(f"{raw_bytes} bytes compressed to {length}")
            begin, end = end, end + length
            found.append(ReceivedRun(number, begin, end, chunk_bytes, raw_bytes))
            raw_total += raw_bytes or length
            its = peer_request.count_chunks(length, chunk_bytes)
            chunks += its
            if number + its > 1 << 32:
                raise self._error(f"a run with numbers from {number} on")
        if end != total_bytes:
            raise self._error(f"{len(found)} runs of {end} bytes in {total_bytes}")
        self._check_count(chunks)
        if len(found) > 1 and raw_total > RUN_BYTES:
            raise self._error(f"chunks of {raw_total} bytes in one frame")
        if len(found) > 1 and len({n for run in found for n in run.numbers}) < chunks:
            raise self._error("a number twice in a Chunk")
        self._is_shared = self.expects([(n, raw or length, size) for n, length, size, raw in heads])
        return found

    def _give_chunks(self, data: bytearray, messages: list[Message]) -> bool:
        is_whole, runs = self._filled == len(data), self._runs
        while runs:
            run = runs[0]
            stop = run.end if run.end <= self._filled else run.whole_at(self._filled, is_past=True)
            if stop > run.begin:
                some, rest = run.divide(stop)
                self._give_run(some, self._data_view, messages)
                runs[:1] = rest
            if stop < run.end:
                break
        if is_whole:
            self._data, self._data_view = None, self._small_view[:0]
        return is_whole

    def _give_run(self, run: ReceivedRun, data: memoryview, messages: list[Message]) -> None:
        """Append a run as a view, or if not shared as copied chunks."""
        if run.raw_bytes:
            try:
                raw = peer_compression.decompress(data[run.begin : run.end], run.raw_bytes)
            except ValueError as error:
                raise self._error(str(error)) from error
            messages.append(Chunk(run.number, raw))
            return
        if self._is_shared:
            messages.append(Chunk(run.number, data[run.begin : run.end], run.chunk_bytes))
            return
        size = run.chunk_bytes or run.end - run.begin
        for number, begin in zip(run.numbers, range(run.begin, run.end, size), strict=True):
            messages.append(Chunk(number, bytes(data[begin : min(begin + size, run.end)])))

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
        """Reject a message from the wrong side or at the wrong time."""
        if type_ not in self._accepts:
            raise self._error(f"{type_.name} in the wrong direction")
        if (type_ == Type.HELLO) == self._is_greeted:
            raise self._error("Hello twice" if self._is_greeted else f"{type_.name} before Hello")
        if type_ in peer_wire.BULK_ONLY and self._klass is not ConnectionClass.BULK:
            raise self._error(f"{type_.name} on a DEMAND connection")

    def _check_klass(self, get: peer_messages.Get) -> None:
        wanted, own = get.requests[0].priority, self._klass
        if wanted.connection_class is not own:
            raise self._error(f"a Get of priority {wanted.name} on a {own.name} connection")

    def _error(self, why: str) -> errors.RemoteProtocolError:
        return errors.RemoteProtocolError(self.peer, why)


class EncryptedReceiver(Receiver):
    """Parses records (``peer_encryption``); before the tag, only their length is used."""

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
        begin = self._start
        length = int.from_bytes(self._small_view[begin : begin + self.least_bytes], "big")
        most_bytes = self._most_bytes if self._is_greeted else _MAX_HELLO_BYTES
        if length > _MAX_CHUNK_HEAD_BYTES:
            most_bytes = min(most_bytes, _MAX_CHUNK_HEAD_BYTES + self.awaited_bytes())
        if not HEADER_BYTES <= length <= most_bytes:
            raise self._error(f"an encrypted frame of {length} bytes")
        return self.least_bytes + length + peer_encryption.MAC_BYTES

    def _step(self, messages: list[Message]) -> bool:
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
        begin = HEADER_BYTES + _COUNT_BYTES + count * _RUN.size
        self._check_total(begin, len(frame) - begin)
        data = frame[begin:]
        for run in self._runs_in(bytes(frame[:begin]), len(data)):
            self._give_run(run, data, messages)


def receiver(
    peer: str, accepts: frozenset[Type], encryption: peer_encryption.Encryption | None
) -> Receiver:
    """Return a receiver of clear or encrypted frames."""
    if encryption is None:
        return Receiver(peer, accepts)
    return EncryptedReceiver(peer, accepts, encryption)


def _why_no_frame(magic: int) -> str:
    if magic in _TLS_RECORDS:
        return "it speaks TLS, and this host clear text: peer_security differs"
    return f"no frame begins with {magic:#06x}"
