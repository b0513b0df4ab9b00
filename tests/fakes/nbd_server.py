# SPDX-License-Identifier: Apache-2.0
"""An NBD server that reports any block status."""

import contextlib
import os
import pathlib
import socket
import struct
import threading
from collections.abc import Callable
from collections.abc import Iterator

from acstor_checkpoint.capture import nbd_client

MIB = 1 << 20
GREETING = struct.pack(">8s8sH", b"NBDMAGIC", b"IHAVEOPT", 3)


def option(kind: int, data: bytes = b"", number: int = 0) -> bytes:
    return struct.pack(">QIII", 0x3E889045565A9, number, kind, len(data)) + data


AGREED = (
    GREETING
    + option(1, number=8)
    + option(4, struct.pack(">I", 7) + b"base:allocation", 10)
    + option(1, number=10)
    + option(3, struct.pack(">HQH", 0, MIB, 3), 7)
    + option(1, number=7)
)


def own(path: str, size_bytes: int = MIB) -> nbd_client.Export:
    """Return this process's export at a socket path."""
    return nbd_client.Export(path, "vda", os.getpid(), size_bytes)


def reply(
    kind: int, data: bytes = b"", cookie: int = 1, flags: int = 1, magic: int = 0x668E33EF
) -> bytes:
    return struct.pack(">IHHQI", magic, flags, kind, cookie, len(data)) + data


@contextlib.contextmanager
def telling(
    tmp_path: pathlib.Path, size_bytes: int, status: Callable[[int, int, int], bytes]
) -> Iterator[nbd_client.Export]:
    """Serve an export; ``status(cookie, at, length)`` answers BLOCK_STATUS."""
    said = AGREED.replace(struct.pack(">HQH", 0, MIB, 3), struct.pack(">HQH", 0, size_bytes, 3))

    def serve(client: socket.socket) -> None:
        client.sendall(said)
        while raw := client.recv(28):
            at = raw.find(REQUEST)
            while at < 0 or len(raw) < at + 28:  # after the negotiation
                raw += client.recv(28)
                at = raw.find(REQUEST)
            _, _, kind, cookie, start, length = struct.unpack(">IHHQQI", raw[at : at + 28])
            if kind == 7:
                client.sendall(status(cookie, start, length))

    with _serving(tmp_path / "told.sock", serve) as path:
        yield own(path, size_bytes)


@contextlib.contextmanager
def saying(folder: pathlib.Path, said: bytes) -> Iterator[nbd_client.Export]:
    """Send ``said`` to a client, and then nothing."""

    def serve(client: socket.socket) -> None:
        client.sendall(said)
        while client.recv(4096):
            pass

    with _serving(folder / "said.sock", serve) as path:
        yield own(path)


@contextlib.contextmanager
def closing(folder: pathlib.Path, said: bytes) -> Iterator[nbd_client.Export]:
    """Send ``said`` to a client, and close the connection."""
    with _serving(folder / "closed.sock", lambda client: client.sendall(said)) as path:
        yield own(path)


@contextlib.contextmanager
def _serving(path: pathlib.Path, serve: Callable[[socket.socket], None]) -> Iterator[str]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen(1)

        def accept() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as client:
                serve(client)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield str(path)
        finally:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join(20.0)
            assert not thread.is_alive()


class Repeater:
    """A server of one client at a time, for the life of the process.

    It sends ``said`` and then closes its side.
    """

    def __init__(self, size_bytes: int) -> None:
        self.said = b""
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind("")  # an abstract address
        self._server.listen()
        self.export = own(self._server.getsockname().decode(), size_bytes)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self._server.accept()[0] as client, contextlib.suppress(OSError):
                client.sendall(self.said)
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass


REQUEST = struct.pack(">I", 0x25609513)
