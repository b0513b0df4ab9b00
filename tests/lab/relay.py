# SPDX-License-Identifier: Apache-2.0
"""Relays between this machine's loopback and the lab's hosts.

Namespaces have no route out.  A :class:`Relay` is a process inside that listens there, and passes
connections through a Unix socket to a thread outside, which connects to a loopback server.  An
:class:`Outlet` works in the opposite direction: programs outside use a host's link.
"""

import contextlib
import functools
import pathlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Self

from tests.lab import network

PIECE_BYTES = 65536
LOOPBACK = "127.0.0.1"


class Relay:
    """Context manager: relays ``address`` on ``host`` to ``port`` of the loopback.

    It closes connections while the server is down.
    """

    def __init__(self, host: network.Host, port: int) -> None:
        self.host, self.port = host, port
        self.address = f"{host.address}:{port}"
        self._path = host.folder / f"relay-{port}.sock"

    def __enter__(self) -> Self:
        self._outside = socket.socket(socket.AF_UNIX)
        self._outside.bind(str(self._path))
        self._outside.listen(128)
        threading.Thread(target=_accept, args=(self._outside, self._connect), daemon=True).start()
        self._process = _inside(self.host, "in", self.address, self._path)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._outside.close()

    @contextlib.contextmanager
    def shut(self) -> Iterator[None]:
        """Close all connections, and refuse new ones, for the block."""
        self._process.kill()
        self._process.wait()
        yield
        self._process = _inside(self.host, "in", self.address, self._path)

    def _connect(self) -> socket.socket:
        return socket.create_connection((LOOPBACK, self.port), timeout=5)


class Outlet:
    """Context manager: relays ``port`` of the loopback to ``address`` from ``host``.

    :param address: of a server in the lab's network, with its port
    """

    def __init__(self, host: network.Host, address: str) -> None:
        self.host, self.address = host, address
        self.port = 0
        self._path = host.folder / f"outlet-{address}.sock"

    def __enter__(self) -> Self:
        self._process = _inside(self.host, "out", self.address, self._path)
        self._outside = socket.create_server((LOOPBACK, 0), backlog=128)
        self.port = self._outside.getsockname()[1]
        threading.Thread(target=_accept, args=(self._outside, self._connect), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._outside.close()
        self._process.kill()
        self._process.wait()

    def _connect(self) -> socket.socket:
        return _connected(str(self._path))


def _inside(
    host: network.Host, direction: str, address: str, path: pathlib.Path
) -> subprocess.Popen[bytes]:
    """Start the process inside, and wait until it listens."""
    command = [sys.executable, "-m", "tests.lab.relay", direction, address, path]
    process = host.popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError(f"the relay at {address} does not listen")
    return process


def _connected(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.connect(path)
    return made


def _accept(listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
    """Relay each accepted connection to a new one, until the listener is closed."""
    while True:
        try:
            one, _ = listener.accept()
        except OSError:
            return
        try:
            other = connect()
        except OSError:
            one.close()
            continue
        other.settimeout(None)
        for source, target in ((one, other), (other, one)):
            threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until one side ends, then end both."""
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE_BYTES):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def main(direction: str, address: str, path: str) -> None:
    """Relay ``address`` to the Unix socket, or in the opposite direction."""
    host, _, port = address.rpartition(":")
    place = (host, int(port))
    if direction == "in":
        listener = socket.create_server(place, backlog=128)
        connect = functools.partial(_connected, path)
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(128)
        connect = functools.partial(socket.create_connection, place)
    with listener:
        print("ready", flush=True)
        _accept(listener, connect)


if __name__ == "__main__":
    main(*sys.argv[1:])
