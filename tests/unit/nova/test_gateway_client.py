# SPDX-License-Identifier: Apache-2.0
"""The gateway client: requests, and the errors for refused and broken responses."""

import contextlib
import itertools
import json
import socket
import threading
import time

import pytest

from acstor_common import errors
from acstor_nova.snapshots import gateway_client
from tests.fakes import dripping_server
from tests.fakes import gateway_server
from tests.fakes import tripwire

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
PIECES = [b"first", bytes(1 << 20), b"last"]
IMPATIENT = gateway_client.GatewayLimits(idle_s=1.0)
UNREACHABLE, REFUSED = errors.GatewayUnreachable, errors.GatewayRefused


class Body:
    """A body of three pieces that can fail after the first one."""

    def __init__(self, fault=None):
        self.fault = fault

    def __len__(self):
        return sum(map(len, PIECES))

    def __iter__(self):
        yield PIECES[0]
        if self.fault:
            raise self.fault
        yield from PIECES[1:]


@pytest.fixture
def gateway():
    with gateway_server.running() as running:
        yield running


def client_of(gateway, limits=gateway_client.LIMITS):
    headers = {"X-Auth-Token": "secret"}
    return gateway_client.GatewayClient(f"{gateway.url}/v1/", "", headers, limits)


@pytest.fixture
def client(gateway):
    return client_of(gateway)


def test_delta_is_uploaded_unchanged_with_the_users_token(gateway, client):
    client.check_gateway()
    client.check_base(IMAGE)
    assert client.flatten_image(IMAGE, "qcow2", Body()) == gateway_server.DONE["size"]
    path = f"/v1/images/{IMAGE}/delta?format=qcow2"
    assert gateway.composed == [(path, b"".join(PIECES))]
    _, looked, sent = gateway.asked
    assert looked["Range"] == "bytes=0-0"
    assert sent["Content-Length"] == str(len(Body()))
    assert {one["X-Auth-Token"] for one in gateway.asked} == {"secret"}


def test_refusal_has_the_gateways_message(gateway, client):
    gateway.refuse("GET", 404, "there is no such image")
    gateway.refuse("PUT", 503, "4 flatten jobs are under way")
    with pytest.raises(REFUSED, match=r"\(404\): there is no such image"):
        client.check_base(IMAGE)
    with pytest.raises(REFUSED, match=r"\(503\): 4 flatten jobs are under way"):
        client.flatten_image(IMAGE, "raw", Body())


@pytest.mark.parametrize(
    ("lines", "error", "why"),
    [
        ([{"state": "failed", "error": {"message": "the base is away"}}], REFUSED, "is away"),
        (
            [gateway_server.UPLOADING, {"more": 1}],
            UNREACHABLE,
            "it closed the connection before it finished",
        ),
        ([], UNREACHABLE, "it closed the connection before it finished"),
        (["hello"], UNREACHABLE, "invalid answer"),
        ([[1]], UNREACHABLE, "invalid answer"),
        (["x" * (1 << 20)], UNREACHABLE, "invalid answer"),
        ([{"state": 7}], UNREACHABLE, "invalid answer"),
    ],
)
def test_failed_or_malformed_response_is_an_error(gateway, client, lines, error, why):
    gateway.lines = lines
    with pytest.raises(error, match=why):
        client.flatten_image(IMAGE, "raw", Body())


class LongBody(Body):
    """A body larger than the socket buffers."""

    def __len__(self):
        return 64 << 20

    def __iter__(self):
        yield from (bytes(1 << 20) for _ in range(64))


@pytest.mark.parametrize("body", [Body(), LongBody()])
def test_gateway_that_closes_during_the_upload_is_unreachable(gateway, client, body):
    gateway.takes_bytes = 3
    with pytest.raises(UNREACHABLE):
        client.flatten_image(IMAGE, "raw", body)


def test_closed_connection_is_noticed_with_data_in_flight(gateway):
    port, ended = int(gateway.url.rpartition(":")[2]), []
    gateway.takes_bytes = 8 << 20
    with tripwire.tripwire(port, 4 << 20) as through:
        through.action = lambda: ended.append(True)
        client = gateway_client.GatewayClient(f"http://127.0.0.1:{through.port}", "")
        with pytest.raises(UNREACHABLE):
            client.flatten_image(IMAGE, "raw", LongBody())
    assert ended


def test_wait_for_a_silent_gateway_is_bounded(gateway):
    client = client_of(gateway, gateway_client.GatewayLimits(idle_s=0.2))
    gateway.stalls_s = 1.0
    with pytest.raises(UNREACHABLE, match="timed out"):
        client.flatten_image(IMAGE, "raw", Body())


HEAD = b"HTTP/1.1 200 OK\r\n"
IMAGE_DATA = b"Content-Type: application/octet-stream\r\n\r\n"
LINE = json.dumps(gateway_server.UPLOADING).encode() + b"\n"


@pytest.mark.parametrize(
    "pieces",
    [
        dripping_server.drip(HEAD + b"X-Name: "),
        dripping_server.drip(HEAD + b"\r\n", LINE),
        lambda: itertools.chain([HEAD + b"\r\n"], itertools.repeat(LINE)),
        lambda: itertools.chain([HEAD + IMAGE_DATA], itertools.repeat(LINE * 1000)),
        dripping_server.drip(b"HTTP/1.1 500 No\r\n\r\n", b" "),
    ],
    ids=["headers", "body", "lines", "image data", "error"],
)
def test_endless_response_has_a_deadline(pieces):
    with dripping_server.serve(pieces, 0.05) as server:
        client = gateway_client.GatewayClient(f"http://{server.address}", "", limits=IMPATIENT)
        began_s = time.monotonic()
        with pytest.raises(UNREACHABLE):
            client.flatten_image(IMAGE, "raw", Body(), gateway_client.SLOWEST_BYTES_S)
        assert 1.9 < time.monotonic() - began_s < 12.0


def test_response_without_pauses_has_a_deadline():
    """The client must check the deadline itself."""
    limits = IMPATIENT._replace(answer_bytes=1 << 40)
    pieces = lambda: itertools.chain([HEAD + b"\r\n"], itertools.repeat(LINE * 1000))  # noqa: E731
    with dripping_server.serve(pieces) as server:
        client = gateway_client.GatewayClient(f"http://{server.address}", "", limits=limits)
        began_s = time.monotonic()
        with pytest.raises(UNREACHABLE, match="it did not finish within 2 s"):
            client.flatten_image(IMAGE, "raw", Body(), gateway_client.SLOWEST_BYTES_S)
        assert 1.9 < time.monotonic() - began_s < 12.0


def test_slow_upload_has_a_deadline():
    """No piece takes long enough for the idle timeout."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        client = gateway_client.GatewayClient(url, "", limits=IMPATIENT)
        ended = threading.Event()
        thread = threading.Thread(target=take_slowly, args=(server, ended))
        thread.start()
        began_s = time.monotonic()
        with pytest.raises(UNREACHABLE, match="did not receive the delta within 2 s"):
            client.flatten_image(IMAGE, "raw", LongBody(), gateway_client.SLOWEST_BYTES_S)
        assert 1.9 < time.monotonic() - began_s < 12.0
        ended.set()
        thread.join()


def take_slowly(server, ended):
    link, _ = server.accept()
    with link, contextlib.suppress(OSError):
        while not ended.wait(0.1):
            link.recv(1 << 20)


def test_read_error_of_the_disk_is_raised_unchanged(client):
    fault = errors.Unusable("disk", "it became shorter")
    with pytest.raises(errors.Unusable, match="it became shorter"):
        client.flatten_image(IMAGE, "raw", Body(fault))


@pytest.mark.parametrize(
    ("url", "ca_file"),
    [
        ("http://127.0.0.1:9", ""),
        ("nonsense", ""),
        ("https://127.0.0.1:9", "/nowhere/ca.pem"),
        ("http://[::1", ""),
    ],
)
def test_invalid_or_closed_gateway_address_is_unreachable(url, ca_file):
    client = gateway_client.GatewayClient(url, ca_file)
    for ask in (client.check_gateway, lambda: client.check_base(IMAGE)):
        with pytest.raises(UNREACHABLE, match="no answer from the gateway"):
            ask()


def test_redirection_is_not_followed(gateway, client):
    gateway.refuse("PUT", 302, "over there")
    with pytest.raises(REFUSED, match="over there"):
        client.flatten_image(IMAGE, "raw", Body())
