# SPDX-License-Identifier: Apache-2.0
"""One host without mount, network or processes: cache, exchange, mirrors, sources."""

import contextlib
import math
import pathlib
import random
import types
from collections.abc import AsyncIterator
from collections.abc import Iterable
from collections.abc import Mapping

import trio

from acstor_agent.cache import cache_files
from acstor_agent.core.boot import boot_memory
from acstor_agent.core.images import readahead
from acstor_agent.core.images import replica_placement
from acstor_agent.core.mount import inodes
from acstor_agent.engine import content_index
from acstor_agent.engine import engine
from acstor_agent.engine import identity
from acstor_agent.engine import settings
from acstor_agent.engine.serve import authorization
from acstor_agent.engine_io import exchange
from acstor_agent.images import event_fanout
from acstor_agent.images.image import chunk_lookup
from acstor_agent.images.image import mirrors
from acstor_agent.images.image import reattach
from acstor_agent.images.image import usage
from acstor_agent.images.keep import pins
from acstor_agent.images.maps import detached_maps
from acstor_agent.images.read import advertised_prefetch
from acstor_agent.images.read import boot_session
from acstor_agent.images.read import mirror
from acstor_agent.images.read import read_admission
from acstor_agent.peers import peer_network
from acstor_agent.runtime import disk_io
from acstor_agent.sources import base
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_policies import topologies
from tests.fakes import admission
from tests.fakes import chunk_maps
from tests.fakes import faulty_source
from tests.fakes import manual_clock

CHUNK = 16 * geometry.KIB
IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OTHER = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
DEADLINE_S = 5.0
NO_HOSTS = hash_ring.Ring(0, ())
PIN_LIMITS = pins.PinLimits()
BOOT_LIMIT_BYTES, BOOT_IDLE_S, BOOT_LONGEST_S = geometry.MIB, 60.0, 600.0


def image_bytes(length: int, seed: int = 1) -> bytes:
    """Return random bytes."""
    return random.Random(seed).randbytes(length)


def map_of(
    data: bytes,
    image_id: ids.ImageId = IMAGE,
    chunk_bytes: int = CHUNK,
    os_hash: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH,
) -> bytes:
    """Return the chunk map of an image."""
    cut = geometry.Geometry(len(data), chunk_bytes)
    chunks = (data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes))
    cids = (ids.cid_of(chunk) if any(chunk) else ids.ZERO_CID for chunk in chunks)
    return chunk_maps.made(image_id, cut, cids, os_hash)


def boot_image_of(
    data: bytes,
    trace: Iterable[int],
    image_id: ids.ImageId = IMAGE,
    revision: int = 1,
    of_profiles: Mapping[str, Iterable[int]] = types.MappingProxyType({}),
) -> bytes:
    """Return the boot image of an image, two chunks a frame."""
    cut = geometry.Geometry(len(data), CHUNK)
    of = boot_image.Binding(image_id, cut)
    writer = boot_image.Writer(of, revision, frame_bytes=2 * CHUNK)
    for profile, chunk_nos in {"": trace, **of_profiles}.items():
        key = ids.profile_key_of(profile)
        for chunk_no in chunk_nos:
            start = cut.chunk_offset(chunk_no)
            writer.add(chunk_no, data[start : start + cut.chunk_length(chunk_no)], key)
    return b"".join(writer.iter_parts())


class OneTable:
    """A v-node table that never changes."""

    def __init__(self, table: hash_ring.Ring) -> None:
        self._table = table

    def current_ring(self) -> hash_ring.Ring:
        """Return the table."""
        return self._table

    def former_ring(self) -> None:
        """Return None: there is no former table."""


class OneHost:
    """A host's components, and the content of its source.

    ``source`` may be replaced by a faulty one before any read.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        nursery: trio.Nursery,
        limit_bytes: int,
        is_keeping: bool,
        shares: replica_placement.ReplicaPlacement | None,
        table: hash_ring.Ring,
        pin_limits: pins.PinLimits,
    ) -> None:
        self.blobs: dict[base.Blob, bytes] = {}
        self.source = faulty_source.FaultySource(faulty_source.MemorySource(self.blobs))
        (folder / "maps").mkdir(exist_ok=True)
        self.maps = folder / "maps"
        self.io = disk_io.DiskIo()
        self.pins = pins.ImagePins(
            folder, limit_bytes, geometry.MIB, shares=shares, limits=pin_limits
        )
        if is_keeping:
            self.pins.load()
        self.cache = cache_files.CacheFiles.open(
            folder / "cache", limit_bytes, geometry.MIB, io=self.io, pins=self.pins.pins
        )
        self.pins.cache = self.cache
        here = ids.HostId("h1")
        self.inode_numbers = inodes.Inodes(inodes.keyed(bytes(inodes.KEY_BYTES)))
        self.mirrors = mirrors.Mirrors(self.maps, base.Wrapper(self.source), self.inode_numbers)
        self.mirrors.set_mirror_factory(self._mirror)
        looked_up = detached_maps.DetachedMaps(self.source, nursery)
        self.naming = chunk_lookup.ChunkLookup(self.mirrors, looked_up, self.pins, OneTable(table))
        core = engine.Engine(
            here,
            table,
            cache=self.cache,
            rights=authorization.Authorization(here, self.naming, identity.ByContent()),
            rng=random.Random(1),
            settings=settings.Settings(background_limit=4, topology=topologies.all_hosts),
        )
        self.net = peer_network.PeerNetwork(here, admission=admission.Admission())
        self.chunks = exchange.Exchange(
            nursery,
            core=core,
            cache=self.cache,
            source=base.Wrapper(self.source),
            net=self.net,
            tables=OneTable(table),
            maps=self.naming,
        )
        self.news = event_fanout.EventFanout(
            self.chunks, self.mirrors, self.cache, usage.ImageUsage(self.mirrors, set, set)
        )
        self.ahead: readahead.Predictor = readahead.ReadAhead(0)
        self.waiting = read_admission.ReadAdmission(deadline_s=DEADLINE_S)
        self.now_s = 0.0
        self.memory = boot_memory.BootMemory(BOOT_LIMIT_BYTES, BOOT_IDLE_S, BOOT_LONGEST_S)
        self.boots = boot_session.BootSessions(
            self.maps,
            source=self.source,
            chunks=self.chunks,
            cache=self.cache,
            nursery=nursery,
            memory=self.memory,
            frame_timeout_s=DEADLINE_S,
            clock=manual_clock.FunctionClock(lambda: self.now_s),
        )
        self.opened = reattach.Reattach(self.mirrors, self.waiting, DEADLINE_S)
        self._nursery = nursery

    async def _mirror(self, image_map: chunk_map.ChunkMap) -> mirror.Mirror:
        boots = self.boots.boots_of(image_map)
        index = content_index.ContentIndex(image_map)
        return mirror.Mirror(
            image_map,
            cache=self.cache,
            chunks=self.chunks,
            ahead=self.ahead,
            prefetch=advertised_prefetch.AdvertisedPrefetch(
                image_map, index, self.chunks, self._nursery, boots
            ),
            boots=boots,
            reads=self.waiting,
            total=self.mirrors.reads,
        )

    def add(self, data: bytes, image_id: ids.ImageId = IMAGE) -> None:
        """Add an image and its map to the source."""
        self.blobs[base.Blob(image_id, base.BlobKind.IMAGE)] = data
        self.blobs[base.Blob(image_id, base.BlobKind.CHUNK_MAP)] = map_of(data, image_id)

    def add_boot_image(
        self,
        data: bytes,
        trace: Iterable[int],
        image_id: ids.ImageId = IMAGE,
        revision: int = 1,
        of_profiles: Mapping[str, Iterable[int]] = types.MappingProxyType({}),
    ) -> bytes:
        """Add the boot image of an image to the source; return it."""
        raw = boot_image_of(data, trace, image_id, revision, of_profiles)
        self.blobs[base.Blob(image_id, base.BlobKind.BOOT_IMAGE)] = raw
        return raw


@contextlib.asynccontextmanager
async def one_host(
    folder: pathlib.Path,
    limit_bytes: int = 8 * geometry.MIB,
    *,
    data: bytes = b"",
    is_keeping: bool = False,
    shares: replica_placement.ReplicaPlacement | None = None,
    table: hash_ring.Ring = NO_HOSTS,
    pin_limits: pins.PinLimits = PIN_LIMITS,
) -> AsyncIterator[OneHost]:
    """Run a host in ``folder`` for the block; its state survives on disk.

    :param data: content of IMAGE in the source
    :param is_keeping: load the pins of earlier runs
    :param shares: replica placement of pinned images; None: the host keeps all of each
    """
    async with trio.open_nursery() as nursery:
        host = OneHost(folder, nursery, limit_bytes, is_keeping, shares, table, pin_limits)
        if data:
            host.add(data)
        await nursery.start(host.cache.run)
        nursery.start_soon(host.chunks.run, math.inf)
        try:
            yield host
        finally:
            nursery.cancel_scope.cancel()
    await host.cache.aclose()
