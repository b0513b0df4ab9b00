# SPDX-License-Identifier: Apache-2.0
"""A compromised vault: TLS with a host's valid certificate, and any response."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from collections.abc import Iterator

from acstor_common.identity import credentials

Answer = Callable[[ssl.SSLSocket, bytes], None]
"""Answers a request; gets its head.  The body is still unread."""


class HostileVault:
    """Listens on the loopback for the block.

    :param proof: of the vault's host
    :param answer: called for each request, in a thread of its connection
    """

    def __init__(self, proof: credentials.Credentials, answer: Answer) -> None:
        self._proof, self._answer = proof, answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.requests: list[str] = []
        self.take_bytes = 0
        """Body bytes to read ten times a second; 0: no limit."""
        self.ended = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "HostileVault":
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in tuple(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self.ended.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._start(lambda sock=sock: self._serve(sock))

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            with self._proof.tls_context(is_server=True).wrap_socket(sock, server_side=True) as tls:
                self._open.add(tls)
                for head in self._heads(tls):
                    self.requests.append(head.partition(b"\r\n")[0].decode("latin-1"))
                    self._answer(tls, head)

    def _heads(self, tls: ssl.SSLSocket) -> Iterator[bytes]:
        """Yield the heads of requests, after their bodies arrived."""
        data = b""
        while more := tls.recv(1 << 20):
            data += more
            while (at := data.find(b"\r\n\r\n")) >= 0:
                head, data = data[: at + 4], data[at + 4 :]
                data = self._after_body(tls, data, _length(head))
                yield head

    def _after_body(self, tls: ssl.SSLSocket, data: bytes, length: int) -> bytes:
        left = length - len(data)
        while left > 0 and (more := tls.recv(self.take_bytes or 1 << 20)):
            left -= len(more)
            data = more
            if self.take_bytes:
                self.ended.wait(0.1)
        return data[len(data) + left :] if left < 0 else b""


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
