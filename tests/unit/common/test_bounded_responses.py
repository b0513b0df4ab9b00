# SPDX-License-Identifier: Apache-2.0
"""Deadlines and size limits of HTTP responses; image data has a minimum rate instead."""

import itertools
import socket
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import urllib3
from keystoneauth1 import exceptions
from keystoneauth1 import session as keystone_session

from acstor_common.service import bounded_responses
from tests.fakes import dripping_server

WITHIN_S = 1.0
SLACK_S = 10.0
"""Delay on a busy machine."""
MIB = 1 << 20
OK = b"HTTP/1.1 200 OK\r\n"
IMAGE_DATA = b"Content-Type: application/octet-stream\r\n"
Pieces = dripping_server.Pieces
drip, serve = dripping_server.drip, dripping_server.serve


def session_of(**bounds: Any) -> keystone_session.Session:
    """Return a session whose read timeout is longer than a test."""
    made = keystone_session.Session(timeout=30)
    bounded_responses.bound(made, **{"within_s": WITHIN_S, **bounds})
    return made


DRIPS = {
    "status line": drip(b"HTTP/1.1 200 "),
    "header": drip(OK + b"X-Name: "),
    "empty headers": drip(OK, b"X-N: \r\n"),
    "before the answer": drip(again=b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": drip(OK + b"Content-Length: 9999\r\n\r\n"),
    "chunks": drip(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "size of a chunk": drip(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "error": drip(b"HTTP/1.1 500 No\r\nContent-Length: 9999\r\n" + IMAGE_DATA + b"\r\n"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pieces", DRIPS.values(), ids=DRIPS)
def test_trickled_response_ends_at_the_deadline(pieces: Pieces, stream: bool) -> None:
    with serve(pieces, 0.05) as server:
        began_s = time.monotonic()
        with pytest.raises((exceptions.ConnectionError, requests.exceptions.ConnectionError)):
            answer = session_of().get(f"http://{server.address}/", raise_exc=False, stream=stream)
            assert not answer.content
        assert WITHIN_S - 0.1 < time.monotonic() - began_s < WITHIN_S + SLACK_S


def test_trickled_handshake_ends_at_the_deadline() -> None:
    hello = drip(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03", b"\0")
    with serve(hello, 0.05, is_spoken_to=False) as server:
        began_s = time.monotonic()
        with pytest.raises(exceptions.ConnectionError):
            session_of().get(f"https://{server.address}/")
        assert WITHIN_S - 0.1 < time.monotonic() - began_s < WITHIN_S + SLACK_S


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_trickled_proxy_response_ends_at_the_deadline(scheme: str) -> None:
    with serve(drip(b"HTTP/1.1 200 "), 0.05) as server:
        session = session_of()
        session.session.proxies = {scheme: f"http://{server.address}"}
        began_s = time.monotonic()
        with pytest.raises(exceptions.ConnectionError):
            session.get(f"{scheme}://example.org/")
        assert WITHIN_S - 0.1 < time.monotonic() - began_s < WITHIN_S + SLACK_S


def test_read_timeout_ends_a_silent_response_before_the_deadline() -> None:
    with serve(lambda: iter([OK])) as server:
        began_s = time.monotonic()
        with pytest.raises(exceptions.ConnectTimeout):
            session_of(within_s=30.0).get(f"http://{server.address}/", timeout=0.5)
        assert time.monotonic() - began_s < 0.5 + SLACK_S


ENDLESS = {
    "headers": lambda: itertools.chain([OK], itertools.repeat(b"X-Name: value\r\n")),
    "long headers": lambda: itertools.chain(
        [OK], itertools.repeat(b"X-Name: " + b"x" * 65_000 + b"\r\n")
    ),
    "line": lambda: itertools.chain([OK], itertools.repeat(b"x" * MIB)),
    "status line": lambda: itertools.chain([b"HTTP/1.1 200 "], itertools.repeat(b"x" * MIB)),
    "body": lambda: itertools.chain([OK + b"\r\n"], itertools.repeat(b"x" * MIB)),
}


@pytest.mark.parametrize("pieces", ENDLESS.values(), ids=ENDLESS)
def test_endless_response_takes_bounded_memory(pieces: Pieces) -> None:
    session = session_of(within_s=30.0)
    with serve(pieces) as server:
        tracemalloc.start()
        with pytest.raises(exceptions.ConnectionError):
            session.get(f"http://{server.address}/")
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most_bytes < 8 * bounded_responses.MAX_BYTES


def test_each_response_of_a_connection_has_its_own_deadline() -> None:
    body = OK + b"Content-Length: 2\r\n\r\n{}"
    with serve(lambda: iter([body]), WITHIN_S / 4) as server:
        session = session_of()
        for _ in range(8):
            assert session.get(f"http://{server.address}/").json() == {}
        assert server.connections == 1


def test_deeply_nested_json_is_malformed() -> None:
    body = b"[" * (MIB // 2)
    answer = OK + b"Content-Type: application/json\r\n"
    with serve(
        lambda: iter([answer + f"Content-Length: {len(body)}\r\n\r\n".encode() + body])
    ) as at:
        found = session_of().get(f"http://{at.address}/")
        with pytest.raises(ValueError, match="nested too deeply"):
            found.json()


def image_data(*pieces: bytes) -> Pieces:
    size = sum(map(len, pieces))
    head = OK + IMAGE_DATA + f"Content-Length: {size}\r\n\r\n".encode()
    return lambda: iter([head, *pieces])


def test_streamed_image_data_may_take_longer_and_be_larger() -> None:
    """The transfer takes twice the deadline of other responses, at ten times the minimum rate."""
    piece = bytes(bounded_responses.STREAM_BYTES_PER_S)
    with serve(image_data(*[piece] * 20), 0.1) as server:
        began_s = time.monotonic()
        answer = session_of(max_bytes=1000).get(f"http://{server.address}/", stream=True)
        assert sum(map(len, answer.iter_content(MIB))) == 20 * len(piece)
        assert time.monotonic() - began_s >= 2 * WITHIN_S


def test_streamed_image_data_below_the_minimum_rate_is_aborted() -> None:
    piece = bytes(bounded_responses.STREAM_BYTES_PER_S // 100)
    with serve(image_data(*[piece] * 1000), 0.1) as server:
        began_s = time.monotonic()
        answer = session_of().get(f"http://{server.address}/", stream=True)
        with pytest.raises(requests.exceptions.ConnectionError):
            list(answer.iter_content(MIB))
        assert WITHIN_S - 0.1 < time.monotonic() - began_s < WITHIN_S + SLACK_S


def test_fast_image_data_does_not_earn_time_for_a_pause() -> None:
    pieces = image_data(bytes(100 * bounded_responses.STREAM_BYTES_PER_S), *[b"x"] * 1000)
    with serve(pieces, 0.1) as server:
        answer = session_of().get(f"http://{server.address}/", stream=True)
        began_s = time.monotonic()
        with pytest.raises(requests.exceptions.ConnectionError):
            list(answer.iter_content(MIB))
        assert time.monotonic() - began_s < WITHIN_S + SLACK_S


def test_pause_of_the_reader_is_not_charged_to_the_server() -> None:
    size = 4 * MIB  # more than the sockets' buffers hold
    with serve(image_data(bytes(size))) as server:
        answer = session_of().get(f"http://{server.address}/", stream=True)
        pieces = answer.iter_content(MIB)
        first = next(pieces)
        time.sleep(2 * WITHIN_S)
        assert len(first) + sum(map(len, pieces)) == size


def test_other_streamed_data_is_limited_in_size() -> None:
    head = OK + b"Content-Type: application/json\r\nContent-Length: 2000\r\n\r\n"
    with serve(lambda: iter([head, bytes(2000)])) as server:
        answer = session_of(max_bytes=1000).get(f"http://{server.address}/", stream=True)
        with pytest.raises(exceptions.ConnectionError, match="takes more than 1000 bytes"):
            answer.text  # noqa: B018


def test_unstreamed_image_data_is_limited_in_size() -> None:
    with (
        serve(image_data(bytes(2000))) as server,
        pytest.raises(exceptions.ConnectionError),
    ):
        session_of(max_bytes=1000).get(f"http://{server.address}/")


def test_upload_has_no_deadline_and_its_response_has_one() -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(8):
            time.sleep(WITHIN_S / 4)
            yield b"x" * 1000

    with serve(lambda: iter([OK + b"Content-Length: 0\r\n\r\n"])) as server:
        assert session_of().put(f"http://{server.address}/", data=pieces()).status_code == 200
    with serve(drip(OK), 0.05) as server:
        began_s = time.monotonic()
        with pytest.raises(exceptions.ConnectionError):
            session_of().put(f"http://{server.address}/", data=pieces())
        assert 3 * WITHIN_S - 0.1 < time.monotonic() - began_s < 3 * WITHIN_S + SLACK_S


def test_upload_response_deadline_follows_the_request_timeout() -> None:
    with serve(drip(OK), 0.05) as server:
        began_s = time.monotonic()
        with pytest.raises(exceptions.ConnectionError):
            session_of().put(
                f"http://{server.address}/", data=iter([b"x"]), timeout=(1.0, 3 * WITHIN_S)
            )
        assert 3 * WITHIN_S - 0.1 < time.monotonic() - began_s < 3 * WITHIN_S + SLACK_S


def test_connections_use_tcp_keepalive() -> None:
    session = requests.Session()
    bounded_responses.bound_requests(session)
    for url in ("http://server", "https://server"):
        pools = session.get_adapter(url).poolmanager  # type: ignore[attr-defined]
        with socket.socket() as link:
            for option in pools.connection_pool_kw["socket_options"]:
                link.setsockopt(*option)
            assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            for option, seconds in (
                (socket.TCP_KEEPIDLE, bounded_responses.KEEPALIVE_S),
                (socket.TCP_KEEPINTVL, bounded_responses.KEEPALIVE_S),
                (socket.TCP_KEEPCNT, bounded_responses.KEEPALIVES),
            ):
                assert link.getsockopt(socket.IPPROTO_TCP, option) == seconds
            assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_request_may_shorten_its_deadline() -> None:
    session = requests.Session()
    bounded_responses.bound_requests(session, within_s=30.0)
    with serve(drip(OK), 0.05) as server:
        began_s = time.monotonic()
        with pytest.raises(requests.exceptions.ReadTimeout, match=server.address):
            session.get(
                f"http://{server.address}/",
                timeout=urllib3.Timeout(total=WITHIN_S),  # type: ignore[arg-type]
            )
        assert WITHIN_S - 0.1 < time.monotonic() - began_s < WITHIN_S + SLACK_S


def test_raw_body_is_limited_in_size() -> None:
    session = requests.Session()
    bounded_responses.bound_requests(session, max_bytes=1000)
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: 2000\r\n\r\n"
    with serve(lambda: iter([head, bytes(2000)])) as server:
        answer = session.get(f"http://{server.address}/", stream=True)
        assert answer.raw.read(600) == bytes(600)
        with pytest.raises(exceptions.ConnectionError, match="takes more than 1000 bytes"):
            answer.raw.read(600)
