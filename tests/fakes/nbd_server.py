# SPDX-License-Identifier: Apache-2.0
"""An NBD server of a test's, which says of a disk whatever the test likes."""

import contextlib
import os
import pathlib
import socket
import struct
import threading
from collections.abc import Callable
from collections.abc import Iterator

from acstor_checkpoint import nbd

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


def own(path: str, size_bytes: int = MIB) -> nbd.Export:
    """Return what is shown at a path by this process."""
    return nbd.Export(path, "vda", os.getpid(), size_bytes)


def reply(
    kind: int, data: bytes = b"", cookie: int = 1, flags: int = 1, magic: int = 0x668E33EF
) -> bytes:
    return struct.pack(">IHHQI", magic, flags, kind, cookie, len(data)) + data


@contextlib.contextmanager
def telling(
    tmp_path: pathlib.Path, size_bytes: int, status: Callable[[int, int, int], bytes]
) -> Iterator[nbd.Export]:
    """Be a server whose answers to questions for the status are ``status(cookie, at, length)``."""
    path = tmp_path / "told.sock"
    said = AGREED.replace(struct.pack(">HQH", 0, MIB, 3), struct.pack(">HQH", 0, size_bytes, 3))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen(1)

        def serve() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as client:
                client.sendall(said)
                while raw := client.recv(28):
                    at = raw.find(REQUEST)
                    while at < 0 or len(raw) < at + 28:  # behind what was negotiated
                        raw += client.recv(28)
                        at = raw.find(REQUEST)
                    _, _, kind, cookie, start, length = struct.unpack(">IHHQQI", raw[at : at + 28])
                    if kind == 7:
                        client.sendall(status(cookie, start, length))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield own(str(path), size_bytes)
        finally:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join(20.0)
            assert not thread.is_alive()


REQUEST = struct.pack(">I", 0x25609513)
