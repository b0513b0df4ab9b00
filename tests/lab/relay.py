# SPDX-License-Identifier: Apache-2.0
"""A door through which hosts of the lab reach a server on this machine's loopback.

Namespaces have no way out, and shall have none.  A relay is a process inside one of
them that listens there, and hands each connection on through a Unix socket to a
thread outside, which connects to the server.
"""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Self

from tests.lab import network

PIECE_BYTES = 65536


class Relay:
    """Context manager: what connects to ``address`` on ``host`` reaches ``port`` of the loopback.

    A server that is gone refuses; the relay stays.
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
        command = [sys.executable, "-m", "tests.lab.relay", self.host.address, str(self.port)]
        self._process = self.host.popen([*command, self._path], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the relay at {self.address} does not listen")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._outside.close()

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)


def _accept(listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
    """Join each connection that comes with a new one, until the listener is closed."""
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
    """Pass on what comes until one side ends, then end both."""
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE_BYTES):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def main(address: str, port: str, path: str) -> None:
    """Listen inside; connect to the Unix socket of the thread outside."""

    def connect() -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(path)
        return made

    with socket.create_server((address, int(port)), backlog=128) as listener:
        print("ready", flush=True)
        _accept(listener, connect)


if __name__ == "__main__":
    main(*sys.argv[1:])
