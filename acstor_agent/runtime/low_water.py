# SPDX-License-Identifier: Apache-2.0
"""SO_RCVLOWAT of a socket: how many bytes must be received until it is readable."""

import socket


class LowWaterMark:
    """A socket's mark, 1 at first; setting it to its value costs no system call."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._bytes = sock, 1

    def set_bytes(self, count: int) -> None:
        """Set the mark; raise OSError if the connection is lost."""
        if count != self._bytes:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._bytes = count
