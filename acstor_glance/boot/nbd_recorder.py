# SPDX-License-Identifier: Apache-2.0
"""Read-only NBD server on a socket pair that records reads, for QEMU, which may be hostile.

Protocol: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md.
"""

import contextlib
import logging
import socket
import struct
import threading
from collections.abc import Callable
from typing import Protocol
from typing import Self

from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.util import supervision

LOG = logging.getLogger(__name__)

MAX_READ_BYTES = 32 * geometry.MIB
MAX_OPTION_BYTES = 4096
_GREETING = struct.Struct(">8s8sH")
_OPTION = struct.Struct(">8sII")
_REPLY = struct.Struct(">QIII")
_REQUEST = struct.Struct(">IHHQQI")
_SIMPLE_REPLY = struct.Struct(">IIQ")

_FIXED_NEWSTYLE, _NO_ZEROES = 1, 2
_OPT_EXPORT_NAME, _OPT_ABORT, _OPT_INFO, _OPT_GO = 1, 2, 6, 7
_REP_MAGIC, _REP_ACK, _REP_INFO, _REP_UNSUPPORTED = 0x3E889045565A9, 1, 3, (1 << 31) + 1
_EXPORT_FLAGS = 1 | 2  # has flags, read-only
_REQUEST_MAGIC, _REPLY_MAGIC = 0x25609513, 0x67446698
_CMD_READ, _CMD_DISC = 0, 2
_EIO, _EINVAL = 5, 22

OnRead = Callable[[int, int], None]
"""Called with offset and length of a read, in the server's thread."""


class ReadableDisk(Protocol):
    """The exported disk."""

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes; raises OSError or errors.Unusable."""


class _ProtocolError(Exception):
    """The client violated the protocol or disconnected."""


class NbdRecorder:
    """Context manager that serves ``disk`` to the socket ``client``, and reports reads.

    A caller that passes ``client`` to another process closes it here.
    """

    def __init__(self, disk: ReadableDisk, size_bytes: int, read: OnRead) -> None:
        self._disk, self._size_bytes, self._read = disk, size_bytes, read
        self.client, self._connection = socket.socketpair()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = supervision.start_once("recording-export", self._serve)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        with contextlib.suppress(OSError):  # already closed by the server
            self._connection.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        try:
            with self._connection as connection:
                self._negotiate(connection)
                while self._answer(connection):
                    pass
        except (_ProtocolError, OSError) as e:
            LOG.debug("export: %s", e)

    def _negotiate(self, connection: socket.socket) -> None:
        connection.sendall(_GREETING.pack(b"NBDMAGIC", b"IHAVEOPT", _FIXED_NEWSTYLE | _NO_ZEROES))
        _receive(connection, 4)  # the client's flags, ignored
        while True:
            magic, option, length = _OPTION.unpack(_receive(connection, _OPTION.size))
            if magic != b"IHAVEOPT" or length > MAX_OPTION_BYTES:
                raise _ProtocolError(f"not an option: {magic!r}, {length} bytes")
            _receive(connection, length)
            if option == _OPT_EXPORT_NAME:
                connection.sendall(struct.pack(">QH", self._size_bytes, _EXPORT_FLAGS))
                return
            if option in (_OPT_GO, _OPT_INFO):
                info = struct.pack(">HQH", 0, self._size_bytes, _EXPORT_FLAGS)
                self._reply(connection, option, _REP_INFO, info)
            self._reply(connection, option, _verdict(option))
            if option == _OPT_GO:
                return
            if option == _OPT_ABORT:
                raise _ProtocolError("the client aborted the negotiation")

    @staticmethod
    def _reply(connection: socket.socket, option: int, kind: int, data: bytes = b"") -> None:
        connection.sendall(_REPLY.pack(_REP_MAGIC, option, kind, len(data)) + data)

    def _answer(self, connection: socket.socket) -> bool:
        """Answer one request; return False when the client disconnects."""
        raw = _receive(connection, _REQUEST.size)
        magic, _flags, command, handle, offset, length = _REQUEST.unpack(raw)
        if magic != _REQUEST_MAGIC:
            raise _ProtocolError(f"not a request: {magic:#x}")
        if command == _CMD_DISC:
            return False
        if command != _CMD_READ:
            if length:  # a write: its data follows, of any length
                raise _ProtocolError(f"command {command} on a read-only export")
            self._refuse(connection, handle, _EINVAL)
        elif not 0 < length <= MAX_READ_BYTES or offset + length > self._size_bytes:
            self._refuse(connection, handle, _EINVAL)
        else:
            self._send(connection, handle, offset, length)
        return True

    @staticmethod
    def _refuse(connection: socket.socket, handle: int, error: int) -> None:
        connection.sendall(_SIMPLE_REPLY.pack(_REPLY_MAGIC, error, handle))

    def _send(self, connection: socket.socket, handle: int, offset: int, length: int) -> None:
        try:
            data = self._disk.read(offset, length)
        except (errors.Unusable, OSError) as e:
            LOG.warning("image, byte %d: %s", offset, e)
            self._refuse(connection, handle, _EIO)
            return
        self._read(offset, length)
        connection.sendall(_SIMPLE_REPLY.pack(_REPLY_MAGIC, 0, handle) + data)


def _verdict(option: int) -> int:
    return _REP_ACK if option in (_OPT_GO, _OPT_INFO, _OPT_ABORT) else _REP_UNSUPPORTED


def _receive(connection: socket.socket, length: int) -> bytes:
    parts: list[bytes] = []
    while length:
        part = connection.recv(length)
        if not part:
            raise _ProtocolError("the client disconnected")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
