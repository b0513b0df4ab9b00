# SPDX-License-Identifier: Apache-2.0
"""A compromised vault: its certificate is valid, its responses are hostile."""

import contextlib
import pathlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Self

from acstor_checkpoint.holders import checkpoint_record
from acstor_common.model import ids
from tests.lab import vaults

Answer = Callable[[str, ssl.SSLSocket], bytes | None]
"""Maps a request's first line to the response body; None closes the connection."""


def drip(client: ssl.SSLSocket, every_s: float, ended: threading.Event) -> None:
    """Send a response of 1,000 bytes, one byte per ``every_s``."""
    client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    for _ in range(1000):
        client.sendall(b"1")
        if ended.wait(every_s):
            return


class HostileHolder:
    """Context manager: a vault that listens on the loopback.

    :param folder: for its identity
    :param status: of all responses
    :ivar asked: first lines of requests
    """

    def __init__(self, folder: pathlib.Path, name: str, answer: Answer, status: int = 200) -> None:
        self._status = status
        self._proof = vaults.credentials_of(folder, name)
        self._answer, self.asked, self.ended = answer, list[str](), threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.holder = checkpoint_record.VaultHolder(ids.HostId(name), f"127.0.0.1:{self.port}")

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        context = self._proof.tls_context(is_server=True)
        with contextlib.suppress(OSError, ValueError), context.wrap_socket(client, True) as tls:
            while line := self._request(tls):
                self.asked.append(line)
                body = self._answer(line, tls)
                if body is None:
                    return
                head = b"HTTP/1.1 %d Said\r\ncontent-length: %d\r\n\r\n"
                tls.sendall(head % (self._status, len(body)) + body)

    def _request(self, tls: ssl.SSLSocket) -> str:
        """Read a request; return its first line, "" at the end."""
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := tls.recv(65536)):
                return ""
            head += data
        head, _, body = head.partition(b"\r\n\r\n")
        lines = head.decode().lower().splitlines()
        length = next(int(one.split(":")[1]) for one in lines if one.startswith("content-length"))
        while len(body) < length:
            body += tls.recv(65536) or b"\0" * length
        return head.decode().splitlines()[0]


def never(_line: str, _tls: ssl.SSLSocket) -> None:
    """Close the connection without a response."""
    time.sleep(3600.0)
