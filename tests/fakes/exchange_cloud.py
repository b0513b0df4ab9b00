# SPDX-License-Identifier: Apache-2.0
"""The exchanges of several hosts, connected by calls instead of a network."""

import contextlib
import pathlib
import random
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import trio

from acstor_agent.cache import cache_files
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import engine
from acstor_agent.engine import identity
from acstor_agent.engine import settings
from acstor_agent.engine.ring import placement
from acstor_agent.engine.ring import ring_view
from acstor_agent.engine.serve import authorization
from acstor_agent.engine_io import exchange
from acstor_agent.peers.connection import client_connection
from acstor_agent.runtime import disk_io
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_wire
from tests.fakes import known_maps
from tests.fakes import reading_source

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OTHER = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
CHUNK = 16 * 1024
BYTES = random.Random(7).randbytes(40 * CHUNK)
FROZEN_S = 60.0


def bytes_of(chunk_no: int) -> bytes:
    """Return a chunk's bytes; both images have the same."""
    return BYTES[chunk_no * CHUNK : (chunk_no + 1) * CHUNK]


async def bring(
    host: exchange.Exchange, wanted: chunk_ref.ChunkRef, priority: exchange.Priority
) -> exchange.FetchedChunk:
    """Fetch a chunk in the background."""
    with host.background_fetch(priority) as ahead:
        ahead.request_items([(None, wanted)])
        [(_, outcome)] = await ahead.wait_for_arrivals()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class MemorySource(reading_source.ReadingSource):
    """Serves BYTES and counts reads; a test can make it fail or slow."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.streams: list[Any] = []
        self.failure: Exception | None = None
        self.deleted: set[ids.ImageId] = set()
        self.delay_s = 0.01

    location = "memory"

    async def read_pieces(self, request: base.PieceRequest) -> None:
        """Record the requester."""
        self.streams.append(request.requester)
        await super().read_pieces(request)

    async def size_bytes(self, blob: base.Blob) -> int:
        """Return the length of BYTES."""
        return len(BYTES)

    async def read(
        self, blob: base.Blob, offset: int, length: int, content: ids.Content | None = None
    ) -> bytes:
        """Return a range of BYTES."""
        self.reads += range(offset, offset + length, CHUNK)
        await trio.sleep(self.delay_s)
        if self.failure:
            raise self.failure
        if blob.image_id in self.deleted:
            raise errors.ChunkMissing(blob.file_name, self.location)
        return BYTES[offset : offset + length]

    async def aclose(self) -> None:
        """Do nothing."""


class Connection:
    """The connection on which a host's exchange answers."""

    def __init__(self, cloud: "Cloud", host: ids.HostId, asked: ids.HostId) -> None:
        self.host, self.peer, self._cloud, self._asked = host, str(host), cloud, asked
        self.handlers: dict[int, Any] = {}
        self.is_closed = self.is_far = False

    def send_answers(self, answers: Sequence[Any]) -> None:
        """Deliver answers to the requester."""
        for answer in answers:
            handler = self.handlers.pop(answer.request_id, None)
            if handler is not None:
                if isinstance(answer, peer_wire.Chunk) and self._asked in self._cloud.lying:
                    answer = answer._replace(data=bytes(len(answer.data)))
                self._cloud.soon(handler, [answer])

    def send_messages(self, message: Any) -> None:
        """Discard the message."""

    def close(self) -> None:
        """Mark it closed."""
        self.is_closed = True

    @property
    def is_drained(self) -> bool:
        """Always true: the send buffer is empty."""
        return True

    @property
    def is_delivered(self) -> bool:
        """Always true: all answers are delivered."""
        return True


class Net:
    """Stands in for a host's ``PeerNetwork``."""

    def __init__(self, cloud: "Cloud", here: ids.HostId) -> None:
        self._cloud, self._here = cloud, here

    def send_requests(
        self, host: ids.HostId, address: str, requests: Sequence[Any], handler: Any
    ) -> None:
        """See ``PeerNetwork.send_requests``."""
        for one in requests:
            self._cloud.asked.append((self._here, host, one.priority, one.mode))
        self._cloud.nursery.start_soon(self._ask, host, requests, handler)

    async def _ask(self, host: ids.HostId, requests: Sequence[Any], handler: Any) -> None:
        cloud = self._cloud
        await trio.sleep(0.005)
        if host in cloud.frozen:
            await trio.sleep(FROZEN_S)
        if host in cloud.slow:
            await trio.sleep(1)
        if host in cloud.dead or host in cloud.frozen:
            why = errors.SourceUnreachable("a chunk", str(host), "refused")
            handler([client_connection.RequestLost(one.request_id, why) for one in requests])
            return
        busy = cloud.busy.get(host, ())
        named = [one for one in requests if busy and one.mode.may_refer]
        if named:
            handler([peer_wire.Refer(one.request_id, busy) for one in named])
        left = [one for one in requests if one not in named]
        if left:
            connection = cloud.connections.setdefault(
                (self._here, host), Connection(cloud, self._here, host)
            )
            connection.handlers.update({one.request_id: handler for one in left})
            cloud.hosts[host].peer_server.requests_received(
                connection,  # type: ignore[arg-type]
                left,
                trio.current_time(),
            )

    def cancel_requests(self, host: ids.HostId, request_ids: Sequence[int]) -> None:
        """See ``PeerNetwork.cancel_requests``."""
        connection = self._cloud.connections.get((self._here, host))
        if connection is not None:
            known = [number for number in request_ids if connection.handlers.pop(number, None)]
            self._cloud.soon(
                self._cloud.hosts[host].peer_server.requests_cancelled, connection, known
            )

    def raise_priorities(self, host: ids.HostId, request_ids: Sequence[int]) -> None:
        """See ``PeerNetwork.raise_priorities``."""
        connection = self._cloud.connections.get((self._here, host))
        if connection is not None:
            known = [number for number in request_ids if number in connection.handlers]
            self._cloud.soon(
                self._cloud.hosts[host].peer_server.priorities_raised, connection, known
            )

    def send_announcement(self, host: ids.HostId, address: str, news: Any) -> None:
        """See ``PeerNetwork.send_announcement``."""
        self._cloud.reported.append((self._here, host, news))
        if self._cloud.is_heard:
            self._cloud.soon(self._cloud.hosts[host].announcement_received, self._here, news)


class View:
    """The v-node tables that a host sees."""

    def __init__(self, cloud: "Cloud", here: ids.HostId) -> None:
        self._cloud, self._here = cloud, here

    def current_ring(self) -> hash_ring.Ring:
        """Return the current table."""
        return self._cloud.views.get(self._here, (self._cloud.ring, None))[0]

    def former_ring(self) -> hash_ring.Ring | None:
        """Return the previous table."""
        return self._cloud.views.get(self._here, (None, self._cloud.former))[1]


class Meter:
    """Records received transfers."""

    def __init__(self, cloud: "Cloud", here: ids.HostId) -> None:
        self._cloud, self._here = cloud, here

    def count_received(self, peer: ids.HostId, count: int, took_s: float | None) -> None:
        """Record received bytes."""
        self._cloud.moved.append((self._here, peer, count, took_s))

    def count_sent(self, peer: ids.HostId, count: int) -> None:
        """Record nothing."""


class Cloud:
    """The hosts, their source and their network.

    :ivar asked: requests: requester, peer, priority, mode
    :ivar moved: transfers: receiver, sender, bytes, seconds
    :ivar views: tables of hosts that do not see ``ring`` and ``former``
    :ivar is_heard: whether announcements arrive
    :ivar unattached: images whose chunks hosts look up by ``learn``
    """

    def __init__(
        self,
        folder: pathlib.Path,
        nursery: trio.Nursery,
        names: Sequence[str],
        named: type[identity.Identity] = identity.ByContent,
        **chosen: Any,
    ) -> None:
        self.nursery, self.source = nursery, MemorySource()
        self.dead: set[str] = set()
        self.lying: set[str] = set()
        self.frozen: set[str] = set()
        self.slow: set[str] = set()
        self.busy: dict[str, tuple[ids.HostId, ...]] = {}
        self.asked: list[tuple[str, str, Any, Any]] = []
        self.reported: list[tuple[str, str, Any]] = []
        self.moved: list[tuple[str, str, int, float | None]] = []
        self.is_heard = True
        self.unattached: set[ids.ImageId] = set()
        self.learn: Callable[..., Awaitable[ids.Content]] = self._nothing
        self.connections: dict[tuple[str, str], Connection] = {}
        self.views: dict[str, tuple[hash_ring.Ring, hash_ring.Ring | None]] = {}
        self.former: hash_ring.Ring | None = None
        self.ring = hash_ring.Ring(
            1, tuple(hash_ring.RingHost(n, f"10.0.0.{i}:7201", 100) for i, n in enumerate(names, 1))
        )
        self.contents = {
            (image_id, n * CHUNK): ids.Content(ids.cid_of(bytes_of(n)))
            for image_id in (IMAGE, OTHER)
            for n in range(40)
        }
        self.disks = {name: disk_io.DiskIo() for name in names}
        self.caches = {
            name: cache_files.CacheFiles.open(folder / name, 4 << 20, 1 << 20, io=io)
            for name, io in self.disks.items()
        }
        self.attached = {IMAGE, OTHER}
        self.names = {name: named() for name in names}
        self.chosen = {
            "background_limit": 4,
            "copies_limit": 1,
            "topology": ring_view.on_ring,
            **chosen,
        }
        self.hosts = {name: self._host(ids.HostId(name)) for name in names}

    def soon(self, call: Any, *args: Any) -> None:
        """Call a function in the next turn of the event loop."""

        async def later() -> None:
            await trio.lowlevel.checkpoint()
            call(*args)

        self.nursery.start_soon(later)

    def named(self, image_id: ids.ImageId, offset: int, length: int) -> ids.Content | None:
        """Return the content at a place in an image, None if it needs a lookup."""
        if image_id in self.unattached:
            return None
        return self.contents.get((image_id, offset), ids.Content(ids.ZERO_CID))

    async def read_map_for_peer(self, host: ids.HostId, *place: Any) -> ids.Content:
        """Look up a peer's chunk in the map of a detached image."""
        return await self.learn(host, *place)

    async def _nothing(self, host: ids.HostId, *place: Any) -> ids.Content:
        raise errors.ChunkMissing("an image", "memory")

    def _net(self, here: ids.HostId) -> Any:
        return Net(self, here)

    def _source_of(self, here: ids.HostId) -> tuple[base.Source, Any]:
        """Return a host's source and its access policy."""
        return base.Wrapper(self.source), lambda image_id, offset: placement.SourceAccess.IN_PARTS

    def _host(self, here: ids.HostId) -> exchange.Exchange:
        source, source_access = self._source_of(here)
        core = engine.Engine(
            here,
            self.ring,
            source_access=source_access,
            cache=self.caches[here],
            rights=authorization.Authorization(
                here, known_maps.KnownMaps(self.named), self.names[here], self.attached
            ),
            rng=random.Random(1),
            settings=settings.Settings(**self.chosen),
        )
        made = exchange.Exchange(
            self.nursery,
            core=core,
            cache=self.caches[here],
            source=source,
            net=self._net(here),
            tables=View(self, here),
            maps=self,
            meter=Meter(self, here),
        )
        self.caches[here].set_evicted_callback(made.chunk_evicted)
        self.nursery.start_soon(made.run)
        return made

    def ref_of(self, chunk_no: int, image_id: ids.ImageId = IMAGE) -> chunk_ref.ChunkRef:
        """Return the reference of a chunk."""
        return self.chunk_ref_at(chunk_no, chunk_no * CHUNK, image_id)

    def chunk_ref_at(self, chunk_no: int, offset: int, image_id: ids.ImageId) -> chunk_ref.ChunkRef:
        """Place a chunk at an offset of an image; return its reference."""
        cid = ids.cid_of(bytes_of(chunk_no))
        self.contents[image_id, offset] = ids.Content(cid)
        oid = next(iter(self.names.values())).oid_of(image_id, offset, cid)
        return chunk_ref.ChunkRef(cid, oid, image_id, offset, CHUNK)

    def home(self, wanted: chunk_ref.ChunkRef) -> ids.HostId:
        """Return the home of a chunk."""
        return self.ring.home_at(wanted.oid)  # type: ignore[return-value]

    def others(self, wanted: chunk_ref.ChunkRef) -> list[str]:
        """Return all hosts but the home of a chunk."""
        return [name for name in self.hosts if name != self.home(wanted)]

    def placed(
        self,
        epoch: int,
        threshold: int | None = None,
        outer_threshold: int | None = None,
        vnodes: dict[str, int] | None = None,
    ) -> hash_ring.Ring:
        """Return the cloud's table with h1 and h2 in one pod, h3 and h4 in another."""
        weights = vnodes or {}
        hosts = tuple(
            hash_ring.RingHost(
                h.host, h.address, weights.get(h.host, 100), "p1" if h.host < "h3" else "p2"
            )
            for h in self.ring.hosts
        )
        return hash_ring.Ring(epoch, hosts, threshold, outer_threshold)


@contextlib.asynccontextmanager
async def running(
    folder: pathlib.Path,
    names: Sequence[str],
    *args: Any,
    kind: type[Cloud] = Cloud,
    **chosen: Any,
) -> AsyncIterator[Any]:
    """Run hosts for the block."""
    for name in names:
        (folder / name).mkdir(mode=0o700)
    async with trio.open_nursery() as nursery:
        made = kind(folder, nursery, names, *args, **chosen)
        for io in made.disks.values():
            await nursery.start(io.serve)
        for cache in made.caches.values():
            await nursery.start(cache.run)
        try:
            yield made
        finally:
            nursery.cancel_scope.cancel()
    for cache in made.caches.values():
        await cache.aclose()
