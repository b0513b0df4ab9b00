# SPDX-License-Identifier: Apache-2.0
"""Connections of the source http: kept ones, names, addresses, and redirects to signed URLs."""

import contextlib
import itertools
import socket
import ssl
import threading
import time

import pytest
import trio
import trustme

from acstor_agent.core.sources import hung_calls
from acstor_agent.runtime import tcp_info
from acstor_agent.sources import base
from acstor_agent.sources import http
from acstor_agent.sources.http_client import http_pool
from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import http_server

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
DATA = bytes(range(256)) * 4096
KEPT = 4
SILENCE_S = 2.0


@pytest.fixture
def server():
    with http_server.serve({BLOB.file_name: DATA}) as running:
        yield running


@pytest.fixture
async def source(server):
    limits = http_pool.HttpLimits(connections=KEPT, timeout_s=SILENCE_S)
    async with contextlib.aclosing(http.HttpSource(server.url, limits)) as made:
        yield made


async def read_together(source):
    """Have as many reads in flight at a time as there may be connections."""
    async with trio.open_nursery() as nursery:
        for number in range(KEPT):
            nursery.start_soon(source.read, BLOB, number, 1)


async def test_kept_connections_that_a_router_forgot_fail_one_read(source, server):
    server.behaviours = [http_server.slow(0.5)] * KEPT
    await read_together(source)
    assert server.connections == KEPT
    forgotten = list(server.links)

    def answer_new_connections(handler, asked):
        if handler.connection in forgotten:
            time.sleep(2 * SILENCE_S)
            handler.close_connection = True
        else:
            http_server.fine(handler, asked)

    server.always = answer_new_connections
    with pytest.raises(errors.SourceUnreachable, match="did not respond for 2 s"):
        await source.read(BLOB, 0, 4096)
    for number in range(KEPT):
        assert await source.read(BLOB, number, 4096) == DATA[number : number + 4096]
    assert server.connections == KEPT + 1


async def test_failed_connection_leaves_kept_ones_of_another_server_open(source, server):
    with http_server.serve({"elsewhere": DATA}) as other:
        server.behaviours = [http_server.redirect(other.url + "elsewhere")]
        assert await source.read(BLOB, 0, 10) == DATA[:10]
        server.behaviours = [http_server.garbage]
        with pytest.raises(errors.SourceUnreachable):
            await source.read(BLOB, 0, 10)
        server.behaviours = [http_server.redirect(other.url + "elsewhere")]
        assert await source.read(BLOB, 0, 10) == DATA[:10]
        assert (server.connections, other.connections) == (2, 1)


@pytest.mark.allow_log("calls? hangs?")
async def test_name_is_found_again_after_abandoned_lookups(server, monkeypatch):
    resolver_answers, known = threading.Event(), socket.getaddrinfo

    def look_up(host, *args, **kwargs):
        if host == "images.example":
            resolver_answers.wait(30)
        return known("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(hung_calls, "HANGS_AFTER_S", 0.1)
    limits = http_pool.HttpLimits(timeout_s=0.2)
    source = http.HttpSource(server.url.replace("127.0.0.1", "images.example"), limits)
    failures = []
    for _ in range(4):
        with pytest.raises(errors.SourceUnreachable) as caught:
            await source.read(BLOB, 0, 1)
        failures.append(caught.value.why)
    assert "hang" in failures[-1]  # no more lookups start
    resolver_answers.set()
    with trio.fail_after(20):
        while source.source_health().hanging_calls:  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert await source.read(BLOB, 5, 5) == DATA[5:10]
    await source.aclose()


async def test_each_read_gets_a_signed_url_of_its_own(source, server):
    numbers, used = itertools.count(), set()

    def sign_or_serve(handler, asked):
        if not handler.path.startswith("/signed"):
            url = f"signed?n={next(numbers)}"
            server.files[url] = DATA
            http_server.redirect(f"/{url}")(handler, asked)
        elif handler.path in used:
            http_server.status(403)(handler, asked)  # as after its expiry
        else:
            used.add(handler.path)
            http_server.fine(handler, asked)

    server.always = sign_or_serve
    assert await source.size_bytes(BLOB) == len(DATA)
    for number in range(4):
        assert await source.read(BLOB, number, 100) == DATA[number : number + 100]
    assert len(used) == 5


async def test_redirected_reads_keep_connections_to_both_servers(source, server):
    with http_server.serve({"elsewhere": DATA}) as other:
        server.always = http_server.redirect(other.url + "elsewhere")
        other.always = http_server.slow(0.5)  # so that all are in flight
        for _ in range(3):
            await read_together(source)
        assert (server.connections, other.connections) == (KEPT, KEPT)


async def test_round_trip_is_that_of_the_server_with_the_bytes(source, server, monkeypatch):
    with http_server.serve({"elsewhere": DATA}) as other:
        near = int(server.url.rstrip("/").rpartition(":")[2])
        monkeypatch.setattr(
            *(tcp_info, "least_rtt_s"),
            lambda sock: 0.0002 if sock.getpeername()[1] == near else 0.1,
        )
        server.always = http_server.redirect(other.url + "elsewhere")
        await read_together(source)
        assert source.rtt_s == pytest.approx(0.1)


@pytest.mark.parametrize("is_tls", [False, True], ids=["clear text", "TLS"])
async def test_server_with_an_ipv6_address_is_read(tmp_path, is_tls):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if is_tls else None
    if context is not None:
        authority.issue_cert("::1").configure_cert(context)
    limits = http_pool.HttpLimits(timeout_s=5.0, ca_file=str(tmp_path / "ca.pem"))
    with http_server.serve({BLOB.file_name: DATA}, context, ipv6=True) as server:
        server.behaviours = [http_server.redirect(server.url + BLOB.file_name)]
        source = http.HttpSource(server.url, limits)
        assert await source.read(BLOB, 5, 5) == DATA[5:10]
        assert await source.size_bytes(BLOB) == len(DATA)
        await source.aclose()
        assert server.url.startswith(("http://[::1]:", "https://[::1]:"))
        assert {asked["host"] for asked in server.asked} == {server.url.split("/")[2]}
    assert source.location == server.url


async def test_connection_of_a_short_refusal_is_reused(source, server):
    server.behaviours = [http_server.status(404)]
    with pytest.raises(errors.ChunkMissing):
        await source.read(BLOB, 0, 10)
    assert await source.read(BLOB, 0, 10) == DATA[:10]
    assert server.connections == 1


async def test_refusal_that_arrives_slowly_delays_no_read_and_costs_its_connection(source, server):
    server.behaviours = [http_server.drip(0.3, code=404)]
    began_s = time.monotonic()
    with pytest.raises(errors.ChunkMissing):
        await source.read(BLOB, 0, 40)  # 12 s
    assert time.monotonic() - began_s < 6.0
    assert await source.read(BLOB, 0, 10) == DATA[:10]
    assert server.connections == 2
