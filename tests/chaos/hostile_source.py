# SPDX-License-Identifier: Apache-2.0
"""The faults of a chaos run's source, each on real sockets."""

import http.server
import threading

from tests.fakes import http_server

HANGS_S = 120.0
"""No thread of the server waits longer."""


class HostileSource:
    """Makes a web server fail in the ways that the plan names, and recover."""

    def __init__(self, server: http_server.LocalServer) -> None:
        self._server = server
        self._release = threading.Event()

    def break_(self, way: str) -> None:
        """Respond wrongly from now on."""
        self._release.clear()
        ways = {
            "500": http_server.status(500),
            "404": http_server.status(404),
            "hangs": self._hang,
            "hangs up": http_server.hang_up,
            "slow": http_server.slow(0.7),
            "lies": lie,
            "half": http_server.half_a_body,
            "garbage": http_server.garbage,
            "whole file": http_server.whole_file,
        }
        self._server.always = ways[way]

    def recover(self) -> None:
        """Respond correctly; close hanging connections."""
        self._server.always = http_server.fine
        self._release.set()

    def tidy(self) -> None:
        """Drop the counts: a run lasts for hours."""
        self._server.asked.clear()
        self._server.links[:] = [link for link in self._server.links if link.fileno() >= 0]

    def _hang(
        self, handler: http.server.BaseHTTPRequestHandler, asked: http_server.ClientRequest
    ) -> None:
        self._release.wait(HANGS_S)
        handler.close_connection = True


def lie(handler: http.server.BaseHTTPRequestHandler, asked: http_server.ClientRequest) -> None:
    """Send the right number of bytes, some of them wrong."""
    wrong = bytearray(asked.part)
    for at in range(0, len(wrong), 4096):
        wrong[at] ^= 0x20
    headers = {"Content-Range": asked.content_range}
    http_server.answer(handler, 206, bytes(wrong), headers)
