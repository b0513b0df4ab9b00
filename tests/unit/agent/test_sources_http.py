# SPDX-License-Identifier: Apache-2.0
import base64
import socket
import ssl
import time

import pytest
import trio
import trustme

from acstor_agent.sources import base
from acstor_agent.sources import http
from acstor_agent.sources import http_link
from acstor_agent.sources import http_range
from acstor_common import errors
from acstor_common import ids
from tests.fakes import http_server

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
DATA = bytes(range(256)) * 4096


@pytest.fixture
def server():
    with http_server.serve({BLOB.name: DATA}) as server:
        yield server


@pytest.fixture
async def source(server):
    source = http.HttpSource(server.url, http_link.Limits(timeout_s=0.5))
    yield source
    await source.aclose()


async def test_request_asks_for_one_range_unencoded(source, server):
    await source.read(BLOB, 1000, 24)
    [asked] = server.asked
    assert (asked["range"], asked["accept-encoding"]) == ("bytes=1000-1023", "identity")


async def test_connection_is_used_again(source, server):
    for number in range(5):
        await source.read(BLOB, number * 1000, 1000)
    assert await source.size_bytes(BLOB) == len(DATA)
    assert server.connections == 1


async def test_connections_are_bounded(server):
    source = http.HttpSource(server.url, http_link.Limits(connections=3))
    server.behaviours = [http_server.slow(0.02)] * 12
    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(source.read, BLOB, number, 1)
    await source.aclose()
    assert 1 < server.connections <= 3
    assert source.in_flight == 3


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (http_server.status(404), "no such blob"),
        (http_server.status(403), "refuses access"),
        (http_server.status(302, {"Location": "http://127.0.0.1:1/"}), "302"),
        (http_server.gzipped, "gzip"),
        (http_server.content_range(f"bytes 0-9/{10}"), "the blob ends at byte 10"),
    ],
)
async def test_what_asking_again_does_not_change_is_missing(source, server, behaviour, reason):
    server.behaviours = [behaviour]
    with pytest.raises(errors.ChunkMissing, match=reason) as caught:
        await source.read(BLOB, 0, 4096)
    assert caught.value.where == server.url + BLOB.name
    assert await source.read(BLOB, 0, 4096) == DATA[:4096]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (http_server.status(500), "500"),
        (http_server.status(503), "503"),
        (http_server.status(429), "429"),
        (http_server.half_a_body, "peer closed connection"),
        (http_server.too_short, "after 4095 of 4096 bytes"),
        (http_server.too_long, "longer than 4096 bytes"),
        (http_server.other_length, "Content-Length is '4097'"),
        (http_server.content_range(None), "Content-Range"),
        (http_server.content_range("bytes 1-4096/1048576"), "asked for bytes=0-4095"),
        (http_server.garbage, "RemoteProtocolError"),
        (http_server.hang_up, "disconnected"),
        (http_server.slow(0.8), "ReadTimeout"),
    ],
)
async def test_what_may_pass_is_unreachable_and_the_next_read_works(
    source, server, behaviour, reason
):
    server.behaviours = [behaviour]
    with pytest.raises(errors.SourceUnreachable, match=reason) as caught:
        await source.read(BLOB, 0, 4096)
    assert caught.value.where == server.url + BLOB.name
    assert await source.read(BLOB, 0, 4096) == DATA[:4096]


async def test_body_of_a_server_without_ranges_is_not_downloaded(source, server):
    server.files[BLOB.name] = bytes(64 << 20)
    server.behaviours = [http_server.whole_file] * 2
    with pytest.raises(errors.ChunkMissing, match="does not do range requests"):
        await source.read(BLOB, 0, 4096)
    with pytest.raises(errors.ChunkMissing, match="does not do range requests"):
        await source.size_bytes(BLOB)
    assert server.body_bytes == 0  # it counts what it could write in full


async def test_endless_body_is_left_early(source, server):
    server.behaviours = [http_server.too_long]
    with pytest.raises(errors.SourceUnreachable):
        await source.read(BLOB, 0, 4096)
    assert server.body_bytes < 32 << 20


async def test_nobody_listening_is_unreachable():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        source = http.HttpSource(f"http://127.0.0.1:{taken.getsockname()[1]}/")
        with pytest.raises(errors.SourceUnreachable, match="ConnectError"):
            await source.read(BLOB, 0, 1)
        await source.aclose()


async def test_retry_after_holds_back_the_next_request(source, server):
    server.behaviours = [http_server.status(503, {"Retry-After": "1"})]
    with pytest.raises(errors.SourceUnreachable):
        await source.read(BLOB, 0, 1)
    started = time.monotonic()
    assert await source.read(BLOB, 0, 1) == DATA[:1]
    assert 0.8 < time.monotonic() - started < http_range.RETRY_AFTER_LIMIT_S


async def test_size_that_is_not_told_is_missing(source, server):
    server.behaviours = [http_server.content_range("bytes 0-0/*")]
    with pytest.raises(errors.ChunkMissing, match="does not say how long"):
        await source.size_bytes(BLOB)


async def test_credentials_are_sent_but_never_shown(server, caplog):
    caplog.set_level("DEBUG", "acstor_agent")
    source = http.HttpSource(server.url.replace("://", "://user:p%40ss@"))
    await source.read(BLOB, 0, 1)
    sent = base64.b64decode(server.asked[0]["authorization"].removeprefix("Basic "))
    assert sent == b"user:p@ss"
    server.behaviours = [http_server.status(503)]
    with pytest.raises(errors.SourceUnreachable) as caught:
        await source.read(BLOB, 0, 1)
    await source.aclose()
    assert source.where == server.url
    assert not any(word in str(caught.value) + caplog.text for word in ("p%40ss", "p@ss", "user"))


async def test_environment_does_not_redirect_requests(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1/")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1/")
    source = http.HttpSource(server.url)
    assert await source.read(BLOB, 0, 1) == DATA[:1]
    await source.aclose()


async def test_base_url_needs_no_slash_at_its_end(server):
    server.files["acstor/" + BLOB.name] = b"below"
    source = http.HttpSource(server.url + "acstor")
    assert await source.read(BLOB, 0, 5) == b"below"
    await source.aclose()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "images",
        "ftp://h/",
        "http://",
        "http://user:secret@[::1/",
        "http://h/?a=secret",
        "file:///x",
    ],
)
def test_url_that_makes_no_sense_is_refused_and_not_shown(url):
    with pytest.raises(errors.Unusable, match=r"\[source_http\] url") as caught:
        http.HttpSource(url)
    assert "secret" not in str(caught.value)


async def test_server_of_another_authority_is_unreachable(server, tmp_path):
    ours, theirs = trustme.CA(), trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.issue_cert("127.0.0.1").configure_cert(context)
    with http_server.serve({BLOB.name: DATA}, context) as tls_server:
        for authority, is_trusted in ((ours, False), (theirs, True)):
            authority.cert_pem.write_to_path(tmp_path / "ca.pem")
            source = http.HttpSource(
                tls_server.url, http_link.Limits(ca_file=str(tmp_path / "ca.pem"))
            )
            if is_trusted:
                assert await source.read(BLOB, 5, 5) == DATA[5:10]
            else:
                with pytest.raises(errors.SourceUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
                    await source.read(BLOB, 5, 5)
            await source.aclose()


@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_ca_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(errors.Unusable, match=r"\[source_http\] ca_file: .*ca\.pem"):
        http.HttpSource("https://h/", http_link.Limits(ca_file=str(path)))
