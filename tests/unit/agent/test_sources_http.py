# SPDX-License-Identifier: Apache-2.0
import base64
import contextlib
import socket
import ssl
import threading
import time
import traceback

import h11
import pytest
import trio
import trustme

from acstor_agent.runtime import tls_session
from acstor_agent.sources import base
from acstor_agent.sources import http
from acstor_agent.sources import source_client
from acstor_agent.sources.http_client import http_connector
from acstor_agent.sources.http_client import http_pool
from acstor_agent.sources.http_client import http_range
from acstor_agent.sources.http_client import http_response
from acstor_agent.sources.http_client import http_stream
from acstor_agent.sources.wrappers import deadline_source
from acstor_common import errors
from acstor_common.model import addresses
from acstor_common.model import ids
from tests.fakes import http_server
from tests.fakes import task_switches

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
DATA = bytes(range(256)) * 4096


@pytest.fixture
def server():
    with http_server.serve({BLOB.file_name: DATA}) as server:
        yield server


@pytest.fixture
async def source(server):
    limits = http_pool.HttpLimits(timeout_s=0.5)
    async with contextlib.aclosing(http.HttpSource(server.url, limits)) as source:
        yield source


async def test_request_asks_for_one_range_unencoded(source, server):
    await source.read(BLOB, 1000, 24)
    [asked] = server.asked
    assert (asked["range"], asked["accept-encoding"]) == ("bytes=1000-1023", "identity")


async def test_connection_is_reused(source, server):
    for number in range(5):
        await source.read(BLOB, number * 1000, 1000)
    assert await source.size_bytes(BLOB) == len(DATA)
    assert server.connections == 1


async def test_connections_are_bounded(server):
    source = http.HttpSource(server.url, http_pool.HttpLimits(connections=3))
    server.behaviours = [http_server.slow(0.02)] * 12
    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(source.read, BLOB, number, 1)
    await source.aclose()
    assert 1 < server.connections <= 3
    assert source.max_concurrent_reads == 3


async def check_one_read_fails(source, server, kind, reason):
    with pytest.raises(kind, match=reason) as caught:
        await source.read(BLOB, 0, 4096)
    assert caught.value.where == server.url + BLOB.file_name
    assert await source.read(BLOB, 0, 4096) == DATA[:4096]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (http_server.status(404), "no such blob"),
        (http_server.status(403), "refuses access"),
        (http_server.status(302), "it has no Location"),
        (http_server.redirect("https://127.0.0.1:1/"), "another scheme"),
        (http_server.redirect("file:///etc/passwd"), "another scheme"),
        (http_server.redirect("http://["), "an invalid URL"),
        (http_server.status(304), "304"),
        (http_server.gzipped, "gzip"),
        (http_server.content_range(f"bytes 0-9/{10}"), "the blob ends at byte 10"),
        (http_server.shorter_blob(10), "the blob ends at byte 10"),
    ],
)
async def test_permanent_failure_is_raised_as_missing(source, server, behaviour, reason):
    server.behaviours = [behaviour]
    await check_one_read_fails(source, server, errors.ChunkMissing, reason)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (http_server.status(500), "500"),
        (http_server.status(503), "503"),
        (http_server.status(429), "429"),
        (http_server.half_a_body, "after 2048 of 4096 bytes"),
        (http_server.too_short, "after 4095 of 4096 bytes"),
        (http_server.too_long, "longer than 4096 bytes"),
        (http_server.other_length, "Content-Length is '4097'"),
        (http_server.content_range(None), "Content-Range"),
        (http_server.content_range("bytes 1-4096/1048576"), "asked for bytes=0-4095"),
        (http_server.garbage, "RemoteProtocolError"),
        (http_server.endless_head, "RemoteProtocolError"),
        (http_server.two_lengths, "conflicting Content-Length"),
        (http_server.hints_first(9), "more than 8 interim answers"),
        (http_server.hints_first(100_000), "more than 8 interim answers"),
        (http_server.stall(0, 0.8), "did not respond for 0.5 s"),
        (http_server.stall(4095, 0.8), "did not respond for 0.5 s"),
        (http_server.hang_up, "closed the connection without an answer"),
        (http_server.slow(0.8), "did not respond for 0.5 s"),
    ],
)
async def test_transient_failure_is_unreachable_and_the_next_read_succeeds(
    source, server, behaviour, reason
):
    server.behaviours = [behaviour]
    await check_one_read_fails(source, server, errors.SourceUnreachable, reason)


@pytest.mark.parametrize(
    "behaviour",
    [
        http_server.chunked,
        http_server.chunked_with_a_length,
        http_server.until_the_end,
        http_server.hints_first(1),
        http_server.hints_first(8),
        http_server.drip(0.001, 1000),
        http_server.other_case,
    ],
)
async def test_unusual_valid_response_is_read(source, server, behaviour):
    for _ in range(2):
        server.behaviours = [behaviour]
        assert await source.read(BLOB, 5, 4096) == DATA[5:4101]
        assert await source.read(BLOB, 0, 100) == DATA[:100]


async def test_redirect_is_followed_with_the_range_and_its_query(source, server):
    server.files["b/c?d=e%2F"] = DATA[::-1]
    for _ in range(2):
        server.behaviours = [http_server.redirect("../b/c?d=e%2F")]
        assert await source.read(BLOB, 5, 4096) == DATA[::-1][5:4101]
    assert server.asked[-1]["range"] == "bytes=5-4100"
    assert server.connections == 1


async def test_five_redirects_are_followed_and_no_sixth(source, server):
    again = http_server.redirect(f"/{BLOB.file_name}")
    server.behaviours = [again] * 5
    assert await source.size_bytes(BLOB) == len(DATA)
    server.behaviours = [again] * 6
    with pytest.raises(errors.ChunkRefused, match="it follows 5 others"):
        await source.size_bytes(BLOB)
    assert len(server.asked) == 12


async def test_credentials_are_sent_only_to_their_own_server(server):
    source = http.HttpSource(server.url.replace("://", "://user:password@"))
    with http_server.serve({BLOB.file_name: DATA}) as other:
        other.always = http_server.redirect(server.url + BLOB.file_name)
        server.behaviours = [
            http_server.redirect(other.url.replace("://", "://a:b@") + BLOB.file_name)
        ]
        assert await source.read(BLOB, 1, 10) == DATA[1:11]
    await source.aclose()
    assert ["authorization" in asked for asked in server.asked] == [True, True]
    assert "authorization" not in other.asked[0]


@pytest.mark.parametrize("kind", ["loopback", "link-local"])
async def test_redirect_to_a_loopback_or_link_local_address_is_refused(
    source, server, monkeypatch, kind
):
    own = "127.0.0.2"  # as if the server were another host, and this an address of its kind
    monkeypatch.setattr(addresses, "is_loopback", lambda ip: kind == "loopback" and ip == own)
    if kind == "link-local":
        monkeypatch.setattr(addresses, "why_unreachable", lambda ip: kind if ip == own else "")
    with socket.create_server((own, 0)) as service:
        url = f"http://{own}:{service.getsockname()[1]}/latest?secret=1234"
        server.behaviours = [http_server.redirect(url)]
        with pytest.raises(errors.SourceRefused, match=f"leads to a {kind} address") as no:
            await source.read(BLOB, 0, 1)
        met, _ = service.accept()
        with met:
            assert met.recv(1) == b""
    assert "1234" not in str(no.value)


async def test_error_names_an_unreachable_redirect_target_without_its_query(source, server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        server.behaviours = [http_server.redirect(f"http://{place}/a?signature=1234")]
        with pytest.raises(errors.SourceUnreachable, match=f"after a redirect to {place}") as no:
            await source.read(BLOB, 0, 1)
    assert "1234" not in str(no.value)


async def test_one_byte_body_chunks_yield_to_other_tasks():
    asked = http_range.RangeRequest("a blob", "http://images.example/a", 0, 4096)
    head = b"HTTP/1.1 206 Fine\r\nTransfer-Encoding: chunked\r\n\r\n"
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        theirs.sendall(head + b"1\r\nx\r\n" * 4096 + b"0\r\n\r\n")  # all of it has arrived
        answer = http_response.HttpResponse(asked, http_stream.Stream(ours, 1.0))
        request = h11.Request(method="GET", target="/a", headers=[("Host", "images.example")])
        with task_switches.counted() as counted:
            await answer.send_request(request)
            assert await answer.read_body(4096) == b"x" * 4096
        assert counted.turns == 4099 // 64


async def test_unrequested_bytes_are_not_taken_for_a_response(source, server):
    server.behaviours = [http_server.answer_to_what_comes_next(b"x")] * 3
    for number in range(6):
        at = 4096 * number
        assert await source.read(BLOB, at, 4096) == DATA[at : at + 4096]
        await trio.sleep(0.05)  # they arrive before the next request


@pytest.mark.parametrize("length", [1, 100])
async def test_connection_with_surplus_bytes_is_not_reused(source, server, length):
    server.behaviours = [http_server.answer_to_what_comes_next(b"x")]
    assert await source.read(BLOB, 0, length) == DATA[:length]
    await trio.sleep(0.05)  # the rest arrives before the next request
    assert await source.size_bytes(BLOB) == len(DATA)
    assert server.connections == 2
    server.behaviours = [http_server.answer_to_what_comes_next(b"x")]
    assert await source.size_bytes(BLOB) == len(DATA)
    await trio.sleep(0.05)
    assert await source.read(BLOB, 0, length) == DATA[:length]
    assert server.connections == 3


async def test_connection_that_the_server_announces_to_close_is_not_reused(source, server):
    server.behaviours = [http_server.announces_close]
    await source.read(BLOB, 0, 10)
    assert await source.read(BLOB, 0, 10) == DATA[:10]
    assert server.connections == 2


async def test_connection_that_the_server_closed_is_not_reused(source, server):
    await source.read(BLOB, 0, 10)
    server.links[0].shutdown(socket.SHUT_RDWR)
    await trio.sleep(0.05)
    assert await source.read(BLOB, 0, 10) == DATA[:10]
    assert server.connections == 2


async def test_connection_idle_beyond_keep_alive_is_not_reused(server):
    source = http.HttpSource(server.url, http_pool.HttpLimits(keep_alive_s=0.1))
    await source.read(BLOB, 0, 10)
    await trio.sleep(0.2)
    await source.read(BLOB, 0, 10)
    await source.aclose()
    assert server.connections == 2


PIECES = [
    base.BlobPiece(at, 65_536, ids.Content(ids.cid_of(DATA[at : at + 65_536])))
    for at in range(0, 8 * 65_536, 65_536)
]


async def test_pieces_are_reported_while_others_are_in_flight(source, server):
    server.behaviours = [http_server.drip(0.03, 65_536)]
    reported = {}

    def note(answers):
        reported.update({number: trio.current_time() for number, _ in answers})

    began_s = trio.current_time()
    await source.read_pieces(base.PieceRequest(BLOB, PIECES, note))
    assert sorted(reported) == list(range(8))
    took_s = trio.current_time() - began_s
    assert reported[0] - began_s < took_s / 2
    assert [number for number, _ in sorted(reported.items(), key=lambda item: item[1])] == sorted(
        reported
    )
    assert len(server.asked) == 1


async def test_parts_of_a_piece_wake_the_reader_rarely(source, server):
    server.behaviours = [http_server.drip(0.001, 1024)]
    with task_switches.counted() as counted:
        assert await source.read(BLOB, 0, 131_072) == DATA[:131_072]
    assert counted.turns < 32  # one for each 1 KiB would be 128


async def test_server_slower_than_the_low_water_mark_is_not_silent(source, server):
    server.behaviours = [http_server.drip(0.3, 1000), http_server.slow(0.1)]
    assert await source.read(BLOB, 0, 4000) == DATA[:4000]
    assert await source.read(BLOB, 0, 10) == DATA[:10]  # with its head it is below the last mark
    assert server.connections == 1


async def test_pieces_received_before_a_failure_are_kept(source, server):
    server.behaviours = [http_server.half_a_body]
    reported = []
    await source.read_pieces(base.PieceRequest(BLOB, PIECES, reported.extend))
    outcomes = dict(reported)
    assert [outcomes[n] for n in range(4)] == [DATA[p.offset :][: p.length] for p in PIECES[:4]]
    assert {type(outcomes[n]) for n in range(4, 8)} == {errors.SourceUnreachable}


async def test_pieces_before_the_end_of_a_shorter_blob_are_kept(source, server):
    server.behaviours = [http_server.shorter_blob(3 * 65_536 + 5), http_server.shorter_blob(5)]
    reported = []
    await source.read_pieces(base.PieceRequest(BLOB, PIECES, reported.extend))
    outcomes = dict(reported)
    assert [outcomes[n] for n in range(3)] == [DATA[p.offset :][: p.length] for p in PIECES[:3]]
    assert {type(outcomes[n]) for n in range(3, 8)} == {http_range.RangeTruncated}
    reported.clear()
    await source.read_pieces(base.PieceRequest(BLOB, PIECES, reported.extend))
    assert {type(outcome) for _, outcome in reported} == {http_range.RangeTruncated}


async def test_bytes_beyond_the_end_of_a_shorter_blob_are_discarded(source, server):
    pieces = [base.BlobPiece(n * 65_536, 65_536) for n in range(8)]  # unverified
    sent = threading.Event()

    def more(handler, asked):
        http_server.shorter_blob(3 * 65_536)(handler, asked)
        handler.wfile.write(bytes(2 * 65_536))
        sent.set()

    server.behaviours = [more]
    reported = []
    await source.read_pieces(base.PieceRequest(BLOB, pieces, reported.extend))
    outcomes = dict(reported)
    assert [outcomes[n] for n in range(3)] == [DATA[p.offset :][: p.length] for p in pieces[:3]]
    assert {type(outcomes[n]) for n in range(3, 8)} == {http_range.RangeTruncated}
    assert await trio.to_thread.run_sync(sent.wait, 5)
    assert await source.size_bytes(BLOB) == len(DATA)
    assert server.connections == 2


async def test_only_failed_pieces_are_requested_again(source, server):
    server.behaviours = [http_server.half_a_body]
    reported = []
    await source_client.SourceClient([source]).read_pieces(
        base.PieceRequest(BLOB, PIECES, reported.extend)
    )
    assert b"".join(dict(reported)[n] for n in range(8)) == DATA[: 8 * 65_536]
    assert [asked["range"] for asked in server.asked] == ["bytes=0-524287", "bytes=262144-524287"]


async def test_dripping_response_times_out_and_closes_the_connection(source, server):
    server.behaviours = [http_server.drip(0.02)]
    with trio.fail_after(5), pytest.raises(errors.SourceUnreachable, match="no answer within"):
        await deadline_source.DeadlineSource(source, 0.2).read(BLOB, 0, 4096)
    await trio.sleep(0.1)
    sent = server.body_bytes
    await trio.sleep(0.2)
    assert server.body_bytes == sent < 100


async def test_cancelled_read_leaves_no_partial_response_to_the_next(source, server):
    server.behaviours = [http_server.drip(0.01, 8192)]
    with trio.move_on_after(0.03) as scope:
        await source.read(BLOB, 0, 65_536)
    assert scope.cancelled_caught
    assert await source.read(BLOB, 7, 4096) == DATA[7:4103]
    assert server.connections == 2


async def test_body_of_a_server_without_ranges_is_not_downloaded(source, server):
    server.files[BLOB.file_name] = bytes(64 << 20)
    server.behaviours = [http_server.whole_file] * 2
    with pytest.raises(errors.ChunkMissing, match="does not do range requests"):
        await source.read(BLOB, 0, 4096)
    with pytest.raises(errors.ChunkMissing, match="does not do range requests"):
        await source.size_bytes(BLOB)
    assert server.body_bytes == 0  # it counts what it could write in full


async def test_endless_body_is_abandoned_early(source, server):
    server.behaviours = [http_server.too_long]
    with pytest.raises(errors.SourceUnreachable):
        await source.read(BLOB, 0, 4096)
    assert server.body_bytes < 32 << 20


async def test_server_that_does_not_listen_is_unreachable():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        source = http.HttpSource(f"http://127.0.0.1:{taken.getsockname()[1]}/")
        with pytest.raises(errors.SourceUnreachable, match="ConnectionRefusedError"):
            await source.read(BLOB, 0, 1)
        await source.aclose()


async def test_hanging_resolver_takes_few_threads_and_none_of_the_default_pool(monkeypatch):
    released, looking = threading.Event(), []

    def hang(*args, **kwargs):
        looking.append(args)
        released.wait(10)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    limits = http_pool.HttpLimits(connections=20, timeout_s=0.2)
    source = http.HttpSource("http://images.example/", limits)
    ours = trio.to_thread.current_default_thread_limiter()
    try:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(fails_to_read, source, number, "no connection within 0.2 s")
            await trio.sleep(0.1)
            assert 1 <= len(looking) <= 3 * http_connector.LOOKUPS_AT_A_TIME
            assert ours.borrowed_tokens == 0
    finally:
        released.set()
        await source.aclose()


async def fails_to_read(source, number, why):
    with pytest.raises(errors.SourceUnreachable, match=why):
        await source.read(BLOB, number, 1)


async def test_unknown_host_name_is_unreachable():
    source = http.HttpSource("http://no-such-host.invalid/", http_pool.HttpLimits(timeout_s=5))
    with pytest.raises(errors.SourceUnreachable, match="gaierror"):
        await source.read(BLOB, 0, 1)
    assert source.source_health() == base.Health()
    await source.aclose()


def addresses_of(monkeypatch, *addresses):
    """Resolve images.example to these addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    known = socket.getaddrinfo

    def look_up(host, *args, **kwargs):
        return found if host == "images.example" else known(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


async def test_next_address_of_a_name_is_tried_where_the_first_refuses(server, monkeypatch):
    addresses_of(monkeypatch, "127.0.0.2", "127.0.0.1")
    source = http.HttpSource(server.url.replace("127.0.0.1", "images.example"))
    assert await source.read(BLOB, 5, 5) == DATA[5:10]
    await source.aclose()
    addresses_of(monkeypatch, "127.0.0.2", "127.0.0.3")
    source = http.HttpSource(server.url.replace("127.0.0.1", "images.example"))
    with pytest.raises(errors.SourceUnreachable, match="ConnectionRefusedError"):
        await source.read(BLOB, 5, 5)
    await source.aclose()


async def test_next_address_of_a_name_is_tried_where_the_first_is_silent(server, monkeypatch):
    port = int(server.url.rpartition(":")[2].strip("/"))
    with socket.create_server(("127.0.0.2", port), backlog=0) as silent:
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:  # later connections are not answered
            sock.setblocking(False)
            sock.connect_ex(silent.getsockname())
        addresses_of(monkeypatch, "127.0.0.2", "127.0.0.1")
        source = http.HttpSource(server.url.replace("127.0.0.1", "images.example"))
        began_s = trio.current_time()
        assert await source.read(BLOB, 5, 5) == DATA[5:10]
        assert trio.current_time() - began_s >= http_connector.NEXT_ADDRESS_S
        await source.aclose()
        for sock in waiting:
            sock.close()


async def test_retry_after_delays_the_next_request(source, server):
    server.behaviours = [http_server.status(503, {"Retry-After": "1"})]
    with pytest.raises(errors.SourceUnreachable):
        await source.read(BLOB, 0, 1)
    started = time.monotonic()
    assert await source.read(BLOB, 0, 1) == DATA[:1]
    assert 0.8 < time.monotonic() - started < http_range.RETRY_AFTER_LIMIT_S


async def test_size_missing_in_content_range_is_requested_by_head(source, server):
    server.behaviours = [http_server.content_range("bytes 0-0/*")]
    assert await source.size_bytes(BLOB) == len(DATA)
    assert await source.read(BLOB, 0, 10) == DATA[:10]
    assert server.connections == 1


async def test_blob_of_unknown_size_is_refused(source, server):
    server.behaviours, server.head = [http_server.content_range("bytes 0-0/*")], {}
    with pytest.raises(errors.ChunkRefused, match="neither in Content-Range nor to HEAD"):
        await source.size_bytes(BLOB)
    server.behaviours = [http_server.content_range("bytes 0-0/*")]
    server.head = {"Content-Encoding": "gzip", "Content-Length": "10"}
    with pytest.raises(errors.ChunkRefused, match="encodes the blob"):
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
    assert source.location == server.url
    assert not any(word in str(caught.value) + caplog.text for word in ("p%40ss", "p@ss", "user"))


@pytest.mark.parametrize("token", ["secret\n", "secret\0", " secret", "secret\xe9"])
async def test_token_invalid_as_a_header_is_neither_sent_nor_shown(server, token):
    link = http_pool.HttpPool("source_glance", http_pool.HttpLimits(timeout_s=0.5))
    asked = http_range.RangeRequest("a blob", server.url + BLOB.file_name, 0, 1)
    with pytest.raises(errors.SourceUnreachable, match="X-Auth-Token") as caught:
        await link.size_bytes(asked, {"X-Auth-Token": token})
    assert "secret" not in "".join(traceback.format_exception(caught.value))
    assert server.connections == 0
    await link.aclose()


async def test_proxy_environment_variables_are_ignored(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1/")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1/")
    source = http.HttpSource(server.url)
    assert await source.read(BLOB, 0, 1) == DATA[:1]
    await source.aclose()


async def test_base_url_needs_no_trailing_slash(server):
    server.files["acstor/" + BLOB.file_name] = b"below"
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
def test_invalid_url_is_refused_without_showing_secrets(url):
    with pytest.raises(errors.Unusable, match=r"\[source_http\] url") as caught:
        http.HttpSource(url)
    assert "secret" not in str(caught.value)


@pytest.fixture
def tls_context(tmp_path):
    """Return the TLS context of a server that ``ca.pem`` authenticates."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def tls_server(tls_context):
    with http_server.serve({BLOB.file_name: DATA}, tls_context) as running:
        yield running


@pytest.fixture
async def tls_source(tls_server, tmp_path):
    limits = http_pool.HttpLimits(timeout_s=0.5, ca_file=str(tmp_path / "ca.pem"))
    source = http.HttpSource(tls_server.url, limits)
    yield source
    await source.aclose()


async def test_many_pieces_over_tls_are_exact_on_one_connection(tls_source, tls_server):
    for _ in range(3):
        reported = []
        await tls_source.read_pieces(base.PieceRequest(BLOB, PIECES, reported.extend))
        assert b"".join(dict(reported)[n] for n in range(8)) == DATA[: 8 * 65_536]
    assert await tls_source.size_bytes(BLOB) == len(DATA)
    assert tls_server.connections == 1


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (http_server.half_a_body, "after 2048 of 4096 bytes"),
        (http_server.hang_up, "closed the connection without an answer"),
        (http_server.slow(0.8), "did not respond for 0.5 s"),
        (http_server.stall(100, 0.8), "did not respond for 0.5 s"),
        (http_server.garbage, "RemoteProtocolError"),
        (http_server.too_long, "longer than 4096 bytes"),
    ],
)
async def test_read_succeeds_after_a_failure_over_tls(tls_source, tls_server, behaviour, reason):
    await tls_source.read(BLOB, 0, 10)
    tls_server.behaviours = [behaviour]
    with pytest.raises(errors.SourceUnreachable, match=reason):
        await tls_source.read(BLOB, 0, 4096)
    assert await tls_source.read(BLOB, 0, 4096) == DATA[:4096]


async def test_parts_of_a_piece_over_tls_wake_the_reader_rarely(tls_source, tls_server):
    await tls_source.read(BLOB, 0, 10)
    tls_server.behaviours = [http_server.drip(0.001, 1024)]
    with task_switches.counted() as counted:
        assert await tls_source.read(BLOB, 0, 131_072) == DATA[:131_072]
    assert counted.turns < 32  # one for each 1 KiB would be 128


async def test_flood_of_tls_session_tickets_fails_the_read(tls_context, tls_source):
    tls_context.num_tickets = 2000
    with (
        trio.fail_after(5),
        pytest.raises(errors.SourceUnreachable, match="too many TLS control records"),
    ):
        await tls_source.read(BLOB, 0, 10)


async def test_one_byte_tls_records_yield_to_other_tasks(tls_context, tmp_path):
    client = tls_session.TlsSession(
        ssl.create_default_context(cafile=str(tmp_path / "ca.pem")),
        is_server=False,
        server_hostname="127.0.0.1",
    )
    server = tls_session.TlsSession(tls_context, is_server=True)
    while not (client.continue_handshake() & server.continue_handshake()):
        server.add_received(client.take_outgoing())
        client.add_received(server.take_outgoing())
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    stream = http_stream.TlsStream(ours, 1.0, client)
    with ours, theirs:
        theirs.sendall(b"".join(server.encrypt(b"x") for _ in range(4000)))
        with task_switches.counted() as counted:
            left = 4000
            while left:
                left -= await stream.receive_into([bytearray(1000)])
        assert counted.turns == 4000 // tls_session.RECORDS_IN_A_ROW // http_stream.CALLS_PER_TURN


async def test_unrequested_bytes_over_tls_are_not_taken_for_a_response(tls_source, tls_server):
    tls_server.behaviours = [http_server.answer_to_what_comes_next(b"x")] * 3
    for number in range(6):
        at = 4096 * number
        assert await tls_source.read(BLOB, at, 4096) == DATA[at : at + 4096]
        await trio.sleep(0.05)


async def test_server_that_speaks_no_tls_is_unreachable(server, tmp_path):
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    limits = http_pool.HttpLimits(timeout_s=0.5, ca_file=str(tmp_path / "ca.pem"))
    source = http.HttpSource(server.url.replace("http:", "https:"), limits)
    with pytest.raises(errors.SourceUnreachable, match=r"SSL|did not respond"):
        await source.read(BLOB, 0, 10)
    await source.aclose()


async def test_server_that_accepts_but_never_answers_is_unreachable(tmp_path):
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    limits = http_pool.HttpLimits(timeout_s=0.2, ca_file=str(tmp_path / "ca.pem"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for scheme, reason in (
            ("http", "did not respond"),
            ("https", "no connection within|did not respond"),
        ):
            source = http.HttpSource(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/", limits)
            with trio.fail_after(5), pytest.raises(errors.SourceUnreachable, match=reason):
                await source.read(BLOB, 0, 10)
            await source.aclose()


async def test_certificate_of_another_server_is_rejected(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("images.example.org").configure_cert(context)
    with http_server.serve({BLOB.file_name: DATA}, context) as other:
        source = http.HttpSource(other.url, http_pool.HttpLimits(ca_file=str(tmp_path / "ca.pem")))
        with pytest.raises(errors.SourceUnreachable, match=r"CERTIFICATE_VERIFY_FAILED.*127\.0"):
            await source.read(BLOB, 0, 10)
        await source.aclose()


async def test_server_of_another_authority_is_unreachable(server, tmp_path):
    ours, theirs = trustme.CA(), trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.issue_cert("127.0.0.1").configure_cert(context)
    with http_server.serve({BLOB.file_name: DATA}, context) as tls_server:
        for authority, is_trusted in ((ours, False), (theirs, True)):
            authority.cert_pem.write_to_path(tmp_path / "ca.pem")
            source = http.HttpSource(
                tls_server.url, http_pool.HttpLimits(ca_file=str(tmp_path / "ca.pem"))
            )
            if is_trusted:
                assert await source.read(BLOB, 5, 5) == DATA[5:10]
            else:
                with pytest.raises(errors.SourceUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
                    await source.read(BLOB, 5, 5)
            await source.aclose()


@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_error_names_an_unreadable_ca_file(tmp_path, content):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(errors.Unusable, match=r"\[source_http\] ca_file: .*ca\.pem"):
        http.HttpSource("https://h/", http_pool.HttpLimits(ca_file=str(path)))
