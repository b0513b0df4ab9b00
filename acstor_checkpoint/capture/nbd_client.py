# SPDX-License-Identifier: Apache-2.0
"""NBD client for QEMU's server on a Unix socket: data and block status.

It implements fixed newstyle negotiation, structured replies, reads, and block status of one context
(the NBD project's ``doc/proto.md``).  libnbd has no package on PyPI, and ``qemu-img map`` shows
bitmaps only by an experimental option.
"""

import contextlib
import enum
import socket
import struct
import time
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Final
from typing import NamedTuple
from typing import Self

from acstor_common import errors

ALLOCATION: Final = "base:allocation"  # context of holes and zeros
MAX_READ_BYTES: Final = 1 << 20
_MAX_STATUS_BYTES: Final = 1 << 30  # range of one block status request
_MAX_EXTENTS: Final = 1 << 17
"""Per reply, as QEMU's limit; two replies suffice for alternating 4 KiB extents."""
_MORE_ANSWERS: Final = 16
_ANSWER_S: Final = 0.05  # for each _MAX_STATUS_BYTES, in addition to the timeout
_MAX_OPTION_BYTES: Final = 64 << 10

_GREETING: Final = struct.Struct(">8s8sH")  # magic, magic of options, flags
_OPTION: Final = struct.Struct(">8sII")  # magic, option, length
_OPTION_REPLY: Final = struct.Struct(">QIII")  # magic, option, kind, length
_EXPORT: Final = struct.Struct(">HQH")  # kind of information, size, flags
_REQUEST: Final = struct.Struct(">IHHQQI")  # magic, flags, command, cookie, offset, length
_REPLY: Final = struct.Struct(">IHHQI")  # magic, flags, kind, cookie, length
_OFFSET: Final = struct.Struct(">Q")
_HOLE: Final = struct.Struct(">QI")  # offset, length
_CONTEXT: Final = struct.Struct(">I")  # number
_EXTENT: Final = struct.Struct(">II")  # length, flags
_ERROR: Final = struct.Struct(">IH")  # errno, length of the message
_CREDENTIALS: Final = struct.Struct("iII")  # Linux' struct ucred: process, user, group

_OPTION_MAGIC: Final = b"IHAVEOPT"
_OPTION_REPLY_MAGIC: Final = 0x3E889045565A9
_REQUEST_MAGIC: Final = 0x25609513
_REPLY_MAGIC: Final = 0x668E33EF
_FIXED_NEWSTYLE: Final = 1
_NO_ZEROES: Final = 2
_IS_LAST: Final = 1
_IS_ERROR: Final = 1 << 31
_IS_ERROR_KIND: Final = 1 << 15
_INFO_EXPORT: Final = 0


class _Option(enum.IntEnum):
    GO = 7
    STRUCTURED_REPLY = 8
    SET_META_CONTEXT = 10


class _OptionReply(enum.IntEnum):
    ACK = 1
    INFO = 3
    META_CONTEXT = 4


class _Command(enum.IntEnum):
    READ = 0
    DISCONNECT = 2
    BLOCK_STATUS = 7


class _ReplyKind(enum.IntEnum):
    NONE = 0
    DATA = 1
    HOLE = 2
    BLOCK_STATUS = 5


DIRTY: Final = 1  # flag of a dirty bitmap's context


class StatusExtent(NamedTuple):
    """A range of the disk with its flags in the context."""

    at: int
    length: int
    flags: int


class Export(NamedTuple):
    """An export, with attributes known from elsewhere."""

    path: str  # of the Unix socket
    name: str
    pid: int  # of the expected server, because other processes may replace the socket
    size_bytes: int  # expected size


class ExportedDisk:
    """Connection to one export; context manager, not thread-safe, one request at a time.

    :param context: of :meth:`iter_extents`
    :param timeout_s: of one request
    :raises errors.Unusable: no answer, unsupported export or context, or wrong process or size
    """

    def __init__(self, export: Export, context: str, timeout_s: float) -> None:
        self.name = f"export {export.name} at {export.path}"
        self.size_bytes = export.size_bytes
        self._timeout_s, self._ends_s, self._cookie = timeout_s, 0.0, 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._deadline():
                self._socket.settimeout(timeout_s)
                self._socket.connect(export.path)
                self._check_peer(export.pid)
                self._greet()
                self._negotiate(_Option.STRUCTURED_REPLY, b"")
                self._context = self._set_context(export.name, context)
                self._check_size(self._go(export.name))
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.closing(self._socket), contextlib.suppress(errors.Unusable):
            with self._deadline():
                self._request(_Command.DISCONNECT, 0, 0)

    def read_into(self, view: memoryview, at: int) -> None:
        """Fill ``view``, of at most MAX_READ_BYTES, from ``at``, or raise Unusable."""
        if at < 0 or at + len(view) > self.size_bytes or len(view) > MAX_READ_BYTES:
            raise ValueError(f"{len(view)} bytes at {at} cannot be requested")
        filled = 0
        with self._deadline():
            self._request(_Command.READ, at, len(view))
            for kind, length in self._replies():
                part_bytes = self._fill(view, at, kind, length)
                filled += part_bytes
                if not part_bytes or filled > len(view):  # would repeat until the timeout
                    raise self._fault("a reply of no bytes, or of more than were requested")
        if filled != len(view):
            raise self._fault(f"{filled} bytes arrived of {len(view)}")

    def iter_extents(self) -> Iterator[StatusExtent]:
        """Yield the context's extents in order, or raise Unusable; reads may be made between."""
        at, requests = 0, -(-self.size_bytes // _MAX_STATUS_BYTES)
        answers, left_s = 2 * requests + _MORE_ANSWERS, self._timeout_s + requests * _ANSWER_S
        while at < self.size_bytes:
            before, began_s = at, time.monotonic()
            length = min(self.size_bytes - at, _MAX_STATUS_BYTES)
            found = self._status(at, length, min(left_s, self._timeout_s))
            left_s -= time.monotonic() - began_s
            answers -= 1
            for length, flags in found:
                length = min(length, self.size_bytes - at)
                if length:
                    yield StatusExtent(at, length, flags)
                at += length
            if at < self.size_bytes and (at == before or not answers):
                raise self._fault(f"no block status at {at}")

    def _status(self, at: int, length: int, within_s: float) -> Iterable[tuple[int, int]]:
        raw = b""
        with self._deadline(within_s):
            self._request(_Command.BLOCK_STATUS, at, length)
            for kind, length in self._replies():
                if kind != _ReplyKind.BLOCK_STATUS or raw:
                    raise self._fault(f"a reply of type {kind} to a block status request")
                raw = self._status_bytes(length)
        return _EXTENT.iter_unpack(memoryview(raw)[_CONTEXT.size :])

    def _status_bytes(self, length: int) -> bytes:
        count, rest = divmod(length - _CONTEXT.size, _EXTENT.size)
        if rest or not 0 < count <= _MAX_EXTENTS:
            raise self._fault(f"a block status of {length} bytes")
        raw = self._receive(length)
        if _CONTEXT.unpack_from(raw)[0] != self._context:
            raise self._fault("the block status of a context that was not requested")
        return raw

    def _fill(self, view: memoryview, at: int, kind: int, length: int) -> int:
        """Copy a reply into ``view``, which begins at ``at``; return the number of bytes."""
        if kind == _ReplyKind.DATA and length > _OFFSET.size:
            (offset,) = _OFFSET.unpack(self._receive(_OFFSET.size))
            part = self._part(view, offset - at, length - _OFFSET.size)
            self._receive_into(part)
        elif kind == _ReplyKind.HOLE and length == _HOLE.size:
            offset, zeros = _HOLE.unpack(self._receive(_HOLE.size))
            part = self._part(view, offset - at, zeros)
            part[:] = bytes(zeros)
        else:
            raise self._fault(f"a reply of type {kind} and {length} bytes to a read")
        return len(part)

    def _part(self, view: memoryview, start: int, length: int) -> memoryview:
        if start < 0 or start + length > len(view):
            raise self._fault("bytes that were not requested")
        return view[start : start + length]

    def _request(self, command: _Command, at: int, length: int) -> None:
        self._cookie += 1
        self._send(_REQUEST.pack(_REQUEST_MAGIC, 0, command, self._cookie, at, length))

    def _replies(self) -> Iterator[tuple[int, int]]:
        """Yield kind and length of each part of a reply; the caller reads its data."""
        is_last = False
        while not is_last:
            magic, flags, kind, cookie, length = _REPLY.unpack(self._receive(_REPLY.size))
            if magic != _REPLY_MAGIC or cookie != self._cookie:
                raise self._fault("a reply to another request")
            is_last = bool(flags & _IS_LAST)
            if kind & _IS_ERROR_KIND:
                raise self._refused(length)
            if kind != _ReplyKind.NONE:
                yield kind, length
            elif length or not is_last:
                raise self._fault("an empty reply that is not the last one")

    def _refused(self, length: int) -> errors.Unusable:
        if not _ERROR.size <= length <= _MAX_OPTION_BYTES:
            return self._fault(f"an error reply of {length} bytes")
        raw = self._receive(length)
        number, message_bytes = _ERROR.unpack_from(raw)
        message = raw[_ERROR.size : _ERROR.size + message_bytes].decode(errors="replace")
        return self._fault(f"error {number} {message}".rstrip())

    def _check_peer(self, pid: int) -> None:
        raw = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        peer, _, _ = _CREDENTIALS.unpack(raw)
        if peer != pid:
            raise self._fault(f"process {peer} listens there, which is not process {pid}")

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes != self.size_bytes:
            raise self._fault(f"it exports {size_bytes} bytes of a disk of {self.size_bytes}")

    def _greet(self) -> None:
        magic, options, flags = _GREETING.unpack(self._receive(_GREETING.size))
        if magic != b"NBDMAGIC" or options != _OPTION_MAGIC or not flags & _FIXED_NEWSTYLE:
            raise self._fault("not a server of the fixed newstyle protocol")
        self._send(struct.pack(">I", flags & (_FIXED_NEWSTYLE | _NO_ZEROES)))

    def _set_context(self, export: str, context: str) -> int:
        question = struct.pack(">I", 1) + _text(context)
        replies = self._negotiate(_Option.SET_META_CONTEXT, _text(export) + question)
        for kind, raw in replies:
            if kind == _OptionReply.META_CONTEXT and raw[_CONTEXT.size :] == context.encode():
                return int(_CONTEXT.unpack_from(raw)[0])
        raise self._fault(f"it does not support {context}")

    def _go(self, export: str) -> int:
        replies = self._negotiate(_Option.GO, _text(export) + struct.pack(">H", 0))
        for kind, raw in replies:
            is_export = kind == _OptionReply.INFO and raw[:2] == struct.pack(">H", _INFO_EXPORT)
            if is_export and len(raw) == _EXPORT.size:
                return int(_EXPORT.unpack(raw)[1])
        raise self._fault("it does not report the size of the export")

    def _negotiate(self, option: _Option, data: bytes) -> list[tuple[int, bytes]]:
        self._send(_OPTION.pack(_OPTION_MAGIC, option, len(data)) + data)
        replies: list[tuple[int, bytes]] = []
        while len(replies) < 16:
            magic, answered, kind, length = _OPTION_REPLY.unpack(self._receive(_OPTION_REPLY.size))
            if magic != _OPTION_REPLY_MAGIC or answered != option or length > _MAX_OPTION_BYTES:
                raise self._fault(f"no reply to option {option.name}")
            raw = self._receive(length)
            if kind & _IS_ERROR:
                why = raw.decode(errors="replace") or f"error {kind & ~_IS_ERROR}"
                raise self._fault(f"{option.name} was refused: {why}")
            if kind == _OptionReply.ACK:
                return replies
            replies.append((kind, raw))
        raise self._fault(f"too many replies to option {option.name}")

    @contextlib.contextmanager
    def _deadline(self, within_s: float | None = None) -> Iterator[None]:
        within_s = self._timeout_s if within_s is None else within_s
        self._ends_s = time.monotonic() + within_s
        try:
            yield
        except TimeoutError as e:
            raise self._fault(f"no reply in {within_s:g} s") from e
        except OSError as e:
            raise self._fault(str(e)) from e

    def _send(self, data: bytes) -> None:
        self._wait_on()
        self._socket.sendall(data)

    def _receive(self, length: int) -> bytes:
        raw = bytearray(length)
        self._receive_into(memoryview(raw))
        return bytes(raw)

    def _receive_into(self, view: memoryview) -> None:
        while view:
            self._wait_on()
            count = self._socket.recv_into(view)
            if not count:
                raise self._fault("connection closed")
            view = view[count:]

    def _wait_on(self) -> None:
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)

    def _fault(self, why: str) -> errors.Unusable:
        return errors.Unusable(self.name, why)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">I", len(raw)) + raw
