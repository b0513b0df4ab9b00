# SPDX-License-Identifier: Apache-2.0
"""The CPU cost of a gigabyte between two agents, without guests and exchange.

Two processes over the loopback: the sender reads from its cache, the reader checks and stores in
its own, chunks of 64 KiB, WINDOW reads of 1 MiB at a time.  Two ways:

``floor``    plain sockets, requests of 1 MiB, a file on each side (``plain_sockets``)
``batches``  the real connections: 16 chunks per request, answers as they arrive

All read and overwritten data are in the page cache: the image is transferred once before the
measurement.

``python -m evaluation.bench.wire_cost [way ...] [mode ...]`` prints CPU seconds per GB of each
end, the least of ROUNDS turns: other load can only add.
"""

import itertools
import json
import os
import pathlib
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import trio

from acstor_agent.cache import cache_files
from acstor_agent.peers import peer_network
from acstor_agent.peers.connection import client_connection
from acstor_agent.peers.connection import server_connection
from acstor_common.identity import certificates
from acstor_common.identity import credentials
from acstor_common.identity import identity_files
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.wire.peer import peer_wire
from evaluation.bench import plain_sockets
from tests.fakes import admission
from tests.fakes import manual_clock
from tests.lab import local

CHUNK = geometry.DEFAULT_CHUNK_BYTES
IMAGE_BYTES = 256 * geometry.MIB
COUNT = IMAGE_BYTES // CHUNK
REPEATS = 2
ROUNDS = 3
READ_CHUNKS = geometry.MIB // CHUNK
WINDOW = 4
WAYS = ("floor", "batches")
MODES = ("insecure", "secure")
IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
GIVER, READER = ids.HostId("giver"), ids.HostId("reader")
AUTHORITY = certificates.Authority.create("bench", time.time(), 86400)


def identity(host: ids.HostId, mode: str, folder: pathlib.Path) -> credentials.Credentials | None:
    """Make the credentials of a host."""
    if mode == "insecure":
        return None
    where = folder / f"identity-{host}-{mode}"
    key = certificates.new_key()
    issued = AUTHORITY.issue_certificate(certificates.request(host, key), host, time.time(), 86400)
    identity_files.write(
        where, identity_files.IdentitySet(AUTHORITY.certificate_pem, issued, key, b"")
    )
    looks = itertools.count(0, identity_files.CHECK_INTERVAL_S)
    files = identity_files.IdentityFiles(
        host, identity_files.files_in(where), manual_clock.FunctionClock(lambda: next(looks))
    )
    made = credentials.Credentials(files, peer_network.SecurityMode(mode), 86400)
    made.reload_files()
    return made


def open_cache(folder: pathlib.Path) -> cache_files.CacheFiles:
    """Open a cache with room for the image in one file, which is then overwritten."""
    room = IMAGE_BYTES + 8 * geometry.MIB
    return cache_files.CacheFiles.open(folder, room, room)


async def fill(folder: pathlib.Path, image: pathlib.Path) -> list[ids.Cid]:
    """Fill a cache and a file with an image; return its CIDs."""
    cache, cids = open_cache(folder), []
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        with image.open("wb") as file:
            for _ in range(COUNT):
                data = os.urandom(CHUNK)
                cids.append(ids.cid_of(data))
                cache.store_chunk(cids[-1], data)
                file.write(data)
                await cache.wait_for_room()
        await cache.aclose()
        nursery.cancel_scope.cancel()
    return cids


# The sender


class ChunkServer:
    """Serves the cache to requesters with proof; a ``RequestHandler``."""

    def __init__(
        self, cache: cache_files.CacheFiles, cids: list[ids.Cid], nursery: trio.Nursery
    ) -> None:
        self._cache, self._cids, self._nursery = cache, cids, nursery

    def requests_received(
        self,
        connection: server_connection.ServerConnection,
        requests: Sequence[peer_wire.ChunkRequest],
        arrived_s: float,
    ) -> None:
        """Answer the requests of a batch in one reply."""
        cids = [self._cids[request.offset // CHUNK] for request in requests]
        for cid, request in zip(cids, requests, strict=True):
            assert peer_wire.proof_of(cid, connection.host, GIVER) == request.proof
        found = self._cache.read_chunks_nowait(cids)
        chunks = []
        for request, cid, data in zip(requests, cids, found, strict=True):
            if data is None:
                self._nursery.start_soon(self._find, connection, request, cid)
            else:
                chunks.append(peer_wire.Chunk(request.request_id, data))
        connection.send_answers(chunks)

    async def _find(
        self,
        connection: server_connection.ServerConnection,
        request: peer_wire.ChunkRequest,
        cid: ids.Cid,
    ) -> None:
        """Read a chunk that is not in the page cache."""
        data = await self._cache.read_chunk(cid)
        assert data is not None
        connection.send_answers([peer_wire.Chunk(request.request_id, data)])

    def requests_cancelled(
        self, connection: server_connection.ServerConnection, request_ids: Sequence[int]
    ) -> None:
        """Do nothing: there are no pending requests."""

    def priorities_raised(
        self, connection: server_connection.ServerConnection, request_ids: Sequence[int]
    ) -> None:
        """Do nothing: there are no pending requests."""

    def answers_drained(self, connection: server_connection.ServerConnection) -> None:
        """Do nothing."""

    def connection_ended(self, connection: server_connection.ServerConnection) -> None:
        """Do nothing: connections have no state."""


async def give(folder: pathlib.Path, cids: list[ids.Cid], mode: str, pipe: socket.socket) -> None:
    """Serve; send the port, then, on request, the CPU time."""
    cache = open_cache(folder / "giver")
    made = identity(GIVER, mode, folder)
    net = peer_network.PeerNetwork(GIVER, admission=admission.Admission(), credentials=made)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        listeners = await trio.open_tcp_listeners(0, host=local.LOOPBACK)
        await nursery.start(net.serve_forever, ChunkServer(cache, cids, nursery), listeners)
        plain_sockets.send_number(pipe, listeners[0].socket.getsockname()[1])
        await wait_for_byte(pipe)
        began_s = plain_sockets.cpu_s()
        await wait_for_byte(pipe)
        plain_sockets.send_number(pipe, plain_sockets.cpu_s() - began_s)
        nursery.cancel_scope.cancel()


async def wait_for_byte(pipe: socket.socket) -> None:
    """Wait for a byte."""
    await trio.lowlevel.wait_readable(pipe)
    pipe.recv(1)


# The reader


class Reader:
    """Reads the image with WINDOW concurrent reads, checks and stores it."""

    def __init__(
        self,
        net: peer_network.PeerNetwork,
        address: str,
        cids: list[ids.Cid],
        cache: cache_files.CacheFiles,
    ) -> None:
        self._net, self._address, self._cids, self._cache = net, address, cids, cache
        self._left: Iterator[int] = iter(())
        self._numbers = itertools.count(1)

    async def go_over(self, times: int, work: Callable[[], Awaitable[None]]) -> None:
        """Read the image ``times`` times, and write it to disk."""
        self._left = iter([*range(0, COUNT, READ_CHUNKS)] * times)
        async with trio.open_nursery() as reading:
            for _ in range(WINDOW):
                reading.start_soon(work)
        await self._cache._write_behind.flush()

    def take_in(self, number: int, data: Any) -> None:
        """Check and store a chunk."""
        cid = self._cids[number]
        assert ids.cid_of(data) == cid
        self._cache.store_chunk(cid, data)

    def forget(self, at: int) -> None:
        """Allow a chunk to be stored again."""
        for cid in self._cids[at : at + READ_CHUNKS]:
            self._cache.drop_chunk(cid)

    async def by_batches(self) -> None:
        """Read with a request and an event per read."""
        for at in self._left:
            self.forget(at)
            has_all = trio.Event()
            numbers = {next(self._numbers): at + n for n in range(READ_CHUNKS)}

            def record_answers(
                answers: list[client_connection.Answer],
                numbers: dict[int, int] = numbers,
                has_all: trio.Event = has_all,
            ) -> None:
                for answer in answers:
                    assert isinstance(answer, peer_wire.Chunk), answer
                    self.take_in(numbers.pop(answer.request_id), answer.data)
                if not numbers:
                    has_all.set()

            requests = [
                peer_wire.ChunkRequest(
                    request_id,
                    IMAGE,
                    number * CHUNK,
                    CHUNK,
                    peer_wire.proof_of(self._cids[number], READER, GIVER),
                    peer_wire.Mode.HELD_ONLY,
                    peer_wire.Priority.PEER,
                    30_000,
                )
                for request_id, number in numbers.items()
            ]
            self._net.send_requests(GIVER, self._address, requests, record_answers)
            await has_all.wait()
            await self._cache.wait_for_room()


async def read(
    folder: pathlib.Path, cids: list[ids.Cid], mode: str, pipe: socket.socket, port: int
) -> plain_sockets.Cost:
    """Read the whole image; return the cost."""
    cache = open_cache(folder / f"reader-{time.monotonic_ns()}")
    made = identity(READER, mode, folder)
    net = peer_network.PeerNetwork(READER, admission=admission.Admission(), credentials=made)
    reader = Reader(net, f"{local.LOOPBACK}:{port}", cids, cache)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        await nursery.start(net.run)
        work = reader.by_batches
        await reader.go_over(1, work)
        pipe.send(b"b")
        began_s, at_s = plain_sockets.cpu_s(), time.monotonic()
        await reader.go_over(REPEATS, work)
        used_s, took_s = plain_sockets.cpu_s() - began_s, time.monotonic() - at_s
        await cache.aclose()
        nursery.cancel_scope.cancel()
    pipe.send(b"e")
    sender_s = plain_sockets.receive_number(pipe)
    return plain_sockets.Cost(REPEATS * IMAGE_BYTES, took_s, used_s, (sender_s,))


# Both


def measure(folder: pathlib.Path, cids: list[ids.Cid], way: str, mode: str) -> dict[str, Any]:
    """Let one sender and one reader transfer the image."""
    if way == "floor":
        cost = plain_sockets.move(
            folder / "image", folder / "stored", cids, unmeasured=1, repeats=REPEATS
        )
    else:
        with plain_sockets.beside(lambda pipe: trio.run(give, folder, cids, mode, pipe)) as pipe:
            port = int(plain_sockets.receive_number(pipe))
            cost = trio.run(read, folder, cids, mode, pipe, port)
    gigabytes = cost.length / plain_sockets.GB
    return {
        "way": way if way == "floor" else f"{way}, {mode}",
        "reader": round(cost.reader_s / gigabytes, 3),
        "giver": round(sum(cost.senders_s) / gigabytes, 3),
        "both": round(cost.cpu_s_per_gb, 3),
        "gb_per_s": round(cost.gb_per_s, 3),
    }


def main(arguments: list[str]) -> None:
    """Measure the ways and modes in the arguments, or all."""
    ways = [way for way in WAYS if way in arguments] or WAYS
    modes = [mode for mode in MODES if mode in arguments] or MODES
    with tempfile.TemporaryDirectory(prefix="acstor-wire-") as name:
        folder = pathlib.Path(name)
        cids = trio.run(fill, folder / "giver", folder / "image")
        least: dict[str, dict[str, Any]] = {}
        for _ in range(ROUNDS):
            for way in ways:
                for mode in modes if way != "floor" else MODES[:1]:
                    found = measure(folder, cids, way, mode)
                    before = least.setdefault(found["way"], found)
                    if found["both"] < before["both"]:
                        least[found["way"]] = found
        for found in least.values():
            print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
