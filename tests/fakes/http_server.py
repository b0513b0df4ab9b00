# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server in a thread, with correct and faulty responses.

It uses real sockets, so tests run the production client.  Each behaviour is a function that
writes one response.
"""

import contextlib
import dataclasses
import gzip
import http.server
import re
import socket
import ssl
import time
from collections.abc import Callable
from collections.abc import Iterator

from tests.fakes import server_threads


@dataclasses.dataclass
class ClientRequest:
    """A request of the client."""

    body: bytes
    start: int
    stop: int
    headers: dict[str, str]

    @property
    def part(self) -> bytes:
        """The body of a correct response."""
        return self.body[self.start : self.stop]

    @property
    def content_range(self) -> str:
        """The Content-Range of a correct response."""
        return f"bytes {self.start}-{self.start + len(self.part) - 1}/{len(self.body)}"


Behaviour = Callable[[http.server.BaseHTTPRequestHandler, ClientRequest], None]


class LocalServer:
    """A running server.

    Each request uses up one of ``behaviours``; without any left, ``always`` responds.
    """

    def __init__(self, url: str, files: dict[str, bytes]) -> None:
        self.url = url
        self.files = files
        self.behaviours: list[Behaviour] = []
        self.always: Behaviour = fine
        self.head: dict[str, str] | None = None  # headers of HEAD responses; None: the correct ones
        self.asked: list[dict[str, str]] = []
        self.connections = 0
        self.links: list[socket.socket] = []
        self.body_bytes = 0


class _IPv6Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6


@contextlib.contextmanager
def serve(
    files: dict[str, bytes], tls: ssl.SSLContext | None = None, port: int = 0, *, ipv6: bool = False
) -> Iterator[LocalServer]:
    """Serve ``files`` by name on a loopback port; close connections after the block.

    :param port: 0: any free one
    """
    kind, ip = (_IPv6Server, "::1") if ipv6 else (http.server.ThreadingHTTPServer, "127.0.0.1")
    server = kind((ip, port), _Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    scheme = "http" if tls is None else "https"
    authority = f"[{ip}]" if ipv6 else ip
    server.local = LocalServer(f"{scheme}://{authority}:{server.server_address[1]}/", files)
    try:
        with server_threads.serving(server):
            yield server.local
    finally:
        server_threads.shut_down(server.local.links)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.server.local.connections += 1
        self.server.local.links.append(self.connection)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            super().handle()

    def do_GET(self) -> None:
        local = self.server.local
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = local.files.get(self.path.lstrip("/"))
        if body is None and self.path.endswith(".acboot"):
            answer(self, 404, b"")  # each agent asks; tests count only image requests
            return
        local.asked.append(headers)
        behaviour = local.behaviours.pop(0) if local.behaviours else local.always
        if body is None:
            status(404)(self, ClientRequest(b"", 0, 0, headers))
            return
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
        start, stop = (int(match[1]), int(match[2]) + 1) if match else (0, len(body))
        with contextlib.suppress(ConnectionError):
            behaviour(self, ClientRequest(body, start, stop, headers))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def do_HEAD(self) -> None:
        body = self.server.local.files.get(self.path.lstrip("/"))
        self.send_response(404 if body is None else 200)
        reported = self.server.local.head
        for name, value in (
            {"Content-Length": str(len(body or b""))} if reported is None else reported
        ).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Log nothing."""


def answer(
    handler: http.server.BaseHTTPRequestHandler,
    code: int,
    body: bytes,
    headers: dict[str, str] | None = None,
    announced_bytes: int | None = None,
) -> None:
    """Write one response.

    :param announced_bytes: Content-Length; if wrong, the connection closes
    """
    announced = len(body) if announced_bytes is None else announced_bytes
    handler.send_response(code)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(announced))
    handler.end_headers()
    handler.wfile.write(body)
    handler.server.local.body_bytes += len(body)
    handler.close_connection = announced != len(body)


def fine(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Respond as RFC 9110 requires."""
    if "range" not in asked.headers:
        answer(handler, 200, asked.body)
    elif asked.start >= len(asked.body):
        answer(handler, 416, b"", {"Content-Range": f"bytes */{len(asked.body)}"})
    else:
        answer(handler, 206, asked.part, {"Content-Range": asked.content_range})


def whole_file(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Respond 200 with the whole file: no range support."""
    answer(handler, 200, asked.body)


def status(code: int, headers: dict[str, str] | None = None) -> Behaviour:
    """Respond with a status and no body."""
    return lambda handler, asked: answer(handler, code, b"no", headers)


def redirect(location: str) -> Behaviour:
    """Redirect to ``location``."""
    return status(302, {"Location": location})


def half_a_body(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Disconnect in the middle of the body."""
    half = asked.part[: len(asked.part) // 2]
    answer(handler, 206, half, {"Content-Range": asked.content_range}, len(asked.part))


def content_range(text: str | None) -> Behaviour:
    """Respond with the right bytes and a Content-Range of ``text`` (None: no header)."""
    headers = {} if text is None else {"Content-Range": text}
    return lambda handler, asked: answer(handler, 206, asked.part, headers)


def other_case(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Respond with headers, and a unit of the range, in another case, and with spaces."""
    text = asked.content_range.replace("bytes", "Bytes")
    answer(handler, 206, asked.part, {"CONTENT-RANGE": f"  {text}\t"})


def garbage(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Respond with bytes that are not HTTP."""
    handler.wfile.write(b"\x16\x03\x01\x00 this is not HTTP at all\r\n\r\n")
    handler.close_connection = True


def hang_up(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Close the connection without a response."""
    handler.close_connection = True


def too_long(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Respond with a chunked body far longer than the range."""
    handler.send_response(206)
    handler.send_header("Content-Range", asked.content_range)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for _ in range(1000):
        handler.wfile.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
        handler.server.local.body_bytes += 0x10000
    handler.wfile.write(b"0\r\n\r\n")


def endless(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Send spaces until the client disconnects, at most 256 MiB."""
    handler.close_connection = True
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()
    for _ in range(256):
        handler.wfile.write(b" " * (1 << 20))
        handler.server.local.body_bytes += 1 << 20


def too_short(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Respond with a complete chunked body that lacks one byte."""
    handler.send_response(206)
    handler.send_header("Content-Range", asked.content_range)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    part = asked.part[:-1]
    handler.wfile.write(b"%x\r\n" % len(part) + part + b"\r\n0\r\n\r\n")


def chunked(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Respond correctly, with a chunked body."""
    handler.send_response(206)
    handler.send_header("Content-Range", asked.content_range)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for at in range(0, len(asked.part), 1000):
        part = asked.part[at : at + 1000]
        handler.wfile.write(b"%x\r\n" % len(part) + part + b"\r\n")
    handler.wfile.write(b"0\r\n\r\n")


def until_the_end(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Respond correctly; the body ends with the connection, as in HTTP/1.0."""
    handler.wfile.write(b"HTTP/1.0 206 Fine\r\n")
    handler.wfile.write(f"Content-Range: {asked.content_range}\r\n\r\n".encode())
    handler.wfile.write(asked.part)
    handler.close_connection = True


def announces_close(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Respond correctly with "Connection: close", but keep the connection open."""
    headers = {"Content-Range": asked.content_range, "Connection": "close"}
    answer(handler, 206, asked.part, headers)
    handler.close_connection = False  # send_header has set it


def hints_first(count: int) -> Behaviour:
    """Send ``count`` interim responses first (RFC 9110, 15.2)."""

    def behave(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
        handler.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * count)
        fine(handler, asked)

    return behave


def endless_head(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Send 10,000 headers of 1,000 bytes."""
    handler.wfile.write(b"HTTP/1.1 206 Fine\r\n")
    for number in range(10_000):
        handler.wfile.write(b"X-%d: %s\r\n" % (number, b"x" * 1000))


def two_lengths(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Send two Content-Length headers."""
    handler.send_response(206)
    handler.send_header("Content-Range", asked.content_range)
    handler.send_header("Content-Length", str(len(asked.part)))
    handler.send_header("Content-Length", str(len(asked.part) + 1))
    handler.end_headers()
    handler.wfile.write(asked.part)


def chunked_with_a_length(
    handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest
) -> None:
    """Send Content-Length with a chunked body: an ambiguous length."""
    body = b"%x\r\n" % len(asked.part) + asked.part + b"\r\n0\r\n\r\n"
    handler.send_response(206)
    handler.send_header("Content-Range", asked.content_range)
    handler.send_header("Content-Length", str(len(asked.part)))
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(body)


def answer_to_what_comes_next(wrong: bytes) -> Behaviour:
    """Respond correctly, then send an unrequested second response."""

    def behave(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
        fine(handler, asked)
        body = wrong * len(asked.part)
        head = f"HTTP/1.1 206 Fine\r\nContent-Range: {asked.content_range}\r\n"
        handler.wfile.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    return behave


def drip(every_s: float, part_bytes: int = 1, code: int = 206) -> Behaviour:
    """Respond with the bytes of the request, a few at a time."""

    def behave(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
        handler.send_response(code)
        handler.send_header("Content-Range", asked.content_range)
        handler.send_header("Content-Length", str(len(asked.part)))
        handler.end_headers()
        for at in range(0, len(asked.part), part_bytes):
            handler.wfile.write(asked.part[at : at + part_bytes])
            handler.server.local.body_bytes += part_bytes
            time.sleep(every_s)

    return behave


def stall(after_bytes: int, for_s: float) -> Behaviour:
    """Send the beginning of the body, then nothing for ``for_s``."""

    def behave(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
        handler.close_connection = True
        handler.send_response(206)
        handler.send_header("Content-Range", asked.content_range)
        handler.send_header("Content-Length", str(len(asked.part)))
        handler.end_headers()
        handler.wfile.write(asked.part[:after_bytes])
        time.sleep(for_s)

    return behave


def shorter_blob(size_bytes: int) -> Behaviour:
    """Respond as if the blob had ``size_bytes``."""

    def behave(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
        fine(handler, dataclasses.replace(asked, body=asked.body[:size_bytes]))

    return behave


def other_length(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Announce and send one byte more than the Content-Range states."""
    answer(handler, 206, asked.part + b"!", {"Content-Range": asked.content_range})


def gzipped(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
    """Compress the response without Accept-Encoding."""
    headers = {"Content-Range": asked.content_range, "Content-Encoding": "gzip"}
    answer(handler, 206, gzip.compress(asked.part), headers)


def slow(delay_s: float) -> Behaviour:
    """Respond correctly after ``delay_s``."""

    def behave(handler: http.server.BaseHTTPRequestHandler, asked: ClientRequest) -> None:
        time.sleep(delay_s)
        fine(handler, asked)

    return behave
