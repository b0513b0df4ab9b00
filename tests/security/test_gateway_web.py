# SPDX-License-Identifier: Apache-2.0
"""Web servers that tenants set as locations of their images, and their effects on the gateway.

Real sockets: each read ends within its deadline, with no data of another server, and the gateway
connects to no internal address that the operator does not allow.

"""

import contextlib
import ipaddress
import socket
import time
import types

import pytest

from acstor_glance.gateway import byte_range
from acstor_glance.gateway.readers import address_filter
from acstor_glance.gateway.readers import base
from acstor_glance.gateway.readers import http_store
from tests.fakes import http_server
from tests.fakes import server_threads

TIMEOUT_S = 0.5
SLACK_S = 2.0
DATA = bytes(range(256)) * 64
OPTIONS = types.SimpleNamespace(
    https_ca_certificates_file=None, https_insecure=True, http_proxy_information={}
)
NETWORKS = [ipaddress.ip_network("127.0.0.1/32")]
"""Allowed, for the servers of these tests."""
ASKED = byte_range.ByteRange(1000, 5000)


class Url:
    """A location of the driver; the gateway uses only its URL."""

    def __init__(self, url):
        self._url = url

    def get_uri(self):
        return self._url


def read(url, asked=ASKED, reader=None):
    return (reader or http_store.WebReader("web", OPTIONS, TIMEOUT_S, NETWORKS)).read(
        Url(url), asked
    )


@pytest.fixture
def server():
    with http_server.serve({"image": DATA, "secret": DATA}) as made:
        yield made


@pytest.fixture
def reader():
    return http_store.WebReader("web", OPTIONS, TIMEOUT_S, NETWORKS)


@contextlib.contextmanager
def ended_in_time(match="it took longer than 0.5 s"):
    began_s = time.monotonic()
    with pytest.raises(base.StoreUnreachable, match=match):
        yield
    assert time.monotonic() - began_s < TIMEOUT_S + SLACK_S


def test_ranges_share_a_kept_connection(server, reader):
    for _ in range(3):
        part = read(f"{server.url}image", reader=reader)
        assert (part.data, part.size_bytes) == (DATA[1000:6000], len(DATA))
    assert server.connections == 1


def test_headers_and_unit_of_the_range_may_have_any_case(server):
    server.always = http_server.other_case
    assert read(f"{server.url}image").data == DATA[1000:6000]


# Time


@pytest.mark.parametrize(
    "behaviour", [http_server.drip(0.05), http_server.stall(10, 3.0)], ids=["drips", "stalls"]
)
def test_missing_body_times_out(server, behaviour):
    server.always = behaviour
    with ended_in_time():
        read(f"{server.url}image")


def test_each_read_of_a_kept_connection_has_its_own_deadline(server, reader):
    for _ in range(2):
        read(f"{server.url}image", reader=reader)
        time.sleep(TIMEOUT_S)  # the deadline of the former read is over
    server.always = http_server.drip(0.05)
    with ended_in_time():
        read(f"{server.url}image", reader=reader)
    assert server.connections == 1


@contextlib.contextmanager
def dripping(beginning=b"", again=b"x"):
    """Run a server that sends a beginning and then trickles bytes endlessly."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(is_over):
        link, _ = listener.accept()
        with link, contextlib.suppress(OSError):
            link.sendall(beginning)
            while not is_over.wait(0.05 if len(again) == 1 else 0.001):
                link.sendall(again)

    with listener, server_threads.beside(serve):
        yield listener.getsockname()[1]


def test_endless_head_times_out():
    with dripping(b"HTTP/1.1 206 Fine\r\nX-Slow: ") as port, ended_in_time():
        read(f"http://127.0.0.1:{port}/image")


def test_fast_endless_body_times_out():
    """The fast rate of image data would extend the deadline."""
    head = b"HTTP/1.1 206 Fine\r\nContent-Type: application/octet-stream\r\n\r\n"
    with dripping(head, bytes(200)) as port, ended_in_time():
        read(f"http://127.0.0.1:{port}/image", byte_range.ByteRange(0, 1 << 20))


def test_redirects_share_one_deadline(server):
    def later(handler, asked):
        time.sleep(0.2)
        http_server.redirect("/image")(handler, asked)

    server.behaviours = [later] * http_store.REDIRECTS
    with ended_in_time():
        read(f"{server.url}image")


def test_endless_tls_handshake_times_out():
    hello = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc"  # of a ServerHello of 16 KiB
    with dripping(hello) as port, ended_in_time():
        read(f"https://127.0.0.1:{port}/image")


def test_name_with_many_silent_addresses_times_out(monkeypatch):
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # the queue is full: a new client gets no response
            link = stack.enter_context(socket.socket())
            link.setblocking(False)
            link.connect_ex(full.getsockname())
        one = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", full.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [one] * 1000)
        with ended_in_time():
            read("http://many.example/image")


# Addresses


REFUSED = "internal_web_networks does not allow its internal address"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "localhost",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::127.0.0.1]",
        "169.254.169.254",
        "[::ffff:169.254.169.254]",
        "10.0.0.1",
        "[fd00::1]",
        "224.0.0.1",
    ],
)
def test_internal_addresses_are_refused(server, host):
    port = int(server.url.rsplit(":", 1)[1].rstrip("/"))
    reader = http_store.WebReader("web", OPTIONS, TIMEOUT_S)
    with pytest.raises(base.RangesUnsupported, match=REFUSED):
        read(f"http://{host}:{port}/image", reader=reader)
    assert server.connections == 0


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        ("1.1.1.1", True),
        ("2606:4700:4700::1111", True),
        ("::ffff:1.1.1.1", True),
        ("64:ff9b::1.1.1.1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.0.1", False),
        ("100.64.0.1", False),
        ("192.0.2.1", False),
        ("198.18.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("169.254.169.254", False),
        ("::ffff:169.254.169.254", False),
        ("::ffff:10.0.0.1", False),
        ("::127.0.0.1", False),
        ("64:ff9b::169.254.169.254", False),
        ("64:ff9b:1::1.1.1.1", False),
        ("2002:7f00:1::1", False),
        ("2002:a00:1::", False),
        ("2001:0:1:2:3:4:5:6", False),
        ("2001:db8::1", False),
        ("fd00:ec2::254", False),
        ("fec0::1", False),
        ("fe80::a9fe:a9fe%1", False),
        ("::1", False),
        ("::", False),
        ("ff02::1", False),
        ("ff0e::1", False),
    ],
)
def test_only_public_or_configured_addresses_are_allowed(address, is_allowed):
    assert address_filter.is_allowed(address) == is_allowed
    everywhere = [ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")]
    assert address_filter.is_allowed(address, everywhere)


def test_public_addresses_of_this_host_count_as_internal(monkeypatch):
    monkeypatch.setattr(address_filter.addresses, "is_public", lambda _: True)
    assert address_filter.is_allowed("192.0.2.1")
    assert not address_filter.is_allowed("127.0.0.1")
    assert address_filter.is_allowed("127.0.0.1", NETWORKS)


def resolved(*found):
    """Return the result of getaddrinfo for a name with these addresses."""
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in found]


def test_name_is_resolved_once_and_only_its_allowed_addresses_are_used(monkeypatch, server):
    port = int(server.url.rsplit(":", 1)[1].rstrip("/"))
    answers = [resolved(("169.254.169.254", 80), ("127.0.0.1", port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.pop())
    assert read("http://rebound.example/image").data == DATA[1000:6000]
    answers.append(resolved(("169.254.169.254", 80)))
    with pytest.raises(base.RangesUnsupported, match=REFUSED):
        read("http://rebound.example/image")


def test_name_that_turns_internal_after_a_redirect_is_refused(monkeypatch, server):
    port = int(server.url.rsplit(":", 1)[1].rstrip("/"))
    with socket.create_server(("127.0.0.2", port)) as inside:
        inside.setblocking(False)
        answers = [resolved(("127.0.0.2", port)), resolved(("127.0.0.1", port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.pop())
        there = {"Location": "/secret", "Connection": "close"}
        server.behaviours = [http_server.status(302, there)]
        with pytest.raises(base.RangesUnsupported, match=REFUSED):
            read("http://rebound.example/image")
        assert not answers
        with pytest.raises(BlockingIOError):
            inside.accept()


def test_redirect_to_another_server_is_not_followed(server):
    with http_server.serve({"image": DATA}) as inside:
        for code in (301, 302, 303, 307, 308):
            server.behaviours = [http_server.status(code, {"Location": f"{inside.url}image"})]
            with pytest.raises(
                base.RangesUnsupported, match="to another one, which is not in Glance's location"
            ):
                read(f"{server.url}image")
        assert inside.connections == 0


def test_redirects_on_the_same_server_are_followed_up_to_a_limit(server):
    there = http_server.status(302, {"Location": "/secret"})
    server.behaviours = [there] * http_store.REDIRECTS
    assert read(f"{server.url}image").data == DATA[1000:6000]
    server.behaviours = [there] * (http_store.REDIRECTS + 1)
    with pytest.raises(base.RangesUnsupported, match="more than 5 times"):
        read(f"{server.url}image")


@pytest.mark.parametrize("target", ["file:///etc/passwd", "http://[::1", "http://x:99999/"])
def test_malformed_redirect_is_refused(server, target):
    server.behaviours = [http_server.status(302, {"Location": target})]
    with pytest.raises((base.RangesUnsupported, base.StoreUnreachable)):
        read(f"{server.url}image")


# Bytes


@pytest.mark.parametrize(
    "behaviour",
    [
        http_server.too_long,
        http_server.too_short,
        http_server.half_a_body,
        http_server.garbage,
        http_server.hang_up,
        http_server.endless_head,
        http_server.content_range(None),
        http_server.content_range("bytes 0-4999/16384"),
        http_server.content_range("bytes 1000-5999/*"),
    ],
    ids=lambda behaviour: behaviour.__qualname__,
)
def test_response_that_does_not_match_the_request_is_refused(server, behaviour):
    server.always = behaviour
    with ended_in_time("store web: "):
        read(f"{server.url}image")
    assert server.body_bytes < 32 << 20  # of an endless body only the buffers' size


def test_cookies_and_redirects_are_not_kept_for_the_next_read(server, reader):
    names = {"Set-Cookie": "track=1; Path=/", "Location": "/secret"}
    server.behaviours = [http_server.status(302, names)]
    read(f"{server.url}image", reader=reader)
    read(f"{server.url}image", reader=reader)
    assert len(server.asked) == 3
    assert not any("cookie" in headers for headers in server.asked)
