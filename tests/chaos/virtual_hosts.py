# SPDX-License-Identifier: Apache-2.0
"""Hosts in virtual time: a worker's real parts, joined as the daemon joins them.

Simulated are the kernel (guests call mirrors), the sockets (``memory_network``), the source, and
threads, whose work is done at once and then takes some virtual time.
"""

import contextlib
import functools
import pathlib
import random
import time
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import trio

from acstor_agent.cache import cache_files
from acstor_agent.cloud import ring_store
from acstor_agent.core.boot import boot_memory
from acstor_agent.core.cloud import interface_traffic
from acstor_agent.core.images import prefetcher
from acstor_agent.core.images import readahead
from acstor_agent.core.mount import inodes
from acstor_agent.engine import engine
from acstor_agent.engine import identity
from acstor_agent.engine import settings as settings_
from acstor_agent.engine.ring import ring_view
from acstor_agent.engine.serve import authorization
from acstor_agent.engine_io import exchange
from acstor_agent.engine_io import peer_server
from acstor_agent.images import event_fanout
from acstor_agent.images.image import chunk_lookup
from acstor_agent.images.image import mirrors
from acstor_agent.images.image import reattach
from acstor_agent.images.image import usage
from acstor_agent.images.keep import background_fill
from acstor_agent.images.keep import boot_deferral
from acstor_agent.images.keep import hydration
from acstor_agent.images.keep import pins
from acstor_agent.images.maps import detached_maps
from acstor_agent.images.read import advertised_prefetch
from acstor_agent.images.read import boot_session
from acstor_agent.images.read import mirror
from acstor_agent.images.read import read_admission
from acstor_agent.peers import peer_network
from acstor_agent.sources import base
from acstor_agent.sources import source_client
from acstor_agent.sources.wrappers import deadline_source
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.wire.peer import peer_wire
from acstor_policies import place_identity
from tests.fakes import manual_clock
from tests.fakes import memory_network
from tests.fakes import reading_source

T = TypeVar("T")

SILENCE_S = 2.0
PATIENCE_S = 10.0
LOST_AFTER_S = 900.0
EPOCH_S = 1.8e9
"""The right time of day at the start of a run."""
ROOMY = peer_network.PeerLimits(hello_s=SILENCE_S, silence_s=SILENCE_S)
TIGHT = peer_network.PeerLimits(
    incoming=3,
    of_host=1,
    outgoing=2,
    requests=6,
    host_requests=2,
    answer_bytes=200 * geometry.KIB,
    host_answer_bytes=64 * geometry.KIB,
    hello_s=SILENCE_S,
    idle_s=3.0,
    silence_s=SILENCE_S,
    serve_s=5.0,
)
"""Small limits: connections are displaced and requests wait all the time."""


class Source(reading_source.ReadingSource):
    """A source with all images that fails on demand.

    :param blobs: its content
    """

    def __init__(self, where: str, blobs: dict[base.Blob, bytes], rng: random.Random) -> None:
        self._where, self.blobs = where, blobs
        self.way = ""
        self.delay_s = 0.005
        self.read_bytes = self.requests = 0
        self._rng = rng
        self._mended = trio.Event()

    @property
    def location(self) -> str:
        """Its name."""
        return self._where

    def break_(self, way: str) -> None:
        """Fail from now on; an empty way ends the fault."""
        self.way = way
        if not way:
            self._mended.set()
            self._mended = trio.Event()

    async def size_bytes(self, blob: base.Blob) -> int:
        """Return a size, under the present fault."""
        await self._answer(blob)
        return len(self.blobs[blob])

    async def read(
        self, blob: base.Blob, offset: int, length: int, content: ids.Content | None = None
    ) -> bytes:
        """Return bytes, under the present fault."""
        way = await self._answer(blob)
        data = self.blobs[blob][offset : offset + length]
        if len(data) < length:
            raise errors.ChunkMissing(
                blob.describe_range(offset, length), self.location, "it ends before"
            )
        if blob.kind is base.BlobKind.IMAGE:
            self.read_bytes += length
        if way == "lies" and data:
            at = self._rng.randrange(length)
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data

    async def aclose(self) -> None:
        """Release nothing."""

    async def _answer(self, blob: base.Blob) -> str:
        """Take some time; return the way of the response."""
        self.requests += 1
        way = self.way
        slow = 20.0 if way == "slow" else 1.0
        await trio.sleep(self.delay_s * slow * (0.5 + self._rng.random()))
        if way == "hangs":
            await self._mended.wait()
            raise errors.SourceUnreachable(blob.file_name, self.location, "the connection broke")
        if way == "fails" or (way == "flaps" and self._rng.random() < 0.5):
            raise errors.SourceUnreachable(blob.file_name, self.location, "by order")
        if way == "refuses":
            raise errors.ChunkRefused(blob.file_name, self.location, "by order")
        if way == "gone" or blob not in self.blobs:
            raise errors.ChunkMissing(blob.file_name, self.location, "there is no such blob")
        return way


class Server:
    """Serves other hosts; lies on demand."""

    def __init__(self, real: peer_server.PeerServer, rng: random.Random) -> None:
        self.requests_received = real.requests_received
        self.requests_cancelled = real.requests_cancelled
        self.priorities_raised = real.priorities_raised
        self.connection_ended, self.answers_drained = real.connection_ended, real.answers_drained
        self.is_lying = False
        self._send, self._rng = real._send, rng
        real._send = self._say  # type: ignore[method-assign]

    def _say(self, connection: Any, answers: list[Any]) -> None:
        self._send(connection, [self._said(answer) for answer in answers])

    def _said(self, answer: Any) -> Any:
        if not self.is_lying or not isinstance(answer, peer_wire.Chunk) or not len(answer.data):
            return answer
        wrong = bytearray(answer.data)
        wrong[self._rng.randrange(len(wrong))] ^= 1
        return answer._replace(data=wrong)


class Settings:
    """Settings of all hosts of a run."""

    def __init__(self, rng: random.Random, is_calm: bool) -> None:
        self.cache_bytes = (16 if is_calm else rng.choice((1, 2, 4, 16))) * geometry.MIB
        self.copies_limit = rng.choice((0, 1, 2))
        self.topology = rng.choice((ring_view.on_ring, None))
        self.unmatched_limit = rng.choice((0, 64, 512))
        self.read_ahead_bytes = rng.choice((0, 256 * 1024))
        self.may_refer = rng.random() < 0.7
        self.is_keeping = rng.random() < 0.4
        self.limits = ROOMY if is_calm or rng.random() < 0.7 else TIGHT
        self.by_content = rng.random() < 0.7
        others = random.Random(rng.getstate()[1][0])
        self.by_oid = not self.by_content and others.random() < 0.5
        self.homes_keep = others.random() < 0.2


class Host:
    """A worker, created again at each start."""

    def __init__(
        self,
        name: str,
        address: str,
        folder: pathlib.Path,
        nursery: trio.Nursery,
        *,
        sources: Sequence[Source],
        settings: Settings,
        rng: random.Random,
    ) -> None:
        self.name, self.address, self._nursery, self._settings = name, address, nursery, settings
        here, clock = ids.HostId(name), manual_clock.FunctionClock(trio.current_time)
        self._named: identity.Identity = identity.ByContent()
        if not settings.by_content:
            self._named = place_identity.ByOid() if settings.by_oid else place_identity.ByPlace()
        for part in ("maps", "state"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        self.pins = pins.ImagePins(folder / "state", settings.cache_bytes, geometry.MIB)
        if settings.is_keeping:
            self.pins.load()
        self.cache_dir = folder / "cache"
        self.cache = cache_files.CacheFiles.open(
            self.cache_dir, settings.cache_bytes, geometry.MIB // 4, pins=self.pins.pins
        )
        self.pins.cache = self.cache
        self.rings = ring_store.RingStore(folder / "ring.json", None, 60.0, clock)
        self.net = peer_network.PeerNetwork(
            here,
            admission=self.rings,
            limits=settings.limits,
        )
        self.net.endpoint = memory_network.Endpoint(self.net._accept)
        self.source = source_client.SourceClient(
            [deadline_source.DeadlineSource(source, 2.0) for source in sources], jitter=rng.random
        )
        self.images = mirrors.Mirrors(
            folder / "maps", self.source, inodes.Inodes(inodes.keyed(bytes(inodes.KEY_BYTES)))
        )
        self.images.set_mirror_factory(self._make_mirror)
        looked_up = detached_maps.DetachedMaps(self.source, nursery)
        self.naming = chunk_lookup.ChunkLookup(self.images, looked_up, self.pins, self.rings)
        self._named.record_cached_at_start(self.cache.iter_cids())
        core = engine.Engine(
            here,
            self.rings.current_ring(),
            cache=self.cache,
            rights=authorization.Authorization(
                here, self.naming, self._named, attached=self.images.attached_now
            ),
            rng=rng,
            settings=settings_.Settings(
                timeout_s=PATIENCE_S,
                background_limit=8,
                copies_limit=settings.copies_limit,
                lost_after_s=LOST_AFTER_S,
                has_others=True,
                topology=settings.topology,
                homes_keep=settings.homes_keep,
                may_refer=settings.may_refer,
            ),
        )
        self.chunks = exchange.Exchange(
            nursery,
            core=core,
            cache=self.cache,
            source=self.source,
            net=self.net,
            tables=self.rings,
            maps=self.naming,
        )
        self.waiting = read_admission.ReadAdmission()
        self.boots = boot_session.BootSessions(
            folder / "maps",
            source=self.source,
            chunks=self.chunks,
            cache=self.cache,
            nursery=nursery,
            memory=boot_memory.BootMemory(geometry.MIB, 5.0, 60.0),
            frame_timeout_s=PATIENCE_S,
            clock=clock,
        )
        self.server = Server(self.chunks.peer_server, rng)
        self.uses = usage.ImageUsage(self.images, set, set, clock)
        self.news = event_fanout.EventFanout(self.chunks, self.images, self.cache, self.uses)
        self.net.set_callbacks(
            on_announcement=self.news.announcement_received,
            on_announcement_lost=self.chunks.announcement_lost,
            on_dialled=self.chunks.peer_dialled,
        )
        self.opened = reattach.Reattach(self.images, self.waiting, float("inf"), LOST_AFTER_S)
        self._keep_whole(rng)

    def read_counters(self) -> interface_traffic.InterfaceSample:
        """Return the counters of a link of 100 Mbit/s without traffic."""
        return interface_traffic.InterfaceSample(trio.current_time(), [], 12_500_000)

    def _keep_whole(self, rng: random.Random) -> None:
        filler = background_fill.BackgroundFill(
            self.images,
            self.pins,
            self.chunks,
            boot_deferral.BootDeferral(self.images, self.boots, 2.0, 20.0),
            self.waiting,
            self,
            first_chunk=rng.randrange(64),
            limits=background_fill.FillLimits(2e6),
        )
        self.hydration = hydration.Hydration(self.images, self.uses, self.pins, filler, clock=time)

    async def _make_mirror(self, image_map: chunk_map.ChunkMap) -> mirror.Mirror:
        boots = self.boots.boots_of(image_map)
        index = self._named.make_index(image_map)
        make_policy = functools.partial(
            prefetcher.Prefetcher, unmatched_limit=self._settings.unmatched_limit
        )
        ahead = advertised_prefetch.AdvertisedPrefetch(
            image_map, index, self.chunks, self._nursery, boots, make_policy
        )
        ahead.chunks_advertised(self.chunks.list_announced())
        return mirror.Mirror(
            image_map,
            cache=self.cache,
            chunks=self.chunks,
            ahead=readahead.ReadAhead(self._settings.read_ahead_bytes),
            prefetch=ahead,
            boots=boots,
            reads=self.waiting,
            total=self.images.reads,
        )

    async def start(self) -> None:
        """Start the daemon's tasks."""
        start = self._nursery.start_soon
        await self._nursery.start(self.cache.run)
        await self._nursery.start(self.net.run)
        await self._nursery.start(self.net.serve_forever, self.server, [])
        for run in (self.boots.run, self.chunks.run, self.uses.run):
            start(run)
        if self._settings.is_keeping:
            start(self.hydration.run)

    def begin(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run work on this host until it is killed."""
        self._nursery.start_soon(work, *args)

    def tables(self) -> dict[str, int]:
        """Return the sizes of all tables that are empty on an idle host."""
        return {
            "transfers": len(self.chunks.core),
            "reads of the source": len(self.chunks._source_reader._scopes),
            "asked": len(self.chunks._peer_client._sent),
            "reads for peers": len(self.chunks.peer_server._reads),
            "begun for peers": sum(
                requester.begun for requester in self.chunks.core.requests.links.requesters.values()
            ),
            "requests of peers": len(self.chunks.core.requests),
            "waiting": len(self.waiting),
            "lines": len(self.waiting._lines),
            "attaching": len(self.images._attaching),
        }


@contextlib.asynccontextmanager
async def running(
    network: memory_network.Network, make: Callable[[trio.Nursery], Host]
) -> AsyncIterator[Host]:
    """Run a host until the block ends, then kill it."""
    async with trio.open_nursery() as nursery:
        host = make(nursery)
        ip, port = host.address.split(":")
        with network.listening(host.name, (ip, int(port)), host.net.endpoint):
            try:
                await host.start()
                yield host
            finally:
                nursery.cancel_scope.cancel()
                network.break_all(host.name)
    with trio.CancelScope(shield=True):
        await host.cache.aclose()


@contextlib.contextmanager
def wall_clocks(off_s: Mapping[str, float]) -> Iterator[None]:
    """Give each host its own time of day in virtual time.

    :param off_s: clock error of each host
    """
    real = time.time

    def now_s() -> float:
        return EPOCH_S + trio.current_time() + off_s.get(memory_network.here(), 0.0)

    time.time = now_s
    try:
        yield
    finally:
        time.time = real


@contextlib.contextmanager
def no_threads(rng: random.Random) -> Iterator[None]:
    """Run the work of threads at once, for some virtual time: threads stop no clock."""
    real = trio.to_thread.run_sync

    async def run_sync(
        function: Callable[..., T],
        *args: object,
        limiter: trio.CapacityLimiter | None = None,
        **_: object,
    ) -> T:
        async with limiter or contextlib.AsyncExitStack():
            await trio.sleep(0.002 * rng.random())
            return function(*args)

    trio.to_thread.run_sync = functools.wraps(real)(run_sync)
    try:
        yield
    finally:
        trio.to_thread.run_sync = real
