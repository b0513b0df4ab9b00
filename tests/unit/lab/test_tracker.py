# SPDX-License-Identifier: Apache-2.0
import hashlib
import http.client
import http.server
import pathlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.lab import tracker


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), tracker.Announcements) as running:
        tracker.Announcements.peers.clear()
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def announce(server: http.server.ThreadingHTTPServer, query: str) -> tuple[int, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    link.request("GET", f"/announce?{query}")
    answer = link.getresponse()
    result = answer.status, answer.read()
    link.close()
    return result


def test_announce_returns_all_earlier_peers_except_its_sender(
    server: http.server.ThreadingHTTPServer,
) -> None:
    first = socket.inet_aton("127.0.0.1") + (6881).to_bytes(2, "big")
    assert announce(server, "port=6881") == (200, b"d8:intervali5e5:peers0:e")
    assert announce(server, "info_hash=%ff%00&port=6882")[1].endswith(b"6:" + first + b"e")
    assert announce(server, "port=6881")[1].count(first) == 0


@pytest.mark.parametrize("query", ["", "port=", "port=x", "port=70000"])
def test_announce_without_a_port_is_refused(
    server: http.server.ThreadingHTTPServer, query: str
) -> None:
    assert announce(server, query)[0] == 400


def test_torrent_has_the_hash_of_every_piece_and_the_tracker(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "image.raw"
    data = bytes(tracker.PIECE_BYTES) + b"the rest"
    path.write_bytes(data)
    made = tracker.torrent(path, "http://tracker/announce")
    pieces = hashlib.sha1(data[: tracker.PIECE_BYTES]).digest() + hashlib.sha1(b"the rest").digest()
    assert b"6:pieces40:" + pieces in made
    assert made.startswith(b"d8:announce23:http://tracker/announce4:info")
    assert b"6:lengthi%de" % len(data) in made
