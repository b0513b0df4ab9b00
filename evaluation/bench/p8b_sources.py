# SPDX-License-Identifier: Apache-2.0
"""P8b: the CPU cost of a gigabyte read from a source and checked.

Only the chain of wrappers and drivers, in this process: no cache, no FUSE, no peers.  Chunks of
64 KiB come from a folder in the page cache, and from nginx over the loopback in clear text and by
TLS; nginx is not counted.  They are requested sixteen at a time, as by the engine, and one at a
time.  The comparison is Python's minimum: one ``preadv`` for sixteen chunks in a thread, and a
plain socket with ``recv_into``, both with BLAKE3 of each chunk.  All take turns, and the least of
ROUNDS counts.
"""

import contextlib
import functools
import os
import pathlib
import resource
import socket
import tempfile
import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterator

import trio
import trustme

from acstor_agent.sources import base
from acstor_agent.sources import file
from acstor_agent.sources import http
from acstor_agent.sources import source_client
from acstor_agent.sources.http_client import http_pool
from acstor_agent.sources.wrappers import deadline_source
from acstor_common.model import geometry
from acstor_common.model import ids
from evaluation.bench import harness
from tests.lab import local
from tests.lab import nginx

IMAGE_BYTES = 128 * geometry.MIB
CHUNK_BYTES = 64 * geometry.KIB
AT_A_TIME = 16
ROUNDS = 5
GB = 1e9
BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
RUNS = "sixteen at a time"
HTTP = """\
  access_log off;
{files}
  server {{ listen 127.0.0.1:{port}; root {folder}/www; }}
  server {{
    listen 127.0.0.1:{tls_port} ssl; root {folder}/www;
    ssl_certificate {folder}/server.pem; ssl_certificate_key {folder}/server.pem;
  }}
"""

Read = Callable[[base.Source, list[base.BlobPiece]], Awaitable[None]]


@harness.measures("P8b")
def run(say: harness.Say) -> harness.Result:
    """Read one image from each kind of source in each way."""
    costs: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="acstor-p8b-") as name, web(pathlib.Path(name)) as urls:
        folder = pathlib.Path(name) / "www"
        data = (folder / BLOB.file_name).read_bytes()
        pieces = [
            base.BlobPiece(at, CHUNK_BYTES, ids.Content(ids.cid_of(data[at : at + CHUNK_BYTES])))
            for at in range(0, IMAGE_BYTES, CHUNK_BYTES)
        ]
        limits = http_pool.HttpLimits(ca_file=f"{name}/ca.pem")
        drivers: dict[str, Callable[[], base.Source]] = {
            "file": lambda: file.FileSource(str(folder)),
            "http": lambda: http.HttpSource(urls[0]),
            "https": lambda: http.HttpSource(urls[1], limits),
        }
        plays: dict[str, Callable[[], dict[str, float]]] = {
            "file, least": functools.partial(
                trio.run, least_of_file, folder / BLOB.file_name, pieces
            ),
            "http, least": functools.partial(least_of_http, urls[0], pieces),
        }
        for kind, make in drivers.items():
            for way, read in WAYS.items():
                plays[f"{kind}, {way}"] = functools.partial(trio.run, chain, make, read, pieces)
        for _ in range(ROUNDS):
            for play_name, play in plays.items():
                figures = play()
                costs[play_name] = min(figures, costs.get(play_name, figures), key=_price)
    for play_name, figures in costs.items():
        say(f"{play_name}: {figures['cpu_s_per_gb']:.2f} s/GB, {figures['gb_per_s']:.2f} GB/s")
    values = tuple(costs[f"{kind}, {RUNS}"]["cpu_s_per_gb"] for kind in ("file", "http"))
    return harness.Result({"P8b": values}, costs)


async def chain(
    make: Callable[[], base.Source], read: Read, pieces: list[base.BlobPiece]
) -> dict[str, float]:
    """Return the cost of reading all pieces through every driver's wrappers."""
    async with trio.open_nursery() as nursery:
        made = [deadline_source.DeadlineSource(make())]
        source = source_client.SourceClient(made)
        await source.read(BLOB, *pieces[0])  # connects
        with Cost() as cost:
            await read(source, pieces)
        await source.aclose()
        nursery.cancel_scope.cancel()
    return cost.figures


async def in_runs(source: base.Source, pieces: list[base.BlobPiece]) -> None:
    """Request runs of sixteen consecutive chunks."""
    for first in range(0, len(pieces), AT_A_TIME):
        some = pieces[first : first + AT_A_TIME]
        reported: list[tuple[int, base.Outcome]] = []
        await source.read_pieces(base.PieceRequest(BLOB, some, reported.extend))
        check(some, [outcome for _, outcome in reported])


async def one_by_one(source: base.Source, pieces: list[base.BlobPiece]) -> None:
    """Request one chunk at a time."""
    for piece in pieces:
        check([piece], [await source.read(BLOB, *piece)])


WAYS: dict[str, Read] = {
    RUNS: in_runs,
    "one after the other": one_by_one,
}


def check(pieces: list[base.BlobPiece], outcomes: list[base.Outcome]) -> None:
    """Raise if a chunk did not arrive."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise harness.CannotRun(str(outcome))
    if len(outcomes) != len(pieces):
        raise harness.CannotRun(f"{len(outcomes)} of {len(pieces)} chunks arrived")


async def least_of_file(path: pathlib.Path, pieces: list[base.BlobPiece]) -> dict[str, float]:
    """Read sixteen chunks per call, and hash each, in a thread."""
    fd = os.open(path, os.O_RDONLY)

    def read(some: list[base.BlobPiece]) -> None:
        buffers = [bytearray(piece.length) for piece in some]
        os.preadv(fd, buffers, some[0].offset)
        for piece, buffer in zip(some, buffers, strict=True):
            assert piece.content is not None and piece.content.matches_data(buffer)

    with Cost() as cost:
        for first in range(0, len(pieces), AT_A_TIME):
            await trio.to_thread.run_sync(read, pieces[first : first + AT_A_TIME])
    os.close(fd)
    return cost.figures


def least_of_http(url: str, pieces: list[base.BlobPiece]) -> dict[str, float]:
    """Request sixteen chunks at a time by a plain socket, and hash each."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    with Cost() as cost, socket.create_connection((host, int(port))) as link:
        for first in range(0, len(pieces), AT_A_TIME):
            some = pieces[first : first + AT_A_TIME]
            start, stop = some[0].offset, some[-1].offset + some[-1].length
            head = (
                f"GET /{BLOB.file_name} HTTP/1.1\r\nHost: {host}\r\nRange: bytes={start}-{stop - 1}"
            )
            link.sendall(f"{head}\r\n\r\n".encode())
            answer = link.recv(4096)
            early = answer[answer.index(b"\r\n\r\n") + 4 :]
            for piece in some:
                buffer = bytearray(piece.length)
                buffer[: len(early)] = early
                view, early = memoryview(buffer)[len(early) :], b""
                while view:
                    view = view[link.recv_into(view) :]
                assert piece.content is not None and piece.content.matches_data(buffer)
    return cost.figures


class Cost:
    """The cost in this process of reading the image within the block."""

    def __enter__(self) -> "Cost":
        self._cpu_s, self._began_s = _cpu_s(), time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        cpu_s, took_s = _cpu_s() - self._cpu_s, time.perf_counter() - self._began_s
        gigabytes = IMAGE_BYTES / GB
        self.figures = {"cpu_s_per_gb": cpu_s / gigabytes, "gb_per_s": gigabytes / took_s}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _price(figures: dict[str, float]) -> float:
    return figures["cpu_s_per_gb"]


@contextlib.contextmanager
def web(folder: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Serve an image of random bytes; yield its folder's URLs, clear text and TLS."""
    if nginx.PROGRAM is None:
        raise harness.CannotRun("nginx is not installed")
    folder.chmod(0o755)
    (folder / "www").mkdir()
    (folder / "www" / BLOB.file_name).write_bytes(local.random_bytes(IMAGE_BYTES))
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server = authority.issue_cert("127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    port, tls_port = local.unused_port(), local.unused_port()
    http_block = HTTP.format(files=nginx.FILES, folder=folder, port=port, tls_port=tls_port)
    with nginx.Nginx(folder, http_block, tls_port):
        yield f"http://127.0.0.1:{port}/", f"https://127.0.0.1:{tls_port}/"
