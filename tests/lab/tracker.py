# SPDX-License-Identifier: Apache-2.0
"""A BitTorrent tracker and torrent files.

Debian's aria2 is the client, but it makes no torrents and needs a tracker to find peers.  The
tracker knows one swarm, and returns all its peers to each request, since a lab's swarms are
small.  ``python -m tests.lab.tracker ADDRESS PORT`` runs it.
"""

import hashlib
import http.server
import pathlib
import socket
import struct
import sys
import urllib.parse
from typing import Any

PIECE_BYTES = 256 * 1024
INTERVAL_S = 5


def bencode(value: Any) -> bytes:
    """Return ``value`` in BitTorrent's encoding (BEP 3).

    >>> bencode({"spam": [1, b"eggs"]})
    b'd4:spamli1e4:eggsee'
    """
    match value:
        case int():
            return b"i%de" % value
        case bytes():
            return b"%d:%s" % (len(value), value)
        case str():
            return bencode(value.encode())
        case list():
            return b"l" + b"".join(map(bencode, value)) + b"e"
        case dict():
            pairs = (bencode(key) + bencode(value[key]) for key in sorted(value))
            return b"d" + b"".join(pairs) + b"e"
    raise TypeError(f"{type(value)} cannot be encoded")


def torrent(path: pathlib.Path, tracker_url: str) -> bytes:
    """Return the torrent file for one file."""
    data = path.read_bytes()
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    info = {
        "length": len(data),
        "name": path.name,
        "piece length": PIECE_BYTES,
        "pieces": b"".join(hashlib.sha1(piece).digest() for piece in pieces),
    }
    return bencode({"announce": tracker_url, "info": info})


class Announcements(http.server.BaseHTTPRequestHandler):
    """Answers ``GET /announce?port=…`` with all earlier peers (BEP 3, 23)."""

    protocol_version = "HTTP/1.1"
    peers: dict[bytes, None] = {}  # noqa: RUF012 - one tracker a process

    def do_GET(self) -> None:
        """Record the requester."""
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query, encoding="latin-1")
        try:
            me = socket.inet_aton(self.client_address[0]) + struct.pack("!H", int(query["port"][0]))
        except (KeyError, ValueError, struct.error):
            self.send_error(400, "announce with a port")
            return
        others = b"".join(peer for peer in list(self.peers) if peer != me)
        self.peers[me] = None
        body = bencode({"interval": INTERVAL_S, "peers": others})
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    where = (sys.argv[1], int(sys.argv[2]))
    http.server.ThreadingHTTPServer(where, Announcements).serve_forever()
