# SPDX-License-Identifier: Apache-2.0
"""The http source against a real nginx: ranges, connections, requests in flight.

The tests check the server's log, not the client's own counts.

"""

import json
import pathlib
import random
from collections.abc import Iterator

import pytest
import trio

from acstor_agent.sources import base
from acstor_agent.sources import http
from acstor_agent.sources.http_client import http_pool
from acstor_agent.sources.wrappers import deadline_source
from acstor_common import errors
from acstor_common.model import ids
from tests.lab import local
from tests.lab import nginx

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
EMPTY = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"), base.BlobKind.IMAGE)
KIB = 1024
DATA = random.Random(1).randbytes(2 * KIB * KIB + 777)
HTTP = """\
  log_format json '{{"status":$status,"connection":$connection,"range":"$http_range",'
    '"body_bytes":$body_bytes_sent,"end_s":$msec,"took_s":$request_time}}';
  access_log {folder}/access.log json;
  gzip on;
  gzip_types *;
  server {{
    listen 127.0.0.1:{port};
    root {folder}/www;
    location /slow/ {{ alias {folder}/www/; limit_rate 400k; }}
    location /closing/ {{ alias {folder}/www/; keepalive_requests 1; }}
    location /whole/ {{ alias {folder}/www/; max_ranges 0; }}
  }}
"""

pytestmark = pytest.mark.skipif(nginx.PROGRAM is None, reason="nginx is not installed")


class Server(nginx.Nginx):
    """A running nginx and its log."""

    def __init__(self, folder: pathlib.Path, port: int) -> None:
        super().__init__(folder, HTTP.format(folder=folder, port=port), port)
        self.url = f"http://127.0.0.1:{port}/"

    def log(self) -> list[dict]:
        """Stop it, and return its log."""
        self.stop()
        return [json.loads(line) for line in (self.folder / "access.log").read_text().splitlines()]


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / BLOB.file_name).write_bytes(DATA)
    (tmp_path / "www" / EMPTY.file_name).write_bytes(b"")
    with Server(tmp_path, local.unused_port()) as running:
        yield running


async def test_ranges_and_sizes_are_exact(server):
    source = http.HttpSource(server.url)
    assert await source.size_bytes(BLOB) == len(DATA)
    assert await source.size_bytes(EMPTY) == 0
    for offset, length in [(0, 1), (65_536, 65_536), (len(DATA) - 777, 777), (0, len(DATA))]:
        assert await source.read(BLOB, offset, length) == DATA[offset : offset + length]
    with pytest.raises(errors.ChunkMissing, match=f"ends at byte {len(DATA)}"):
        await source.read(BLOB, len(DATA) - 777, 778)
    with pytest.raises(errors.ChunkMissing, match="shorter than requested"):
        await source.read(BLOB, len(DATA), 1)
    with pytest.raises(errors.ChunkMissing, match="404"):
        await source.read(BLOB._replace(kind=base.BlobKind.CHUNK_MAP), 0, 1)
    await source.aclose()


async def test_successive_reads_share_one_connection(server):
    source = http.HttpSource(server.url)
    for number in range(20):
        await source.read(BLOB, number * 65_536, 65_536)
    await source.aclose()
    log = server.log()
    assert [entry["status"] for entry in log] == [206] * 20
    assert len({entry["connection"] for entry in log}) == 1


async def test_requests_in_flight_reach_and_respect_the_limit(server):
    source = http.HttpSource(server.url + "slow/", http_pool.HttpLimits(connections=4))
    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(source.read, BLOB, number * 65_536, 65_536)
    await source.aclose()
    log = server.log()
    spans = [(entry["end_s"] - entry["took_s"], entry["end_s"]) for entry in log]
    at_once = max(sum(start <= at < end for start, end in spans) for at, _ in spans)
    assert at_once >= 2
    assert len({entry["connection"] for entry in log}) == 4  # each has one request at a time


async def test_cancelled_reads_leave_the_connections_usable(server):
    source = http.HttpSource(server.url + "slow/", http_pool.HttpLimits(connections=2))
    for number in range(10):
        with trio.move_on_after(0.005 * number):
            await source.read(BLOB, 0, 1_000_000)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(source.read, BLOB, number * 1_000, 1_000)
    await source.aclose()


async def test_server_that_closes_after_each_response_is_readable(server):
    source = http.HttpSource(server.url + "closing/")
    for number in range(5):
        assert await source.read(BLOB, number, 1_000) == DATA[number : number + 1_000]
    await source.aclose()


async def test_server_without_ranges_is_refused_without_a_download(server):
    with (server.folder / "www" / BLOB.file_name).open("r+b") as blob:
        blob.truncate(1 << 30)
    source = http.HttpSource(server.url + "whole/")
    with pytest.raises(errors.ChunkMissing, match="does not do range requests"):
        await source.read(BLOB, 0, 65_536)
    await source.aclose()
    [entry] = server.log()
    assert (entry["status"], entry["body_bytes"] < 16 << 20) == (200, True)


async def test_stopped_server_is_unreachable_until_it_restarts(server):
    source = http.HttpSource(server.url)
    await source.read(BLOB, 0, 10)
    server.stop()
    with pytest.raises(errors.SourceUnreachable):
        await source.read(BLOB, 0, 10)
    with server:  # again
        assert await source.read(BLOB, 0, 10) == DATA[:10]
    await source.aclose()


async def test_adjacent_chunks_share_one_request_and_no_byte_is_sent_twice(server):
    driver = http.HttpSource(server.url, http_pool.HttpLimits(connections=2))
    source = deadline_source.DeadlineSource(driver)
    chunks = [DATA[at : at + 65_536] for at in range(0, 32 * 65_536, 65_536)]
    wanted = [*range(16), *range(17, 30)]
    pieces = [
        base.BlobPiece(number * 65_536, 65_536, ids.Content(ids.cid_of(chunks[number])))
        for number in wanted
    ]
    reported = {}
    await source.read_pieces(base.PieceRequest(BLOB, pieces, reported.update))
    await source.aclose()
    assert [reported[at] for at in range(len(wanted))] == [chunks[number] for number in wanted]
    log = server.log()
    assert sorted(entry["range"] for entry in log) == [
        f"bytes=0-{16 * 65_536 - 1}",
        f"bytes={17 * 65_536}-{30 * 65_536 - 1}",
    ]
    assert sum(entry["body_bytes"] for entry in log) == len(wanted) * 65_536
