# SPDX-License-Identifier: Apache-2.0
"""The exchange of this host: feeds the engine and carries out its actions."""

import itertools
import logging
import math
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import trio

from acstor_agent.cache import cache_files
from acstor_agent.core import counters
from acstor_agent.core.mount import blocked_requests
from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import engine
from acstor_agent.engine_io import background_fetch
from acstor_agent.engine_io import cache_writer
from acstor_agent.engine_io import engine_driver
from acstor_agent.engine_io import map_lookup
from acstor_agent.engine_io import peer_client
from acstor_agent.engine_io import peer_server
from acstor_agent.engine_io import read_request
from acstor_agent.engine_io import source_reader
from acstor_agent.peers import peer_network
from acstor_agent.runtime import disk_io
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.util import log_limit
from acstor_common.util import lru_table
from acstor_common.wire.peer import peer_wire

LOG = logging.getLogger(__name__)

FetchedChunk = read_request.FetchedChunk
Failure = read_request.Failure
Priority = read_request.Priority
Origin = counters.Origin

MAX_PREFETCHES = 64  # chunks of each priority at a time: 4 MiB, as 1 Gbit/s moves in 34 ms
LOG_INTERVAL_S = 60.0

_Segment = tuple[chunk_map.ChunkMap, int, list[chunk_ref.ChunkRef]]
"""Chunk map, segment length, and references to the chunks of a segment."""
SEGMENTS = 64  # segments whose references are cached: a read and its readahead may share one


class Exchange(engine_driver.EngineDriver):
    """The exchange of this host; keep :meth:`run` running."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        core: engine.Engine,
        cache: cache_files.CacheFiles,
        source: base.Source,
        net: peer_network.PeerNetwork,
        tables: engine_driver.RingTables,
        maps: map_lookup.ImageMaps,
        meter: peer_client.TransferMeter | None = None,
    ) -> None:
        super().__init__(core, tables, nursery)
        self._cache = cache
        self._names = core.rights.names
        self._segments: lru_table.LruTable[tuple[ids.ImageId, int], _Segment] = lru_table.LruTable(
            SEGMENTS
        )
        self._log_limit = log_limit.LogLimit(LOG_INTERVAL_S)
        self._source_reader = source_reader.SourceReader(self, source)
        cache_writer.CacheWriter(self, cache)
        self._peer_client = peer_client.PeerClient(self, net, meter)
        self.peer_server = peer_server.PeerServer(self, cache, maps, meter)
        self.on_action(actions.CompleteRead, self._complete)
        self.on_action(actions.ReportStall, self._report_stall)
        self.on_action(actions.ReportBackoff, self._log_backoff)
        self.on_action(
            actions.ForwardAnnouncement, lambda announcement: None
        )  # EventFanout takes them

    def chunk_ref_of(self, image_map: chunk_map.ChunkMap, chunk_no: int) -> chunk_ref.ChunkRef:
        """Return the reference to a chunk of an image."""
        number, at = divmod(chunk_no, self._segment_chunks)
        return self._segment(image_map, number)[at]

    def cids_of_segment(
        self, image_map: chunk_map.ChunkMap, chunk_no: int
    ) -> tuple[int, list[ids.Cid]]:
        """Return the first chunk number of a chunk's segment, and the CIDs of the segment."""
        first = chunk_no - chunk_no % self._segment_chunks
        stop = min(first + self._segment_chunks, len(image_map))
        return first, image_map.cids_between(first, stop)

    def segment_name(
        self, image_map: chunk_map.ChunkMap, first: int, cids: Sequence[ids.Cid]
    ) -> ids.Oid:
        """Return the name of a segment; costs less than references to its chunks."""
        size = image_map.geometry.chunk_bytes
        places = range(first * size, (first + len(cids)) * size, size)
        oids = self._names.oids_of(image_map.image_id, places, cids)
        return segments.names(cids, oids, self._segment_chunks)[0]

    def chunk_refs_of(
        self, image_map: chunk_map.ChunkMap, numbers: Sequence[int]
    ) -> list[chunk_ref.ChunkRef]:
        """Return references to chunks of an image; ``numbers`` are sorted."""
        length = self._segment_chunks
        found: list[chunk_ref.ChunkRef] = []
        for run in _runs(numbers) if numbers else ():
            if length == 1:
                found += self._refs(image_map, run[0], run[-1] + 1)
                continue
            for number in range(run[0] // length, run[-1] // length + 1):
                first = number * length
                begin, stop = max(0, run[0] - first), run[-1] + 1 - first
                found += self._segment(image_map, number)[begin:stop]
        return found

    def _segment(self, image_map: chunk_map.ChunkMap, number: int) -> list[chunk_ref.ChunkRef]:
        key, length = (image_map.image_id, number), self._segment_chunks
        known = self._segments.get_as_used(key)
        if known is None or known[0] is not image_map or known[1] != length:
            stop = min((number + 1) * length, len(image_map))
            known = image_map, length, self._refs(image_map, number * length, stop)
            self._segments[key] = known
        return known[2]

    def _refs(
        self, image_map: chunk_map.ChunkMap, first: int, stop: int
    ) -> list[chunk_ref.ChunkRef]:
        cut, image_id, keys = image_map.geometry, image_map.image_id, image_map.scope_keys
        size, end, length = cut.chunk_bytes, cut.size_bytes, self._segment_chunks
        cids, places = image_map.cids_between(first, stop), range(first * size, stop * size, size)
        oids = self._names.oids_of(image_id, places, cids)
        segment_of: Iterable[tuple[ids.Oid | None, int]] = itertools.repeat((None, 1))
        if length > 1:
            segment_of = segments.names_and_bits(cids, oids, length)
        return [
            chunk_ref.ChunkRef(cid, oid, image_id, at, min(size, end - at), keys, *segment)
            for cid, oid, at, segment in zip(cids, oids, places, segment_of, strict=False)
        ]

    @property
    def _segment_chunks(self) -> int:
        return self.core.context.ring.table.segment_chunks

    def chunk_ref_at(
        self,
        image_id: ids.ImageId,
        keys: chunk_map.ScopeKeys,
        offset: int,
        length: int,
        cid: ids.Cid,
    ) -> chunk_ref.ChunkRef:
        """Return the reference to a range of an image or its boot image."""
        oid = self._names.oid_of(image_id, offset, cid)
        return chunk_ref.ChunkRef(cid, oid, image_id, offset, length, keys)

    @property
    def own_host(self) -> ids.HostId:
        """The name of this host."""
        return self.core.context.ring.own_host

    @property
    def near_hosts(self) -> int:
        """The number of hosts in this host's group."""
        return max(1, len(self.core.context.ring.near.hosts))

    def is_home_of(self, ref: chunk_ref.ChunkRef) -> bool:
        """Return whether this host is the home of a chunk."""
        return self.core.context.ring.is_home(ref.ring_position)

    def holders_bitmap(self, segment: ids.Oid) -> int:
        """Return the bitmap of the segment's chunks that holders other than the home have."""
        return self.core.context.holders_bitmap(segment)

    def has_chunk(self, cid: ids.Cid) -> bool:
        """Return whether a chunk is in the cache."""
        return cid in self._cache

    def submit_read(
        self,
        refs: Sequence[chunk_ref.ChunkRef],
        priority: Priority = Priority.GUEST,
        deadline_s: float = math.inf,
        guest_wait: blocked_requests.Wait | None = None,  # gets each failure of all providers
        is_retried: bool = True,  # retry while bytes may still arrive, if a guest waits
    ) -> read_request.ReadRequest:
        """Fetch chunks that are not in the cache; returns at once."""
        request = read_request.ReadRequest(self, refs, deadline_s, guest_wait)
        until_s, guest = self.clock() + deadline_s, disk_io.current_guest()
        if why := self.handle_event(
            self.core.request_chunks, refs, priority, request, until_s, is_retried, guest
        ):
            request.cancel()  # what was started before the engine failed
            request.complete(actions.CompleteRead(request, [], Failure.UNREACHABLE, why))
        return request

    async def fetch_chunk(
        self,
        ref: chunk_ref.ChunkRef,
        priority: Priority,
        deadline_s: float = math.inf,
        is_retried: bool = True,
    ) -> FetchedChunk:
        """Return a chunk from the cache, or else as :meth:`submit_read` fetches it."""
        cached = await self._cache.read_chunk(ref.cid) if ref.cid in self._cache else None
        if cached is not None:
            return FetchedChunk(cached, Origin.CACHE)
        with self.submit_read((ref,), priority, deadline_s, is_retried=is_retried) as request:
            return (await request.wait())[0]

    def background_fetch(self, priority: Priority) -> background_fetch.BackgroundFetch[Any]:
        """Return a background fetch; ``priority`` is one of the engine's prefetch limits."""
        return background_fetch.BackgroundFetch(self, priority)

    def prefetch_soon(self, refs: Sequence[chunk_ref.ChunkRef]) -> None:
        """Prefetch chunks that a guest is about to read; failures are not reported."""
        cached = self._cache.contents
        refs = [ref for ref in refs if ref.cid not in cached]
        if refs:
            self.handle_event(self.core.request_chunks, refs, Priority.READAHEAD, None)

    def announcement_received(self, host: ids.HostId, message: peer_wire.Announcement) -> None:
        """Take an announcement of a peer."""
        kinds = (peer_wire.Advertise, peer_wire.Gone, peer_wire.EvictionHint)
        chunks = [message.chunks if isinstance(message, kind) else () for kind in kinds]
        self.handle_event(self.core.announcement_received, host, *chunks, message.segment_chunks)

    def charge_lookups(self, host: ids.HostId, lookups: int) -> bool:
        """Charge a peer for look-ups of its announcements; return whether it may cause more."""
        limits = self.core.context.announcements.limits
        limits.charge_lookups(host, lookups, self.clock())
        return limits.lookups_left(host, self.clock()) > 0

    def protocol_violated(self, host: ids.HostId, error: errors.RemoteProtocolError) -> None:
        """Record that an asked peer broke the protocol."""
        self.handle_event(self.core.protocol_violated, host, error.why)

    def announcement_lost(self, host: ids.HostId) -> None:
        """Record that a peer may not have received announcements."""
        self.handle_event(self.core.announcement_lost, host)

    def peer_dialled(self, host: ids.HostId, round_trip_s: float) -> None:
        """Record the round-trip time of a new connection to a peer."""
        self.handle_event(self.core.peer_dialled, host, round_trip_s)

    def chunk_evicted(self, cid: ids.Cid) -> tuple[ids.Oid, ...]:
        """Record that a chunk left the cache; return the names that it had."""
        names = self._names.names_of(cid)
        self.handle_event(self.core.chunks_evicted, (cid,))
        return names

    def list_announced(self) -> list[segments.Chunks]:
        """Return all chunks that peers have announced, for an image attached later."""
        return self.core.context.locations.list_announced()

    def list_backoffs(self) -> dict[ids.HostId, float]:
        """Return the hosts in backoff, with the seconds left; thread-safe."""
        return self.core.context.peers.list_backoffs(self.clock())

    def send_announcement(self, host: ids.HostId, message: peer_wire.Notification) -> None:
        """Send a message to a host on the table and not in backoff; never waits or fails."""
        self._peer_client.send_announcement_now(host, message, self.clock())

    def _complete(self, complete: actions.CompleteRead) -> None:
        request: Any = complete.token
        if complete.failure is not None:
            complete = complete._replace(why=self._with_last_error(request, complete.why))
        if complete.failure is Failure.LOST:
            image_id = request.refs[0].image_id
            suppressed = self._log_limit.take_line((image_id, "lost"), self.clock())
            if suppressed is not None:
                LOG.error(
                    "image %s: data is lost, reads of it fail with I/O errors: "
                    "%s: %s (and %d like it)",
                    *(image_id, request.description, complete.why, suppressed),
                )
        request.complete(complete)

    def _report_stall(self, stall: actions.ReportStall) -> None:
        request: Any = stall.token
        why = self._with_last_error(request, stall.why)
        if (absent := stall.absent) is not None:
            key = absent.image_id, "absent"
            if self._log_limit.take_line(key, self.clock()) is not None:
                LOG.warning(
                    "image %s: data of it is unavailable, guests that read it wait and get I/O "
                    "errors in %.0f s: %s: %s",
                    *(absent.image_id, stall.lost_in_s, read_request.describe_chunk(absent), why),
                )
        if request.guest_wait is not None:
            request.guest_wait.why = why

    def _with_last_error(self, request: read_request.ReadRequest, why: str) -> str:
        last_error = self._source_reader.last_errors.get(request.refs[0].image_id)
        return f"{why}; {last_error}" if last_error else why

    def _log_backoff(self, backoff: actions.ReportBackoff) -> None:
        LOG.warning("%s is in backoff for %.1f s: %s", backoff.host, backoff.for_s, backoff.why)


def _runs(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    if numbers[-1] - numbers[0] == len(numbers) - 1:  # nearly always
        yield numbers
        return
    begin = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield numbers[begin:at]
            begin = at
