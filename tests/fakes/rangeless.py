# SPDX-License-Identifier: Apache-2.0
"""A Glance whose store supports no ranges, as a behaviour of ``http_server``."""

import collections
import threading
import time

from tests.fakes import http_server


class Rangeless:
    """Refuses ranges as Glance does; ``streams`` serve whole files, one per request.

    :param refuse: responds to a range request
    :ivar whole: number of full requests, by path
    :ivar ranges: number of range requests, by path
    """

    def __init__(self, refuse: http_server.Behaviour | None = None) -> None:
        self.streams: list[http_server.Behaviour] = []
        self.full_downloads: collections.Counter[str] = collections.Counter()
        self.ranges: collections.Counter[str] = collections.Counter()
        self._refuse = refuse or http_server.status(400)

    def __call__(self, handler, asked):
        if not handler.path.endswith("/file"):
            http_server.fine(handler, asked)
        elif "range" in asked.headers:
            self.ranges[handler.path] += 1
            self._refuse(handler, asked)
        else:
            self.full_downloads[handler.path] += 1
            stream = self.streams.pop(0) if self.streams else http_server.whole_file
            stream(handler, asked)


def cut(after_bytes: int) -> http_server.Behaviour:
    """Disconnect in the middle of the file."""

    def behave(handler, asked):
        part = asked.body[:after_bytes]
        http_server.answer(handler, 200, part, announced_bytes=len(asked.body))

    return behave


def held_back(after_bytes: int, go_on: threading.Event) -> http_server.Behaviour:
    """Send the beginning, and the rest when ``go_on`` is set."""

    def behave(handler, asked):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(asked.body)))
        handler.end_headers()
        handler.wfile.write(asked.body[:after_bytes])
        go_on.wait(30)
        handler.wfile.write(asked.body[after_bytes:])

    return behave


def trickling(every_s: float, part_bytes: int = 1) -> http_server.Behaviour:
    """Send the file a few bytes at a time, without long pauses."""

    def behave(handler, asked):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(asked.body)))
        handler.end_headers()
        for at in range(0, len(asked.body), part_bytes):
            handler.wfile.write(asked.body[at : at + part_bytes])
            time.sleep(every_s)

    return behave
